//! Requests of programs on a mount, recorded as a trace.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt, lchown, symlink};
use std::process::Command;
use std::thread;
use std::time::Duration;

use halocline_testkit::program;
use halocline_testkit::sandbox::said;
use halocline_testkit::scratch::Scratch;
use halocline_testkit::skipping::skip;
use serde_json::Value;

const SIZE: [&str; 2] = ["--size", "64M"];

fn shown(scratch: &Scratch, trace: &str) -> Value {
    serde_json::from_str(&scratch.succeed(&["trace", "show", trace, "--json"])).unwrap()
}

/// Four writes of 4 KiB with gaps, and reads of all of it.
fn work(scratch: &Scratch) {
    let options = || File::options().read(true).write(true).create(true).truncate(false).clone();
    let file = options().open(scratch.path("mnt/new")).unwrap();
    for i in 0..4 {
        file.write_all_at(&[1; 4096], i * 8192).unwrap();
    }
    let mut all = vec![0; 28 << 10];
    file.read_exact_at(&mut all, 0).unwrap();
}

fn told(scratch: &Scratch) -> String {
    scratch.status("mnt")["notes"].to_string()
}

#[test]
fn a_mount_records_what_is_asked_of_it() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let mount = ["mount", "origin", "mnt", "--cache", "cache", "--trace", "t.hct"];
    scratch.succeed(&[&mount[..], &SIZE, &["--direct"]].concat());
    work(&scratch);
    assert!(told(&scratch).contains("t.hct: "), "{}", told(&scratch));
    scratch.succeed(&["umount", "mnt"]);
    let answer = shown(&scratch, "t.hct");
    assert_eq!(answer["completeness"]["partial"], false);
    assert_eq!(answer["source"]["kind"], "mount_direct");
    assert_eq!((&answer["writes"], &answer["write_bytes"]), (&4.into(), &16384.into()));
    assert_eq!(answer["read_bytes"], 28 << 10);
    assert_eq!(answer["processes"], 1);
    let file = &answer["files"][0];
    assert_eq!(file["name"], scratch.path("mnt/new").to_str().unwrap());
    assert_eq!(file["end"], 28 << 10);
    assert!(answer["in_flight_max"].as_u64() >= Some(1), "service times are there");
    // The next recording replaces it, by its first request; what is not a trace is left alone.
    scratch.succeed(&[&mount[..], &SIZE].concat());
    assert!(told(&scratch).contains("; the earlier trace there is kept"), "{}", told(&scratch));
    scratch.succeed(&["umount", "mnt"]);
    assert_eq!(shown(&scratch, "t.hct"), answer);
    scratch.succeed(&[&mount[..], &SIZE].concat());
    fs::write(scratch.path("mnt/other"), "data").unwrap();
    assert!(!told(&scratch).contains("kept"), "{}", told(&scratch));
    scratch.succeed(&["umount", "mnt"]);
    let answer = shown(&scratch, "t.hct");
    assert_eq!((&answer["writes"], &answer["source"]["kind"]), (&1.into(), &"mount".into()));
    assert!(answer["notes"][0].as_str().unwrap().contains("page cache"));
    fs::write(scratch.path("precious"), "data").unwrap();
    let mount = ["mount", "origin", "mnt", "--cache", "cache", "--trace", "precious"];
    let output = scratch.halocline(&[&mount[..], &SIZE].concat());
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("it is there and no trace"), "{}", said(&output));
    assert_eq!(fs::read(scratch.path("precious")).unwrap(), b"data");
}

