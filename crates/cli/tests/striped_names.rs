//! Striped origins whose names were given away, copied, restored or used by themselves: what the commands say, and that no data is
//! lost or taken for zeros.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use halocline_testkit::program;
use halocline_testkit::sandbox::{ended, written};
use halocline_testkit::scratch::Scratch;
use halocline_testkit::skipping::skip;
use halocline_testkit::striped_volume;
use rustix::fs::{XattrFlags, setxattr};

const OBJECT: &str = "user.halocline.object";
const FILES: [&str; 3] = ["g", "k", "d/z"];

/// Of each file.
const BYTES: usize = 200_000;

fn content(file: &str) -> Vec<u8> {
    striped_volume::content(file, BYTES)
}

/// A striped volume with [`FILES`].
fn volume() -> Option<Scratch> {
    let scratch = Scratch::new(program!())?;
    striped_volume::make(&scratch, &FILES, BYTES);
    Some(scratch)
}

fn name_in(scratch: &Scratch, file: &str) -> PathBuf {
    scratch.path("volume/namespace").join(file)
}

/// A copy of a file, or of a directory, with its attributes.
fn copied(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-aT").args([from, to]).status().unwrap().success());
}

/// A plan for all files, `plan.toml`.
fn planned(scratch: &Scratch) {
    let server = |(name, profile)| {
        format!("[[server]]\nname = \"{name}\"\nprofile = \"{profile}\"\ncapacity = \"1T\"\n")
    };
    let servers: Vec<_> = [("d0", "hdd"), ("d1", "hdd"), ("s0", "ssd")].map(server).into();
    fs::write(scratch.path("servers.toml"), servers.concat()).unwrap();
    let requests = (0..60).map(|at| {
        let file = FILES[at % 3];
        format!("{},0,/{file},read,{},65536\n", at, at % 3 * 65536)
    });
    let head = "time_s,process,file,op,offset,length\n";
    fs::write(scratch.path("t.csv"), head.to_owned() + &requests.collect::<String>()).unwrap();
    scratch.succeed(&["trace", "import", "t.csv", "-o", "t.hct"]);
    scratch.succeed(&["plan", "t.hct", "--servers", "servers.toml", "-o", "plan.toml"]);
}

#[track_caller]
fn has_its_data(scratch: &Scratch, file: &str) {
    let copy = scratch.path("copy");
    ended(&scratch.halocline(&["unstripe", "volume", file, "copy"]), 0, &[]);
    assert!(fs::read(&copy).unwrap() == content(file), "{file}");
    fs::remove_file(copy).unwrap();
}

/// `cp -a SRC/. MOUNT/` does so. The volume was refused by everything then, and a check of its cache said that it was clean.
#[test]
fn a_user_may_be_given_the_root_of_a_mount() {
    let Some(scratch) = volume() else { return };
    if !rustix::process::geteuid().is_root() {
        skip("only root can give files away");
        return;
    }
    planned(&scratch);
    let mount = ["mount", "volume", "mnt", "--cache", "cache"];
    for mode in [0o755, 0o700, 0] {
        scratch.succeed(&mount);
        let root = scratch.path("mnt");
        std::os::unix::fs::chown(&root, Some(1300), Some(1300)).unwrap();
        fs::set_permissions(&root, fs::Permissions::from_mode(mode)).unwrap();
        scratch.succeed(&["umount", "mnt"]);
        scratch.succeed(&mount);
        let found = fs::metadata(&root).unwrap();
        assert_eq!((found.uid(), found.mode() & 0o7777), (1300, mode));
        assert!(fs::read(root.join("g")).unwrap() == content("g"));
        scratch.succeed(&["umount", "mnt"]);
        scratch.succeed(&["apply", "plan.toml", "volume"]);
        scratch.succeed(&["verify", "plan.toml", "volume"]);
        scratch.succeed(&["mark-servers", "volume"]);
        assert!(scratch.succeed(&["fsck", "cache"]).ends_with("clean\n"));
        has_its_data(&scratch, "k");
    }
}

/// The names are restored from a backup that is older than the move. They led to zeros, `--give` was refused, and
/// `--remove-unnamed` would have removed the data.
#[test]
fn a_restored_name_gets_the_data_that_was_moved_since() {
    let Some(scratch) = volume() else { return };
    copied(&scratch.path("volume/namespace"), &scratch.path("backup"));
    planned(&scratch);
    scratch.succeed(&["apply", "plan.toml", "volume"]);
    for file in ["k", "d/z"] {
        fs::remove_file(name_in(&scratch, file)).unwrap();
        copied(&scratch.path("backup").join(file), &name_in(&scratch, file));
        let copy = scratch.halocline(&["unstripe", "volume", file, "copy"]);
        ended(&copy, 1, &["names the data of another file"]);
        let _ = fs::remove_file(scratch.path("copy.incomplete"));
    }
    let verified = scratch.halocline(&["verify", "plan.toml", "volume"]);
    assert_ne!(verified.status.code(), Some(0), "{}", written(&verified));
    let told = scratch.halocline(&["fsck", "cache", "--repair", "--remove-unnamed", "2"]);
    ended(&told, 1, &["no file names 0 objects, not 2"]);
    for file in ["k", "d/z"] {
        let told = scratch.halocline(&["fsck", "cache", "--repair"]);
        let by = format!(": its file is not found, and others name it: {file} (of user");
        ended(&told, 1, &[&by]);
        let told = written(&told);
        let line = told.lines().find(|line| line.contains(&by)).unwrap();
        let object = line.strip_prefix("origin object ").unwrap().split(':').next().unwrap();
        let give = |file: &str| {
            let pair = format!("{object}={file}");
            scratch.halocline(&["fsck", "cache", "--repair", "--give", &pair])
        };
        ended(&give("g"), 1, &["g does not name the object"]);
        give(file);
        has_its_data(&scratch, file);
    }
    assert!(scratch.succeed(&["fsck", "cache"]).ends_with("clean\n"));
    scratch.succeed(&["apply", "plan.toml", "volume"]);
    for file in FILES {
        has_its_data(&scratch, file);
    }
}

