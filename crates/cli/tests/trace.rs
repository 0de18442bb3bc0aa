//! `halocline trace`: what other tools recorded, as a trace, and what is in one.

use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use halocline_api::control::metrics::Section;
use halocline_testkit::program;
use halocline_testkit::sandbox::{said, written};
use halocline_testkit::skipping::skip;
use serde_json::Value;

const CSV: &str = "time_s,process,file,op,offset,length\n0,1,f,read,0,4096\n";

fn trace(dir: &Path, args: &[&str]) -> Output {
    Command::new(program!()).arg("trace").args(args).current_dir(dir).output().unwrap()
}

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../trace/tests/data").join(name)
}

#[test]
fn a_trace_is_replaced_by_a_whole_one_only() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    fs::write(dir.join("good.csv"), CSV).unwrap();
    fs::write(dir.join("bad.csv"), format!("{CSV}0,1,f,read,0\n")).unwrap();
    fs::write(dir.join("other"), "something else").unwrap();
    let output = trace(dir, &["import", "good.csv", "-o", "t.hct"]);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(written(&output), "1 request written to t.hct\n");
    let whole = fs::read(dir.join("t.hct")).unwrap();
    let output = trace(dir, &["import", "bad.csv", "-o", "t.hct"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(said(&output), "halocline: bad.csv: line 3: 5 fields instead of 6\n");
    let output = trace(dir, &["import", "other", "-o", "t.hct"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("say --format"), "{}", said(&output));
    assert_eq!(fs::read(dir.join("t.hct")).unwrap(), whole);
    // Nothing temporary is left.
    assert_eq!(fs::read_dir(dir).unwrap().count(), 4);
}

/// It was said of the file that is read.
#[test]
fn a_trace_that_cannot_be_written_is_named_with_the_remedy() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    let row = |number: u32| format!("{number},1,f,read,{},{number}1\n", number * 7919 % 1000);
    fs::write(dir.join("t.csv"), CSV.to_owned() + &(1..4000).map(row).collect::<String>()).unwrap();
    let head = "# DXT, file_id: 1, file_name: f\n# DXT, rank: 0, hostname: h\n";
    let row =
        |number: u32| format!(" X_POSIX 0 read 0 {} {number}1 1.{number} 9.0\n", number * 7919);
    fs::write(dir.join("dxt.txt"), head.to_owned() + &(1..999).map(row).collect::<String>())
        .unwrap();
    fs::write(dir.join("t.hct"), "").unwrap();
    for args in [
        "import t.csv -o t.hct",
        "import t.csv -o t.hct --sort",
        "import dxt.txt -o t.hct",
        "make ior -p 8 -b 64M -t 64K -z 1 -o t.hct",
    ] {
        // A file may have no more than a kilobyte, as on a file system with no room for more.
        let script = format!("trap '' XFSZ; ulimit -f 1; exec \"$0\" trace {args}");
        let mut command = Command::new("bash");
        command.args(["-c", &script]).arg(program!()).current_dir(dir);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{args}: {}", said(&output));
        assert!(said(&output).starts_with("halocline: t.hct: cannot write: "), "{}", said(&output));
        assert_eq!(fs::read(dir.join("t.hct")).unwrap(), b"", "{args}");
    }
}

#[test]
fn without_a_library_for_logs_it_is_said_how_to_get_one() {
    let scratch = tempfile::tempdir().unwrap();
    let output = Command::new(program!())
        .args(["trace", "import", "--python", "none", "-o", "t.hct"])
        .arg(data("dxt.darshan"))
        .env("PATH", scratch.path())
        .current_dir(scratch.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("pip install darshan"), "{}", said(&output));
}

/// A log is read by another program: one that hangs, or fills the memory, over what is in it was waited
/// for as long as it liked.
#[test]
fn what_reads_a_log_has_bounded_memory_and_time() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    let import = |script: &str, seconds: &str| {
        let python = dir.join("python");
        fs::write(&python, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&python, Permissions::from_mode(0o755)).unwrap();
        let log = data("dxt.darshan");
        let (python, log) = (python.to_str().unwrap(), log.to_str().unwrap());
        let limits = ["--convert-seconds", seconds, "--convert-gib", "3"];
        let args = ["import", "--python", python, "-o", "t.hct", log];
        let output = trace(dir, &[&args[..], &limits].concat());
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(!dir.join("t.hct").exists());
        said(&output)
    };
    let told = import("echo has $(ulimit -v) $(ulimit -t) >&2; exit 3", "500");
    // Regression: whatever was wrong with a log, the limits were named beside it.
    assert!(told.contains("has 3145728 500") && !told.contains("--convert"), "{told}");
    for limited in ["echo MemoryError >&2; exit 1", "kill -9 $$"] {
        let told = import(limited, "500");
        assert!(told.contains("3 GiB of memory") && told.contains("--convert-gib"), "{told}");
    }
    // It prints nothing, it prints no more, it closes its output and does not end.
    for hangs in ["sleep 1000", "echo '# DXT'; sleep 1000", "exec >&-; sleep 1000"] {
        let told = import(hangs, "2");
        assert!(told.contains("too long") && told.contains("--convert-seconds"), "{told}");
    }
}

