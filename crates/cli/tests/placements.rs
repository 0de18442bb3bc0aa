//! Where the files of a trace lie on the disks: what `plan` promises holds in placements that it has not seen.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

use halocline_testkit::program;
use halocline_testkit::sandbox::said;
use serde_json::Value;

/// Seeds of placements by which nothing was judged.
const OTHERS: std::ops::Range<u64> = 20..40;

fn succeed(dir: &Path, args: &[&str]) -> Vec<u8> {
    let output = Command::new(program!()).args(args).current_dir(dir).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", said(&output));
    output.stdout
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

/// What `simulate` says of the plan.
fn simulated(dir: &Path, more: &[&str]) -> Value {
    let args = ["simulate", "t.hct", "--servers", "s.toml", "--plan", "p.toml", "--json"];
    let answer: Value = serde_json::from_slice(&succeed(dir, &[&args, more].concat())).unwrap();
    answer["plan"].clone()
}

/// A trace of IOR with a file for each process, and so many disks and an SSD, if it has a capacity.
fn made(dir: &Path, ior: &str, disks: usize, ssd: Option<&str>) {
    let mut servers = String::new();
    let disks = (0..disks).map(|number| (format!("1.{number}"), "hdd", "1T"));
    for (name, profile, capacity) in disks.chain(ssd.map(|ssd| ("2.0".to_owned(), "ssd", ssd))) {
        let table = format!("name = \"{name}\"\nprofile = \"{profile}\"");
        writeln!(servers, "[[server]]\n{table}\ncapacity = \"{capacity}\"").unwrap();
    }
    fs::write(dir.join("s.toml"), servers).unwrap();
    let made = ["trace", "make", "ior"].into_iter().chain(ior.split(' '));
    succeed(dir, &made.chain(["-o", "t.hct"]).collect::<Vec<_>>());
}

/// A trace of IOR planned for so many disks and an SSD: what `plan` says, and what it gains in other placements, sorted.
fn planned(dir: &Path, ior: &str, disks: usize, ssd: &str) -> (Value, Vec<f64>) {
    made(dir, &format!("-F {ior}"), disks, Some(ssd));
    let plan = ["plan", "t.hct", "--servers", "s.toml", "-o", "p.toml", "--json"];
    let answer = serde_json::from_slice(&succeed(dir, &plan)).unwrap();
    let gains = OTHERS
        .map(|seed| number(&simulated(dir, &["--seed", &seed.to_string()])["gain_over_default"]));
    let mut gains: Vec<f64> = gains.collect();
    gains.sort_by(f64::total_cmp);
    (answer, gains)
}

/// Regression: the gain in the placement in which the search had replayed was promised, 171 % where others gained 61 % and 119 %
/// at most; and a plan was recommended that lost in a third of them.
#[test]
fn what_is_promised_holds_in_other_placements() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    for (ior, ssd, is_sure) in [
        ("-p 16 -b 4M -t 64K -z 3", "40M", true),
        ("-p 8 -b 8M -t 256K", "20M", true),
        ("-p 2 -b 16M -t 64K -z 1", "2M", true),
        ("-p 3 -b 16M -t 64K", "1M", false),
    ] {
        let (plan, others) = planned(dir, ior, 2, ssd);
        let (promised, median) = (number(&plan["gain_over_def"]), others[others.len() / 2]);
        let told = format!("{ior}: {promised} promised of {others:?}; {}", plan["placements"]);
        if !is_sure {
            // Whatever is promised, in no placement the plan loses.
            assert!(plan["chosen"] == "def" || others[0] > 0.01, "{told}");
            continue;
        }
        assert_ne!(plan["chosen"], "def", "{told}");
        assert!(others[0] <= promised && promised <= others[others.len() - 1], "{told}");
        let ratio = (1.0 + promised) / (1.0 + median);
        assert!((0.8..=1.25).contains(&ratio), "{ratio}: {told}");
        assert!(
            number(&plan["least_gain"]) <= median && median <= number(&plan["most_gain"]),
            "{told}"
        );
        // The same judgement, and that of one placement.
        let own = simulated(dir, &[]);
        assert!((number(&own["gain_over_default"]) - promised).abs() < 1e-9, "{own}");
        let gains = |answer: &Value| -> Vec<f64> {
            let placements = answer["placements"].as_array().unwrap();
            placements.iter().map(|placement| number(&placement["gain"])).collect()
        };
        assert_eq!((gains(&own), gains(&own).len()), (gains(&plan), 5), "{own}");
        let one = simulated(dir, &["--seed", "3"]);
        assert_eq!(gains(&one), gains(&own)[3..4], "{one}");
        assert!((number(&one["gain_over_default"]) - gains(&own)[3]).abs() < 1e-9, "{one}");
    }
}

