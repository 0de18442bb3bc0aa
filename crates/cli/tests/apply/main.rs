//! `halocline apply` and `halocline verify`: from a trace to a plan, to files that lie as it says.

mod refusals;
mod renames;
mod servers;
mod verified;

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use std::{fs, thread};

use halocline_api::control::metrics::Section;
use halocline_testkit::program;
use halocline_testkit::sandbox::{copy_program, said, written};
use halocline_testkit::scratch::Scratch;
use halocline_testkit::signals;
use halocline_testkit::skipping::skip;

/// Two disks and an SSD that has room for a part of the file alone.
fn servers() -> String {
    let mut text = String::new();
    for (name, profile, capacity) in [("d0", "hdd", "1T"), ("d1", "hdd", "1T"), ("s0", "ssd", "1M")]
    {
        let server =
            format!("name = \"{name}\"\nprofile = \"{profile}\"\ncapacity = \"{capacity}\"");
        writeln!(text, "[[server]]\n{server}\n").unwrap();
    }
    text
}

fn content() -> Vec<u8> {
    (0..2_u32 << 20).map(|at| (at * 31 / 7 % 251) as u8).collect()
}

const VOLUME: [&str; 4] = ["--origin-volume", "striped", "--origin-servers", "3"];

/// A volume with the file that `trace make ior` names, made through a mount, and a plan for it.
fn planned(scratch: &Scratch) -> String {
    fs::write(scratch.path("servers.toml"), servers()).unwrap();
    scratch.succeed(&["trace", "make", "ior", "-p", "4", "-b", "512K", "-t", "64K", "-o", "t.hct"]);
    scratch.succeed(&["plan", "t.hct", "--servers", "servers.toml", "-o", "plan.toml"]);
    let plan = fs::read_to_string(scratch.path("plan.toml")).unwrap();
    let file = plan.lines().find_map(|line| line.strip_prefix("path = \"")).unwrap();
    let file = file.trim_end_matches('"').trim_start_matches('/').to_owned();
    fs::create_dir(scratch.path("volume")).unwrap();
    let mount = ["mount", "volume", "mnt", "--cache", "cache"];
    scratch.succeed(&[&mount[..], &VOLUME].concat());
    fs::write(scratch.path("mnt").join(&file), content()).unwrap();
    file
}

fn json(command: &str, output: &Output) -> serde_json::Value {
    let answer =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", said(output)));
    let section = Section::find(command).unwrap();
    assert_eq!(section.undescribed(&answer), [""; 0]);
    answer
}

