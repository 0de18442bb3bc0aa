//! Servers that are full, or cannot be written: what is to be moved off them is, and what is to be moved to them is refused
//! before anything moves.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};

use halocline_testkit::program;
use halocline_testkit::sandbox::{ended, said, written};
use halocline_testkit::scratch::Scratch;
use halocline_testkit::skipping::skip;
use halocline_testkit::small_disk::SmallDisk;
use halocline_testkit::striped_volume;

use super::{content, json, on_server, on_servers, servers};

/// A volume over three servers, of which the second may be one to be filled, with two files, and a plan for these. Both lie on
/// all servers.
fn two_planned(scratch: &Scratch) -> [String; 2] {
    fs::write(scratch.path("servers.toml"), servers()).unwrap();
    let make = ["trace", "make", "ior", "-p", "2", "-F", "-b", "512K", "-t", "64K", "-o", "t.hct"];
    scratch.succeed(&make);
    scratch.succeed(&["plan", "t.hct", "--servers", "servers.toml", "-o", "plan.toml"]);
    let plan = fs::read_to_string(scratch.path("plan.toml")).unwrap();
    let paths = plan.lines().filter_map(|line| line.strip_prefix("path = \""));
    let names = paths.map(|path| path.trim_end_matches('"').trim_start_matches('/').to_owned());
    let files: [String; 2] = names.collect::<Vec<_>>().try_into().unwrap();
    for file in &files {
        fs::write(scratch.path("data").join(file), content()).unwrap();
    }
    striped_volume::make_of_data(scratch, 3);
    files
}

/// The plan with all files on one server.
fn plan_all_on(scratch: &Scratch, server: usize) {
    plan_on(scratch, &[server]);
}

/// The plan with each file on one of these servers, in turn.
fn plan_on(scratch: &Scratch, servers: &[usize]) {
    let plan = fs::read_to_string(scratch.path("plan.toml")).unwrap();
    let files: Vec<_> = plan.split("[[file]]").collect();
    let mut changed = files[0].to_owned();
    for (file, server) in files[1..].iter().zip(servers.iter().cycle()) {
        changed += "[[file]]";
        changed += &on_server(file, *server);
        changed += "\n";
    }
    fs::write(scratch.path("plan.toml"), changed).unwrap();
}

/// What the command says where `script` has mounted something for it alone.
fn within(scratch: &Scratch, script: &str, args: &[&str]) -> Output {
    Command::new("unshare")
        .args(["-m", "sh", "-c", &format!("set -e; {script}; exec \"$0\" \"$@\"")])
        .arg(scratch.program())
        .args(args)
        .current_dir(scratch.root())
        .output()
        .unwrap()
}

fn read_only(server: &str) -> String {
    format!(
        "mount --bind volume/{server} volume/{server}; mount -o remount,bind,ro volume/{server}"
    )
}

/// All files are whole, and nothing else is on the servers.
#[track_caller]
fn check(scratch: &Scratch, files: &[String]) {
    scratch.succeed(&["fsck", "cache"]);
    scratch.succeed(&["unstripe", "volume", "out"]);
    for file in files {
        assert!(fs::read(scratch.path("out").join(file)).unwrap() == content(), "{file}");
    }
    fs::remove_dir_all(scratch.path("out")).unwrap();
}

/// Regression: the note about a move, and the new layout, were to be on the server that was to be emptied.
#[test]
fn files_are_moved_off_a_full_first_server() {
    // Alone, and where it shares the file system of the volume's label and tree.
    for full in ["volume/server-0", "volume"] {
        moved_off_a_full_disk(full);
    }
}

