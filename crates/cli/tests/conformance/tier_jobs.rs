//! `halocline jobs` on a real tier mount: whose opens move a job, and what `jobs run` makes of its command.

use std::fs;
use std::path::Path;
use std::process::Output;

use serde_json::Value;

use crate::mount::{self, Mount};
use crate::programs;

/// `halocline jobs WHAT --on MOUNT`.
fn jobs(mount: &Mount, what: &[&str], command: &[&str]) -> Output {
    let mut halocline = programs::halocline();
    halocline.arg("jobs").args(what).arg("--on").arg(mount.path());
    if !command.is_empty() {
        halocline.arg("--").args(command);
    }
    halocline.current_dir(mount.path()).output().expect("halocline jobs starts")
}

fn message(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// How far the only job is, and its state.
fn position(mount: &Mount) -> (u64, String) {
    let output = jobs(mount, &["list", "--json"], &[]);
    let list: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let job = &list[0];
    (job["position"].as_u64().expect("a number"), job["state"].as_str().expect("text").to_owned())
}

fn read(path: &Path, names: &[&str]) {
    for name in names {
        fs::read(path.join(name)).expect("read");
    }
}

#[test]
fn a_run_of_a_job_is_followed_by_the_opens_of_its_command_alone() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    let mut mount = Mount::tier(&["--policy", "foresight", "--ssd-limit", "8M"]);
    for name in ["a", "b", "c", "d"] {
        fs::write(mount.path().join(name), name).expect("write");
    }
    let aside = tempfile::tempdir().expect("scratch");
    let announced = aside.path().join("job.json");
    fs::write(&announced, r#"{"job": "align", "references": ["a", "b", "c", "d"]}"#)
        .expect("write");
    let run = |mount: &Mount, command: &[&str]| jobs(mount, &["run", "align"], command);

    let unknown = run(&mount, &["touch", "ran"]);
    assert!(!unknown.status.success() && message(&unknown).contains("align"), "{unknown:?}");
    assert!(!mount.path().join("ran").exists(), "a job that nobody announced does not run");
    let added = jobs(&mount, &["add", announced.to_str().expect("a path")], &[]);
    assert!(added.status.success(), "{}", message(&added));
    assert_eq!(position(&mount).0, 0);

    // The command's own process, and what it starts.
    let ran = run(&mount, &["sh", "-c", "cat a; (cat b); echo $HALOCLINE_JOB; exit 7"]);
    assert_eq!(ran.status.code(), Some(7), "{}", message(&ran));
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "abalign\n");
    assert_eq!(position(&mount), (2, "running".to_owned()));
    read(&mount.path(), &["c", "d"]);
    assert_eq!(position(&mount).0, 2, "those were not the job's");
    mount.unmount();
    mount.start();
    assert_eq!(position(&mount).0, 2, "the place outlives the mount");
    assert!(run(&mount, &["cat", "a", "b", "c"]).status.success());
    assert_eq!(position(&mount).0, 3, "another run begins at the beginning");
    assert!(run(&mount, &["cat", "a", "b", "c", "d"]).status.success());
    assert_eq!(position(&mount), (4, "done".to_owned()));

    assert_eq!(run(&mount, &["no-such-command"]).status.code(), Some(127));
    assert_eq!(run(&mount, &["./a"]).status.code(), Some(126));
    assert_eq!(position(&mount), (4, "done".to_owned()), "what cannot be started begins no run");
    assert!(jobs(&mount, &["remove", "align"], &[]).status.success());
    let listed = jobs(&mount, &["list"], &[]);
    assert_eq!(String::from_utf8_lossy(&listed.stdout), "no jobs are announced\n");
    mount.unmount();
}