#[test]
fn a_planned_file_is_moved_and_read_through_a_mount_as_before() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let file = planned(&scratch);
    let apply = ["apply", "plan.toml", "volume", "--servers", "servers.toml", "--json"];
    let verify = ["verify", "plan.toml", "volume", "--json"];
    // While it is mounted it is not moved, but looked at.
    let output = scratch.halocline(&apply);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("in use"), "{}", said(&output));
    let output = scratch.halocline(&verify);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert_eq!(json("halocline verify", &output)["files"][0]["agrees"], false);
    scratch.succeed(&["umount", "mnt"]);

    let dry = json("halocline apply", &scratch.halocline(&[&apply[..], &["-n"]].concat()));
    assert_eq!((&dry["files"][0]["state"], &dry["bytes"]), (&"to move".into(), &(2 << 20).into()));
    assert_eq!(scratch.halocline(&verify).status.code(), Some(1), "nothing was moved");
    let done = json("halocline apply", &scratch.halocline(&apply));
    assert_eq!((&done["files"][0]["state"], &done["cleared"]), (&"moved".into(), &false.into()));
    let ssd = done["servers"][2]["planned_bytes"].as_u64().unwrap();
    assert!((1..=1 << 20).contains(&ssd), "no more than the SSD holds: {done}");
    let output = scratch.halocline(&verify);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_eq!(json("halocline verify", &output)["agrees"], true);
    // Nothing is changed for that, also no mode: servers may be read-only.
    let server = scratch.path("volume/server-1");
    fs::set_permissions(&server, fs::Permissions::from_mode(0o755)).unwrap();
    let dry = [&apply[..], &["-n"]].concat();
    for looking in [&verify[..], &dry] {
        assert!(scratch.halocline(looking).status.success());
        assert_eq!(fs::metadata(&server).unwrap().permissions().mode() & 0o777, 0o755);
    }
    let again = json("halocline apply", &scratch.halocline(&apply));
    assert_eq!(again["files"][0]["state"], "in place");

    let mount = ["mount", "volume", "mnt", "--cache", "cache"];
    scratch.succeed(&[&mount[..], &VOLUME].concat());
    let path = scratch.path("mnt").join(&file);
    assert!(fs::read(&path).unwrap() == content(), "through a mount");
    let mut want = content();
    want.resize(want.len() + 300_000, 7);
    fs::write(&path, &want).unwrap();
    scratch.succeed(&["umount", "mnt"]);
    scratch.succeed(&["unstripe", "volume", &file, "plain"]);
    assert!(fs::read(scratch.path("plain")).unwrap() == want, "written through a mount");
    // What the trace has of service times is nothing; with some, a drift is told.
    let output = scratch.halocline(&[&verify[..], &["--trace", "t.hct"]].concat());
    assert_eq!(json("halocline verify", &output)["measured"][0]["requests"], 0);
    let measured = |took: &str| {
        let mut csv = "time_s,process,file,op,offset,length,duration_s\n".to_owned();
        for n in 0..512 {
            writeln!(csv, "{n}.0,0,{file},read,{},4096,{took}", n * 4096 * 7 % (1 << 20)).unwrap();
        }
        fs::write(scratch.path("t.csv"), csv).unwrap();
        scratch.succeed(&["trace", "import", "t.csv", "-o", "run.hct"]);
        let output = scratch.halocline(&[&verify[..], &["--trace", "run.hct"]].concat());
        json("halocline verify", &output)["measured"].as_array().unwrap().clone()
    };
    let slow = measured("0.5");
    assert!(slow.iter().any(|server| server["drifted"] == true), "{slow:?}");
    a_cut_trace_is_told(&scratch);
    // A page cache is faster than any device, which says nothing of it.
    let warm = measured("0.000002");
    assert!(warm.iter().all(|server| server["drifted"] == false), "{warm:?}");
    let from_memory = warm.iter().map(|server| server["from_memory"].as_u64().unwrap());
    assert_eq!(from_memory.sum::<u64>(), 512, "{warm:?}");
    let told = scratch.halocline(&["verify", "plan.toml", "volume", "--trace", "run.hct"]);
    assert!(written(&told).contains("from memory, not judged"), "{}", written(&told));
}

/// Of a trace that is not whole it is said, and what it shows is not taken for the run. `run.hct` shows a drift.
fn a_cut_trace_is_told(scratch: &Scratch) {
    let run = fs::read(scratch.path("run.hct")).unwrap();
    fs::write(scratch.path("run.hct"), &run[..run.len() - 4]).unwrap();
    let verify = ["verify", "plan.toml", "volume", "--trace", "run.hct"];
    let told = scratch.halocline(&verify);
    assert!(written(&told).contains("by what there is of the trace it drifted"), "{told:?}");
    assert!(said(&told).contains("not whole"), "{told:?}");
    let output = scratch.halocline(&[&verify[..], &["--json"]].concat());
    assert_eq!(json("halocline verify", &output)["trace_weight"], 0.5);
}

