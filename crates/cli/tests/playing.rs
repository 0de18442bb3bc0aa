//! `halocline trace play`: the requests of benchmarks from real processes, through mounted volumes.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::process::Command;

use halocline_api::config::{VolumeKind, VolumeShape};
use halocline_api::control::metrics::Section;
use halocline_storage::volume::Origin;
use halocline_testkit::program;
use halocline_testkit::sandbox::{Sandbox, said};
use halocline_testkit::scratch::Scratch;
use serde_json::Value;

/// The benchmarks, small: requests, bytes of their file that are read or written, and whether they read.
const BENCHMARKS: [(&str, &[&str]); 5] = [
    ("ior", &["ior", "-p", "4", "-b", "256K", "-t", "64K", "-s", "2", "-z", "7", "-r"]),
    ("own files", &["ior", "-p", "3", "-b", "192K", "-t", "64K", "-F"]),
    (
        "hpio",
        &["hpio", "-p", "4", "--count", "8", "--size", "20K", "--spacing", "4K", "--op", "read"],
    ),
    ("tile", &["tile", "--tiles", "2x2", "--size", "4x8", "--element", "4K", "--overlap", "1x2"]),
    ("btio", &["btio", "--class", "s", "-p", "4", "--variant", "simple", "--verify"]),
];

/// Each process is a real one, and the mount gets from each what the trace says. Besides, the last bytes of each file are
/// read first, to see whose it is.
#[test]
fn what_benchmarks_ask_for_is_asked_by_real_processes_through_a_volume() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let shown = |trace: &str| -> Value {
        serde_json::from_str(&scratch.succeed(&["trace", "show", trace, "--json"])).unwrap()
    };
    let volume = ["--origin-volume", "striped", "--origin-servers", "3", "--origin-stripe", "16K"];
    for (number, (name, made)) in BENCHMARKS.into_iter().enumerate() {
        let (volume_dir, cache) = (format!("volume{number}"), format!("cache{number}"));
        for dir in [&volume_dir, &cache] {
            fs::create_dir(scratch.path(dir)).unwrap();
        }
        scratch.succeed(&[&["trace", "make"], made, &["-o", "made.hct"]].concat());
        let made = shown("made.hct");
        let mount = ["mount", &volume_dir, "mnt", "--cache", &cache, "--size", "64M"];
        scratch.succeed(&[&mount[..], &volume].concat());
        let play = ["trace", "play", "made.hct", "mnt"];
        let prepared = scratch.succeed(&[&play[..], &["--prepare", "--json"]].concat());
        let prepared: Value = serde_json::from_str(&prepared).unwrap();
        let ends = made["files"].as_array().unwrap().iter();
        let ends = ends.filter(|file| file["reads"] != 0).map(|file| file["end"].as_u64().unwrap());
        assert_eq!(prepared["prepared_bytes"], ends.sum::<u64>(), "{name}");
        scratch.succeed(&["umount", "mnt"]);

        let recorded = ["--direct", "--trace", "played.hct"];
        scratch.succeed(&[&mount[..], &recorded].concat());
        let played: Value =
            serde_json::from_str(&scratch.succeed(&[&play[..], &["--json"]].concat())).unwrap();
        scratch.succeed(&["umount", "mnt"]);
        assert_eq!(Section::find("halocline trace play").unwrap().undescribed(&played), [""; 0]);
        assert_eq!(
            (&played["requests"], &played["prepared_bytes"]),
            (&made["requests"], &0.into())
        );
        assert_eq!(played["read_bytes"], made["read_bytes"], "{name}");
        assert_eq!(played["written_bytes"], made["write_bytes"], "{name}");
        assert!(played["seconds"].as_f64() > Some(0.0), "{played}");
        // Beside them, the last bytes of each file were read, to see whose file it is.
        let got = shown("played.hct");
        let of = |shown: &Value, key: &str| shown[key].as_u64().unwrap();
        let files = |shown: &Value| shown["files"].as_array().unwrap().len() as u64;
        let looked = of(&got, "requests") - of(&made, "requests");
        assert!(looked <= files(&made), "{name}: {looked} requests more in {got}");
        let processes = of(&made, "processes") + u64::from(looked > 0);
        assert_eq!(of(&got, "processes"), processes, "{name}");
        assert_eq!(
            (of(&got, "write_bytes"), files(&got)),
            (of(&made, "write_bytes"), files(&made))
        );
        assert_eq!(got["completeness"]["partial"], false, "{name}");
    }
}