/// Of one file nothing depends on where it lies.
#[test]
fn of_one_file_there_is_one_placement() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    let (plan, others) = planned(dir, "-p 1 -b 4M -t 64K -z 1", 2, "1M");
    assert_eq!(plan["placements"].as_array().unwrap().len(), 1, "{plan}");
    assert!(
        others.iter().all(|gain| (gain - number(&plan["gain_over_def"])).abs() < 1e-9),
        "{others:?}"
    );
}

/// Regression: nothing was recommended, or much less, where as many files as there are disks lie on one each and the rest on
/// all of them. The gains are what such a layout by hand gains: the mean, and the least of five placements.
#[test]
fn with_more_files_than_disks_some_are_alone() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    for (ior, disks, ssd, mean, least) in [
        ("-p 5 -F -b 4M -t 64K", 4, None, 3.74, 0.92),
        ("-p 4 -F -b 8M -t 64K -z 1", 3, None, 0.68, 0.50),
        ("-p 5 -F -b 8M -t 64K", 3, None, 1.25, 0.24),
        ("-p 3 -F -b 8M -t 64K -z 1", 2, None, 0.38, 0.25),
        ("-p 3 -F -b 8M -t 256K", 2, None, 1.62, 1.18),
        ("-p 3 -F -b 16M -t 64K", 2, Some("1M"), 1.06, 0.24),
        ("-p 4 -F -b 4M -t 64K -z 1", 2, Some("4M"), 0.32, 0.10),
    ] {
        made(dir, ior, disks, ssd);
        let plan = ["plan", "t.hct", "--servers", "s.toml", "--json"];
        let plan: Value = serde_json::from_slice(&succeed(dir, &plan)).unwrap();
        let told = format!("{ior}: {} of {}", plan["gain_over_def"], plan["placements"]);
        assert_ne!(plan["chosen"], "def", "{told}");
        assert!(number(&plan["gain_over_def"]) > (1.0 + mean) * 0.98 - 1.0, "{told}");
        let gains = plan["placements"].as_array().unwrap().iter();
        let least_of = gains.map(|it| number(&it["gain"])).fold(f64::INFINITY, f64::min);
        assert!(least_of > 0.01 && (least_of > least * 0.5 || mean < 1.0), "{told}");
    }
}

/// Regression: stripes of 16 KiB gained 300 %; scripts made 64 KiB of them, which is the default, and said nothing.
#[test]
fn scripts_say_what_the_layouts_that_they_make_gain() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    let script = |system: &str| {
        let args = ["plan", "t.hct", "--servers", "s.toml", "--for", system];
        Command::new(program!()).args(args).current_dir(dir).output().unwrap()
    };
    let systems = ["lustre", "beegfs", "cephfs"];
    made(dir, "-p 1 -b 8M -t 64K", 4, None);
    for system in systems {
        let output = script(system);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{}", said(&output));
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(told.contains(&format!("as {system} has them")), "{told}");
        assert!(told.contains("gain 0.0 %") && told.contains("no script is written"), "{told}");
    }
    // OrangeFS has such stripes.
    assert!(script("orangefs").status.success());
    // Some of the gain is left: it is told, also in the script.
    made(dir, "-p 4 -b 8000K -t 80K -z 1", 4, None);
    let output = script("beegfs");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && told.starts_with("as beegfs has them"), "{told}");
    assert!(told.contains("as planned"), "{told}");
    let script = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(script.starts_with(&format!("#!/bin/sh\n# {told}set -e\n")), "{script}");
}
