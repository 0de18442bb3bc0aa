//! What `apply` and `verify` say of the files of a plan: of those that are left out, of names of one file, of holes, and of layouts
//! that differ in numbers alone.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use halocline_testkit::program;
use halocline_testkit::sandbox::{said, written};
use halocline_testkit::scratch::Scratch;
use halocline_testkit::skipping::skip;

use super::{in_stripes, json, on_server, on_servers, planned, walk};

/// A volume that is not mounted any more, its file, and the plan for it.
fn unmounted() -> Option<(Scratch, String, String)> {
    let scratch = Scratch::new(program!())?;
    let file = planned(&scratch);
    scratch.succeed(&["umount", "mnt"]);
    let plan = fs::read_to_string(scratch.path("plan.toml")).unwrap();
    Some((scratch, file, plan))
}

/// The plan with further files, as the one that it has.
fn with_files(plan: &str, further: &[&str]) -> String {
    let parts = &plan[plan.find("[[file.part]]").unwrap()..];
    let mut more = plan.replacen("files = 1", &format!("files = {}", 1 + further.len()), 1);
    for path in further {
        write!(more, "\n[[file]]\npath = \"{path}\"\nbytes = 1\n\n{parts}").unwrap();
    }
    more
}

/// Recorded paths are absolute and without symbolic links, and `--below` is what somebody types: `verify` said that 0 of 0 files
/// lay as planned, and nothing else.
#[test]
fn what_paths_begin_with_is_resolved_or_told() {
    let Some((scratch, file, plan)) = unmounted() else { return };
    let root = fs::canonicalize(scratch.path("mnt")).unwrap().parent().unwrap().to_owned();
    let point = root.join("mnt").display().to_string();
    let plan = plan.replace(&format!("path = \"{file}\""), &format!("path = \"{point}/{file}\""));
    fs::write(scratch.path("there.toml"), on_server(&plan, 1)).unwrap();
    std::os::unix::fs::symlink(&root, scratch.path("link")).unwrap();
    let with = |command, below: &str, more: &[&str]| {
        let args = [command, "there.toml", "volume", "--below", below, "--skip-missing"];
        scratch.halocline(&[&args[..], more].concat())
    };
    for below in ["mnt", "./mnt/", "link/mnt", scratch.path("link/mnt").to_str().unwrap(), &point] {
        for command in ["apply", "verify"] {
            let output = with(command, below, &[]);
            let told = said(&output) + &written(&output);
            assert_eq!(output.status.code(), Some(0), "{command} {below}: {told}");
        }
    }
    let told = format!("none of its paths begins with /elsewhere: they begin with {point};");
    for (more, command, status) in
        [(&[][..], "apply", 2), (&[], "verify", 1), (&["-n"], "apply", 2)]
    {
        let output = with(command, "/elsewhere", more);
        assert_eq!(output.status.code(), Some(status), "{}", said(&output));
        let all = said(&output) + &written(&output);
        assert!(all.contains(&told), "{all}");
    }
    let answer = json("halocline verify", &with("verify", "/elsewhere", &["--json"]));
    assert!(answer["none_there"].as_str().unwrap().contains(&told), "{answer}");
    assert_eq!(answer["agrees"], false);
    let answer = json("halocline verify", &with("verify", "mnt", &["--json"]));
    assert!(answer.get("none_there").is_none(), "{answer}");
    let output = scratch.halocline(&["apply", "there.toml", "volume", "--below", "/elsewhere"]);
    assert!(
        said(&output).contains(&format!("begin with {point}; correct --below")),
        "{}",
        said(&output)
    );
}

