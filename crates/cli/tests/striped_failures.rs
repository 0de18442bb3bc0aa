//! Striped origins of which something is wrong: a server that cannot be written any more, a file whose owner is hostile.
//! Everything else is read, moved, compared and copied all the same, and what is wrong is told with its remedy.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use halocline_api::control::metrics::Section;
use halocline_testkit::leased::leased;
use halocline_testkit::program;
use halocline_testkit::sandbox::ended;
use halocline_testkit::scratch::Scratch;
use halocline_testkit::skipping::skip;
use halocline_testkit::small_disk::SmallDisk;
use halocline_testkit::striped_volume;
use rustix::fs::{XattrFlags, getxattr, setxattr};

const OBJECT: &str = "user.halocline.object";

fn content(seed: usize, bytes: usize) -> Vec<u8> {
    let byte = |at| u8::try_from((at * 31 / 7 + seed) % 251).unwrap();
    (0..bytes).map(byte).collect()
}

/// A striped volume with these files, made through a mount.
fn make_volume(scratch: &Scratch, servers: u32, files: &[PathBuf]) {
    fs::create_dir_all(scratch.path("data")).unwrap();
    for (seed, file) in files.iter().enumerate() {
        fs::write(scratch.path("data").join(file), content(seed, 512 << 10)).unwrap();
    }
    striped_volume::make_of_data(scratch, servers);
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

/// All was to be read and written, or nothing: a disk that turned read-only, which is when one wants to copy what it has,
/// could not be copied, and the message blamed the copy.
#[test]
fn what_became_read_only_is_read_and_copied() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    if !rustix::process::geteuid().is_root() {
        return skip("only root can mount something read-only");
    }
    make_volume(&scratch, 3, &["f0".into(), "f1".into()]);
    // As an earlier version made it: it would be closed to others where that is possible.
    let server = scratch.path("volume/server-1");
    fs::set_permissions(&server, fs::Permissions::from_mode(0o755)).unwrap();
    for (number, part) in ["volume/server-1", "volume/server-0", "volume"].iter().enumerate() {
        let script = format!("mount --bind {part} {part}; mount -o remount,bind,ro {part}");
        let out = format!("out{number}");
        ended(&within(&scratch, &script, &["unstripe", "volume", &out]), 0, &["copied to"]);
        for file in ["f0", "f1"] {
            let copy = fs::read(scratch.path(&out).join(file)).unwrap();
            assert!(copy == fs::read(scratch.path("data").join(file)).unwrap(), "{part}");
        }
        let run = ["run", "--origin", "volume", "--cache", "cache", "--mode"];
        let read = ["read-only", "--", "cmp", "data/f1", "volume/f1"];
        ended(&within(&scratch, &script, &[&run[..], &read].concat()), 0, &[]);
    }
    // Regression: the name was gone, and `rm` said that the file cannot be removed.
    let script = "mount --bind volume/server-1 volume/server-1; \
                  mount -o remount,bind,ro volume/server-1";
    let run = ["run", "--origin", "volume", "--cache", "cache", "--"];
    let output = within(&scratch, script, &[&run[..], &["rm", "volume/f0"]].concat());
    ended(&output, 0, &["stays on the origin's servers"]);
    assert!(!scratch.path("volume/namespace/f0").exists());
    let told = scratch.halocline(&["fsck", "cache", "--repair", "--remove-unnamed", "1"]);
    ended(&told, 1, &["no file names it", "repaired"]);
    scratch.succeed(&["fsck", "cache"]);
    // Where only a server is, all is read, and what that server would get is refused.
    let write = "cat volume/f1 >read; dd if=data/f0 of=volume/f1 conv=notrunc bs=64K count=4";
    let run = ["run", "--origin", "volume", "--cache", "cache", "--policy", "never", "--"];
    let output = within(&scratch, script, &[&run[..], &["sh", "-ec", write]].concat());
    ended(&output, 1, &["Read-only file system"]);
    assert!(fs::read(scratch.path("read")).unwrap() == content(1, 512 << 10));
    scratch.succeed(&["run", "--origin", "volume", "--cache", "cache", "--", "sh", "-ec", write]);
}

