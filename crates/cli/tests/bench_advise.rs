//! `halocline bench advise`: what is advised beside what the engines do, where each use is the best one.

use std::process::{Command, Output};

use halocline_api::control::metrics::Section;
use halocline_testkit::program;
use halocline_testkit::sandbox::{said, written};
use serde_json::Value;

fn bench(args: &[&str]) -> Output {
    Command::new(program!()).args(["bench", "advise", "--quick"]).args(args).output().unwrap()
}

#[test]
fn each_use_is_advised_where_the_engines_are_the_fastest_with_it() {
    let best = [
        ("few random reads", "stripes"),
        ("bursts and a small SSD", "cache"),
        ("mostly computing", "none"),
        ("files in turn", "tier"),
    ];
    let names = best.map(|(name, _)| name).join(",");
    // Other work on the machine takes the engines' time, too: one of three runs has to be undisturbed.
    let agrees = |last: bool| {
        let output = bench(&["--json", "--workload", &names]);
        assert!(output.status.success(), "{}", said(&output));
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        let section = Section::find("halocline bench advise").unwrap();
        assert_eq!(section.undescribed(&answer), [""; 0]);
        assert_eq!(answer["workloads"].as_array().unwrap().len(), best.len());
        let wrong = disagreement(&answer, &best);
        assert!(!last || wrong.is_none(), "{}", wrong.unwrap());
        wrong.is_none()
    };
    assert!(agrees(false) || agrees(false) || agrees(true));
}

/// Where what is advised is not the fastest, or what advise simulates is not what the engines take, within a tenth.
fn disagreement(answer: &Value, best: &[(&str, &str)]) -> Option<String> {
    for (name, what) in best {
        let rows = answer["workloads"].as_array().unwrap();
        let row = rows.iter().find(|row| row["name"] == *name).unwrap();
        if (&row["fastest"], &row["advised"]) != (&(*what).into(), &(*what).into()) {
            return Some(format!("not {what}: {row}"));
        }
        for what in ["none", "stripes", "cache", "tier"] {
            let seconds = |of: &str| row[of][what].as_f64().unwrap();
            let (engine, model) = (seconds("emulated_seconds"), seconds("simulated_seconds"));
            // A cache's flush rests after the last request, and a read that fills comes a moment later.
            if (engine - model).abs() > 0.13 * engine + 0.15 {
                return Some(format!("{what} of {row}"));
            }
        }
    }
    (answer["agree"] != best.len()).then(|| answer["agree"].to_string())
}

#[test]
fn a_table_for_the_documents() {
    let output = bench(&["--markdown", "--workload", "mostly computing"]);
    let table = written(&output);
    assert!(table.starts_with("| workload | none | stripes | cache | tier | advised |"), "{table}");
    assert!(table.contains("\n| mostly computing: 1 process"), "{table}");
    assert!(table.ends_with("\nAdvice that is right: 1 of 1.\n"), "{table}");
    let output = bench(&["--workload", "mostly idling"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("--workload mostly idling: choose from random writes, "));
}