fn moved_off_a_full_disk(full: &str) {
    let Some(scratch) = Scratch::new(program!()) else { return };
    for dir in [full, "data"] {
        fs::create_dir_all(scratch.path(dir)).unwrap();
    }
    let Some(disk) = SmallDisk::over(scratch.path(full), 8 << 20) else { return };
    let server = scratch.path("volume/server-1");
    fs::create_dir(&server).unwrap();
    let Some(_other) = SmallDisk::over(server, 64 << 20) else { return };
    for dir in [full, "volume/server-1"] {
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        fs::set_permissions(scratch.path(dir), private).unwrap();
    }
    let files = two_planned(&scratch);
    plan_all_on(&scratch, 1);
    disk.fill();
    ended(&scratch.halocline(&["apply", "plan.toml", "volume", "-n"]), 0, &["2 files"]);
    ended(&scratch.halocline(&["apply", "plan.toml", "volume"]), 0, &["2 files"]);
    scratch.succeed(&["verify", "plan.toml", "volume"]);
    let label = fs::read_to_string(scratch.path("volume/halocline-volume.toml")).unwrap();
    assert!(label.contains("format = 5"), "earlier versions look for layouts there alone: {label}");
    assert!(!scratch.path("volume/server-0/halocline-moving.new").exists());
    assert!(!scratch.path("volume/halocline-volume.toml.new").exists());
    check(&scratch, &files);
    // A copy of the volume has other inode numbers, which the layouts get, too.
    let mut copy = Command::new("cp");
    let copied = copy.args(["-a", "volume", "copy"]).current_dir(scratch.root()).status();
    assert!(copied.unwrap().success());
    fs::create_dir(scratch.path("cache2")).unwrap();
    let run = ["run", "--origin", "copy", "--cache", "cache2", "--"];
    let compare = ["cmp", &format!("data/{}", files[0]), &format!("copy/{}", files[0])];
    scratch.succeed(&[&run[..], &compare].concat());
    // And back: the layouts that it has elsewhere go with the objects.
    disk.free();
    plan_all_on(&scratch, 0);
    scratch.succeed(&["apply", "plan.toml", "volume"]);
    scratch.succeed(&["verify", "plan.toml", "volume"]);
    let layouts = |server: &str| super::walk(&scratch.path("volume").join(server).join("layouts"));
    assert_eq!((layouts("server-0").len(), layouts("server-1").len()), (2, 0));
    check(&scratch, &files);
}

/// Regression: after the first file, whose former data could not be removed, no other was moved.
#[test]
fn files_are_moved_off_a_read_only_server_and_to_none() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    if !rustix::process::geteuid().is_root() {
        return skip("only root can mount something read-only");
    }
    for dir in ["volume", "data"] {
        fs::create_dir_all(scratch.path(dir)).unwrap();
    }
    let files = two_planned(&scratch);
    for (source, target) in [(0, 1), (1, 2)] {
        plan_all_on(&scratch, source);
        scratch.succeed(&["apply", "plan.toml", "volume"]);
        let script = read_only(&format!("server-{source}"));
        plan_all_on(&scratch, target);
        let apply = within(&scratch, &script, &["apply", "plan.toml", "volume", "--json"]);
        ended(&apply, 0, &["what 2 moves left still takes space", "fsck CACHE --repair"]);
        assert_eq!(json("halocline apply", &apply)["left"], 2, "{}", said(&apply));
        let verify = within(&scratch, &script, &["verify", "plan.toml", "volume"]);
        ended(&verify, 0, &["2 of 2 files lie as planned"]);
        let copied = within(&scratch, &script, &["unstripe", "volume", "out"]);
        ended(&copied, 0, &["copied to out"]);
        assert!(fs::read(scratch.path("out").join(&files[1])).unwrap() == content());
        fs::remove_dir_all(scratch.path("out")).unwrap();
        // Once the server can be written, the next one removes what was left.
        let again = scratch.halocline(&["apply", "plan.toml", "volume"]);
        ended(&again, 0, &["what an interrupted move had left is removed", "2 in place"]);
        assert!(on_servers(&scratch) < 5 << 20, "{}", on_servers(&scratch));
        check(&scratch, &files);
        // To it nothing is moved, and that is said once, before anything is.
        plan_all_on(&scratch, source);
        for args in [&["apply", "plan.toml", "volume"][..], &["apply", "plan.toml", "volume", "-n"]]
        {
            let told = format!("server-{source} is read-only, and {} would have", files[0]);
            let refused = within(&scratch, &script, args);
            ended(&refused, 2, &[&told, "mount it for writing, or plan without it"]);
            assert!(!said(&refused).contains(&files[1]), "{}", said(&refused));
        }
        check(&scratch, &files);
    }
}