/// It said that all was clean, with status 0.
#[test]
fn what_cannot_be_read_or_was_not_checked_is_not_clean() {
    let Some(scratch) = volume() else { return };
    let not_clean = |parts: &[&str]| {
        let told = scratch.halocline(&["fsck", "cache"]);
        ended(&told, 1, parts);
        assert!(!written(&told).contains("clean"), "{}", written(&told));
        let json = scratch.halocline(&["fsck", "cache", "--json"]);
        assert_eq!(json.status.code(), Some(1));
        serde_json::from_slice::<serde_json::Value>(&json.stdout).unwrap()
    };
    copied(&name_in(&scratch, "g"), &name_in(&scratch, "copy"));
    let json =
        not_clean(&["copy (of user ", ") cannot be read: it names the data of another file"]);
    let problem = &json["problems"][0];
    assert_eq!(
        (&problem["problem"], &problem["path"]),
        (&"unreadable-file".into(), &"copy".into())
    );
    fs::remove_file(name_in(&scratch, "copy")).unwrap();
    assert!(scratch.succeed(&["fsck", "cache"]).ends_with("clean\n"));
    copied(&name_in(&scratch, "k"), &scratch.path("aside"));
    setxattr(name_in(&scratch, "k"), OBJECT, b"garbage", XattrFlags::empty()).unwrap();
    not_clean(&["k (of user ", "its user.halocline.object is not an object number"]);
    let object = Command::new("getfattr")
        .args(["--only-values", "-n", OBJECT])
        .arg(scratch.path("aside"))
        .output();
    setxattr(name_in(&scratch, "k"), OBJECT, &object.unwrap().stdout, XattrFlags::empty()).unwrap();
    assert!(scratch.succeed(&["fsck", "cache"]).ends_with("clean\n"));
    for (away, why) in [
        ("volume/server-1", "server-1: this server of the volume is not there"),
        ("volume/namespace", "namespace: this directory of the volume is not there"),
        ("volume", "there is no such directory; mount or move it there"),
    ] {
        fs::rename(scratch.path(away), scratch.path("away")).unwrap();
        let json = not_clean(&["the origin was not checked", why, "not all was: see above"]);
        assert!(json["origin_unchecked"].as_str().unwrap().contains(why), "{json}");
        fs::rename(scratch.path("away"), scratch.path(away)).unwrap();
    }
    fs::create_dir(scratch.path("other")).unwrap();
    scratch.succeed(&["mount", "volume", "mnt", "--cache", "other"]);
    not_clean(&["in use"]);
    scratch.succeed(&["umount", "mnt"]);
    assert!(scratch.succeed(&["fsck", "cache"]).ends_with("clean\n"));
}

/// Reads gave zeros, and what was written went into the files of the names.
#[test]
fn the_names_alone_are_no_origin() {
    let Some(scratch) = volume() else { return };
    fs::create_dir_all(scratch.path("tiers/ssd")).unwrap();
    std::os::unix::fs::symlink(scratch.path("volume/namespace/d"), scratch.path("tiers/hdd"))
        .unwrap();
    fs::create_dir(scratch.path("new")).unwrap();
    let commands: [&[&str]; 5] = [
        &["mount", "volume/namespace", "mnt", "--cache", "new"],
        &["mount", "volume/server-2", "mnt", "--cache", "new"],
        &["run", "--origin", "volume/namespace", "--cache", "new", "--", "true"],
        &["run", "--origin", "volume/namespace/d", "--cache", "new", "--", "true"],
        &["trace", "record", "--origin", "volume/namespace", "-o", "t", "--", "true"],
    ];
    for command in commands {
        let refused = scratch.halocline(command);
        let remedy = format!("own directory, {}", scratch.path("volume").display());
        ended(&refused, 2, &["a part of a striped volume", &remedy]);
    }
    let refused = scratch.halocline(&["mount", "--tier", "tiers", "mnt"]);
    let remedy = format!("`halocline mount {} MOUNTPOINT", scratch.path("volume").display());
    ended(&refused, 2, &["it lies in a striped volume", &remedy]);
    assert_eq!(fs::read_dir(scratch.path("new")).unwrap().count(), 0);
    for file in FILES {
        has_its_data(&scratch, file);
    }
}