fn sandbox_with(trace: &[&str]) -> Sandbox {
    let sandbox = Sandbox::new(program!());
    fs::create_dir(sandbox.path("dir")).unwrap();
    let made = sandbox.halocline(&[&["trace", "make"], trace, &["-o", "t.hct"]].concat());
    assert!(made.status.success(), "{}", said(&made));
    sandbox
}

#[track_caller]
fn refused(sandbox: &Sandbox, args: &[&str], what: &str) {
    let output = sandbox.halocline(&[&["trace", "play"], args].concat());
    assert_eq!(output.status.code(), Some(2), "{args:?}: {}", said(&output));
    assert!(said(&output).contains(what), "{args:?}: {}", said(&output));
}

#[test]
fn files_of_others_are_left_as_they_are() {
    let sandbox = sandbox_with(&["ior", "-p", "2", "-b", "64K", "-t", "16K", "-r"]);
    let file = sandbox.path("dir/ior.0");
    let outside = sandbox.path("outside");
    fs::write(&outside, vec![0; 1 << 20]).unwrap();
    for bytes in [vec![0; 300_000], b"mine".to_vec()] {
        fs::write(&file, &bytes).unwrap();
        refused(&sandbox, &["t.hct", "dir"], "no file that trace play made");
        assert_eq!(fs::read(&file).unwrap(), bytes);
    }
    fs::remove_file(&file).unwrap();
    symlink(&outside, &file).unwrap();
    refused(&sandbox, &["t.hct", "dir"], "ior.0");
    fs::remove_file(&file).unwrap();
    assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
    refused(&sandbox, &["t.hct", "dir"], "no file that trace play made");
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    refused(&sandbox, &["t.hct", "dir"], "ior.0");
    fs::remove_dir(&file).unwrap();
    assert_eq!(fs::read(&outside).unwrap(), vec![0; 1 << 20]);
    let played = sandbox.halocline(&["trace", "play", "t.hct", "dir"]);
    assert!(played.status.success(), "{}", said(&played));
    // Again, and with a byte that somebody changed meanwhile.
    let played = sandbox.halocline(&["trace", "play", "t.hct", "dir"]);
    assert!(played.status.success(), "{}", said(&played));
    let read_only =
        ["trace", "make", "ior", "-p", "2", "-b", "64K", "-t", "16K", "-r", "--no-write"];
    sandbox.halocline(&[&read_only[..], &["-o", "read.hct"]].concat());
    std::os::unix::fs::FileExt::write_all_at(
        &File::options().write(true).open(&file).unwrap(),
        b"?",
        70_000,
    )
    .unwrap();
    let played = sandbox.halocline(&["trace", "play", "read.hct", "dir"]);
    assert_eq!(played.status.code(), Some(1), "{}", said(&played));
    assert!(said(&played).contains("ior.0: 1 byte is not what was written"), "{}", said(&played));
    assert!(said(&played).contains("offset 70000"), "{}", said(&played));
}