/// A mistyped directory, or a program that did not start, cost the trace of a run of hours.
#[test]
fn a_recording_of_nothing_replaces_no_trace_with_requests() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let record = ["trace", "record", "-o", "t.hct", "--origin", "origin", "--"];
    let record = |command: &[&str]| scratch.halocline(&[&record[..], command].concat());
    // Nothing is lost where there was nothing.
    for _ in 0..2 {
        let output = record(&["true"]);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        assert!(said(&output).contains("read and wrote nothing below"), "{}", said(&output));
        assert_eq!(shown(&scratch, "t.hct")["requests"], 0);
    }
    let output = record(&["sh", "-c", "echo data > origin/file"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let trace = fs::read(scratch.path("t.hct")).unwrap();
    let output = record(&["true"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let told = said(&output);
    assert!(told.contains("0 requests recorded; the earlier trace there is kept"), "{told}");
    assert!(told.contains("--origin; --direct records"), "{told}");
    assert_eq!(record(&["sh", "-c", "exit 7"]).status.code(), Some(7));
    let run = ["run", "--origin", "origin", "--cache", "cache", "--trace", "t.hct", "--quiet"];
    let report = ["--report", "report.json", "--", "true"];
    let output = scratch.halocline(&[&run[..], &report].concat());
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let told = said(&output);
    assert!(told.contains("the earlier trace there is kept"), "{told}");
    let report: Value =
        serde_json::from_slice(&fs::read(scratch.path("report.json")).unwrap()).unwrap();
    assert!(report.get("curve").is_none(), "of another run: {report}");
    let header = "time_s,process,file,op,offset,length\n";
    fs::write(scratch.path("t.csv"), header).unwrap();
    let output = scratch.halocline(&["trace", "import", "t.csv", "-o", "t.hct"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("the earlier trace t.hct is kept"), "{}", said(&output));
    assert!(fs::read(scratch.path("t.hct")).unwrap() == trace, "it stays");
    // Nor is a plot of something by one of nothing.
    scratch.succeed(&["trace", "show", "t.hct", "--plot", "plot.svg"]);
    let plot = fs::read(scratch.path("plot.svg")).unwrap();
    scratch.succeed(&["trace", "import", "t.csv", "-o", "empty.hct"]);
    let output = scratch.halocline(&["trace", "show", "empty.hct", "--plot", "plot.svg"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("nothing is drawn in plot.svg"), "{}", said(&output));
    assert!(fs::read(scratch.path("plot.svg")).unwrap() == plot);
    fs::write(scratch.path("t.csv"), format!("{header}0,0,/f,read,0,4096\n")).unwrap();
    scratch.succeed(&["trace", "import", "t.csv", "-o", "t.hct"]);
    assert_eq!(shown(&scratch, "t.hct")["reads"], 1);
}

#[test]
fn a_killed_mount_leaves_what_it_had_written() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let mount = ["mount", "origin", "mnt", "--cache", "cache", "--trace", "t.hct", "--direct"];
    scratch.succeed(&[&mount[..], &SIZE].concat());
    work(&scratch);
    // Written within a second or so, whatever the machine does.
    while shown(&scratch, "t.hct")["writes"] != 4 {
        thread::sleep(Duration::from_millis(50));
    }
    let pid = scratch.pid("mnt");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let answer = shown(&scratch, "t.hct");
    assert_eq!(answer["completeness"]["partial"], true);
    assert!(answer["completeness"]["cut"].as_str().unwrap().contains("cut off after"));
    assert_eq!(answer["writes"], 4);
}

#[test]
fn a_command_is_recorded_with_a_cache_and_without() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    fs::write(scratch.path("origin/in"), vec![7; 100_000]).unwrap();
    // Plain reads and writes: `cp` may have the kernel copy, which asks for pages besides.
    let command = ["--direct", "--", "dd", "if=origin/in", "of=origin/out", "bs=4096"];
    let record = ["trace", "record", "-o", "t.hct", "--origin", "origin"];
    let run = ["run", "--origin", "origin", "--cache", "cache", "--trace", "t.hct", "-q"];
    for start in [&record[..], &[&run[..], &SIZE].concat()] {
        scratch.succeed(&[start, &command].concat());
        let answer = shown(&scratch, "t.hct");
        assert_eq!(answer["completeness"]["partial"], false);
        assert_eq!(
            (&answer["read_bytes"], &answer["write_bytes"]),
            (&100_000.into(), &100_000.into())
        );
        assert_eq!(fs::read(scratch.path("origin/out")).unwrap().len(), 100_000);
    }
    // The command's status is the status.
    let output = scratch.halocline(&[&record[..], &["--", "sh", "-c", "exit 7"]].concat());
    assert_eq!(output.status.code(), Some(7), "{}", said(&output));
    assert!(said(&output).contains("0 requests recorded"), "{}", said(&output));
}

/// The status was 0, and of the trace there was nothing.
#[test]
fn a_trace_that_finds_no_room_is_a_failure_where_the_command_has_none() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    if !rustix::process::geteuid().is_root() {
        return skip("only root can make a small file system");
    }
    fs::create_dir(scratch.path("small")).unwrap();
    fs::write(scratch.path("origin/in"), vec![7; 1 << 20]).unwrap();
    let small = "mount -t tmpfs -o size=4k small small && exec \"$0\" \"$@\"";
    let run = ["run", "--origin", "origin", "--cache", "cache", "--direct", "--quiet"];
    let record = ["trace", "record", "--origin", "origin", "--direct"];
    for (command, option) in [(&run[..], "--trace"), (&record[..], "-o")] {
        for (after, status) in [("true", 1), ("exit 7", 7)] {
            let many = format!("dd if=origin/in of=/dev/null bs=64 2>/dev/null; {after}");
            let output = Command::new("unshare")
                .args(["-m", "sh", "-c", small])
                .arg(scratch.program())
                .args(command)
                .args([option, "small/t.hct", "--", "sh", "-c", &many])
                .current_dir(scratch.root())
                .output()
                .unwrap();
            assert_eq!(output.status.code(), Some(status), "{command:?}: {}", said(&output));
            if status == 1 || command.len() == record.len() {
                assert!(
                    said(&output).contains("nothing more is: No space left"),
                    "{}",
                    said(&output)
                );
            }
        }
    }
}

/// Three passes over 8 MiB behind a cache that holds them: only the first pass must miss.
#[test]
fn a_report_says_what_caches_of_this_and_other_sizes_would_have_missed() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    fs::write(scratch.path("origin/in"), vec![7; 8 << 20]).unwrap();
    let pass = "dd if=origin/in of=/dev/null bs=64k;";
    let run = ["run", "--origin", "origin", "--cache", "cache", "--size", "48M", "--direct"];
    // The report took the place of the trace.
    let one_file = ["--trace", "t.hct", "--report", "./t.hct", "--", "true"];
    let output = scratch.halocline(&[&run[..], &one_file].concat());
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("would be written twice"), "{}", said(&output));
    let wanted = ["--trace", "t.hct", "--report", "r.json", "--", "sh", "-c"];
    let output = scratch.halocline(&[&run[..], &wanted, &[&pass.repeat(3)]].concat());
    assert!(output.status.success(), "{}", said(&output));
    for part in ["What caches would have missed", "LRU", "S3-FIFO", "ours (", "optimum"] {
        assert!(said(&output).contains(part), "{part}: {}", said(&output));
    }
    let report: Value = serde_json::from_slice(&fs::read(scratch.path("r.json")).unwrap()).unwrap();
    let curve = &report["curve"];
    assert_eq!((&curve["accesses"], &curve["footprint_bytes"]), (&6144.into(), &(8 << 20).into()));
    assert_eq!(curve["sampled_share"], 1.0);
    let points = curve["points"].as_array().unwrap();
    let sizes: Vec<u64> = points.iter().map(|it| it["cache_bytes"].as_u64().unwrap()).collect();
    // The cache holds everything: what smaller ones would have missed is of more use than larger ones.
    assert_eq!(sizes[..4], [1 << 20, 2 << 20, 4 << 20, 8 << 20]);
    assert!((16 << 20..48 << 20).contains(&sizes[4]), "what the cache has for data: {sizes:?}");
    for policy in ["lru", "s3fifo", "ours", "optimum"] {
        let missed = points[4][policy].as_f64().unwrap();
        assert!((missed - 1.0 / 3.0).abs() < 1e-9, "{policy}: {missed}");
    }
    assert!(points[0]["lru"].as_f64() >= points[0]["optimum"].as_f64());
}