/// A volume with a file for each of four processes, and a plan for these.
fn planned(scratch: &Scratch) -> Vec<PathBuf> {
    let server = |(name, profile)| {
        format!("[[server]]\nname = \"{name}\"\nprofile = \"{profile}\"\ncapacity = \"1T\"\n")
    };
    let servers: Vec<_> = [("d0", "hdd"), ("d1", "hdd"), ("s0", "ssd")].map(server).into();
    fs::write(scratch.path("servers.toml"), servers.concat()).unwrap();
    let make = ["trace", "make", "ior", "-p", "4", "-F", "-b", "512K", "-t", "64K"];
    scratch.succeed(&[&make[..], &["-o", "t.hct"]].concat());
    scratch.succeed(&["plan", "t.hct", "--servers", "servers.toml", "-o", "plan.toml"]);
    let plan = fs::read_to_string(scratch.path("plan.toml")).unwrap();
    let paths = plan.lines().filter_map(|line| line.strip_prefix("path = \""));
    let files: Vec<PathBuf> =
        paths.map(|path| path.trim_end_matches('"').trim_start_matches('/').into()).collect();
    assert_eq!(files.len(), 4, "{plan}");
    make_volume(scratch, 3, &files);
    files
}

fn number_of(path: &Path) -> Vec<u8> {
    let mut value = [0_u8; 64];
    let len = getxattr(path, OBJECT, &mut value).unwrap();
    value[..len].to_vec()
}

fn name(path: &Path, value: &[u8]) {
    setxattr(path, OBJECT, value, XattrFlags::empty()).unwrap();
}

/// Whoever owned one file kept `apply` from moving any, `verify` from reporting and `unstripe` from copying what came after
/// it, by what is in an attribute of that file.
#[test]
fn who_owns_one_file_keeps_no_other_from_being_moved_compared_and_copied() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let files = planned(&scratch);
    let tree = scratch.path("volume/namespace");
    let (victim, victim_name) = (tree.join(&files[1]), files[1].to_str().unwrap());
    let own = number_of(&victim);
    let no_layout = [&b"0".repeat(32)[..], b"v"].concat();
    let letters = b"x".repeat(100);
    let values: [(Option<&[u8]>, &str); 5] = [
        (Some(b"junk"), "is not an object number"),
        (Some(b""), "is not an object number"),
        (Some(&letters), "is not an object number"),
        (Some(&no_layout), "names data that is not there"),
        (None, "the data of another file"),
    ];
    for (turn, (value, what)) in values.into_iter().enumerate() {
        let others = number_of(&tree.join(&files[2]));
        name(&victim, value.unwrap_or(&others));
        let moved = if turn == 0 { "3 files of 4 moved" } else { "0 files of 1 moved" };
        let dry = scratch.halocline(&["apply", "plan.toml", "volume", "--dry-run"]);
        ended(&dry, 1, &[victim_name, what]);
        let apply = scratch.halocline(&["apply", "plan.toml", "volume"]);
        ended(&apply, 1, &[victim_name, what, moved, "apply the plan again"]);
        let verify = scratch.halocline(&["verify", "plan.toml", "volume"]);
        ended(&verify, 1, &[victim_name, what, "3 of 4 files lie as planned"]);
        let json = scratch.halocline(&["verify", "plan.toml", "volume", "--json"]);
        let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
        assert_eq!(json["files"][1]["missing"], false, "{json}");
        assert!(json["files"][1]["error"].as_str().unwrap().contains(what), "{json}");
        let unstripe = scratch.halocline(&["unstripe", "volume", "out"]);
        ended(&unstripe, 1, &[victim_name, what, "copied to out.incomplete, which lacks"]);
        assert!(!scratch.path("out").exists());
        for file in &files {
            let copy = fs::read(scratch.path("out.incomplete").join(file)).ok();
            let kept = fs::read(scratch.path("data").join(file)).ok();
            assert!(copy == kept.filter(|_| *file != files[1]), "{}", file.display());
        }
        fs::remove_dir_all(scratch.path("out.incomplete")).unwrap();
    }
    // As it says.
    let inode = std::os::unix::fs::MetadataExt::ino(&fs::metadata(&victim).unwrap());
    name(&victim, b"junk");
    let told = scratch.halocline(&["verify", "plan.toml", "volume"]);
    ended(&told, 1, &[&format!("the number before `-{inode}` in the name"), "or remove the file"]);
    name(&victim, &own);
    scratch.succeed(&["apply", "plan.toml", "volume"]);
    scratch.succeed(&["verify", "plan.toml", "volume"]);
    scratch.succeed(&["unstripe", "volume", "out"]);
    assert!(fs::read(scratch.path("out").join(&files[1])).unwrap() == content(1, 512 << 10));
}