/// They were left out, and nothing said so.
#[test]
fn files_that_are_not_below_the_mount_are_told() {
    let Some((scratch, file, plan)) = unmounted() else { return };
    let plan = plan.replace(&format!("path = \"{file}\""), &format!("path = \"/mnt/{file}\""));
    let plan = with_files(&plan, &["/bin/program", "/mnt/gone"]);
    fs::write(scratch.path("plan.toml"), plan).unwrap();
    for command in ["apply", "verify"] {
        let args = [command, "plan.toml", "volume", "--below", "/mnt", "--skip-missing"];
        let told = written(&scratch.halocline(&args));
        assert!(told.contains("/bin/program: not below /mnt, left out"), "{told}");
        let output = scratch.halocline(&[&args[..], &["--json"]].concat());
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        let answer = json(&format!("halocline {command}"), &output);
        assert_eq!(answer["outside"], serde_json::json!(["/bin/program"]));
    }
}

/// `verify` counted the bytes of each name.
#[test]
fn a_file_with_two_names_in_a_plan_is_counted_once() {
    let Some((scratch, file, plan)) = unmounted() else { return };
    let names = scratch.path("volume/namespace");
    fs::write(scratch.path("plan.toml"), on_server(&plan, 1)).unwrap();
    scratch.succeed(&["apply", "plan.toml", "volume"]);
    fs::hard_link(names.join(&file), names.join("hard")).unwrap();
    fs::write(scratch.path("plan.toml"), with_files(&on_server(&plan, 1), &["hard"])).unwrap();
    let verify = ["verify", "plan.toml", "volume", "--json"];
    let output = scratch.halocline(&verify);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let answer = json("halocline verify", &output);
    assert_eq!(answer["servers"][1]["planned_bytes"], 2 << 20, "{answer}");
    assert!(answer["servers"][1]["used_bytes"].as_u64().unwrap() < 3 << 20, "{answer}");
    assert_eq!(answer["files"][1]["same_as"], file, "{answer}");
    assert!(answer["files"][0].get("same_as").is_none(), "{answer}");
    let told = written(&scratch.halocline(&verify[..3]));
    assert!(told.contains(&format!("hard: another name of {file}, counted once")), "{told}");
    assert!(told.contains("1 of 1 files lie as planned"), "{told}");
    let twice = with_files(&plan, &[&format!("./{file}")]);
    fs::write(scratch.path("plan.toml"), twice).unwrap();
    for command in ["apply", "verify"] {
        let output = scratch.halocline(&[command, "plan.toml", "volume"]);
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(said(&output).contains("is there twice"), "{}", said(&output));
    }
}

/// All of the file was copied, to where it was.
#[test]
fn on_one_server_stripes_of_any_width_are_one_layout() {
    let Some((scratch, _, plan)) = unmounted() else { return };
    fs::write(scratch.path("plan.toml"), on_server(&plan, 1)).unwrap();
    scratch.succeed(&["apply", "plan.toml", "volume"]);
    let objects = || walk(&scratch.path("volume/server-1/objects"));
    let (before, bytes) = (objects(), on_servers(&scratch));
    let simulate = || {
        let args =
            ["simulate", "t.hct", "--servers", "servers.toml", "--plan", "plan.toml", "--json"];
        scratch.succeed(&args)
    };
    let simulated = simulate();
    fs::write(scratch.path("plan.toml"), in_stripes(&plan, 1, 12_288)).unwrap();
    let answer =
        json("halocline verify", &scratch.halocline(&["verify", "plan.toml", "volume", "--json"]));
    assert_eq!(answer["agrees"], true, "{answer}");
    let answer =
        json("halocline apply", &scratch.halocline(&["apply", "plan.toml", "volume", "--json"]));
    assert_eq!((&answer["files"][0]["state"], &answer["bytes"]), (&"in place".into(), &0.into()));
    assert_eq!((objects(), on_servers(&scratch)), (before, bytes));
    assert_eq!(simulate(), simulated);
    fs::write(scratch.path("plan.toml"), in_stripes(&plan, 0, 12_288)).unwrap();
    assert_eq!(scratch.halocline(&["verify", "plan.toml", "volume"]).status.code(), Some(1));
}

