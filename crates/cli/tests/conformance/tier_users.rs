//! A tier that root mounts for all users: what one of them can do to the files of the others.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

use crate::mount::{self, Mount};
use crate::programs;

const BOB: u32 = 65_533;
const MALLORY: u32 = 65_534;

fn shell_as(uid: u32, dir: &Path, script: &str) -> Output {
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).uid(uid).gid(uid).current_dir(dir);
    shell.output().expect("sh starts")
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("chmod");
}

/// Users could put links past the mount into the way of what root does for them.
#[test]
fn a_tier_that_others_reach_is_not_mounted_for_them() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    let mut mount = Mount::tier_prepared(&["--allow-other=true"]);
    for open in [0o755, 0o711, 0o710] {
        chmod(&mount.root(), open);
        let mut command = programs::halocline();
        command.arg("mount").arg("--allow-other=true").arg("--tier");
        let refused = command.arg(mount.root()).arg(mount.path()).output().expect("starts");
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{open:o}: {said}");
        assert!(said.contains(&format!("chmod 0700 {}", mount.root().display())), "{said}");
    }
    assert!(!mount.root().join("ssd/.halocline").exists(), "nothing was changed");
    chmod(&mount.root(), 0o700);
    mount.start();
    mount.unmount();
}

#[test]
fn one_user_cannot_get_at_the_files_of_another() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    let mut mount = Mount::tier(&["--allow-other=true", "--passthrough=false"]);
    let (mnt, hdd) = (mount.path(), mount.root().join("hdd"));
    for (name, uid) in [("bob", BOB), ("mallory", MALLORY)] {
        fs::create_dir(mnt.join(name)).expect("directory");
        chown(mnt.join(name), Some(uid), Some(uid)).expect("owner");
    }
    let made =
        shell_as(BOB, &mnt.join("bob"), "umask 077; echo secret > report; mkdir d; echo x > d/f");
    assert!(made.status.success(), "{made:?}");
    let made = shell_as(MALLORY, &mnt.join("mallory"), "mkdir d; echo own > d/f");
    assert!(made.status.success(), "{made:?}");
    for name in ["bob/report", "bob/d/f", "mallory/d/f"] {
        programs::run(programs::halocline().arg("demote").arg(mnt.join(name)));
    }
    let report = hdd.join("bob/report");
    let script = format!(
        "ln -s {0} x; cat x; cat {0}; mv -f x y; rm y; ls {1}",
        report.display(),
        hdd.display()
    );
    let tried = shell_as(MALLORY, &mnt.join("mallory"), &script);
    assert!(tried.stdout.is_empty(), "{tried:?}");
    assert_eq!(fs::read(mnt.join("bob/report")).expect("it is there"), b"secret\n");
    // Reading it brought it to the SSD.
    programs::run(programs::halocline().arg("demote").arg(mnt.join("bob/report")));
    mount.unmount();
    // The same past the mount, as if somebody had had the time while the root was open.
    let victim = mount.root().join("victim");
    fs::create_dir(&victim).expect("directory");
    fs::write(victim.join("f"), "precious").expect("write");
    fs::rename(hdd.join("mallory/d"), hdd.join("mallory/aside")).expect("rename");
    symlink(&victim, hdd.join("mallory/d")).expect("link");
    let forged = mount.root().join("ssd/mallory/x");
    symlink(&report, &forged).expect("link");
    std::os::unix::fs::lchown(&forged, Some(MALLORY), Some(MALLORY)).expect("owner");
    mount.start();
    let tried = shell_as(
        MALLORY,
        &mnt.join("mallory"),
        "rm -f x; rm -f d/f; cat x d/f; chmod 777 d; rm -rf d",
    );
    assert!(tried.stdout.is_empty(), "{tried:?}");
    assert_eq!(fs::read(mnt.join("bob/report")).expect("it is there"), b"secret\n");
    mount.unmount();
    let report = mount.root().join("ssd/bob/report");
    assert_eq!(fs::read(report).expect("the file, or a link to it"), b"secret\n");
    assert_eq!(fs::read(victim.join("f")).expect("it is there"), b"precious");
    assert_eq!(fs::metadata(&victim).expect("it is there").permissions().mode() & 0o777, 0o755);
}

/// What others may read of a file's copy below, past the mount: nothing once the file is closed.
#[test]
fn a_copy_below_is_closed_when_a_call_that_closes_its_file_returns() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    let mut mount = Mount::tier_prepared(&["--copies", "keep", "--passthrough=false"]);
    chmod(&mount.root(), 0o755);
    mount.start();
    let (mnt, hdd) = (mount.path(), mount.root().join("hdd"));
    let reads = |uid: u32, name: &str| {
        let read = shell_as(uid, &hdd, &format!("cat {name}"));
        String::from_utf8(read.stdout).expect("text")
    };
    let with_copy = |name: &str, content: &str| {
        fs::write(mnt.join(name), content).expect("write");
        chmod(&mnt.join(name), 0o644);
        for way in ["demote", "warm"] {
            programs::run(programs::halocline().arg(way).arg(mnt.join(name)));
        }
        assert_eq!(reads(MALLORY, name), content, "{name} has an open copy");
    };
    with_copy("chmod", "secret");
    chmod(&mnt.join("chmod"), 0o600);
    assert_eq!(reads(MALLORY, "chmod"), "");
    with_copy("chown", "secret");
    chown(mnt.join("chown"), Some(BOB), Some(BOB)).expect("owner");
    chmod(&mnt.join("chown"), 0o640);
    assert_eq!((reads(MALLORY, "chown").as_str(), reads(BOB, "chown").as_str()), ("", "secret"));
    with_copy("written", "secret");
    fs::write(mnt.join("written"), "other").expect("write");
    chmod(&mnt.join("written"), 0o600);
    assert_eq!(reads(MALLORY, "written"), "");
    chmod(&mnt.join("chmod"), 0o604);
    assert_eq!(reads(MALLORY, "chmod"), "secret", "whoever may read the file may read its copy");
    chmod(&mnt.join("chmod"), 0o600);
    mount.unmount();
    assert_eq!(reads(MALLORY, "chmod") + &reads(MALLORY, "chown"), "");
    programs::run(programs::halocline().arg("fsck").arg(mount.root()));
    mount.start();
    let told = programs::run(programs::halocline().args(["where", "--json"]).arg(&mnt));
    let told: serde_json::Value = serde_json::from_slice(&told.stdout).expect("JSON");
    let copies = told.as_array().expect("a list").iter().filter(|file| file["clean_copy"] == "hdd");
    assert_eq!(copies.count(), 2, "copies outlive a change of permissions: {told}");
    mount.unmount();
}