/// Regression: each open of the file waited for 45 s, in every command, and held up what came after it.
#[test]
fn a_lease_of_one_file_holds_up_no_other() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let files = planned(&scratch);
    let (victim, victim_name) =
        (scratch.path("volume/namespace").join(&files[1]), files[1].to_str().unwrap());
    let Some(lease) = leased(&victim, libc::F_WRLCK) else { return };
    let begun = Instant::now();
    let what = "a program holds a lease of it";
    let dry = scratch.halocline(&["apply", "plan.toml", "volume", "--dry-run"]);
    ended(&dry, 1, &[victim_name, what]);
    let apply = scratch.halocline(&["apply", "plan.toml", "volume"]);
    ended(&apply, 1, &[victim_name, what, "3 files of 4 moved", "apply the plan again"]);
    let verify = scratch.halocline(&["verify", "plan.toml", "volume"]);
    ended(&verify, 1, &[victim_name, what, "3 of 4 files lie as planned"]);
    let unstripe = scratch.halocline(&["unstripe", "volume", "out"]);
    ended(&unstripe, 1, &[victim_name, what, "copied to out.incomplete, which lacks"]);
    for file in &files {
        let copy = fs::read(scratch.path("out.incomplete").join(file)).ok();
        let kept = fs::read(scratch.path("data").join(file)).ok();
        assert!(copy == kept.filter(|_| *file != files[1]), "{}", file.display());
    }
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(40), "four commands waited for a lease: {took:?}");
    drop(lease);
    fs::remove_dir_all(scratch.path("out.incomplete")).unwrap();
    scratch.succeed(&["apply", "plan.toml", "volume"]);
    scratch.succeed(&["verify", "plan.toml", "volume"]);
    scratch.succeed(&["unstripe", "volume", "out"]);
}

/// Names the object of a file, which has no layout of its own, as earlier versions did: without the birth time.
fn name_as_earlier_versions(scratch: &Scratch, file: &Path) {
    let number = String::from_utf8(number_of(file)).unwrap();
    let earlier = number.strip_suffix('t').unwrap();
    for server in 0..3 {
        let dir = format!("volume/server-{server}/objects/{}", &number[..2]);
        for entry in fs::read_dir(scratch.path(&dir)).into_iter().flatten() {
            let path = entry.unwrap().path();
            let object = path.file_name().unwrap().to_str().unwrap();
            let Some(of_file) = object.strip_prefix(&number) else { continue };
            let (of_file, _) = of_file.split_once('.').unwrap();
            fs::rename(&path, path.with_file_name(format!("{earlier}{of_file}"))).unwrap();
        }
    }
    name(file, earlier.as_bytes());
}