/// What was planned was what was there, so nothing was ever missing.
#[test]
fn what_is_planned_is_told_by_sizes_and_holes_are_told() {
    let Some((scratch, file, plan)) = unmounted() else { return };
    fs::write(scratch.path("plan.toml"), on_server(&plan, 1)).unwrap();
    scratch.succeed(&["apply", "plan.toml", "volume"]);
    let name = fs::File::options().write(true).open(scratch.path("volume/namespace").join(&file));
    name.unwrap().set_len(3 << 20).unwrap();
    let verify =
        |more: &[&str]| scratch.halocline(&[&["verify", "plan.toml", "volume"], more].concat());
    let server = || {
        let answer = json("halocline verify", &verify(&["--json"]));
        ["planned_bytes", "hole_bytes", "absent_bytes"]
            .map(|key| answer["servers"][1][key].as_u64().unwrap())
    };
    assert_eq!(server(), [3 << 20, 1 << 20, 0]);
    let told = written(&verify(&[]));
    assert!(told.contains("d1: 3.00 MiB planned (1.00 MiB of it holes), "), "{told}");
    assert!(!told.contains("none of its data"), "{told}");
    let objects = walk(&scratch.path("volume/server-1/objects"));
    for object in objects.iter().filter(|object| object.metadata().unwrap().len() >= 2 << 20) {
        fs::remove_file(object).unwrap();
    }
    assert_eq!(server(), [3 << 20; 3]);
    // A script is told, too, unless somebody knows.
    for (more, status) in [(&[][..], 1), (&["--json"], 1), (&["--known"], 0)] {
        let output = verify(more);
        assert_eq!(output.status.code(), Some(status), "{}", written(&output));
    }
    let answer = json("halocline verify", &verify(&["--json"]));
    assert_eq!(
        (&answer["agrees"], &answer["files"][0]["absent_bytes"]),
        (&true.into(), &(3 << 20).into())
    );
    let told = written(&verify(&[]));
    assert!(told.contains("1 file may have lost data, as told above"), "{told}");
    let lost = format!("{file}: none of its data is on d1 (");
    let then = "which has 3.00 MiB of it by its layout: these are holes, unless the data is lost";
    for command in ["verify", "apply"] {
        let told = written(&scratch.halocline(&[command, "plan.toml", "volume"]));
        assert!(told.contains(&lost) && told.contains(then), "{told}");
    }
}

/// Root was told to run it as root, or nothing.
#[test]
fn attributes_that_forbid_root_to_change_files_are_told_with_their_remedy() {
    let Some((scratch, file, plan)) = unmounted() else { return };
    let chattr = |change: &str, path: &str| {
        let output = Command::new("chattr").args(["-R", change]).arg(scratch.path(path)).output();
        output.is_ok_and(|output| output.status.success())
    };
    // Afterwards it has a layout.
    fs::write(scratch.path("plan.toml"), on_server(&plan, 0)).unwrap();
    scratch.succeed(&["apply", "plan.toml", "volume"]);
    fs::write(scratch.path("plan.toml"), on_server(&plan, 1)).unwrap();
    for (set, path) in [
        ("+i", format!("volume/namespace/{file}")),
        ("+a", format!("volume/namespace/{file}")),
        ("+i", "volume/server-1/objects".to_owned()),
        ("+i", "volume/server-0/layouts".to_owned()),
    ] {
        if !chattr(set, &path) {
            return skip("chattr(1) sets no attributes here");
        }
        let output = scratch.halocline(&["apply", "plan.toml", "volume"]);
        assert!(chattr(&set.replace('+', "-"), &path));
        let told = said(&output);
        assert_ne!(output.status.code(), Some(0), "{told}");
        assert!(told.contains("chattr -i -a "), "{set} {path}: {told}");
        assert!(!told.contains("run this as root"), "{told}");
    }
    scratch.succeed(&["apply", "plan.toml", "volume"]);
}

