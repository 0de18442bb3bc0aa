//! `halocline trace make` and `halocline simulate`.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use halocline_api::control::metrics::Section;
use halocline_model::{admit, tier};
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
capacity = "1M"
"#;

fn halocline(dir: &Path, args: &[&str]) -> Output {
    Command::new(program!()).args(args).current_dir(dir).output().unwrap()
}

fn simulated(dir: &Path, more: &[&str]) -> Value {
    let args = [&["simulate", "t.hct", "--servers", "servers.toml", "--json"], more].concat();
    let output = halocline(dir, &args);
    assert!(output.status.success(), "{}", said(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_made_trace_is_simulated() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    fs::write(dir.join("servers.toml"), SERVERS).unwrap();
    let make = ["trace", "make", "ior", "-p", "4", "-b", "1M", "-t", "128K", "-r", "-o", "t.hct"];
    let output = halocline(dir, &make);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(written(&output), "64 requests written to t.hct\n");

    let even = simulated(dir, &[]);
    let section = Section::find("halocline simulate").unwrap();
    assert_eq!(section.undescribed(&even), [""; 0]);
    assert_eq!((&even["requests"], &even["bytes"]), (&64.into(), &(8 << 20).into()));
    assert_eq!(even["servers"][0]["written_bytes"], 2 << 20);
    assert!(even["servers"][1]["full_at_seconds"].is_number(), "{even}");
    assert_eq!(even, simulated(dir, &[]), "the same again");

    let flash = simulated(dir, &["--width", "hdd=0", "--width", "ssd=64K"]);
    assert_eq!(flash["servers"][0]["requests"], 0);
    let seconds = |answer: &Value| answer["seconds"].as_f64().unwrap();
    assert!(seconds(&flash) < seconds(&even) / 4.0, "{flash} {even}");

    let output = halocline(dir, &["simulate", "t.hct", "--servers", "servers.toml"]);
    assert!(output.status.success() && said(&output).is_empty(), "{}", said(&output));
    let text = written(&output);
    assert!(text.starts_with("64 requests in ") && text.contains("full after"), "{text}");
    assert!(
        !text.contains(" 0.0 ms") && !text.contains("0.000"),
        "a short time has its unit: {text}"
    );
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn what_cannot_be_simulated_is_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    fs::write(dir.join("servers.toml"), SERVERS).unwrap();
    fs::write(dir.join("bad.toml"), SERVERS.replace("\"ssd\"", "\"tape\"")).unwrap();
    let refused = |args: &[&str], status, what: &str| {
        let output = halocline(dir, args);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(status), "{said}");
        assert!(said.contains(what), "{said}");
    };
    let made = halocline(dir, &["trace", "make", "hpio", "-p", "2", "--count", "4", "-o", "t.hct"]);
    assert!(made.status.success(), "{}", said(&made));
    refused(&["simulate", "t.hct", "--servers", "bad.toml"], 2, "bad.toml, line 9: ");
    refused(
        &["simulate", "t.hct", "--servers", "none.toml"],
        2,
        "none.toml: there is no such file",
    );
    refused(&["simulate", "servers.toml", "--servers", "servers.toml"], 2, "not a trace");
    let simulate = ["simulate", "t.hct", "--servers", "servers.toml"];
    refused(&[&simulate[..], &["--width", "tape=4K"]].concat(), 2, "tape");
    refused(&[&simulate[..], &["--stripe", "0"]].concat(), 2, "all 0: give --stripe");
    // Disks on which the files of the trace have no room, whatever the SSD has of them.
    fs::write(dir.join("small.toml"), SERVERS.replace("\"1T\"", "\"64K\"")).unwrap();
    for size in ["--cache-size", "--tier-size"] {
        let simulate = ["simulate", "t.hct", "--servers", "small.toml", size, "512K"];
        refused(&simulate, 2, "the disks hold 65536 in equal parts");
    }
    refused(&["trace", "make", "btio", "-p", "5", "-o", "x.hct"], 2, "square");
    refused(&["trace", "make", "ior", "-p", "4294967295", "-o", "x.hct"], 2, "at most 4194304");
    assert!(!dir.join("x.hct").exists());
}

#[test]
fn policies_of_a_simulated_cache_are_compared() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    fs::write(dir.join("servers.toml"), SERVERS.replace("\"1M\"", "\"1G\"")).unwrap();
    let make = [
        "trace", "make", "ior", "-p", "4", "-b", "1M", "-t", "64K", "--random", "1", "-o", "t.hct",
    ];
    let output = halocline(dir, &make);
    assert!(output.status.success(), "{}", said(&output));
    let answer = simulated(dir, &["--cache-size", "1G"]);
    let section = Section::find("halocline simulate").unwrap();
    assert_eq!(section.undescribed(&answer), [""; 0]);
    let policies = answer["policies"].as_array().unwrap();
    let names: Vec<_> = policies.iter().map(|row| row["policy"].as_str().unwrap()).collect();
    assert_eq!(names, admit::COMPARED);
    let seconds = |row: &Value| row["foreground_seconds"].as_f64().unwrap();
    let of = |name| policies.iter().find(|row| row["policy"] == name).unwrap();
    let never = of("never");
    assert!(seconds(of("adaptive")) < seconds(never) / 2.0, "{answer}");
    assert_eq!(never["cache_written_bytes"], 0);
    let bare = simulated(dir, &["--width", "ssd=0"]);
    assert!((seconds(never) - bare["seconds"].as_f64().unwrap()).abs() < 1e-9, "{bare}");

    let simulate = ["simulate", "t.hct", "--servers", "servers.toml"];
    let told = halocline(dir, &[&simulate[..], &["--cache-size", "1G"]].concat());
    let text = written(&told);
    assert!(text.starts_with("SIMULATED: a cache of "), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    for (more, what) in [
        (&["--cache-size", "2G"][..], "hold"),
        (&["--cache-size", "1G", "--policy", "sometimes"], "sometimes"),
        (&["--policy", "never"], "--cache-size"),
    ] {
        let output = halocline(dir, &[&simulate[..], more].concat());
        assert!(!output.status.success() && said(&output).contains(what), "{}", said(&output));
    }
}

#[test]
fn policies_of_a_simulated_tier_are_compared() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    fs::write(dir.join("servers.toml"), SERVERS.replace("\"1M\"", "\"1G\"")).unwrap();
    let csv = |line: &str| {
        let head = "time_s,process,file,op,offset,length\n";
        let lines = (0..3).map(|turn| line.replace('T', &turn.to_string()));
        fs::write(dir.join("t.csv"), head.to_owned() + &lines.collect::<String>()).unwrap();
        let output = halocline(dir, &["trace", "import", "t.csv", "-o", "t.hct"]);
        assert!(output.status.success(), "{}", said(&output));
    };
    csv("T,1,a,read,0,1048576\nT,1,b,read,0,1048576\n");
    let answer = simulated(dir, &["--tier-size", "4M"]);
    let section = Section::find("halocline simulate").unwrap();
    assert_eq!(section.undescribed(&answer), [""; 0]);
    let policies = answer["policies"].as_array().unwrap();
    let names: Vec<_> = policies.iter().map(|row| row["policy"].as_str().unwrap()).collect();
    assert!(names.iter().copied().eq(tier::POLICIES.iter().map(|policy| policy.name)), "{names:?}");
    for row in policies {
        assert_eq!((&row["uses"], &row["uses_on_ssd"]), (&6.into(), &4.into()), "{row}");
        assert_eq!((&row["promoted_bytes"], &row["demoted_bytes"]), (&(2 << 20).into(), &0.into()));
    }
    let simulate = ["simulate", "t.hct", "--servers", "servers.toml"];
    let told = halocline(dir, &[&simulate[..], &["--tier-size", "4M"]].concat());
    let text = written(&told);
    assert!(text.starts_with("SIMULATED: a file tier of "), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    for (more, what) in [
        (&["--tier-size", "2G"][..], "hold"),
        (&["--tier-size", "1G", "--policy", "adaptive"], "foresight"),
        (&["--cache-size", "1G", "--policy", "lru"], "adaptive"),
        (&["--tier-size", "1G", "--pace", "open"], "choose closed or think"),
        (&["--tier-size", "1G", "--cache-size", "1G"], "cannot be used with"),
    ] {
        let output = halocline(dir, &[&simulate[..], more].concat());
        assert!(!output.status.success() && said(&output).contains(what), "{}", said(&output));
    }
}

/// Regression: of a trace that is too long to be replayed whole by `plan`, the plan was compared with the default layout that is the
/// faster one of the sample, and here with another one.
#[test]
fn the_default_layout_is_the_one_that_the_plan_was_compared_with() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    let servers = [("a", "hdd", "1T"), ("b", "hdd", "1T"), ("c", "hdd", "1T"), ("d", "ssd", "1M")];
    let servers = servers.map(|(name, profile, capacity)| {
        format!(
            "[[server]]\nname = \"{name}\"\nprofile = \"{profile}\"\ncapacity = \"{capacity}\"\n"
        )
    });
    fs::write(dir.join("s.toml"), servers.concat()).unwrap();
    let succeed = |args: &[&str]| {
        let output = halocline(dir, args);
        assert!(output.status.success(), "{}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    for (name, bytes) in [("t.hct", "1920K"), ("other.hct", "3840K")] {
        let make = ["trace", "make", "ior", "-p", "6", "-b", bytes, "-t", "24K", "-o", name];
        succeed(&make);
    }
    succeed(&["plan", "t.hct", "--servers", "s.toml", "-o", "p.toml"]);
    let plan = fs::read_to_string(dir.join("p.toml")).unwrap();
    let faster = ["default", "paper"]
        .into_iter()
        .find(|rest| plan.contains(&format!("def_rest = \"{rest}\"\n")))
        .expect(&plan);
    let slower = if faster == "default" { "paper" } else { "default" };
    let [said_by_plan, swapped] = [faster, slower].map(|rest| format!("def_rest = \"{rest}\"\n"));
    let compared = |trace: &str, plan: &str| {
        fs::write(dir.join("p.toml"), plan).unwrap();
        let args = ["simulate", trace, "--servers", "s.toml", "--plan", "p.toml", "--json"];
        let told = succeed(&args[..6]);
        (serde_json::from_str::<Value>(&succeed(&args)).unwrap()["plan"].take(), told)
    };
    let number = |value: &Value| value.as_f64().unwrap();
    let (own, _) = compared("t.hct", &plan);
    assert_eq!(own["default_rest"], faster);
    assert!((number(&own["gain_over_default"]) - number(&own["promised_gain"])).abs() < 1e-9);
    assert!(number(&own["gain_over_other_default"]) > number(&own["gain_over_default"]));
    // As if the sample had said the other.
    let (by_sample, told) = compared("t.hct", &plan.replace(&said_by_plan, &swapped));
    assert_eq!(by_sample["default_rest"], slower);
    assert_eq!(by_sample["gain_over_default"], own["gain_over_other_default"]);
    assert_eq!(by_sample["gain_over_other_default"], own["gain_over_default"]);
    assert!(told.contains("that is faster, by all requests"), "{told}");
    // A plan of an earlier version does not say it, and of another trace it says nothing.
    let (earlier, told) = compared("t.hct", &plan.replace(&said_by_plan, ""));
    assert_eq!(
        (&earlier["default_rest"], told.contains("that is faster")),
        (&faster.into(), false)
    );
    let (other, _) = compared("other.hct", &plan.replace(&said_by_plan, &swapped));
    let seconds = |of: &Value| number(&of["default"]["seconds"]);
    assert!(seconds(&other) <= number(&other["other_default_seconds"]), "{other}");
}
