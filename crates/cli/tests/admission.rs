//! `halocline bench admission`: policies on random workloads, simulated.

use std::fs;
use std::process::{Command, Output};

use halocline_api::control::metrics::Section;
use halocline_testkit::plot::Plot;
use halocline_testkit::program;
use halocline_testkit::sandbox::{said, written};
use serde_json::Value;

fn halocline(args: &[&str]) -> Output {
    Command::new(program!()).args(args).output().unwrap()
}

fn policy<'a>(answer: &'a Value, name: &str) -> &'a Value {
    let policies = answer["policies"].as_array().unwrap();
    policies.iter().find(|judged| judged["policy"] == name).unwrap()
}

/// The same numbers each time, however many processors there are.
#[test]
fn policies_are_compared_and_the_same_each_time() {
    let args = ["bench", "admission", "--workloads", "40", "--json"];
    let output = halocline(&args);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(output.stdout, halocline(&args).stdout);
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let section = Section::find("halocline bench admission").unwrap();
    assert_eq!(section.undescribed(&answer), [""; 0]);
    assert_eq!(answer["cases"].as_array().unwrap().len(), 40);
    let least = |name: &str, what: &str| policy(&answer, name)[what]["least"].as_f64().unwrap();
    assert!(least("adaptive", "of_never") >= 0.97);
    assert!(least("adaptive", "of_best") >= 0.9);
    for other in ["always", "sla", "s4d", "never"] {
        assert!(least(other, "of_best") < 0.6, "{other}");
    }
    assert!(least("always", "of_never") < 0.6);
}

#[test]
fn single_workloads_of_a_seed_are_chosen() {
    let output = halocline(&["bench", "admission", "--seed", "57", "--only", "3,0", "--json"]);
    assert!(output.status.success(), "{}", said(&output));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let cases = answer["cases"].as_array().unwrap();
    let numbers: Vec<_> = cases.iter().map(|case| case["number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, [0, 3]);
    for case in cases {
        let (seconds, served) = (&case["seconds"]["adaptive"], &case["adaptive"]);
        assert_eq!(*seconds, served["total_seconds"]);
    }
    let both = halocline(&["bench", "admission", "--only", "3", "--workloads", "4"]);
    assert_eq!(both.status.code(), Some(2), "{}", said(&both));
}

#[test]
fn some_run_on_the_engine_itself() {
    // One process that is done after 4,096 requests of 4 KiB.
    let args = ["bench", "admission", "--workloads", "1", "--seed", "57", "--engine", "1"];
    let output = halocline(&[&args[..], &["--json"]].concat());
    assert!(output.status.success(), "{}", said(&output));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let section = Section::find("halocline bench admission").unwrap();
    assert_eq!(section.undescribed(&answer), [""; 0]);
    let case = &answer["engine"][0];
    let never = case["policies"].as_array().unwrap().iter().find(|it| it["policy"] == "never");
    let never = never.unwrap();
    let seconds = |of: &str| never[of]["total_seconds"].as_f64().unwrap();
    assert!((seconds("engine") / seconds("simulated") - 1.0).abs() < 0.02, "{never}");
    assert!(case["of_never"].as_f64().unwrap() > 0.5, "{case}");
}

/// A run of all 30 workloads takes most of an hour; one that was ended began anew.
#[test]
fn what_the_engine_did_is_kept_for_a_run_that_goes_on() {
    let scratch = tempfile::tempdir().unwrap();
    let kept = scratch.path().join("kept");
    let args =
        ["bench", "admission", "--workloads", "1", "--seed", "57", "--engine", "1", "--json"];
    let run = || {
        let output = halocline(&[&args[..], &["--results", kept.to_str().unwrap()]].concat());
        assert!(output.status.success(), "{}", said(&output));
        output
    };
    let first = run();
    assert!(!said(&first).contains("as kept"), "{}", said(&first));
    // It was ended before the last policy.
    let whole = fs::read_to_string(&kept).unwrap();
    let lines: Vec<&str> = whole.lines().collect();
    assert_eq!(lines.len(), 5, "{whole}");
    fs::write(&kept, lines[..4].join("\n") + "\n").unwrap();
    let again = run();
    assert!(!said(&again).contains("as kept"), "{}", said(&again));
    assert_eq!(fs::read_to_string(&kept).unwrap().lines().count(), 5);
    let last = run();
    assert!(said(&last).contains("us between; as kept\n"), "{}", said(&last));
    assert_eq!(again.stdout, last.stdout);
    // Nothing runs on the engine.
    let without = halocline(&["bench", "admission", "--workloads", "1", "--results", "kept"]);
    assert_eq!(without.status.code(), Some(2), "{}", said(&without));
}

#[test]
fn they_are_told_and_drawn() {
    let scratch = tempfile::tempdir().unwrap();
    let plot = scratch.path().join("policies.svg");
    let output = halocline(&[
        "bench",
        "admission",
        "--workloads",
        "3",
        "--seed",
        "7",
        "--plot",
        plot.to_str().unwrap(),
    ]);
    assert!(output.status.success(), "{}", said(&output));
    let told = written(&output);
    assert!(told.contains("SIMULATED: 3 random workloads"), "{told}");
    assert!(told.contains("where adaptive is worst"), "{told}");
    let drawn = Plot::read(&plot);
    for word in ["SIMULATED: random workloads by policy", "adaptive", "never"] {
        assert!(drawn.mentions(word), "{word}");
    }
}