/// Root was told to name a directory of its own.
#[test]
fn root_is_told_to_use_a_users_volume_as_that_user() {
    let Some((scratch, ..)) = unmounted() else { return };
    if !rustix::process::geteuid().is_root() {
        return skip("only root can give files away");
    }
    let volume = scratch.path("volume");
    let given = Command::new("chown").args(["-hR", "12345:12345"]).arg(volume).status().unwrap();
    assert!(given.success());
    let output = scratch.halocline(&["apply", "plan.toml", "volume"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(
        said(&output).contains("run this as that user (setpriv --reuid 12345"),
        "{}",
        said(&output)
    );
}

/// A trace, and a table, were replaced by what had another name in mind.
#[test]
fn results_replace_nothing_of_another_kind() {
    let Some((scratch, ..)) = unmounted() else { return };
    let table = "time_s,process,file,op,offset,length\n0,0,/f,read,0,4096\n";
    fs::write(scratch.path("t.csv"), table).unwrap();
    let trace = fs::read(scratch.path("t.hct")).unwrap();
    let plan = ["plan", "t.hct", "--servers", "servers.toml"];
    let calibrate = ["calibrate", "volume", "--span", "2M", "--requests", "2"];
    for (command, other) in [
        ([&plan[..], &["-o", "t.csv"]].concat(), "t.csv: it is there and no plan"),
        ([&plan[..], &["-o", "other.hct"]].concat(), "other.hct: it is there and no plan"),
        (
            [&plan[..], &["--html", "plan.toml"]].concat(),
            "plan.toml: it is there and no page of HTML",
        ),
        (
            [&calibrate[..], &["--servers", "other.hct"]].concat(),
            "other.hct: it is there and no description",
        ),
        (
            [&calibrate[..], &["--servers", "plan.toml"]].concat(),
            "plan.toml: it is there and no description",
        ),
        (vec!["trace", "make", "ior", "-o", "plan.toml"], "plan.toml: it is there and no trace"),
        (
            vec!["trace", "import", "t.csv", "-o", "plan.toml"],
            "plan.toml: it is there and no trace",
        ),
        (
            vec!["trace", "show", "t.hct", "--plot", "table.svg"],
            "table.svg: it is there and no plot",
        ),
    ] {
        fs::write(scratch.path("other.hct"), &trace).unwrap();
        fs::write(scratch.path("table.svg"), table).unwrap();
        let output = scratch.halocline(&command);
        assert_eq!(output.status.code(), Some(2), "{command:?}: {}", said(&output));
        assert!(said(&output).contains(other), "{command:?}: {}", said(&output));
        assert!(said(&output).contains("name another file for the "), "{}", said(&output));
        assert!(fs::read(scratch.path("other.hct")).unwrap() == trace, "{command:?}");
        assert_eq!(fs::read_to_string(scratch.path("table.svg")).unwrap(), table);
    }
    // An earlier one is replaced.
    scratch.succeed(&[&plan[..], &["-o", "plan.toml"]].concat());
    scratch.succeed(&[&plan[..], &["-o", "new.toml"]].concat());
    scratch.succeed(&[&calibrate[..], &["--servers", "servers.toml"]].concat());
}

/// A capacity that was written by hand was believed, and then the plan did not fit.
#[test]
fn a_capacity_that_a_directory_does_not_have_is_told_before_anything_is_planned() {
    let Some((scratch, ..)) = unmounted() else { return };
    let servers = fs::read_to_string(scratch.path("servers.toml")).unwrap();
    let dir = fs::canonicalize(scratch.path("volume/server-0")).unwrap();
    let with = |capacity: &str| {
        let there = format!("directory = \"{}\"\ncapacity = \"{capacity}\"", dir.display());
        fs::write(scratch.path("with.toml"), servers.replacen("capacity = \"1T\"", &there, 1))
            .unwrap();
        let output = scratch.halocline(&["plan", "t.hct", "--servers", "with.toml"]);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        said(&output)
    };
    let told = with("1000T");
    let capacity = 1000_u64 << 40;
    assert!(
        told.contains(&format!("with.toml: server d0: its capacity is {capacity} bytes, and its directory has room for ")),
        "{told}"
    );
    assert!(told.contains("less 16384 that `apply` keeps"), "{told}");
    assert!(!with("4M").contains("its capacity is"), "the files of the volume have as much");
}
