//! `halocline advise`: what an SSD is best used for, by simulation.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use halocline_api::control::metrics::Section;
use halocline_testkit::program;
use halocline_testkit::sandbox::{said, written};
use serde_json::Value;

const SERVERS: &str = r#"
[[server]]
name = "disk"
profile = "hdd"
capacity = "1T"

[[server]]
name = "flash"
profile = "ssd"
capacity = "1G"
"#;

fn halocline(dir: &Path, args: &[&str]) -> Output {
    Command::new(program!()).args(args).current_dir(dir).output().unwrap()
}

/// A directory with a trace of IOR and the description of servers.
fn scratch(ior: &[&str], servers: &str) -> tempfile::TempDir {
    let scratch = tempfile::tempdir().unwrap();
    fs::write(scratch.path().join("servers.toml"), servers).unwrap();
    let made = halocline(scratch.path(), &[&["trace", "make", "ior", "-o", "t.hct"], ior].concat());
    assert!(made.status.success(), "{}", said(&made));
    scratch
}

fn advised(dir: &Path, more: &[&str]) -> Value {
    let args = [&["advise", "t.hct", "--servers", "servers.toml", "--json"], more].concat();
    let output = halocline(dir, &args);
    assert!(output.status.success(), "{}", said(&output));
    let answer = serde_json::from_slice(&output.stdout).unwrap();
    let section = Section::find("halocline advise").unwrap();
    assert_eq!(section.undescribed(&answer), [""; 0]);
    answer
}

/// So many disks and SSDs.
fn described(disks: usize, ssds: usize) -> String {
    let mut text = String::new();
    for index in 0..disks + ssds {
        let kind = if index < disks { ("hdd", "1T") } else { ("generic-ssd", "64G") };
        let (profile, capacity) = kind;
        writeln!(text, "[[server]]\nname = \"s{index}\"").unwrap();
        writeln!(text, "profile = \"{profile}\"\ncapacity = \"{capacity}\"").unwrap();
    }
    text
}

/// The same as below, of a plan: 20 times the throughput was left.
#[test]
fn a_gain_in_every_part_is_planned_however_much_larger_it_is_in_some() {
    let tile = ["tile", "--tiles", "4x4", "--size", "16x16", "--element", "1K", "--overlap", "0x0"];
    let ior = ["ior", "-p", "16", "-b", "32K", "-t", "32K", "-s", "256"];
    // Half the range is more than the gain itself in the first case.
    for (disks, made, range) in [(1, &ior[..], 1.0), (4, &tile, 0.5)] {
        let scratch = scratch(&[], &described(disks, 4));
        let dir = scratch.path();
        let output = halocline(dir, &[&["trace", "make"], made, &["-o", "t.hct"]].concat());
        assert!(output.status.success(), "{}", said(&output));
        let plan = ["plan", "t.hct", "--servers", "servers.toml"];
        let output = halocline(dir, &[&plan[..], &["--json"]].concat());
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_ne!(answer["chosen"], "def", "{answer}");
        let number = |key: &str| answer[key].as_f64().unwrap();
        assert!(number("least_gain") > 0.2, "{answer}");
        assert!(number("spread") > range * number("gain_over_def"), "{answer}");
        assert!(number("least_gain") <= number("gain_over_def"), "{answer}");
        let told = written(&halocline(dir, &plan));
        assert!(told.contains("in parts of the trace"), "{told}");
    }
}

