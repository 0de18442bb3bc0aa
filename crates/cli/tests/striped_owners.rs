//! Striped origins in whose tree a user does what he can: moves away what lies in his directory, has his files name the data of
//! others, mounts file systems of his own. He gets nobody's data, and keeps nobody from working with the other files.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use halocline_testkit::program;
use halocline_testkit::sandbox::{ended, written};
use halocline_testkit::scratch::Scratch;
use halocline_testkit::skipping::skip;
use halocline_testkit::striped_volume;
use rustix::fs::{XattrFlags, getxattr, setxattr};

const OBJECT: &str = "user.halocline.object";

/// The files of each volume.
const FILES: [&str; 4] = ["a/f", "u/shared/v", "u/own", "z/f"];

/// Of each file.
const BYTES: usize = 300_000;

fn content(file: &str) -> Vec<u8> {
    striped_volume::content(file, BYTES)
}

/// A striped volume with [`FILES`], made through a mount.
fn volume() -> Option<Scratch> {
    let scratch = Scratch::new(program!())?;
    if !rustix::process::geteuid().is_root() {
        skip("only root can mount for another user");
        return None;
    }
    striped_volume::make(&scratch, &FILES, BYTES);
    Some(scratch)
}

fn name_in(scratch: &Scratch, file: &str) -> PathBuf {
    scratch.path("volume/namespace").join(file)
}

fn number_of(path: &Path) -> Vec<u8> {
    let mut value = [0_u8; 64];
    let len = getxattr(path, OBJECT, &mut value).unwrap();
    value[..len].to_vec()
}

/// What the command says where user 7112 has mounted a file system that answers nothing over `u`.
fn hidden(scratch: &Scratch, args: &[&str]) -> Output {
    let script = "exec 9<>/dev/fuse
        mount -i -t fuse -o fd=9,rootmode=40000,user_id=7112,group_id=7112 x volume/namespace/u
        exec \"$0\" \"$@\"";
    Command::new("unshare")
        .args(["-m", "sh", "-ec", script])
        .arg(scratch.program())
        .args(args)
        .current_dir(scratch.root())
        .output()
        .unwrap()
}

#[track_caller]
fn has_its_data(scratch: &Scratch, file: &str) {
    let copy = scratch.path("copy");
    let output = scratch.halocline(&["unstripe", "volume", file, "copy"]);
    ended(&output, 0, &[]);
    assert!(fs::read(&copy).unwrap() == content(file), "{file}");
    fs::remove_file(copy).unwrap();
}