/// Regression: what an earlier play had left out, because it was interrupted or its trace has gaps, was taken for what the
/// file system had lost.
#[test]
fn holes_of_an_earlier_play_are_filled_and_what_was_lost_is_told() {
    let sandbox = sandbox_with(&["ior", "-p", "2", "-b", "64K", "-t", "16K"]);
    let trace = |name: &str, rows: &str| {
        let csv = format!("time_s,process,file,op,offset,length\n{rows}");
        fs::write(sandbox.path("t.csv"), csv).unwrap();
        let made = sandbox.halocline(&["trace", "import", "t.csv", "-o", name]);
        assert!(made.status.success(), "{}", said(&made));
    };
    trace("late.hct", "0,0,/f,write,40960,5000\n1,0,/f,write,10000,77\n");
    trace("early.hct", "0,0,/f,read,0,4096\n1,0,/f,read,8192,20000\n");
    trace("whole.hct", "0,0,/g,write,4096,4096\n1,1,/g,write,0,4096\n");
    trace("again.hct", "0,0,/g,read,0,8192\n");
    let play = |name: &str| sandbox.halocline(&["trace", "play", name, "dir", "--json"]);
    for (name, prepared) in [("late.hct", 0), ("early.hct", 28_115), ("early.hct", 0)] {
        let played = play(name);
        assert!(played.status.success(), "{name}: {}", said(&played));
        let played: Value = serde_json::from_slice(&played.stdout).unwrap();
        let bytes = played["prepared_bytes"].as_u64().unwrap();
        // A byte of 256 that belong in a hole is a zero.
        assert!(bytes <= prepared && bytes >= prepared / 100 * 98, "{name}: {bytes}");
    }
    // What was played whole is no hole if it is gone.
    for name in ["whole.hct", "again.hct"] {
        assert!(play(name).status.success(), "{name}");
    }
    let file = File::options().write(true).open(sandbox.path("dir/g")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0; 500], 3000).unwrap();
    let played = play("again.hct");
    assert_eq!(played.status.code(), Some(1), "{}", said(&played));
    assert!(said(&played).contains("not what was written"), "{}", said(&played));
}

/// Regression: its files lay beside `namespace`, where no mount shows them.
#[test]
fn a_striped_volume_is_played_on_where_it_is_mounted_alone() {
    let sandbox = sandbox_with(&["ior", "-p", "2", "-b", "64K", "-t", "16K"]);
    let shape = VolumeShape { kind: VolumeKind::Striped, servers: 2, stripe: 65_536 };
    let dir = sandbox.path("dir");
    drop(Origin::open_or_create(&dir, shape, &|_, device| device).unwrap());
    fs::create_dir_all(dir.join("namespace/sub")).unwrap();
    fs::create_dir(dir.join("beside")).unwrap();
    for named in ["dir", "dir/beside", "dir/namespace", "dir/namespace/sub", "dir/server-1"] {
        let before = fs::read_dir(sandbox.path(named)).unwrap().count();
        refused(&sandbox, &["t.hct", named], "halocline mount");
        assert_eq!(fs::read_dir(sandbox.path(named)).unwrap().count(), before, "{named}");
    }
}

#[test]
fn what_cannot_be_played_is_refused_and_nothing_made() {
    let sandbox = sandbox_with(&["ior", "-p", "2", "-b", "64K", "-t", "16K"]);
    let import = |rows: &str| {
        let text = format!("time_s,process,file,op,offset,length\n{rows}");
        fs::write(sandbox.path("t.csv"), text).unwrap();
        let output = sandbox.halocline(&["trace", "import", "t.csv", "-o", "odd.hct"]);
        assert!(output.status.success(), "{}", said(&output));
    };
    for (rows, what) in [
        ("", "no requests"),
        ("0,1,../x,write,0,1\n", "not a path below a directory"),
        ("0,1,/,write,0,1\n", "not the name of a file below a directory"),
        ("0,1,f,read,0,2147483648\n", "at most 1073741824 can be played"),
        ("0,1,f,write,9000000000000000000,1\n", "are free"),
        ("0,1,f,read,9000000000000000000,1\n", "are free"),
    ] {
        import(rows);
        refused(&sandbox, &["odd.hct", "dir"], what);
    }
    let mut many = String::new();
    for process in 0..1025 {
        writeln!(many, "0,{process},f,write,0,1").unwrap();
    }
    import(&many);
    refused(&sandbox, &["odd.hct", "dir"], "play a smaller one");
    refused(
        &sandbox,
        &["t.hct", "dir", "--below", "/mnt"],
        "ior.0 is not below /mnt; correct --below",
    );
    refused(&sandbox, &["t.hct", "nowhere"], "nowhere: there is no such directory");
    assert_eq!(fs::read_dir(sandbox.path("dir")).unwrap().count(), 0);
    // Below a mount point, and in directories that are not there yet.
    import("0,1,/mnt/a/b,write,0,10\n0,2,/mnt/a/c,read,5,10\n");
    let played = sandbox.halocline(&["trace", "play", "odd.hct", "dir", "--below", "/mnt"]);
    assert!(played.status.success(), "{}", said(&played));
    assert_eq!(fs::read(sandbox.path("dir/a/c")).unwrap().len(), 15);
}