/// Another mount point had no file of the plan, and all servers "too few" requests.
#[test]
fn a_run_is_compared_by_what_lies_below_its_mount() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let file = planned(&scratch);
    scratch.succeed(&["umount", "mnt"]);
    scratch.succeed(&["apply", "plan.toml", "volume"]);
    let verify = ["verify", "plan.toml", "volume", "--json"];
    let record = ["mount", "volume", "mnt", "--cache", "cache", "--trace", "there.hct"];
    scratch.succeed(&[&record[..], &["--direct", "--policy", "never"], &VOLUME].concat());
    for _ in 0..8 {
        fs::read(scratch.path("mnt").join(&file)).unwrap();
    }
    scratch.succeed(&["umount", "mnt"]);
    let output = scratch.halocline(&[&verify[..], &["--trace", "there.hct"]].concat());
    let measured = json("halocline verify", &output)["measured"].clone();
    // How many of them came from memory depends on the machine.
    let of =
        |it: &serde_json::Value| ["requests", "from_memory"].map(|key| it[key].as_u64().unwrap());
    let requests = measured.as_array().unwrap().iter().flat_map(of);
    assert!(requests.sum::<u64>() > 0, "{measured}");
    let row = "time_s,process,file,op,offset,length\n0,0,/other,read,0,4096\n";
    fs::write(scratch.path("t.csv"), row).unwrap();
    scratch.succeed(&["trace", "import", "t.csv", "-o", "other.hct"]);
    let output = scratch.halocline(&[&verify[..], &["--trace", "other.hct"]].concat());
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("other.hct: none of its files is one of"), "{}", said(&output));
}

/// Regression: the plan had no network, so that a server behind one drifted, however often it was calibrated, and servers
/// a hundred times as far away were the same.
#[test]
fn the_network_of_a_server_is_no_drift_of_its_device() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let file = planned(&scratch);
    scratch.succeed(&["umount", "mnt"]);
    let network = |ns_per_byte: u32| {
        let network = format!("[network]\nconnect_us = 100000\nns_per_byte = {ns_per_byte}.0\n");
        fs::write(scratch.path("servers.toml"), servers() + &network).unwrap();
    };
    network(8);
    scratch.succeed(&["plan", "t.hct", "--servers", "servers.toml", "-o", "plan.toml"]);
    let mut csv = "time_s,process,file,op,offset,length,duration_s\n".to_owned();
    for n in 0..512 {
        writeln!(csv, "{n}.0,0,{file},read,{},4096,0.105", n * 4096 * 7 % (1 << 20)).unwrap();
    }
    fs::write(scratch.path("t.csv"), csv).unwrap();
    scratch.succeed(&["trace", "import", "t.csv", "-o", "run.hct"]);
    let verify = ["verify", "plan.toml", "volume", "--servers", "servers.toml", "--json"];
    let output = scratch.halocline(&[&verify[..], &["--trace", "run.hct"]].concat());
    let measured = json("halocline verify", &output)["measured"].clone();
    let compared = |server: &&serde_json::Value| server["ratio"].is_number();
    assert!(measured.as_array().unwrap().iter().find(compared).is_some(), "{measured}");
    for server in measured.as_array().unwrap() {
        assert_eq!(server["drifted"], false, "{measured}");
    }
    network(800);
    for command in ["apply", "verify"] {
        let output = scratch.halocline(&[&[command], &verify[1..]].concat());
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(said(&output).contains("d0 has another network path"), "{}", said(&output));
    }
}

#[test]
fn a_mount_is_not_taken_for_the_volume_below_it() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    planned(&scratch);
    for command in ["verify", "apply"] {
        let output = scratch.halocline(&[command, "plan.toml", "mnt"]);
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        let told = format!("is on the running mount {}", scratch.path("mnt").display());
        assert!(said(&output).contains(&told), "{}", said(&output));
        assert!(said(&output).contains("give its origin, "), "{}", said(&output));
    }
    scratch.succeed(&["umount", "mnt"]);
    let program = program!();
    let run = ["run", "-q", "--origin", "volume", "--cache", "cache"];
    for command in [&["verify", "plan.toml"][..], &["apply", "plan.toml"], &["mark-servers"]] {
        let within = [&[program.to_str().unwrap()], command, &["volume"]].concat();
        let output = scratch.halocline(&[&run[..], &VOLUME, &["--"], &within].concat());
        assert_eq!(output.status.code(), Some(2), "{command:?}: {}", said(&output));
        assert!(
            said(&output).contains("a running mount lies over this volume"),
            "{}",
            said(&output)
        );
    }
}