#[test]
fn a_file_tier_is_recorded_at_the_same_place() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    for tier in ["ssd", "hdd"] {
        fs::create_dir(scratch.path(tier)).unwrap();
    }
    scratch.succeed(&["mount", "--tier", ".", "mnt", "--trace", "t.hct", "--passthrough=false"]);
    work(&scratch);
    scratch.succeed(&["umount", "mnt"]);
    let answer = shown(&scratch, "t.hct");
    assert_eq!((&answer["writes"], &answer["completeness"]["lost"]), (&4.into(), &0.into()));
    assert_eq!(answer["files"][0]["name"], scratch.path("mnt/new").to_str().unwrap());
}

#[test]
fn a_refused_mount_or_run_keeps_the_trace_that_was_there() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let run = ["run", "--origin", "origin", "--cache", "cache", "--trace", "t.hct", "-q"];
    scratch.succeed(&[&run[..], &["--", "sh", "-c", "echo one >origin/one"]].concat());
    let before = fs::read(scratch.path("t.hct")).unwrap();
    // The volume was striped over two servers.
    fs::create_dir(scratch.path("striped")).unwrap();
    let striped = ["--origin", "striped", "--origin-volume", "striped", "--origin-servers"];
    let record = |servers, out| {
        let record = ["trace", "record", "-o", out];
        scratch.halocline(&[&record[..], &striped, &[servers, "--", "true"]].concat())
    };
    let output = record("2", "other.hct");
    assert!(output.status.success(), "{}", said(&output));
    let mount = ["mount", "striped", "mnt", "--cache", "second", "--trace", "t.hct"];
    let refused = [
        record("3", "t.hct"),
        scratch.halocline(
            &[&mount[..], &["--origin-volume", "striped", "--origin-servers", "3"]].concat(),
        ),
    ];
    for output in refused {
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert_eq!(fs::read(scratch.path("t.hct")).unwrap(), before, "{}", said(&output));
    }
    assert!(!record("3", "new.hct").status.success());
    assert!(!scratch.path("new.hct").exists());
}

/// Linux itself looks after links in sticky directories, where it is told to, and not after files.
#[test]
fn no_trace_goes_where_another_user_leads_it() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    if !rustix::process::geteuid().is_root() {
        return;
    }
    fs::create_dir(scratch.path("shared")).unwrap();
    fs::set_permissions(scratch.path("shared"), Permissions::from_mode(0o1777)).unwrap();
    symlink(scratch.path("made"), scratch.path("shared/link")).unwrap();
    lchown(scratch.path("shared/link"), Some(12_345), None).unwrap();
    fs::write(scratch.path("shared/file"), "").unwrap();
    lchown(scratch.path("shared/file"), Some(12_345), None).unwrap();
    for name in ["shared/link", "shared/file"] {
        let mount = ["mount", "origin", "mnt", "--cache", "cache", "--trace", name];
        let output = scratch.halocline(&[&mount[..], &SIZE].concat());
        assert_ne!(output.status.code(), Some(0));
        assert!(said(&output).contains("another user made"), "{}", said(&output));
        assert!(!scratch.path("made").exists());
    }
    assert_eq!(fs::metadata(scratch.path("shared/file")).unwrap().len(), 0);
}
