//! What the command writes: JSON alone where JSON is asked for, and other people's words shown on a
//! terminal, not obeyed.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::process::Output;

use halocline_testkit::program;
use halocline_testkit::sandbox::{Sandbox, said, written};
use halocline_testkit::scratch::Scratch;

/// A title, an erased screen, a line of its own, a direction; and what is not UTF-8.
const EVIL: &[u8] = b"a\x1b]0;title\x07\x1b[2J\nfake line\xe2\x80\xae\xc2\x9b1m";

#[track_caller]
fn is_json(output: &Output) {
    let text = written(output);
    assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok(), "{text:?} {}", said(output));
    is_harmless(output);
}

#[track_caller]
fn is_harmless(output: &Output) {
    for text in [written(output), said(output)] {
        let is_obeyed =
            |c: char| c != '\n' && c.is_control() || ('\u{202a}'..='\u{202e}').contains(&c);
        assert!(!text.contains(is_obeyed), "{text:?}");
        assert!(!text.lines().any(|line| line.starts_with("fake")), "{text:?}");
    }
}

#[test]
fn what_is_measured_and_looked_at_is_json_alone() {
    let sandbox = Sandbox::new(program!());
    let measure = ["calibrate", "origin", "--span", "4M", "--requests", "1", "--emulate-as", "ssd"];
    let output = sandbox.halocline(&[&measure[..], &["--config", "c.toml", "--json"]].concat());
    is_json(&output);
    assert!(output.status.success() && said(&output).contains("written to"), "{}", said(&output));
    assert!(sandbox.path("c.toml").exists());
    is_json(&sandbox.halocline(&["doctor", "--json"]));
}

#[test]
fn names_of_others_are_shown_and_not_obeyed() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let name = OsStr::from_bytes(EVIL);
    let text = name.to_str().unwrap();
    fs::write(scratch.path("origin").join(name), "evil").unwrap();
    let odd = OsStr::from_bytes(b"odd\xff");
    fs::write(scratch.path("origin").join(odd), "odd").unwrap();
    scratch.succeed(&["mount", "origin", "mnt", "--cache", "cache", "--policy", "always"]);
    fs::write(scratch.path("mnt").join(name), "dirty").unwrap();
    let file = format!("mnt/{text}");
    let commands: [&[&str]; 9] = [
        &["where", "mnt"],
        &["where", &file],
        &["explain", &file, "0", "4"],
        &["pin", &format!("{}*", text.replace('[', "?")), "--on", "mnt"],
        &["status", "mnt"],
        &["warm", "mnt"],
        &["flush", "mnt", "--dry-run"],
        &["evict", &file, "--dry-run"],
        &["flush", "mnt"],
    ];
    for args in commands {
        let output = scratch.halocline(args);
        assert!(output.status.success(), "{args:?}: {}", said(&output));
        is_harmless(&output);
        is_json(&scratch.halocline(&[args, &["--json"]].concat()));
    }
    assert!(written(&scratch.halocline(&["where", "mnt"])).contains("fake line"), "it is shown");
    is_harmless(&scratch.halocline(&["warm", &format!("{file}-"), &format!("--{text}")]));
    is_harmless(&scratch.halocline(&["warm", &format!("{file}-")]));
    is_harmless(&scratch.halocline(&["umount", "mnt"]));
    is_json(&scratch.halocline(&["fsck", "cache", "--json"]));
    is_harmless(&scratch.halocline(&["run", "--origin", &file, "--cache", "cache", "--", "true"]));
}

/// What is behind `--` is not a flag, so the flag of the background process was taken for a directory.
#[test]
fn directories_may_stand_behind_two_dashes() {
    let Some(scratch) = Scratch::with_mountpoints(program!(), &["./-m"]) else { return };
    scratch.succeed(&["mount", "--cache", "cache", "--", "origin", "-m"]);
    assert_eq!(fs::read(scratch.path("-m/data")).unwrap(), b"precious");
}

/// It said "0 B of 200 GiB" on a file system with 9.7 GiB free, and the policy twice.
#[test]
fn a_status_says_what_the_file_system_has_and_each_thing_once() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    scratch.succeed(&["mount", "origin", "mnt", "--cache", "cache", "--policy", "always"]);
    fs::write(scratch.path("mnt/new"), "bytes").unwrap();
    let told = scratch.succeed(&["status", "mnt"]);
    let space = told.lines().find(|line| line.starts_with("  space")).unwrap();
    assert!(space.ends_with("free on its file system)"), "{space}");
    assert_eq!(told.matches("policy").count(), 1, "{told}");
    assert!(told.contains("mounted for") && told.contains("nothing was read"), "{told}");
    let told = scratch.succeed(&["where", "mnt/new"]);
    assert!(told.contains("1-DH") && !told.contains("1dh"), "{told}");
}

