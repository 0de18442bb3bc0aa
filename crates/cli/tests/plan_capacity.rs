//! What is free on a server is its capacity, and no other disk: a plan is for the same servers when it changes.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use halocline_model::emulated::{EmulatedDevice, expected};
use halocline_testkit::program;
use halocline_testkit::sandbox::said;

fn halocline(dir: &Path, args: &[&str]) -> Output {
    Command::new(program!()).args(args).current_dir(dir).output().unwrap()
}

fn servers(capacity: &str) -> String {
    let server = |name: &str, profile: &str| {
        format!(
            "[[server]]\nname = \"{name}\"\nprofile = \"{profile}\"\ncapacity = \"{capacity}\"\n"
        )
    };
    server("disk", "hdd") + &server("flash", "ssd")
}

fn random_ps(span: u64) -> String {
    let disk = EmulatedDevice::builtin("hdd").unwrap();
    format!("startup_random_ps = {}\n", expected(&disk, span).read.startup_random_ps)
}

/// Regression: below 16 GiB a capacity was the span of a disk's random requests.
#[test]
fn a_plan_is_for_the_same_servers_with_less_or_more_room() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    fs::write(dir.join("servers.toml"), servers("20G")).unwrap();
    let made =
        ["trace", "make", "ior", "-p", "2", "-b", "1M", "-t", "64K", "-z", "1", "-o", "t.hct"];
    let plan = ["plan", "t.hct", "--servers", "servers.toml", "-o", "plan.toml"];
    let simulate = ["simulate", "t.hct", "--servers", "servers.toml", "--plan", "plan.toml"];
    for args in [&made[..], &plan] {
        let output = halocline(dir, args);
        assert!(output.status.success(), "{}", said(&output));
    }
    let planned = fs::read_to_string(dir.join("plan.toml")).unwrap();
    assert!(planned.contains(&random_ps(16 << 30)), "{planned}");
    for capacity in ["12G", "1G", "1T"] {
        fs::write(dir.join("servers.toml"), servers(capacity)).unwrap();
        let output = halocline(dir, &simulate);
        assert!(output.status.success(), "{capacity}: {}", said(&output));
    }
    // A plan of an earlier version, made with a capacity of 1 GiB.
    let capacity = planned.lines().find(|line| line.starts_with("capacity = ")).unwrap();
    let before = planned.replace(capacity, "capacity = 1073741824");
    let before = before.replace(&random_ps(16 << 30), &random_ps(1 << 30));
    fs::write(dir.join("plan.toml"), &before).unwrap();
    let output = halocline(dir, &simulate);
    assert!(output.status.success(), "{}", said(&output));
    fs::write(dir.join("plan.toml"), before.replace(&random_ps(1 << 30), &random_ps(2 << 30)))
        .unwrap();
    let output = halocline(dir, &simulate);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("disk has other service times"), "{}", said(&output));
}