/// A repair gave the data to the only file that named it: to one that its owner had made so, while the other one was away.
#[test]
fn nobody_is_given_the_data_of_a_file_that_is_not_found() {
    let Some(scratch) = volume() else { return };
    let own = name_in(&scratch, "u/own");
    let number = number_of(&name_in(&scratch, "u/shared/v"));
    for forged in [&["u/own"][..], &["u/own", "a/f"]] {
        let before: Vec<_> =
            forged.iter().map(|file| number_of(&name_in(&scratch, file))).collect();
        fs::rename(name_in(&scratch, "u/shared"), scratch.path("away")).unwrap();
        for file in forged {
            setxattr(name_in(&scratch, file), OBJECT, &number, XattrFlags::empty()).unwrap();
        }
        let told = scratch.halocline(&["fsck", "cache", "--repair"]);
        let parts = ["its file is not found, and others name it: ", "u/own", "--give OBJECT=FILE"];
        ended(&told, 1, &parts);
        ended(&scratch.halocline(&["unstripe", "volume", "u/own", "stolen"]), 1, &["of another"]);
        let _ = fs::remove_file(scratch.path("stolen.incomplete"));
        fs::rename(scratch.path("away"), name_in(&scratch, "u/shared")).unwrap();
        // What the forger's files had is named by none.
        let told = scratch.halocline(&["fsck", "cache", "--repair"]);
        ended(&told, 1, &[&format!("no file names {} of 4 objects", forged.len())]);
        assert!(!written(&told).contains("its file is not found"), "{}", written(&told));
        has_its_data(&scratch, "u/shared/v");
        // Nor is a file not found because others say that its data is being given to them.
        for file in forged {
            let given = [&number[..], b"g"].concat();
            setxattr(name_in(&scratch, file), OBJECT, &given, XattrFlags::empty()).unwrap();
        }
        let told = scratch.halocline(&["fsck", "cache", "--repair"]);
        assert!(!written(&told).contains("its file is not found"), "{}", written(&told));
        for (file, number) in forged.iter().zip(before) {
            setxattr(name_in(&scratch, file), OBJECT, &number, XattrFlags::empty()).unwrap();
            has_its_data(&scratch, file);
        }
    }
    // What a backup has restored has another inode number: one who knows says so.
    let (file, restored) = (name_in(&scratch, "a/f"), name_in(&scratch, "a/restored"));
    let done = Command::new("cp").arg("-a").args([&file, &restored]).status().unwrap();
    assert!(done.success());
    let inode = fs::metadata(&file).unwrap().ino();
    fs::remove_file(&file).unwrap();
    fs::rename(&restored, &file).unwrap();
    let told = scratch.halocline(&["fsck", "cache", "--repair"]);
    ended(&told, 1, &["others name it: a/f (of user 0)"]);
    let told = written(&told);
    let object = told.split([' ', ':']).find(|word| word.contains(&format!("-{inode}"))).unwrap();
    let give = |pair: &str| scratch.halocline(&["fsck", "cache", "--repair", "--give", pair]);
    ended(&give(&format!("{object}=u/own")), 1, &["u/own does not name the object"]);
    ended(&give("nonsense=a/f"), 1, &["the origin has no object nonsense"]);
    // One server cannot follow: until all have, nobody gets zeros for what is there, and each check tells.
    let read_only = "mount --bind volume/server-1 volume/server-1; mount -o remount,bind,ro volume/server-1; exec \"$0\" \"$@\"";
    let pair = format!("{object}=a/f");
    let interrupted = Command::new("unshare")
        .args(["-m", "sh", "-ec", read_only])
        .arg(scratch.program())
        .args(["fsck", "cache", "--repair", "--give", &pair])
        .current_dir(scratch.root())
        .output();
    ended(&interrupted.unwrap(), 1, &["bind the objects"]);
    ended(&scratch.halocline(&["unstripe", "volume", "a/f", "half"]), 1, &["was being given"]);
    let _ = fs::remove_file(scratch.path("half.incomplete"));
    let told = scratch.halocline(&["fsck", "cache"]);
    ended(&told, 1, &[object, "others name it: a/f"]);
    let restored = format!("-{}", fs::metadata(&file).unwrap().ino());
    let told = written(&told);
    let part = told.split([' ', ':']).find(|word| word.contains(&restored)).unwrap();
    ended(&give(&format!("{part}=a/f")), 1, &["is a part of the object that was being given"]);
    ended(&give(&pair), 0, &["clean"]);
    has_its_data(&scratch, "a/f");
    assert!(own.exists());
}

/// A copy ended at a directory that could not be read; so did `apply` after a killed move, and `fsck` without a word of anything.
#[test]
fn a_directory_that_cannot_be_read_keeps_nobody_from_the_others() {
    let Some(scratch) = volume() else { return };
    let what = "namespace/u: another user has mounted a file system there; unmount it";
    let dry = hidden(&scratch, &["unstripe", "-n", "volume", "out"]);
    ended(&dry, 1, &[what, "out.incomplete, which would lack what is told above"]);
    let copied = hidden(&scratch, &["unstripe", "volume", "out"]);
    ended(&copied, 1, &[what, "copied to out.incomplete, which lacks"]);
    for file in FILES {
        let copy = fs::read(scratch.path("out.incomplete").join(file)).ok();
        assert!(copy == Some(content(file)).filter(|_| !file.starts_with('u')), "{file}");
    }
    // One object has no name, and two may have names there.
    fs::remove_file(name_in(&scratch, "z/f")).unwrap();
    ended(&hidden(&scratch, &["fsck", "cache"]), 1, &[what, "1 of its names cannot be read"]);
    for count in ["1", "3"] {
        let args = ["fsck", "cache", "--repair", "--remove-unnamed", count];
        ended(&hidden(&scratch, &args), 1, &["nothing without a name was removed", what]);
    }
    for file in &FILES[..3] {
        has_its_data(&scratch, file);
    }
    scratch.halocline(&["fsck", "cache", "--repair", "--remove-unnamed", "1"]);
    scratch.succeed(&["fsck", "cache"]);
}

