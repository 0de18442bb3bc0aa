//! Files that are changed in the origin while the mount goes on (I9): what the kernel kept of them
//! since they were last open is of what they were.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::process::Output;
use std::thread;
use std::time::Duration;

use halocline_testkit::closes;
use halocline_testkit::waiting::eventually;

use crate::mount::{self, IO_URING, Mount};
use crate::programs;

/// The kernel keeps no attributes, as the option's description recommends for such an origin.
const OPTIONS: [&str; 3] = ["--policy=never", "--attr-timeout=0s", "--rebuild=false"];

fn reads(mount: &Mount) -> u64 {
    mount.status()["report"]["read"]["requests"].as_u64().expect("a number")
}

fn check(mount: &Mount) {
    let (ours, origin_path) = (mount.path().join("file"), mount.origin().join("file"));
    fs::write(&ours, "by the mount").expect("write");
    assert_eq!(fs::read(&ours).expect("read"), b"by the mount");

    settle(mount);
    let before = reads(mount);
    fs::set_permissions(&ours, Permissions::from_mode(0o600)).expect("chmod");
    let renamed = mount.path().join("renamed");
    fs::rename(&ours, &renamed).expect("rename");
    assert_eq!(fs::read(&renamed).expect("read"), b"by the mount");
    assert_eq!(reads(mount), before, "what only we changed is kept");
    fs::rename(&renamed, &ours).expect("rename");

    for theirs in ["behind it...", "behind it, and longer", "shorter"] {
        settle(mount);
        fs::write(&origin_path, theirs).expect("write");
        eventually("their bytes", || fs::read(&ours).is_ok_and(|bytes| bytes == theirs.as_bytes()));
    }
}

#[test]
fn i9_pages_of_a_file_that_changed_while_it_was_closed_are_read_anew() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    check(&Mount::new(&OPTIONS));
    let always =
        OPTIONS.map(|option| if option == OPTIONS[0] { "--policy=always" } else { option });
    let mount = Mount::new(&always);
    fs::write(mount.origin().join("file"), "older").expect("write");
    assert_eq!(fs::read(mount.path().join("file")).expect("read"), b"older");
    settle(&mount);
    fs::write(mount.origin().join("file"), "newer").expect("write");
    assert_eq!(fs::read(mount.path().join("file")).expect("read"), b"newer", "at once");
    if mount::ring_obstacle().is_none() {
        check(&Mount::new(&[&OPTIONS[..], &[IO_URING]].concat()));
    }
}

/// Runs the command on the mount; an unmount again while a process that another test starts has our open files.
fn halocline(command: &str, mount: &Mount) -> (Output, String) {
    let mut done = None;
    eventually("the end of its use", || {
        let output = programs::halocline().arg(command).arg(mount.path()).output();
        let output = output.expect("it starts");
        let said = [&output.stdout[..], &output.stderr[..]].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        let in_use = said.contains("programs use the mount");
        done = Some((output, said));
        !in_use
    });
    done.expect("it ran")
}

/// The bytes that were saved of the only conflict.
fn saved(mount: &Mount) -> Vec<u8> {
    let dir = fs::read_dir(mount.cache().join("conflicts")).expect("conflicts");
    let mut files = dir.map(|entry| entry.expect("an entry").path());
    let bytes = files.find(|path| path.extension().is_none()).expect("saved bytes");
    fs::read(bytes).expect("read")
}

/// Waits until the mount knows that its programs have closed their files: from then on a change is one of others.
/// Their clock is the origin's, which may stand still for some milliseconds.
fn settle(mount: &Mount) {
    closes::all_are_told(&mount.path());
    thread::sleep(Duration::from_millis(20));
}

/// Writes a file through the mount, all of it dirty, closed, and known to be.
fn dirty(mount: &Mount) {
    fs::write(mount.path().join("file"), vec![1; 65536]).expect("write");
    let is_dirty = || mount.status()["dirty_bytes"].as_u64() == Some(65536);
    eventually("dirty bytes", is_dirty);
    settle(mount);
}