/// Regression: of a layout on a read-only server only its name there was told.
#[test]
fn a_layout_that_cannot_be_removed_is_told_with_its_server() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    if !rustix::process::geteuid().is_root() {
        return skip("only root can mount something read-only");
    }
    for dir in ["volume", "data"] {
        fs::create_dir_all(scratch.path(dir)).unwrap();
    }
    let files = two_planned(&scratch);
    plan_all_on(&scratch, 1);
    scratch.succeed(&["apply", "plan.toml", "volume"]);
    // The data is on the second server, the layouts are on the first one.
    plan_all_on(&scratch, 2);
    let apply = within(&scratch, &read_only("server-0"), &["apply", "plan.toml", "volume"]);
    ended(&apply, 0, &["volume/server-0/layouts/", "cannot remove the layout", "Read-only"]);
    scratch.succeed(&["apply", "plan.toml", "volume"]);
    check(&scratch, &files);
}

/// Two files of a volume that are planned on its second server, a disk of 8 MiB; `None`, with the reason, where that cannot
/// be tried.
fn planned_for_a_small_disk() -> Option<(Scratch, SmallDisk, [String; 2])> {
    let scratch = Scratch::new(program!())?;
    for dir in ["volume", "volume/server-1", "data"] {
        fs::create_dir_all(scratch.path(dir)).unwrap();
    }
    let disk = SmallDisk::over(scratch.path("volume/server-1"), 8 << 20)?;
    fs::set_permissions(disk.path(), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let files = two_planned(&scratch);
    plan_all_on(&scratch, 1);
    Some((scratch, disk, files))
}

/// Regression: the copy that a killed move had begun was counted, though the command that it is to show removes it first.
#[test]
fn a_dry_run_after_a_kill_does_not_count_the_unfinished_copy() {
    let Some((scratch, disk, files)) = planned_for_a_small_disk() else { return };
    // Room for both, and not for a third.
    let ballast = fs::File::create(disk.path().join("ballast")).unwrap();
    let taken = (8 << 20) - (1400 << 10) - (4 << 20) - (200 << 10);
    rustix::fs::fallocate(&ballast, rustix::fs::FallocateFlags::empty(), 0, taken).unwrap();
    let (before, mut was_killed) = (on_servers(&scratch), false);
    for _ in 0..200 {
        let mut apply = scratch.command(&["apply", "plan.toml", "volume"]);
        let mut apply = apply.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        while on_servers(&scratch) < before + (512 << 10) && apply.try_wait().unwrap().is_none() {}
        apply.kill().unwrap();
        was_killed = apply.wait().unwrap().signal() == Some(9);
        // Else all was moved already.
        let dry = scratch.halocline(&["apply", "plan.toml", "volume", "--dry-run"]);
        assert_eq!(dry.status.code(), Some(0), "{}{}", written(&dry), said(&dry));
        if was_killed && written(&dry).contains("what an interrupted move has left would be") {
            break;
        }
        scratch.succeed(&["apply", "plan.toml", "volume", "--to-default"]);
        plan_all_on(&scratch, 0);
        scratch.succeed(&["apply", "plan.toml", "volume"]);
        plan_all_on(&scratch, 1);
        was_killed = false;
    }
    assert!(was_killed, "no move was killed in its copy");
    ended(&scratch.halocline(&["apply", "plan.toml", "volume"]), 0, &["left is removed"]);
    scratch.succeed(&["verify", "plan.toml", "volume"]);
    check(&scratch, &files);
}

/// Regression: a file that had left its old layout, and did not come to its new one, "had the old layout".
#[test]
fn of_a_file_on_its_way_it_is_said_where_it_lies() {
    let Some((scratch, disk, files)) = planned_for_a_small_disk() else { return };
    let plan = fs::read_to_string(scratch.path("plan.toml")).unwrap();
    let first: Vec<_> = plan.split("[[file]]").take(2).collect();
    let one = first.join("[[file]]").replace("files = 2", "files = 1");
    fs::write(scratch.path("plan.toml"), one).unwrap();
    // Its copy does not fit beside the third of it that is there.
    let free = rustix::fs::statvfs(disk.path()).unwrap();
    let taken = free.f_bavail * free.f_frsize - (1700 << 10);
    let ballast = fs::File::create(disk.path().join("ballast")).unwrap();
    rustix::fs::fallocate(&ballast, rustix::fs::FallocateFlags::empty(), 0, taken).unwrap();
    // Objects of 1.5 MiB at most: those of the way, and not that of the new layout.
    let limited = "trap '' XFSZ; ulimit -f 3072; exec \"$0\" apply plan.toml volume";
    let mut apply = Command::new("sh");
    let apply = apply.args(["-c", limited]).arg(program!()).current_dir(scratch.root());
    let told = ["too large", "it lies on its way, in 64.0 KiB, -, 64.0 KiB", "1 file not, for"];
    let output = apply.output().unwrap();
    ended(&output, 1, &told);
    assert!(!said(&output).contains("old layout"), "{}", said(&output));
    check(&scratch, &files);
    scratch.succeed(&["apply", "plan.toml", "volume"]);
    scratch.succeed(&["verify", "plan.toml", "volume"]);
    check(&scratch, &files);
}

/// Regression: the second name of a file that was moved "had the old layout".
#[test]
fn of_a_second_name_nothing_false_is_told() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    for dir in ["volume", "data"] {
        fs::create_dir_all(scratch.path(dir)).unwrap();
    }
    let files = two_planned(&scratch);
    let [first, second] = files.each_ref().map(|file| scratch.path("volume/namespace").join(file));
    fs::remove_file(&second).unwrap();
    fs::hard_link(&first, &second).unwrap();
    plan_all_on(&scratch, 1);
    let apply = scratch.halocline(&["apply", "plan.toml", "volume"]);
    let told = "1 file of 2 moved; 1 file not, for the reasons above";
    ended(&apply, 1, &["are two names of one file", told]);
    assert!(!said(&apply).contains("old layout"), "{}", said(&apply));
    // Of the file that was removed past the mount.
    let repaired = scratch.halocline(&["fsck", "cache", "--repair", "--remove-unnamed", "1"]);
    ended(&repaired, 1, &["no file names it", "repaired"]);
    check(&scratch, &files);
}