/// Root may not enter what a user has mounted: whoever ran `apply` as root was told to run it as root.
fn files_that_are_hidden_are_named(scratch: &Scratch) {
    let plan = fs::read_to_string(scratch.path("plan.toml")).unwrap();
    fs::write(scratch.path("hidden.toml"), plan.replace("/z/f\"", "/u/own\"")).unwrap();
    let what = "namespace/u: another user has mounted a file system there; unmount it (umount -l)";
    let moved = hidden(scratch, &["apply", "hidden.toml", "volume"]);
    ended(&moved, 1, &[what, "0 files of 1 moved"]);
    let compared = hidden(scratch, &["verify", "hidden.toml", "volume"]);
    ended(&compared, 1, &[what, "1 of 2 files lie as planned"]);
    for told in [written(&moved), written(&compared)] {
        assert!(!told.contains("as root"), "{told}");
    }
    scratch.succeed(&["apply", "hidden.toml", "volume"]);
    scratch.succeed(&["verify", "hidden.toml", "volume"]);
}

/// A move that was killed is noted; what is not found stays noted, and the others move.
#[test]
fn what_a_killed_move_left_keeps_no_other_file_from_moving() {
    let Some(scratch) = volume() else { return };
    let server = |(name, profile)| {
        format!("[[server]]\nname = \"{name}\"\nprofile = \"{profile}\"\ncapacity = \"1T\"\n")
    };
    let servers: Vec<_> = [("d0", "hdd"), ("d1", "hdd"), ("s0", "ssd")].map(server).into();
    fs::write(scratch.path("servers.toml"), servers.concat()).unwrap();
    let requests = (0..60).map(|at| {
        let file = if at % 2 == 0 { "a/f" } else { "z/f" };
        format!("{},0,/{file},read,{},65536\n", at, at % 4 * 65536)
    });
    let head = "time_s,process,file,op,offset,length\n";
    fs::write(scratch.path("t.csv"), head.to_owned() + &requests.collect::<String>()).unwrap();
    scratch.succeed(&["trace", "import", "t.csv", "-o", "t.hct"]);
    scratch.succeed(&["plan", "t.hct", "--servers", "servers.toml", "-o", "plan.toml"]);
    let number = number_of(&name_in(&scratch, "u/own"));
    let note = format!("{} {}\n", String::from_utf8(number).unwrap(), "0".repeat(32));
    fs::write(scratch.path("volume/server-0/halocline-moving"), &note).unwrap();
    let what = "namespace/u: another user has mounted a file system there; unmount it";
    ended(&hidden(&scratch, &["apply", "plan.toml", "volume", "--dry-run"]), 0, &["2 files"]);
    let applied = hidden(&scratch, &["apply", "plan.toml", "volume"]);
    ended(&applied, 0, &["2 files", what, "a directory that cannot be read"]);
    let left = fs::read_to_string(scratch.path("volume/server-0/halocline-moving")).unwrap();
    assert_eq!(left, note);
    scratch.succeed(&["verify", "plan.toml", "volume"]);
    scratch.succeed(&["apply", "plan.toml", "volume"]);
    assert_eq!(fs::read(scratch.path("volume/server-0/halocline-moving")).unwrap(), b"");
    files_that_are_hidden_are_named(&scratch);
    // One file under two names of the same path: `verify` found nothing, and `apply` refused the second.
    let plan = fs::read_to_string(scratch.path("plan.toml")).unwrap();
    let twice = plan.replace("/z/f\"", "/a//f\"");
    fs::write(scratch.path("twice.toml"), &twice).unwrap();
    for command in ["apply", "verify"] {
        let output = scratch.halocline(&[command, "twice.toml", "volume"]);
        ended(&output, 2, &["a//f is there twice; leave one of them out"]);
    }
}