/// What others wrote after a `kill -9`, or under a mount that lives, was overwritten without a word.
#[test]
fn i9_dirty_bytes_do_not_go_over_what_others_wrote() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    let options = ["--policy=always", "--rebuild=false"];
    for killed in [false, true] {
        let mut mount = Mount::new(&options);
        dirty(&mount);
        if killed {
            let pid = mount.status()["pid"].as_u64().expect("a pid");
            mount.kill(u32::try_from(pid).expect("a pid"));
        }
        let origin_path = mount.origin().join("file");
        File::options()
            .write(true)
            .open(&origin_path)
            .expect("open")
            .write_all_at(&[9; 100], 4096)
            .expect("write");
        let theirs = fs::read(&origin_path).expect("read");
        if killed {
            let fsck = programs::halocline().arg("fsck").arg(mount.cache()).output().expect("fsck");
            let said = String::from_utf8_lossy(&fsck.stdout);
            assert_eq!(fsck.status.code(), Some(1), "{said}");
            assert!(said.contains("others changed"), "{said}");
            mount.start();
        }
        let (flush, said) = halocline("flush", &mount);
        assert_eq!(flush.status.code(), Some(4), "{said}");
        assert!(said.contains("saved in") && said.contains("behind the mount"), "{said}");
        assert!(mount.log().contains("behind the mount"), "{}", mount.log());
        let status = mount.status();
        assert_eq!(status["report"]["conflicts"].as_u64(), Some(1), "{status}");
        assert!(fs::read(mount.path().join("file")).expect("read") == theirs);
        mount.unmount();
        assert!(fs::read(&origin_path).expect("read") == theirs);
        assert!(saved(&mount) == vec![1; 65536]);
    }
}

/// Regression: of some files, because the mount had not yet done with them when `close` returned.
#[test]
fn i9_what_others_write_right_after_a_close_is_a_conflict() {
    const FILES: usize = 200;
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    let mut kinds = vec![vec!["--policy=always", "--rebuild=false"]];
    if mount::ring_obstacle().is_none() {
        kinds.push([&kinds[0][..], &[IO_URING]].concat());
    }
    for options in kinds {
        let mount = Mount::new(&options);
        let names: Vec<_> = (0..FILES).map(|at| format!("file{at}")).collect();
        for name in &names {
            fs::write(mount.origin().join(name), vec![1; 65536]).expect("write");
        }
        for name in &names {
            let [ours, theirs] = [mount.path(), mount.origin()]
                .map(|dir| File::options().write(true).open(dir.join(name)).expect("open"));
            ours.write_all_at(&[2; 4096], 8192).expect("write");
            drop(ours);
            theirs.write_all_at(&[3; 4096], 16384).expect("write");
        }
        let (flush, said) = halocline("flush", &mount);
        assert_eq!(flush.status.code(), Some(4), "{said}");
        let status = mount.status();
        assert_eq!(status["report"]["conflicts"].as_u64(), Some(FILES as u64), "{status}");
    }
}

/// The same where an unmount is the first to find it: it says so by its status.
#[test]
fn i9_an_unmount_tells_of_a_conflict() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    let mount = Mount::new(&["--policy=always", "--rebuild=false"]);
    dirty(&mount);
    let origin_path = mount.origin().join("file");
    fs::remove_file(&origin_path).expect("remove");
    let (umount, said) = halocline("umount", &mount);
    assert_eq!(umount.status.code(), Some(4), "{said}");
    assert!(!origin_path.exists());
    assert!(saved(&mount) == vec![1; 65536]);
}

/// Who owns a file of the origin could fill the SSD with conflicts, until the cache had failed and the unmount did.
#[test]
fn i5_conflicts_do_not_fill_the_ssd_and_an_unmount_tells_of_those_that_do_not_fit() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    let mount = Mount::new(&["--policy=always", "--rebuild=false", "--size=16M"]);
    for round in 0..6 {
        let name = format!("file{round}");
        fs::write(mount.path().join(&name), vec![1; 6 << 20]).expect("write");
        settle(&mount);
        fs::write(mount.origin().join(&name), "theirs").expect("write");
        let (flush, said) = halocline("flush", &mount);
        let code = flush.status.code();
        assert!(if round == 0 { code == Some(4) } else { code != Some(0) }, "{round}: {said}");
        let du = programs::run(std::process::Command::new("du").arg("-sk").arg(mount.cache()));
        let du = String::from_utf8_lossy(&du.stdout).into_owned();
        let kib: u64 = du.split_whitespace().next().and_then(|kib| kib.parse().ok()).expect("KiB");
        assert!(kib <= 16 << 10, "{round}: {kib} KiB");
    }
    assert_eq!(mount.status()["health"]["state"], "ok");
    fs::write(mount.path().join("other"), "ours").expect("write");
    let (umount, said) = halocline("umount", &mount);
    assert_eq!(umount.status.code(), Some(1), "as with all that cannot be flushed: {said}");
    assert!(
        said.contains("--force") && said.contains("larger --size") && said.contains("conflicts"),
        "{said}"
    );
    assert_eq!(fs::read(mount.origin().join("other")).expect("read"), b"ours");
    let forced = programs::halocline().args(["umount", "--force"]).arg(mount.path()).output();
    assert_eq!(forced.expect("it starts").status.code(), Some(3));
}