/// Killed sooner and later, the file has its old layout or its new one, with the same bytes, and the same command ends
/// what was begun.
#[test]
fn a_move_that_is_killed_goes_on() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let file = planned(&scratch);
    scratch.succeed(&["umount", "mnt"]);
    let plan = fs::read_to_string(scratch.path("plan.toml")).unwrap();
    // The same file on one server after the other: each round has something to move.
    let (mut killed, mut delay) = (0, Duration::ZERO);
    for round in 0.. {
        fs::write(scratch.path("plan.toml"), on_server(&plan, round % 2)).unwrap();
        let mut apply = scratch.command(&["apply", "plan.toml", "volume"]);
        let mut apply = apply.stdout(Stdio::null()).spawn().unwrap();
        thread::sleep(delay);
        apply.kill().unwrap();
        let ended = apply.wait().unwrap().success();
        killed += usize::from(!ended);
        scratch.succeed(&["unstripe", "volume", &file, "plain"]);
        assert!(fs::read(scratch.path("plain")).unwrap() == content(), "after {delay:?}");
        fs::remove_file(scratch.path("plain")).unwrap();
        scratch.succeed(&["apply", "plan.toml", "volume"]);
        scratch.succeed(&["verify", "plan.toml", "volume"]);
        delay = if ended { Duration::ZERO } else { delay * 5 / 4 + Duration::from_micros(300) };
        if ended && killed > 3 {
            break;
        }
    }
    let objects = |server: &str| {
        let names = walk(&scratch.path("volume").join(server));
        names.iter().filter(|path| path.metadata().unwrap().len() >= 2 << 20).count()
    };
    let large: usize = ["server-0", "server-1", "server-2"].into_iter().map(objects).sum();
    assert_eq!(large, 1, "the copies that were begun are gone");
}

/// A plan for the same file on one server.
fn on_server(plan: &str, server: usize) -> String {
    in_stripes(plan, server, 65536)
}

/// The same in stripes of so many bytes.
fn in_stripes(plan: &str, server: usize, bytes: u64) -> String {
    let parts = plan.find("[[file.part]]").unwrap();
    let mut widths = ["0".to_owned(), "0".to_owned(), "0".to_owned()];
    widths[server] = bytes.to_string();
    let head = &plan[..parts];
    format!("{head}[[file.part]]\nbegin = 0\nwidths = [{}]\n", widths.join(", "))
}

/// Bytes of all that lies on the servers; what is removed meanwhile counts as gone.
fn on_servers(scratch: &Scratch) -> u64 {
    let servers = ["server-0", "server-1", "server-2"].map(|it| scratch.path("volume").join(it));
    let files = servers.iter().flat_map(|server| walk(server));
    files.filter_map(|path| Some(path.metadata().ok()?.len())).sum()
}

/// Interrupted as from a terminal, nothing of the copy that was begun stays.
#[test]
fn a_move_that_is_interrupted_leaves_nothing() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let file = planned(&scratch);
    scratch.succeed(&["umount", "mnt"]);
    let plan = fs::read_to_string(scratch.path("plan.toml")).unwrap();
    let (mut interrupted, mut delay) = (0, Duration::ZERO);
    for round in 0.. {
        fs::write(scratch.path("plan.toml"), on_server(&plan, round % 2)).unwrap();
        let mut apply = scratch.command(&["apply", "plan.toml", "volume"]);
        let before = on_servers(&scratch);
        let apply = signals::by_default(&mut apply).stdout(Stdio::null());
        let mut apply = apply.stderr(Stdio::piped()).spawn().unwrap();
        let in_turn = round % 2 == 0;
        if in_turn {
            thread::sleep(delay);
        } else {
            // A small file is copied in less time than lies between two delays.
            while on_servers(&scratch) == before && apply.try_wait().unwrap().is_none() {}
        }
        let signal = rustix::process::Signal::INT;
        let _ = rustix::process::kill_process(rustix::process::Pid::from_child(&apply), signal);
        let output = apply.wait_with_output().unwrap();
        let ended = output.status.success();
        if output.status.code() == Some(130) {
            assert!(said(&output).contains("apply the plan again to go on"), "{}", said(&output));
            assert!(on_servers(&scratch) < 3 << 20, "after {delay:?}: {}", said(&output));
            interrupted += 1;
        } else {
            // Before it heeded signals, or after all was moved.
            assert!(ended || output.status.signal() == Some(2), "{}", said(&output));
        }
        scratch.succeed(&["unstripe", "volume", &file, "plain"]);
        assert!(fs::read(scratch.path("plain")).unwrap() == content(), "after {delay:?}");
        fs::remove_file(scratch.path("plain")).unwrap();
        scratch.succeed(&["apply", "plan.toml", "volume"]);
        if !in_turn {
            continue;
        }
        delay = if ended { Duration::ZERO } else { delay * 5 / 4 + Duration::from_micros(300) };
        if ended && interrupted > 0 {
            break;
        }
    }
}