/// `apply` ended at the first file that somebody changed, or had replaced by something else.
#[test]
fn a_file_that_changes_while_it_moves_keeps_no_other_where_it_is() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let files = planned(&scratch);
    let victim = scratch.path("volume/namespace").join(&files[0]);
    // Its copy takes some time.
    let grow = format!("head -c 64M /dev/zero >>'volume/{}'", files[0].display());
    scratch.succeed(&["run", "--origin", "volume", "--cache", "cache", "--", "sh", "-c", &grow]);
    let (done, begun) = (AtomicBool::new(false), Barrier::new(2));
    let apply = thread::scope(|scope| {
        scope.spawn(|| {
            let file = File::options().write(true).open(&victim).unwrap();
            begun.wait();
            while !done.load(Ordering::Relaxed) {
                file.set_modified(SystemTime::now()).unwrap();
            }
        });
        begun.wait();
        let apply = scratch.halocline(&["apply", "plan.toml", "volume"]);
        done.store(true, Ordering::Relaxed);
        apply
    });
    let told = [files[0].to_str().unwrap(), "was changed meanwhile", "3 files of 4 moved"];
    ended(&apply, 1, &told);
    fs::rename(&victim, scratch.path("aside")).unwrap();
    std::os::unix::fs::symlink(&files[1], &victim).unwrap();
    let apply = scratch.halocline(&["apply", "plan.toml", "volume"]);
    ended(&apply, 1, &["not a regular file", "0 files of 1 moved; 1 file not"]);
    fs::rename(scratch.path("aside"), &victim).unwrap();
    // Its owner leaves no room for the number of another object, where the file system has bounds. Numbers were shorter once.
    name_as_earlier_versions(&scratch, &victim);
    let fill = |number: usize, bytes: usize| {
        let (name, value) = (format!("user.{number}"), vec![b'x'; bytes]);
        setxattr(&victim, name.as_str(), &value, XattrFlags::empty())
    };
    let sizes = [3000, 1000, 300, 100, 50, 20, 8, 4, 1].into_iter().flat_map(|size| [size; 4]);
    let refused =
        sizes.enumerate().filter(|(number, bytes)| fill(*number, *bytes).is_err()).count();
    if refused >= 4 {
        let apply = scratch.halocline(&["apply", "plan.toml", "volume"]);
        let told = "its extended attributes leave no room for the number of its new data";
        ended(
            &apply,
            1,
            &[told, "remove some of its attributes", "0 files of 1 moved; 1 file not"],
        );
    }
    for number in 0..36 {
        let _ = rustix::fs::removexattr(&victim, format!("user.{number}"));
    }
    scratch.succeed(&["apply", "plan.toml", "volume"]);
    scratch.succeed(&["verify", "plan.toml", "volume"]);
    scratch.succeed(&["unstripe", "volume", "out"]);
    let copy = fs::read(scratch.path("out").join(&files[0])).unwrap();
    assert!(copy.starts_with(&content(0, 512 << 10)) && copy.len() == (64 << 20) + (512 << 10));
}

/// A copy ended at the first attribute, or size, that the file system of the copy does not hold.
#[test]
fn what_the_target_does_not_hold_is_told_and_the_rest_copied() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    fs::create_dir(scratch.path("volume")).unwrap();
    let Some(disk) = SmallDisk::over(scratch.path("volume"), 64 << 20) else { return };
    make_volume(&scratch, 2, &["a".into(), "b".into(), "c".into()]);
    let tree = disk.path().join("namespace");
    let long = "x".repeat(20_000);
    for (attribute, value) in [("user.long", long.as_str()), ("user.short", "kept")] {
        let set = setxattr(tree.join("a"), attribute, value.as_bytes(), XattrFlags::empty());
        if set.is_err() {
            return skip("a file system in memory holds no such attributes");
        }
    }
    let huge = File::options().write(true).open(tree.join("b")).unwrap();
    huge.set_len(1 << 62).unwrap();
    let holds_more =
        setxattr(scratch.path("data/a"), "user.long", long.as_bytes(), XattrFlags::empty());
    if holds_more.is_ok() {
        return skip("the file system here holds long attributes");
    }
    let copied = scratch.halocline(&["unstripe", "volume", "out"]);
    let size = "namespace/b: cannot copy a file of its size";
    ended(&copied, 1, &["a: its extended attribute user.long of 20000 bytes", size, "lacks"]);
    let out = scratch.path("out.incomplete");
    let mut value = [0_u8; 8];
    assert_eq!(getxattr(out.join("a"), "user.short", &mut value), Ok(4));
    assert!(!out.join("b").exists());
    for (seed, file) in [(0, "a"), (2, "c")] {
        assert!(fs::read(out.join(file)).unwrap() == content(seed, 512 << 10), "{file}");
    }
    let copied = scratch.halocline(&["unstripe", "volume", "a", "alone"]);
    ended(&copied, 1, &["user.long", "copied to alone.incomplete, which lacks"]);
    scratch.succeed(&["unstripe", "volume", "c", "whole"]);
}

/// Each server takes several open files, and the soft limit is low where programs are meant to use `select(2)`.
#[test]
fn a_volume_of_many_servers_is_copied_with_a_low_soft_limit_of_open_files() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    make_volume(&scratch, 256, &["f".into()]);
    let copied = Command::new("sh")
        .args(["-c", "ulimit -Sn 400; exec \"$0\" unstripe volume out"])
        .arg(scratch.program())
        .current_dir(scratch.root())
        .output()
        .unwrap();
    ended(&copied, 0, &["copied to out"]);
}

