//! `halocline trace`: what other tools recorded, as a trace.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use halocline_testkit::place::{said, written};
use halocline_testkit::program;
use halocline_testkit::skipping::skip;

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
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(said(&output), "halocline: bad.csv: line 3: 5 fields instead of 6\n");
    let output = trace(dir, &["import", "other", "-o", "t.hct"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("say --format"), "{}", said(&output));
    assert_eq!(fs::read(dir.join("t.hct")).unwrap(), whole);
    // Nothing temporary is left.
    assert_eq!(fs::read_dir(dir).unwrap().count(), 4);
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

/// The Python that `scripts/dependencies.sh` gave the package, or the system's if that has it.
fn python() -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_BIN_EXE_halocline")).ancestors().nth(2).unwrap();
    let places = [target.join("tools/darshan/bin/python3"), "python3".into()];
    places.into_iter().find(|python| {
        let asked = Command::new(python).args(["-c", "import darshan"]).output();
        asked.is_ok_and(|asked| asked.status.success())
    })
}

#[test]
fn real_logs_of_darshan_are_imported() {
    let Some(python) = python() else {
        return skip(
            "no Python with the package darshan; scripts/dependencies.sh test installs it",
        );
    };
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    // Lines of X_POSIX with a length in the text of darshan-dxt-parser, as awk counts them.
    let logs = [
        ("sample-dxt-simple.darshan", "2 requests"),
        ("ior_hdf5_example.darshan", "59 requests"),
        ("dxt.darshan", "7613 requests"),
    ];
    for (log, count) in logs {
        let log = data(log);
        let args = ["import", "--python", python.to_str().unwrap(), "-o", "t.hct"];
        let output = trace(dir, &[&args[..], &[log.to_str().unwrap()]].concat());
        assert!(output.status.success(), "{}", said(&output));
        assert!(written(&output).starts_with(count), "{}", written(&output));
    }
    // What is no log is not taken for an empty one.
    let broken = fs::read(data("dxt.darshan")).unwrap();
    fs::write(dir.join("broken.darshan"), &broken[..broken.len() / 2]).unwrap();
    let args = ["import", "--python", python.to_str().unwrap(), "-o", "new.hct", "broken.darshan"];
    let output = trace(dir, &args);
    assert_eq!(output.status.code(), Some(1), "{}{}", written(&output), said(&output));
    assert!(!dir.join("new.hct").exists());
}
