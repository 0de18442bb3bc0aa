//! docs/METRICS.md has every key that a command prints as JSON.

use std::fs;

use halocline_api::control::metrics::{SECTIONS, Section};
use halocline_testkit::program;
use halocline_testkit::sandbox::{Sandbox, said, written};
use halocline_testkit::scratch::Scratch;

/// Says that `answer` has no key that the section of `command` lacks.
#[track_caller]
fn described(command: &str, answer: &[u8]) {
    let section = Section::find(command).expect(command);
    let answer = serde_json::from_slice(answer).expect(command);
    assert_eq!(section.undescribed(&answer), [""; 0], "{command}");
}

#[test]
fn every_key_that_a_mount_prints_is_described() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let size = ["--size", "64M", "--policy", "always"];
    scratch.succeed(&[&["mount", "origin", "mnt", "--cache", "cache"][..], &size].concat());
    fs::write(scratch.path("mnt/new"), "bytes").unwrap();
    for (command, args) in [
        ("halocline status", &["status", "mnt"][..]),
        ("halocline where FILE", &["where", "mnt/new"]),
        ("halocline where DIR", &["where", "mnt"]),
        ("halocline explain", &["explain", "mnt/new", "0", "8K"]),
        ("halocline pin", &["pin", "*.idx", "--on", "mnt"]),
        ("halocline pin", &["exclude", "*.tmp", "--on", "mnt"]),
        ("halocline pin", &["unpin", "*.idx", "--on", "mnt"]),
        ("halocline flush", &["flush", "mnt"]),
        ("halocline flush", &["flush", "mnt", "--dry-run"]),
        ("halocline flush", &["warm", "mnt/data"]),
        ("halocline flush", &["evict", "mnt/new"]),
        ("halocline status", &["status", "mnt"]),
    ] {
        described(command, scratch.succeed(&[args, &["--json"]].concat()).as_bytes());
    }
    scratch.succeed(&["umount", "mnt"]);
    let run = ["run", "--origin", "origin", "--cache", "cache", "-q", "--report", "r.json"];
    for trace in [&[][..], &["--trace", "t.hct"]] {
        scratch.succeed(&[&run[..], &size, trace, &["--", "cat", "origin/new"]].concat());
        let report = fs::read(scratch.path("r.json")).unwrap();
        described("--report", &report);
        let has_curve = String::from_utf8(report).unwrap().contains("\"optimum\"");
        assert_eq!(has_curve, !trace.is_empty());
    }
    described("halocline fsck CACHE", &scratch.halocline(&["fsck", "cache", "--json"]).stdout);
    let rescue = ["rescue", "cache", "--to", "saved", "--all", "--json"];
    described("halocline rescue", &scratch.halocline(&rescue).stdout);
}

#[test]
fn every_key_that_a_file_tier_prints_is_described() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    for tier in ["ssd", "hdd"] {
        fs::create_dir(scratch.path(tier)).unwrap();
    }
    fs::write(scratch.path("hdd/file"), "bytes").unwrap();
    fs::write(scratch.path("job.json"), r#"{"job": "j", "references": ["file"]}"#).unwrap();
    scratch.succeed(&["mount", "--tier", ".", "mnt"]);
    for (command, args) in [
        ("halocline jobs", &["jobs", "add", "job.json", "--on", "mnt"][..]),
        ("halocline jobs", &["jobs", "list", "--on", "mnt"]),
        ("halocline status", &["status", "mnt"]),
        ("halocline where PATH", &["where", "mnt"]),
        ("halocline explain FILE", &["explain", "mnt/file"]),
        ("halocline flush", &["demote", "mnt/file"]),
        ("halocline flush", &["warm", "mnt/file"]),
    ] {
        let output = scratch.halocline(&[args, &["--json"]].concat());
        assert!(output.status.success(), "{args:?}: {}", said(&output));
        described(command, &output.stdout);
    }
    scratch.succeed(&["umount", "mnt"]);
    fs::write(scratch.path("hdd/later"), "bytes").unwrap();
    described("halocline fsck ROOT", &scratch.halocline(&["fsck", ".", "--json"]).stdout);
}

#[test]
fn every_key_of_what_asks_no_mount_is_described() {
    let sandbox = Sandbox::new(program!());
    described("halocline doctor", &sandbox.halocline(&["doctor", "--json"]).stdout);
    let directories = ["doctor", "--json", "--origin", "origin", "--cache", "cache"];
    described("halocline doctor", &sandbox.halocline(&directories).stdout);
    let measure = ["calibrate", "origin", "--span", "4M", "--requests", "1", "--emulate-as", "ssd"];
    let output = sandbox.halocline(&[&measure[..], &["--dry-run", "--json"]].concat());
    assert!(output.status.success(), "{}", said(&output));
    described("halocline calibrate", &output.stdout);
}

/// A command that learns to print JSON is described, or this fails.
#[test]
fn every_command_that_prints_json_has_a_section() {
    let sandbox = Sandbox::new(program!());
    let names = |of: &[&str]| -> Vec<String> {
        let help = written(&sandbox.halocline(&[of, &["--help"]].concat()));
        let list = help.split("Commands:\n").nth(1).unwrap_or_default().to_owned();
        let lines = list.lines().take_while(|line| line.starts_with("  ")).map(str::to_owned);
        lines.filter_map(|line| Some(line.split_whitespace().next()?.to_owned())).collect()
    };
    let mut seen = 0;
    for command in names(&[]) {
        let below = names(&[command.as_str()]);
        let all = if below.is_empty() { vec![None] } else { below.iter().map(Some).collect() };
        for sub in all {
            if command == "help" || sub.is_some_and(|sub| sub == "help") {
                continue;
            }
            let words: Vec<&str> =
                [command.as_str()].into_iter().chain(sub.map(String::as_str)).collect();
            let help = written(&sandbox.halocline(&[&words[..], &["--help"]].concat()));
            if !help.contains("--json") && !help.contains("--report") {
                continue;
            }
            // A section may be for all below a command, and for several commands: `flush|warm`.
            let is_of = |section: &&Section| {
                section.commands.split_once("halocline ").is_some_and(|(_, rest)| {
                    let first = rest.split(' ').next().unwrap_or_default();
                    first.split('|').any(|name| name == words[0])
                        && sub.is_none_or(|sub| words[0] == "jobs" || rest.contains(sub.as_str()))
                })
            };
            assert!(SECTIONS.iter().any(|section| is_of(&section)), "{words:?}");
            seen += 1;
        }
    }
    assert!(seen > 15, "{seen}");
}