/// The Python that `scripts/dependencies.sh` gave the package, or the system's if that has it.
fn python() -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_BIN_EXE_halocline")).ancestors().nth(2).unwrap();
    let places = [target.join("tools/darshan/bin/python3"), "python3".into()];
    places.into_iter().find(|python| {
        let asked = Command::new(python).args(["-c", "import darshan"]).output();
        asked.is_ok_and(|asked| asked.status.success())
    })
}

/// Simulates the trace `t.hct` of `count` requests, plans for it, and simulates it under the plan.
#[track_caller]
fn simulated_and_planned(dir: &Path, count: u64) {
    let server = |name: &str, profile: &str| {
        format!("[[server]]\nname = \"{name}\"\nprofile = \"{profile}\"\ncapacity = \"1T\"\n")
    };
    let servers = [("d0", "hdd"), ("d1", "hdd"), ("s0", "ssd")].map(|(name, it)| server(name, it));
    fs::write(dir.join("servers.toml"), servers.concat()).unwrap();
    let answer = |args: &[&str]| -> Value {
        let args = [args, &["t.hct", "--servers", "servers.toml", "--json"]].concat();
        let output = Command::new(program!()).args(&args).current_dir(dir).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", said(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let bare = answer(&["simulate"]);
    assert_eq!(bare["requests"], count);
    assert!(bare["seconds"].as_f64() > Some(0.0), "{bare}");
    let plan = answer(&["plan", "-o", "plan.toml"]);
    assert_eq!(plan["requests"], count);
    let seconds = |name: &str| plan["layouts"][name]["simulated_seconds"].as_f64().unwrap();
    assert!(seconds("ours") <= seconds("def") * 1.02, "{plan}");
    let planned = answer(&["simulate", "--plan", "plan.toml", "--seed", "0"]);
    assert_eq!(planned["plan"]["default"]["seconds"], bare["seconds"]);
    let cached = answer(&["simulate", "--cache-size", "64M"]);
    assert!(cached.to_string().contains("adaptive"), "{cached}");
}

#[test]
fn real_logs_of_darshan_are_imported_simulated_and_planned_for() {
    let Some(python) = python() else {
        return skip(
            "no Python with the package darshan; scripts/dependencies.sh test installs it",
        );
    };
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    // Lines of X_POSIX with a length in the text of darshan-dxt-parser, as awk counts them.
    let logs =
        [("sample-dxt-simple.darshan", 2), ("ior_hdf5_example.darshan", 59), ("dxt.darshan", 7613)];
    for (log, count) in logs {
        let log = data(log);
        let args = ["import", "--python", python.to_str().unwrap(), "-o", "t.hct"];
        let output = trace(dir, &[&args[..], &[log.to_str().unwrap()]].concat());
        assert!(output.status.success(), "{}", said(&output));
        let said_count = format!("{count} requests");
        assert!(written(&output).starts_with(&said_count), "{}", written(&output));
        let shown = shown(dir, "t.hct");
        assert_eq!(shown["requests"], count);
        assert_eq!(shown["completeness"]["weight"], 1.0);
        assert_eq!(shown["source"]["name"], log.file_name().unwrap().to_str().unwrap());
        let output = trace(dir, &["show", "t.hct"]);
        assert!(output.status.success() && said(&output).is_empty(), "{}", said(&output));
        fits(&written(&output));
        simulated_and_planned(dir, count);
    }
    // What is not a log is not taken for an empty one, and the library's own words are passed on.
    let broken = fs::read(data("dxt.darshan")).unwrap();
    let cases: [(&[u8], &str); 4] = [
        (&broken[..broken.len() / 2], "broken.darshan: "),
        (&broken[..3000], "broken.darshan: Error: "),
        (b"", "it is not a log of Darshan"),
        (&[7; 500], "it is not a log of Darshan"),
    ];
    for (bytes, what) in cases {
        fs::write(dir.join("broken.darshan"), bytes).unwrap();
        let python = python.to_str().unwrap();
        let args = ["import", "--python", python, "-o", "new.hct", "broken.darshan"];
        let output = trace(dir, &args);
        assert_eq!(output.status.code(), Some(1), "{}{}", written(&output), said(&output));
        assert!(said(&output).contains(what), "{}", said(&output));
        assert!(!dir.join("new.hct").exists());
    }
}

/// Writes logs like the one named first, whose records of DXT are a zlib stream that the header at 168 finds: with half of the
/// stream; with a fourth record that says 2^40 requests; with a stream that unfolds to gigabytes of empty records.
const CRAFT: &str = r#"
import struct, sys, zlib
log = open(sys.argv[1], "rb").read()
begin, length = struct.unpack("<QQ", log[168:184])
def write(name, begin, length, stream):
    open(name, "wb").write(log[:168] + struct.pack("<QQ", begin, length) + log[184:] + stream)
write("half.darshan", begin, length // 2, b"")
records, at = bytearray(zlib.decompress(log[begin : begin + length])), 0
for record in range(3):
    at += 104 + 32 * sum(struct.unpack("<qq", records[at + 88 : at + 104]))
records[at + 88 : at + 96] = struct.pack("<q", 1 << 40)
stream = zlib.compress(records)
write("absurd.darshan", len(log), len(stream), stream)
deflate = zlib.compressobj(1)
stream = b"".join([deflate.compress(bytes(1 << 24)) for _ in range(128)] + [deflate.flush()])
write("bomb.darshan", len(log), len(stream), stream)
"#;

/// A log of which the library could read no more was taken for a whole one.
#[test]
fn logs_that_cannot_be_read_to_their_end_are_partial_and_bombs_end() {
    let Some(python) = python() else {
        return skip(
            "no Python with the package darshan; scripts/dependencies.sh test installs it",
        );
    };
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    let mut craft = Command::new(&python);
    craft.args(["-c", CRAFT]).arg(data("dxt.darshan")).current_dir(dir);
    assert!(craft.status().unwrap().success());
    let bounded = ["import", "--python", python.to_str().unwrap(), "--convert-gib", "2"];
    for log in ["half.darshan", "absurd.darshan"] {
        let output = trace(dir, &[&bounded[..], &["-o", "t.hct", log]].concat());
        assert!(
            output.status.success() && said(&output).contains("not whole"),
            "{}",
            said(&output)
        );
        let shown = shown(dir, "t.hct");
        assert_eq!(shown["completeness"]["partial"], true, "{log}: {shown}");
        assert!((1..7613).contains(&shown["requests"].as_u64().unwrap()), "{log}: {shown}");
    }
    let output = trace(
        dir,
        &[&bounded[..], &["--convert-seconds", "4", "-o", "new.hct", "bomb.darshan"]].concat(),
    );
    assert_eq!(output.status.code(), Some(1), "{}", written(&output));
    assert!(said(&output).contains("--convert-seconds"), "{}", said(&output));
    assert_eq!(fs::read_dir(dir).unwrap().count(), 4, "nothing is left of it");
}

/// What `trace show --json` answers; docs/METRICS.md has its keys.
fn shown(dir: &Path, name: &str) -> Value {
    let output = trace(dir, &["show", name, "--json", "--cache-sizes", "auto"]);
    assert!(output.status.success(), "{}", said(&output));
    let answer = serde_json::from_slice(&output.stdout).unwrap();
    let section = Section::find("halocline trace show").unwrap();
    assert_eq!(section.undescribed(&answer), [""; 0]);
    answer
}

/// Says that lines, but for names of files, fit on a terminal.
fn fits(text: &str) {
    let is_name = |line: &&str| line.starts_with('/');
    for line in text.lines().filter(|line| !is_name(line)) {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

/// Whether `value` has something under `key`, whose names are joined by dots.
fn has(value: &Value, key: &str) -> bool {
    let (name, rest) = key.split_once('.').unwrap_or((key, ""));
    let Some(list) = name.strip_suffix("[]") else {
        return value.get(name).is_some_and(|value| rest.is_empty() || has(value, rest));
    };
    let elements = value.get(list).and_then(Value::as_array);
    elements.is_some_and(|all| all.iter().any(|value| rest.is_empty() || has(value, rest)))
}

/// 800 KiB written once, then 100 MiB read once: all misses, whatever the cache.
fn curve_of(dir: &Path, answer: &Value) {
    let curve = &answer["curve"];
    assert_eq!(curve["accesses"], 200 + 100 * 256);
    assert_eq!(curve["footprint_bytes"], (200 + 100 * 256) * 4096);
    let last = curve["points"].as_array().unwrap().last().unwrap();
    for policy in ["lru", "s3fifo", "ours", "optimum"] {
        assert_eq!(last[policy], 1.0, "{policy}");
    }
    let sizes = ["show", "t.hct", "--cache-sizes", "1M,64K", "--plot", "curve.svg"];
    let output = trace(dir, &sizes);
    assert!(output.status.success(), "{}", said(&output));
    fits(&written(&output));
    let at = |size: &str| written(&output).find(&format!("{size}  100.00 %")).unwrap();
    assert!(at("64.0 KiB") < at("1.00 MiB"));
    let picture = fs::read_to_string(dir.join("curve.svg")).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("S3-FIFO"));
    let without = trace(dir, &["show", "t.hct", "--json"]);
    let without: Value = serde_json::from_slice(&without.stdout).unwrap();
    assert_eq!(without["curve"], Value::Null);
    let output = trace(dir, &["show", "t.hct", "--cache-sizes", "much"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
}

#[test]
fn what_is_in_a_trace_is_shown() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    // Two processes write 4 KiB pieces in turn, then one reads 1 MiB pieces of another file at once.
    let mut csv = "time_s,process,file,op,offset,length,duration_s\n".to_owned();
    for i in 0..200_u64 {
        writeln!(csv, "0.{i:03},{},/data/a,write,{},4096,0.0015", i % 2, i * 4096).unwrap();
    }
    for i in 0..100_u64 {
        let offset = (i * 37 % 100) << 20;
        writeln!(csv, "5.{i:03},7,/data/b,read,{offset},1048576,0.01").unwrap();
    }
    fs::write(dir.join("t.csv"), csv).unwrap();
    let output = trace(dir, &["import", "t.csv", "-o", "t.hct"]);
    assert!(output.status.success(), "{}", said(&output));
    let answer = shown(dir, "t.hct");
    let section = Section::find("halocline trace show").unwrap();
    let within = section.within.iter();
    let within = within
        .flat_map(|(prefix, metrics)| metrics.iter().map(move |it| [*prefix, it.key].concat()));
    let own = section.metrics.iter().map(|metric| metric.key.to_owned());
    for key in own.chain(within).filter(|key| key != "notes[]") {
        assert!(has(&answer, &key), "{key} is described and not printed");
    }
    assert_eq!((&answer["requests"], &answer["processes"]), (&300.into(), &3.into()));
    assert_eq!(answer["streams"]["strided"], 2);
    assert_eq!(answer["streams"]["random"], 1);
    assert_eq!(answer["files"][0]["name"], "/data/b");
    assert_eq!(answer["files"][1]["pattern"], "sequential");
    let output = trace(dir, &["show", "t.hct"]);
    let text = written(&output);
    fits(&text);
    for line in [
        "requests    300 in 5.11 s",
        "writes      200, 800 KiB, 4.00 KiB on average",
        "processes   3 (p)",
        "patterns    2 strided, 1 random (each process in each file)",
        "  pattern   sequential all together; 2 strided by process",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    curve_of(dir, &answer);
    // Cut off: what is whole is shown, and that it is not all.
    let whole = fs::read(dir.join("t.hct")).unwrap();
    fs::write(dir.join("cut.hct"), &whole[..whole.len() - 10]).unwrap();
    let cut = shown(dir, "cut.hct");
    assert_eq!(cut["completeness"]["partial"], true);
    assert_eq!(cut["requests"], 300);
    let output = trace(dir, &["show", "cut.hct"]);
    assert!(
        said(&output).contains("cut.hct: partial: cut off after 300 requests"),
        "{}",
        said(&output)
    );
    let output = trace(dir, &["show", "t.csv"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("not a trace of Halocline"), "{}", said(&output));
    fs::write(dir.join("empty.csv"), CSV.lines().next().unwrap().to_owned() + "\n").unwrap();
    let output = trace(dir, &["import", "empty.csv", "-o", "empty.hct"]);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(shown(dir, "empty.hct")["requests"], 0);
    assert!(written(&trace(dir, &["show", "empty.hct"])).contains("reads       none"));
}