/// What caches of other sizes would have missed is told with a report, which somebody asked for, and not otherwise.
#[test]
fn only_a_report_of_a_recorded_run_tells_misses() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let run = ["run", "--origin", "origin", "--cache", "cache", "--trace", "t"];
    for (report, tells) in [(&[][..], false), (&["--report", "r"][..], true)] {
        let output = scratch.halocline(&[&run[..], report, &["--", "cat", "origin/data"]].concat());
        let said = said(&output);
        assert!(output.status.success() && said.contains("recorded"), "{said}");
        assert_eq!(said.contains("S3-FIFO"), tells, "{said}");
        fs::remove_file(scratch.path("t")).unwrap();
    }
}

/// A shell makes many paths of a glob that is not quoted; one was taken, and the next was an "unexpected argument".
#[test]
fn commands_about_files_take_several() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let mount = ["mount", "origin", "mnt", "--cache", "cache", "--policy", "always"];
    // Nothing is flushed but on request.
    scratch.succeed(&[&mount[..], &["--rebuild=false"]].concat());
    for name in ["a", "b", "c", "d", "7"] {
        fs::write(scratch.path("mnt").join(name), "bytes").unwrap();
    }
    let four = ["mnt/a", "mnt/b", "mnt/c", "mnt/d"];
    let told = scratch.succeed(&[&["where"], &four[..], &["--json"]].concat());
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!((&told["cached_bytes"], told["files"].as_array().unwrap().len()), (&20.into(), 4));
    for two in [&four[..2], &four[1..4]] {
        let told = scratch.succeed(&[&["where"], two].concat());
        assert!(two.iter().all(|path| told.contains(&path[4..])), "{told}");
    }
    assert!(scratch.succeed(&["where", "mnt/a", "0", "4"]).contains("offset"), "a part of one");
    for name in ["8", "9"] {
        fs::write(scratch.path("mnt").join(name), "bytes").unwrap();
    }
    let mut numbers = scratch.command(&["where", "7", "8", "9"]);
    let output = numbers.current_dir(scratch.path("mnt")).output().unwrap();
    let told = written(&output);
    assert!(["7", "8", "9"].iter().all(|name| told.contains(&format!(" {name}"))), "{told}");
    for wrong in [&["where", "mnt/a", "0"][..], &["where", "mnt/a", "mnt/x", "mnt/b"]] {
        let output = scratch.halocline(wrong);
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(said(&output).contains("OFFSET"), "{}", said(&output));
    }
    // A cache matches no globs: nothing was there of "0 files", and that was no failure.
    for (glob, name) in [("mnt/f*", "f*"), ("mnt/[ab]", "[ab]")] {
        for paths in [&[glob][..], &["mnt/a", glob]] {
            let output = scratch.halocline(&[&["where"], paths].concat());
            assert_eq!(output.status.code(), Some(2), "{}", written(&output));
            assert!(said(&output).contains(name), "{}", said(&output));
        }
    }
    let counted = |args: &[&str]| {
        let told = scratch.succeed(&[args, &["--json"]].concat());
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        (told["files"].as_u64().unwrap(), told["bytes"].as_u64().unwrap())
    };
    // A path that is named twice, or is below another one, was counted twice.
    for paths in [&["mnt/a", "mnt/a"][..], &["mnt/a", "mnt/../mnt/a"]] {
        assert_eq!(counted(&[&["flush", "-n"], paths].concat()), (1, 5), "{paths:?}");
        assert_eq!(counted(&[&["evict", "-n"], paths].concat()), (1, 5), "{paths:?}");
        let told = scratch.succeed(&[&["where"], paths, &["--json"]].concat());
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        assert_eq!((&told["cached_bytes"], &told["files"][1]), (&5.into(), &().into()), "{told}");
    }
    assert_eq!(counted(&["evict", "-n", "mnt/a", "mnt", "mnt/b"]), (7, 35));
    let moved = |command: &str| counted(&[&[command], &four[..]].concat());
    assert_eq!(moved("flush"), (4, 20));
    assert_eq!(moved("evict").0, 4);
    assert_eq!(counted(&["warm", "-n", "mnt/a", "mnt/a"]), (1, 5));
    assert_eq!(moved("warm"), (4, 20));
    // Nothing is done where one of them is no file of a mount.
    let output = scratch.halocline(&["evict", "mnt/a", "origin/data"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert_eq!(moved("warm").0, 0, "all are there");
}