/// Regression: files that were to change places on two full servers were refused, though a third one had room.
#[test]
fn files_change_places_on_full_servers_by_way_of_another_one() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let servers = ["volume/server-0", "volume/server-1", "volume/server-2"];
    for dir in servers.iter().chain(&["data"]) {
        fs::create_dir_all(scratch.path(dir)).unwrap();
    }
    let mut disks = Vec::new();
    for server in servers {
        let Some(disk) = SmallDisk::over(scratch.path(server), 8 << 20) else { return };
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        fs::set_permissions(disk.path(), private).unwrap();
        disks.push(disk);
    }
    let leave = |disk: &SmallDisk, bytes: u64| {
        let free = rustix::fs::statvfs(disk.path()).unwrap();
        let taken = free.f_bavail * free.f_frsize - bytes;
        let ballast = fs::File::create(disk.path().join("ballast")).unwrap();
        rustix::fs::fallocate(&ballast, rustix::fs::FallocateFlags::empty(), 0, taken).unwrap();
    };
    let files = two_planned(&scratch);
    plan_on(&scratch, &[1, 2]);
    scratch.succeed(&["apply", "plan.toml", "volume"]);
    disks[1..].iter().for_each(|disk| leave(disk, 300 << 10));
    plan_on(&scratch, &[2, 1]);
    let dry = scratch.halocline(&["apply", "plan.toml", "volume", "-n"]);
    ended(&dry, 0, &["2 files", "by way of", "to make room for"]);
    // Whenever it is killed, it goes on, or back.
    let mut kills = 0;
    for round in 0..24_u64 {
        let mut apply = scratch.command(&["apply", "plan.toml", "volume"]);
        let mut apply = apply.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(10 * round));
        apply.kill().unwrap();
        kills += usize::from(apply.wait().unwrap().signal() == Some(9));
        plan_on(&scratch, if round % 3 == 2 { &[1, 2] } else { &[2, 1] });
    }
    assert!(kills > 2, "{kills}");
    for places in [&[2, 1], &[1, 2]] {
        plan_on(&scratch, places);
        scratch.succeed(&["apply", "plan.toml", "volume"]);
        scratch.succeed(&["verify", "plan.toml", "volume"]);
        check(&scratch, &files);
    }
    // Nowhere is room: it is said how much is missing where, and nothing moves.
    leave(&disks[0], 300 << 10);
    plan_on(&scratch, &[2, 1]);
    let refused = scratch.halocline(&["apply", "plan.toml", "volume"]);
    let told =
        ["cannot be moved", "volume/server-2: ", "are missing", "so it is with 1 other file"];
    ended(&refused, 2, &told);
    plan_on(&scratch, &[1, 2]);
    scratch.succeed(&["verify", "plan.toml", "volume"]);
}
