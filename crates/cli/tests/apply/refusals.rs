//! Plans that cannot be applied, in whole or in part, and what a user does then.

use std::fmt::Write as _;
use std::fs;

use halocline_testkit::program;
use halocline_testkit::sandbox::{Sandbox, said, written};
use halocline_testkit::scratch::Scratch;

use super::{VOLUME, content, json, planned, servers};

#[test]
fn what_cannot_be_applied_is_refused_and_nothing_moved() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let file = planned(&scratch);
    scratch.succeed(&["umount", "mnt"]);
    let good = fs::read_to_string(scratch.path("plan.toml")).unwrap();
    let refused = |plan: &str, args: &[&str], what: &str| {
        fs::write(scratch.path("other.toml"), plan).unwrap();
        let output = scratch.halocline(&[&["apply", "other.toml", "volume"], args].concat());
        assert_eq!(output.status.code(), Some(2), "{what}: {}", said(&output));
        assert!(said(&output).contains(what), "{what}: {}", said(&output));
    };
    refused("", &[], "not a plan");
    refused(&good[..good.len() / 2], &[], "not a plan");
    let gone = good.replace(&format!("path = \"{file}\""), "path = \"/mnt/gone\"");
    refused(&gone, &[], "mnt/gone");
    refused(&gone, &[], "take it off with --below");
    refused(&gone, &["--below", "/mnt"], "leave out with --skip-missing");
    let output = scratch.halocline(&["verify", "other.toml", "volume"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(written(&output).contains("take it off with --below"), "{}", written(&output));
    refused(
        &good.replace(&format!("path = \"{file}\""), "path = \"../x\""),
        &[],
        "not a path below",
    );
    refused(&good, &["--below", "/elsewhere"], "is not below");
    fs::write(scratch.path("servers.toml"), servers().replace("d1", "d9")).unwrap();
    refused(&good, &["--servers", "servers.toml"], "there are d0, d9, s0");
    let nowhere = servers().replacen("name = \"d0\"", "name = \"d0\"\ndirectory = \"/no/d0\"", 1);
    fs::write(scratch.path("servers.toml"), nowhere).unwrap();
    for command in ["apply", "verify"] {
        let args = [command, "plan.toml", "volume", "--servers", "servers.toml"];
        let output = scratch.halocline(&args);
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        let told = "servers.toml: server d0: /no/d0: there is no such directory";
        assert!(said(&output).contains(told), "{}", said(&output));
    }
    let output = scratch.halocline(&["apply", "plan.toml", "origin"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("not a striped volume"), "{}", said(&output));
    for name in ["two", "cache2"] {
        fs::create_dir(scratch.path(name)).unwrap();
    }
    let two = ["run", "--origin", "two", "--cache", "cache2", "--origin-volume", "striped"];
    scratch.succeed(&[&two[..], &["--origin-servers", "2", "--", "true"]].concat());
    let output = scratch.halocline(&["apply", "plan.toml", "two"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("it is for 3 servers, and two has 2"), "{}", said(&output));
    let verify = scratch.halocline(&["verify", "plan.toml", "volume"]);
    assert!(written(&verify).contains("0 of 1 files lie as planned"), "{}", said(&verify));
}

/// Without `--servers` only the number of servers was compared: the stripes of an SSD went to a disk.
#[test]
fn servers_in_another_order_are_told_by_their_directories() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    planned(&scratch);
    scratch.succeed(&["umount", "mnt"]);
    let apply = ["apply", "plan.toml", "volume", "--dry-run"];
    let output = scratch.halocline(&apply);
    let told = "not checked: whether the servers of volume are d0, d1, s0, in this order";
    let remedy = "this order; plan with the `directory` of each server";
    assert!(output.status.success() && said(&output).contains(told), "{}", said(&output));
    assert!(said(&output).contains(remedy), "{}", said(&output));
    let plan_in = |order: [usize; 3]| {
        let mut servers = servers();
        for (name, server) in ["d0", "d1", "s0"].into_iter().zip(order) {
            let dir = scratch.path(&format!("volume/server-{server}"));
            let with_dir = format!("\"{name}\"\ndirectory = \"{}\"", dir.display());
            servers = servers.replacen(&format!("\"{name}\""), &with_dir, 1);
        }
        fs::write(scratch.path("servers.toml"), servers).unwrap();
        scratch.succeed(&["plan", "t.hct", "--servers", "servers.toml", "-o", "plan.toml"]);
    };
    plan_in([2, 1, 0]);
    for command in ["apply", "verify"] {
        let output = scratch.halocline(&[command, "plan.toml", "volume"]);
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(said(&output).contains("list the servers in the volume's order"));
    }
    plan_in([0, 1, 2]);
    let output = scratch.halocline(&apply);
    assert!(output.status.success() && said(&output).is_empty(), "{}", said(&output));
    // Made where the servers are mounted elsewhere: that is no reason to refuse it.
    let plan = fs::read_to_string(scratch.path("plan.toml")).unwrap();
    fs::write(scratch.path("plan.toml"), plan.replace("volume/server-", "gone/server-")).unwrap();
    let output = scratch.halocline(&apply);
    assert!(output.status.success() && said(&output).contains(told), "{}", said(&output));
    // Regression: a plan that has directories was to be made with directories.
    let elsewhere = "gone/server-0, of the plan, is no server of it";
    assert!(said(&output).contains(elsewhere), "{}", said(&output));
}

/// Traces have programs and temporary files, too: the whole plan was refused for one of them.
#[test]
fn what_is_not_there_is_left_out_where_that_is_wanted() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let file = planned(&scratch);
    scratch.succeed(&["umount", "mnt"]);
    let good = fs::read_to_string(scratch.path("plan.toml")).unwrap();
    let mut more = good.replace(&format!("path = \"{file}\""), &format!("path = \"/mnt/{file}\""));
    more = more.replacen("files = 1", "files = 4", 1);
    for path in ["/mnt/gone", &format!("/mnt/{file}/x"), "/usr/bin/program"] {
        let part = "[[file.part]]\nbegin = 0\nwidths = [65536, 65536, 65536]";
        write!(more, "\n[[file]]\npath = \"{path}\"\nbytes = 1\n\n{part}\n").unwrap();
    }
    fs::write(scratch.path("more.toml"), more).unwrap();
    let apply = ["apply", "more.toml", "volume", "--below", "/mnt"];
    let output = scratch.halocline(&apply);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("/usr/bin/program is not below /mnt"), "{}", said(&output));
    let skipping = [&apply[..], &["--skip-missing", "--json"]].concat();
    for args in [[&skipping[..], &["--dry-run"]].concat(), skipping] {
        let output = scratch.halocline(&args);
        assert!(output.status.success(), "{}", said(&output));
        let answer = json("halocline apply", &output);
        assert_eq!(answer["missing"], serde_json::json!(["gone", format!("{file}/x")]));
        assert_eq!(answer["files"].as_array().unwrap().len(), 1, "{answer}");
    }
    let verify = ["verify", "more.toml", "volume", "--below", "/mnt", "--skip-missing"];
    assert!(scratch.halocline(&verify).status.success());
    // Where none is there, the paths are wrong.
    for args in [
        &["apply", "more.toml", "volume", "--skip-missing"][..],
        &["apply", "more.toml", "volume", "--skip-missing", "--dry-run"],
    ] {
        let output = scratch.halocline(args);
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        for part in ["none of its files is in volume", "take it off with --below"] {
            assert!(said(&output).contains(part), "{}", said(&output));
        }
    }
    let output = scratch.halocline(&["verify", "more.toml", "volume", "--skip-missing"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
}

#[test]
fn a_plan_that_is_not_there_is_refused() {
    let sandbox = Sandbox::new(program!());
    let output = sandbox.halocline(&["apply", "missing.toml", "origin"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("there is no such file"), "{}", said(&output));
}

/// A volume of an earlier format is marked, and what was made before stays readable.
#[test]
fn the_servers_of_an_earlier_volume_are_marked_by_a_command() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let file = planned(&scratch);
    scratch.succeed(&["umount", "mnt"]);
    assert!(scratch.succeed(&["mark-servers", "volume"]).contains("marked already"));
    let label = scratch.path("volume/halocline-volume.toml");
    let text = fs::read_to_string(&label).unwrap();
    let before: Vec<_> = text.lines().filter(|line| !line.starts_with("volume = ")).collect();
    fs::write(&label, before.join("\n").replace("format = 4", "format = 2")).unwrap();
    for server in ["server-0", "server-1", "server-2"] {
        fs::remove_file(scratch.path("volume").join(server).join("halocline-server")).unwrap();
    }
    let mount = ["mount", "volume", "mnt", "--cache", "cache"];
    let output = scratch.halocline(&[&mount[..], &VOLUME].concat());
    assert!(output.status.success(), "{}", said(&output));
    let output = scratch.halocline(&["mark-servers", "volume"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("in use"), "{}", said(&output));
    scratch.succeed(&["umount", "mnt"]);
    // A server that is not mounted.
    fs::rename(scratch.path("volume/server-1"), scratch.path("aside")).unwrap();
    fs::create_dir(scratch.path("volume/server-1")).unwrap();
    let output = scratch.halocline(&["mark-servers", "volume"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("mount the server there"), "{}", said(&output));
    fs::remove_dir_all(scratch.path("volume/server-1")).unwrap();
    fs::rename(scratch.path("aside"), scratch.path("volume/server-1")).unwrap();
    assert!(scratch.succeed(&["mark-servers", "volume"]).contains("its servers are marked"));
    assert!(fs::read_to_string(&label).unwrap().contains("format = 4"));
    scratch.succeed(&["apply", "plan.toml", "volume"]);
    scratch.succeed(&["unstripe", "volume", &file, "plain"]);
    assert!(fs::read(scratch.path("plain")).unwrap() == content());
}

/// The shell's directory may be a symbolic link, and a recorded trace has the path without it.
#[test]
fn what_paths_begin_with_may_be_given_by_a_symbolic_link() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let file = planned(&scratch);
    scratch.succeed(&["umount", "mnt"]);
    let good = fs::read_to_string(scratch.path("plan.toml")).unwrap();
    let point = fs::canonicalize(scratch.path("mnt")).unwrap();
    let recorded = format!("path = \"{}/{file}\"", point.display());
    fs::write(scratch.path("there.toml"), good.replace(&format!("path = \"{file}\""), &recorded))
        .unwrap();
    std::os::unix::fs::symlink(scratch.root(), scratch.path("link")).unwrap();
    let by_link = scratch.path("link/mnt");
    let with = |command, below: &str| {
        scratch.halocline(&[command, "there.toml", "volume", "--below", below, "--skip-missing"])
    };
    // Nothing was moved, and it was advised to give --below.
    for command in ["apply", "verify"] {
        let other = with(command, scratch.path("cache").to_str().unwrap());
        let told = said(&other) + &written(&other);
        assert_ne!(other.status.code(), Some(0), "{told}");
        assert!(told.contains("none of its paths begins with"), "{told}");
    }
    for command in ["apply", "verify"] {
        let output = with(command, by_link.to_str().unwrap());
        assert_eq!(output.status.code(), Some(0), "{}{}", written(&output), said(&output));
    }
    let verified = written(&with("verify", by_link.to_str().unwrap()));
    assert!(verified.contains("1 of 1 files lie as planned"), "{verified}");
    // Each layout that a plan may have chosen is compared, but for the default.
    for chosen in ["def", "pa", "psa", "ours", "default"] {
        let elsewhere = super::on_server(&good, 1);
        let line = good.lines().find(|line| line.starts_with("chosen")).unwrap();
        let other = elsewhere.replace(line, &format!("chosen = \"{chosen}\""));
        fs::write(scratch.path("other.toml"), other).unwrap();
        let output = scratch.halocline(&["verify", "other.toml", "volume"]);
        let (status, told) = match chosen {
            "def" => (0, "the plan leaves the layout of its files alone, however they lie"),
            "default" => (2, "no layout is called \"default\""),
            _ => (1, "0 of 1 files lie as planned"),
        };
        assert_eq!(output.status.code(), Some(status), "{chosen}: {}", said(&output));
        let said = said(&output) + &written(&output);
        assert!(said.contains(told), "{chosen}: {said}");
    }
}