/// These were the system's words alone, or none: `invalid input parameter`.
#[test]
fn what_is_missing_or_no_file_is_told_with_its_remedy() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    make_volume(&scratch, 2, &["f".into()]);
    for (part, remedy) in [
        ("server-1", "this server of the volume is not there; move or mount it there"),
        ("namespace", "this directory of the volume is not there; move it there"),
    ] {
        fs::rename(scratch.path("volume").join(part), scratch.path("aside")).unwrap();
        let copied = scratch.halocline(&["unstripe", "volume", "out"]);
        ended(&copied, 2, &[&format!("volume/{part}: {remedy}"), "a backup"]);
        fs::rename(scratch.path("aside"), scratch.path("volume").join(part)).unwrap();
    }
    let _socket = std::os::unix::net::UnixListener::bind(scratch.path("socket")).unwrap();
    assert!(Command::new("mkfifo").arg(scratch.path("fifo")).status().unwrap().success());
    let make = ["trace", "make", "ior", "-p", "2", "-b", "64K", "-t", "64K", "-o"];
    let record = ["trace", "record", "--origin", "origin", "-o"];
    for (out, told) in [
        ("socket", "it is a socket; name a file"),
        ("fifo", "a pipe from which nobody reads; begin to read from it first, or name a file"),
        ("nodir/x", "there is no directory nodir; create it, or correct the path"),
    ] {
        let output = scratch.halocline(&[&make[..], &[out]].concat());
        ended(&output, 1, &[out, told]);
    }
    for (out, told) in [
        ("socket", "it is a socket; name a file"),
        ("nodir/x.hct", "there is no such directory; create it, or correct the path"),
    ] {
        let recorded = scratch.halocline(&[&record[..], &[out, "--", "true"]].concat());
        ended(&recorded, 2, &[out, told]);
    }
    assert!(!scratch.path("nodir").exists());
}

/// Regression: a copy said nothing of data that no file names: a file that was moved out of the tree for a while was not in it.
#[test]
fn data_that_no_file_names_is_told_by_a_copy_of_the_tree() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let files = ["kept", "away"].map(PathBuf::from);
    make_volume(&scratch, 2, &files);
    let (inside, outside) = (scratch.path("volume/namespace/away"), scratch.path("away"));
    fs::rename(&inside, &outside).unwrap();
    let copied = scratch.halocline(&["unstripe", "volume", "out"]);
    let told = [
        "no file names ",
        "volume/server-0/objects/",
        "volume/server-1/objects/",
        "1 object with 512 KiB not copied",
        "copied to out",
        "Bring these back and copy again",
    ];
    ended(&copied, 1, &told);
    // All that the tree names is there.
    assert!(fs::read(scratch.path("out/kept")).unwrap() == content(0, 512 << 10));
    let described = |output: &Output| {
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let section = Section::find("halocline unstripe").unwrap();
        assert_eq!(section.undescribed(&answer), [""; 0]);
        answer
    };
    for dry_run in [true, false] {
        let args = ["unstripe", "volume", "out2", "--json", "--dry-run"];
        let output = scratch.halocline(&args[..if dry_run { 5 } else { 4 }]);
        ended(&output, 1, &["1 object with 512 KiB"]);
        let answer = described(&output);
        assert_eq!((&answer["dry_run"], &answer["bytes"]), (&dry_run.into(), &(512 << 10).into()));
        assert_eq!(answer["unnamed_bytes"], 512 << 10);
        let files = answer["unnamed"][0]["files"].as_array().unwrap();
        assert!(files.iter().all(|file| scratch.path(file.as_str().unwrap()).exists()), "{answer}");
        assert_eq!((files.len(), &answer["unnamed_unknown"]), (2, &serde_json::Value::Null));
    }
    // One file has nothing to do with it, and nothing is missing once the other one is back.
    scratch.succeed(&["unstripe", "volume", "kept", "one"]);
    fs::rename(&outside, &inside).unwrap();
    let answer = described(&scratch.halocline(&["unstripe", "volume", "all", "--json"]));
    assert_eq!((&answer["unnamed"], &answer["copy"]), (&serde_json::json!([]), &"all".into()));
    assert!(fs::read(scratch.path("all/away")).unwrap() == content(1, 512 << 10));
}