/// Regression: half the range of the gains was compared with the gain. Where files lie on the disks changes their time by
/// several times, and they are hundreds of times as slow in each case.
#[test]
fn a_gain_in_every_variant_is_advised_however_much_larger_it_is_in_some() {
    let scratch = scratch(&["-p", "2", "-b", "1M", "-t", "4K", "-F"], &described(2, 2));
    let answer = advised(scratch.path(), &[]);
    let number = |value: &Value| value.as_f64().unwrap();
    assert_eq!(answer["answer"], "stripes", "{answer}");
    assert!(number(&answer["spread"]) > number(&answer["gain"]) / 2.0, "they differ: {answer}");
    assert!(number(&answer["least_gain"]) > 5.0, "{answer}");
    assert_eq!(answer["stays"], 1.0, "{answer}");
    let variants = answer["variants"].as_array().unwrap();
    let seeds = variants.iter().filter(|variant| variant["seed"] != 0).count();
    assert_eq!((variants.len(), seeds), (12, 4), "{answer}");
    assert!(number(&answer["most_gain"]) > number(&answer["gain"]), "{answer}");
}

#[test]
fn random_requests_are_advised_an_ssd_and_told_how_sure_that_is() {
    let scratch = scratch(&["-p", "4", "-b", "1M", "-t", "16K", "-z", "1"], SERVERS);
    let dir = scratch.path();
    let answer = advised(dir, &[]);
    assert_ne!(answer["answer"], "none", "{answer}");
    assert_eq!(answer["answer"], answer["best"]);
    assert_eq!((&answer["requests"], &answer["variant_requests"]), (&256.into(), &256.into()));
    assert_eq!(answer["size"], 1 << 30);
    let number = |value: &Value| value.as_f64().unwrap();
    assert!(number(&answer["gain"]) > number(&answer["spread"]), "{answer}");
    for what in ["stripes", "cache", "tier"] {
        let seconds = &answer["uses"][what]["seconds"];
        assert!(number(seconds) < number(&answer["uses"]["none"]["seconds"]) / 2.0, "{answer}");
    }
    let variants = answer["variants"].as_array().unwrap();
    let same = variants.iter().filter(|variant| variant["answer"] == answer["answer"]).count();
    // Devices that are faster and slower; where one file lies does not matter.
    assert_eq!(variants.len(), 8);
    assert!(
        (number(&answer["stays"]) - f64::from(u32::try_from(same).unwrap()) / 8.0).abs() < 1e-9
    );
    assert_eq!(answer, advised(dir, &[]), "the same again");

    // With next to no room the cache and the tier are no faster than the disk.
    let small = advised(dir, &["--size", "4K"]);
    for what in ["cache", "tier"] {
        assert!(number(&small["uses"][what]["gain"]).abs() < 0.1, "{small}");
    }
    let told = halocline(dir, &["advise", "t.hct", "--servers", "servers.toml"]);
    let text = written(&told);
    assert!(text.starts_with("SIMULATED: 256 requests") && text.contains("\nadvice: "), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn nothing_is_advised_where_nothing_is_to_be_gained() {
    // What stands for an SSD is a disk like the other one, and the way to it is long.
    let servers = SERVERS.replace("\"ssd\"", "\"far\"")
        + "network = { connect_us = 20000.0 }\n[profile.far]\nkind = \"hdd\"\nrpm = 7201\n";
    let scratch = scratch(&["-p", "1", "-b", "4M", "-t", "16K"], &servers);
    let answer = advised(scratch.path(), &[]);
    assert_eq!(answer["answer"], "none", "{answer}");
    let told = halocline(scratch.path(), &["advise", "t.hct", "--servers", "servers.toml"]);
    assert!(written(&told).contains("advice: none of them"), "{}", written(&told));
}

/// Regression: `plan` recommended nothing, and the advice counted with what it had not recommended.
#[test]
fn stripes_are_those_that_the_plan_recommends() {
    let scratch = scratch(&["-p", "1", "-b", "64K", "-t", "64K"], SERVERS);
    // Random requests of a job that computes for two seconds between them, as good as all the time.
    let mut csv = "time_s,process,file,op,offset,length,duration_s\n".to_owned();
    for number in 0..100_u64 {
        let offset = number * 2_654_435_761 % 4096 * 65536;
        writeln!(csv, "{},0,/f,read,{offset},65536,0.01", 2 * number).unwrap();
    }
    fs::write(scratch.path().join("t.csv"), csv).unwrap();
    let run = |args: &[&str]| {
        let output = halocline(scratch.path(), args);
        assert!(output.status.success(), "{}", said(&output));
        output
    };
    run(&["trace", "import", "t.csv", "-o", "t.hct"]);
    let planned = run(&["plan", "t.hct", "--servers", "servers.toml", "--json"]);
    let plan: Value = serde_json::from_slice(&planned.stdout).unwrap();
    assert_eq!(plan["chosen"], "def", "{plan}");
    assert_ne!(plan["job"]["seconds"], plan["job"]["def_seconds"], "{plan}");
    let answer = advised(scratch.path(), &[]);
    assert_eq!(answer["uses"]["stripes"]["seconds"], plan["job"]["def_seconds"], "{answer}");
}

#[test]
fn what_cannot_be_advised_on_is_refused() {
    let scratch = scratch(&["-p", "1", "-b", "1M", "-t", "256K"], SERVERS);
    let dir = scratch.path();
    fs::write(dir.join("disks.toml"), SERVERS.replace("\"ssd\"", "\"hdd\"")).unwrap();
    fs::write(dir.join("full.toml"), SERVERS.replace("\"1G\"", "0")).unwrap();
    // Regression: these were told how much a cache gains over disks that have no room for the files.
    fs::write(dir.join("small.toml"), SERVERS.replace("\"1T\"", "1048575")).unwrap();
    fs::write(dir.join("empty.hct"), "").unwrap();
    for (trace, more, what) in [
        (
            "t.hct",
            &["--servers", "disks.toml"][..],
            "disks.toml: all servers are of one class: describe an SSD",
        ),
        ("t.hct", &["--servers", "full.toml"], "full.toml, line 10: capacity"),
        ("t.hct", &["--servers", "small.toml"], "1048576 bytes, and the disks hold 1048575"),
        ("t.hct", &["--servers", "none.toml"], "none.toml: there is no such file"),
        ("t.hct", &["--servers", "servers.toml", "--size", "2G"], "--size 2147483648"),
        ("t.hct", &["--servers", "servers.toml", "--size", "0"], "--size 0"),
        ("empty.hct", &["--servers", "servers.toml"], "empty.hct: "),
        ("servers.toml", &["--servers", "servers.toml"], "not a trace"),
        ("none.hct", &["--servers", "servers.toml"], "none.hct: "),
    ] {
        let output = halocline(dir, &[&["advise", trace], more].concat());
        let said = said(&output);
        assert!(!output.status.success() && output.stdout.is_empty(), "{said}");
        assert!(said.contains(what), "{said}");
    }
}

/// Columns of long times ran together.
#[test]
fn long_times_stay_apart() {
    let scratch = scratch(&["-p", "1", "-b", "1M", "-t", "256K"], SERVERS);
    let dir = scratch.path();
    let slow = "seek_ms_min = 60000.0\nseek_ms_max = 60000.0\nrpm = 1.0\nmb_per_s = 0.001\n";
    let servers =
        SERVERS.replace("\"hdd\"", "\"slow\"") + "[profile.slow]\nkind = \"hdd\"\n" + slow;
    fs::write(dir.join("slow.toml"), servers).unwrap();
    let csv = "time_s,process,file,op,offset,length\n0,0,/data/big,read,0,4294967296\n";
    fs::write(dir.join("t.csv"), csv).unwrap();
    assert!(halocline(dir, &["trace", "import", "t.csv", "-o", "big.hct"]).status.success());
    let told = written(&halocline(dir, &["advise", "big.hct", "--servers", "slow.toml"]));
    let none = told.lines().find(|line| line.starts_with("none ")).unwrap();
    assert!(
        none.contains(" min ") && none.split("  ").filter(|cell| !cell.is_empty()).count() >= 4,
        "{told}"
    );
}