/// A server takes no more, as on a full disk, in the middle of the copy.
#[test]
fn a_copy_that_finds_no_room_leaves_the_old_layout_and_nothing_else() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let file = planned(&scratch);
    scratch.succeed(&["umount", "mnt"]);
    let plan = fs::read_to_string(scratch.path("plan.toml")).unwrap();
    fs::write(scratch.path("plan.toml"), on_server(&plan, 1)).unwrap();
    let before = on_servers(&scratch);
    // Files of 512 KiB at most, of which the system tells by an error.
    let limited = "trap '' XFSZ; ulimit -f 1024; exec \"$0\" apply plan.toml volume";
    let mut apply = Command::new("sh");
    let apply = apply.args(["-c", limited]).arg(program!());
    let output = apply.current_dir(scratch.path("volume").parent().unwrap()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    // Also which server it was, and that in the list.
    let remedy = "raise the limit of file sizes";
    for part in [file.as_str(), "server-1", "too large", remedy, "0 files of 1 moved"] {
        assert!(said(&output).contains(part), "{}", said(&output));
    }
    let row = format!("{file}: not moved: ");
    let row = written(&output).lines().find(|line| line.contains(&row)).map(str::to_owned);
    assert!(row.is_some_and(|row| row.contains("too large")), "{}", written(&output));
    assert_eq!(on_servers(&scratch), before, "the copy is gone");
    scratch.succeed(&["unstripe", "volume", &file, "plain"]);
    assert!(fs::read(scratch.path("plain")).unwrap() == content());
    scratch.succeed(&["apply", "plan.toml", "volume"]);
    scratch.succeed(&["verify", "plan.toml", "volume"]);
}

/// Regression: such a plan undid an earlier one, because its files are those of the default layout.
#[test]
fn a_plan_that_leaves_the_layout_alone_moves_nothing() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    planned(&scratch);
    scratch.succeed(&["umount", "mnt"]);
    scratch.succeed(&["apply", "plan.toml", "volume"]);
    let plan = fs::read_to_string(scratch.path("plan.toml")).unwrap();
    let chosen = plan.lines().find(|line| line.starts_with("chosen")).unwrap();
    let later = on_server(&plan, 1).replace(chosen, "chosen = \"def\"");
    fs::write(scratch.path("later.toml"), later).unwrap();
    let apply = ["apply", "later.toml", "volume", "--json"];
    for more in [&["-n"][..], &[]] {
        let done = json("halocline apply", &scratch.halocline(&[&apply[..], more].concat()));
        assert_eq!((&done["left_alone"], &done["bytes"]), (&true.into(), &0.into()), "{done}");
        assert_eq!(done["files"][0]["state"], "in place", "{done}");
    }
    let told = written(&scratch.halocline(&["apply", "later.toml", "volume"]));
    assert!(told.contains("leaves the layout of its files alone"), "{told}");
    let verify = |plan: &str| scratch.halocline(&["verify", plan, "volume", "--json"]);
    assert_eq!(json("halocline verify", &verify("plan.toml"))["agrees"], true);
    let later = verify("later.toml");
    assert_eq!(later.status.code(), Some(0), "{}", said(&later));
    let later = json("halocline verify", &later);
    assert_eq!((&later["agrees"], &later["left_alone"]), (&true.into(), &true.into()), "{later}");
    assert_eq!(later["files"][0]["planned"], later["files"][0]["actual"]);
    // Who wants these stripes gets them.
    let asked =
        json("halocline apply", &scratch.halocline(&[&apply[..], &["--to-default"]].concat()));
    assert_eq!((&asked["left_alone"], &asked["bytes"]), (&false.into(), &(2 << 20).into()));
    assert_eq!(verify("plan.toml").status.code(), Some(1));
    // And can ask whether they are there.
    let ask = |plan: &str| scratch.halocline(&["verify", plan, "volume", "--json", "--to-default"]);
    let there = ask("later.toml");
    assert_eq!(there.status.code(), Some(0), "{}", said(&there));
    assert_eq!(json("halocline verify", &there)["left_alone"], false);
    scratch.succeed(&["apply", "plan.toml", "volume"]);
    assert_eq!(ask("later.toml").status.code(), Some(1), "they lie elsewhere");
    assert_eq!(verify("later.toml").status.code(), Some(0));
}

/// Regression: files of a plan with layouts of their own could not be had back in the stripes of the volume.
#[test]
fn a_plan_that_was_applied_is_undone() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let file = planned(&scratch);
    scratch.succeed(&["umount", "mnt"]);
    scratch.succeed(&["apply", "plan.toml", "volume"]);
    let ask = || scratch.halocline(&["verify", "plan.toml", "volume", "--json", "--to-default"]);
    let before = ask();
    assert_eq!(before.status.code(), Some(1), "{}", said(&before));
    let widths = &json("halocline verify", &before)["files"][0]["planned"][0]["widths"];
    assert_eq!(*widths, serde_json::json!([65_536, 65_536, 65_536]), "those of new files");
    let undo = ["apply", "plan.toml", "volume", "--to-default", "--json"];
    for (more, state) in [(&["-n"][..], "to move"), (&[], "moved"), (&[], "in place")] {
        let done = json("halocline apply", &scratch.halocline(&[&undo[..], more].concat()));
        assert_eq!(done["files"][0]["state"], state, "{done}");
    }
    assert_eq!(ask().status.code(), Some(0));
    scratch.succeed(&["unstripe", "volume", &file, "plain"]);
    assert!(fs::read(scratch.path("plain")).unwrap() == content());
}

/// Regression: what the files to be planned have on a server was taken for space that no plan may use.
#[test]
fn the_space_of_a_volumes_own_files_is_calibrated_as_theirs() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    planned(&scratch);
    scratch.succeed(&["umount", "mnt"]);
    let calibrate = ["calibrate", "volume/server-0", "volume/server-1", "volume", "--span", "4M"];
    let more = ["--requests", "2", "--servers", "found.toml"];
    let output = scratch.halocline(&[&calibrate[..], &more].concat());
    assert!(output.status.success(), "{}", said(&output));
    let told = said(&output);
    let of_volume = told.lines().filter(|line| line.contains("of the volume's files"));
    let of_volume: Vec<_> = of_volume.collect();
    assert_eq!(of_volume.len(), 2, "each server, and not the volume itself: {told}");
    assert!(of_volume[0].contains("server-0") && of_volume[1].contains("server-1"), "{told}");
}

/// Whose volume it is not moves nothing.
#[test]
fn the_volume_of_another_user_is_refused() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    if !rustix::process::geteuid().is_root() {
        return skip("only root can be another user");
    }
    planned(&scratch);
    scratch.succeed(&["umount", "mnt"]);
    let root = scratch.path("volume").parent().unwrap().to_owned();
    fs::set_permissions(&root, fs::Permissions::from_mode(0o755)).unwrap();
    // Where everybody may go.
    let own = root.join("halocline");
    copy_program(program!(), &own);
    let before = on_servers(&scratch);
    for mode in [0o700, 0o755] {
        fs::set_permissions(scratch.path("volume"), fs::Permissions::from_mode(mode)).unwrap();
        let mut apply = Command::new(&own);
        let apply = apply.args(["apply", "plan.toml", "volume"]).uid(12_345).gid(12_345);
        let output = apply.current_dir(&root).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(said(&output).contains("volume"), "{}", said(&output));
        assert_eq!(on_servers(&scratch), before);
    }
}

fn walk(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}
