//! A tier mount at its limits: no room on the SSD, no room anywhere, a tier that is gone.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use halocline_testkit::waiting::eventually;

use crate::mount::{self, Mount};
use crate::programs;

/// A small file system of its own at a directory, until dropped.
pub(crate) struct Tmpfs(PathBuf);

impl Tmpfs {
    pub(crate) fn mount(at: &Path, size: &str) -> Self {
        let options = format!("size={size},mode=755");
        programs::run(Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(at));
        Self(at.to_owned())
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

/// Space of the SSD's own file system, without a limit of ours: `ENOSPC` comes from below.
#[test]
fn no_program_sees_a_full_ssd() {
    fill_ssd(&["--ssd-limit", "100%", "--passthrough=false"]);
}

/// The kernel wrote new files by itself, and the SSD full.
#[test]
fn no_program_sees_a_full_ssd_with_passthrough() {
    fill_ssd(&["--ssd-limit", "100%"]);
}

fn fill_ssd(options: &[&str]) {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    let mut mount = Mount::tier_prepared(options);
    let _ssd = Tmpfs::mount(&mount.root().join("ssd"), "8M");
    mount.start();
    let block = vec![5; 1 << 20];
    // One open file that outgrows the SSD, with others beside it.
    for number in 0..12 {
        fs::write(mount.path().join(format!("small{number}")), &block).expect("a small file");
    }
    let mut big = File::create(mount.path().join("big")).expect("create");
    for _ in 0..32 {
        big.write_all(&block).expect("the HDD has room");
    }
    fs::create_dir_all(mount.path().join("a/b/c")).expect("a directory on a full SSD");
    assert_eq!(fs::metadata(mount.path().join("big")).expect("stat").len(), 32 << 20);
    assert_eq!(fs::read(mount.path().join("small3")).expect("read"), block);
    let allocated = File::create(mount.path().join("allocated")).expect("create");
    rustix::fs::fallocate(&allocated, rustix::fs::FallocateFlags::empty(), 0, 16 << 20)
        .expect("the HDD has room");
    drop((big, allocated));
    mount.unmount();
    programs::run(programs::halocline().arg("fsck").arg(mount.root()));
}

/// An SSD without free inodes: nothing can be made there, but what is on the HDD can be removed,
/// and that makes room.
#[test]
fn files_can_be_removed_from_a_full_ssd() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    let mut mount = Mount::tier_prepared(&["--ssd-limit", "100%", "--passthrough=false"]);
    let _ssd = Tmpfs::mount(&mount.root().join("ssd"), "8M,nr_inodes=64");
    mount.start();
    fs::create_dir(mount.path().join("dir")).expect("a directory");
    for name in ["dir/slow", "dir/other"] {
        fs::write(mount.path().join(name), b"slow").expect("write");
        programs::run(programs::halocline().arg("demote").arg(mount.path().join(name)));
    }
    let number = |number: u32| mount.path().join(format!("file{number}"));
    let made = (0..64).take_while(|n| File::create(number(*n)).is_ok()).count();
    assert!((20..64).contains(&made), "{made} files were made");
    fs::remove_file(mount.path().join("dir/slow")).expect("removing needs no room");
    // The kernel may hold the removed file for a moment.
    let again = || File::create(mount.path().join("one")).is_ok();
    eventually("room", again);
    fs::remove_file(mount.path().join("dir/other")).expect("removing needs no room");
    fs::remove_dir(mount.path().join("dir")).expect("it is empty");
    mount.unmount();
    assert!(!mount.root().join("hdd/dir").exists(), "what was removed is gone below too");
    programs::run(programs::halocline().arg("fsck").arg(mount.root()));
}

#[test]
fn a_full_hdd_fails_only_what_needs_it() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    let mut mount = Mount::tier_prepared(&["--ssd-limit", "4M", "--passthrough=false"]);
    let _hdd = Tmpfs::mount(&mount.root().join("hdd"), "8M");
    mount.start();
    let mut file = File::create(mount.path().join("huge")).expect("create");
    let block = vec![9; 1 << 20];
    let written = (0..32).take_while(|_| file.write_all(&block).is_ok()).count();
    assert!((5..=8).contains(&written), "{written} MiB fit 4 MiB of SSD or 8 MiB of HDD");
    let error = file.write_all(&block).expect_err("nothing has room");
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    drop(file);
    let content = fs::read(mount.path().join("huge")).expect("read");
    assert!(content.iter().all(|byte| *byte == 9), "what was acknowledged is there");
    fs::remove_file(mount.path().join("huge")).expect("remove");
    fs::write(mount.path().join("next"), &block).expect("room again");
    mount.unmount();
    programs::run(programs::halocline().arg("fsck").arg(mount.root()));
}

/// The HDD goes away under the mount: its files fail with a clear message, the SSD's do not.
#[test]
fn a_tier_that_is_gone_fails_its_files_only() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    let mut mount = Mount::tier(&["--passthrough=false"]);
    fs::write(mount.path().join("fast"), b"fast").expect("write");
    fs::write(mount.path().join("slow"), b"slow").expect("write");
    programs::run(programs::halocline().arg("demote").arg(mount.path().join("slow")));
    mount.unmount();
    let (root, away) = (mount.root(), mount.root().join("away"));
    // The SSD vanishes: a clear refusal, and the HDD's files are ordinary files.
    fs::rename(root.join("ssd"), &away).expect("rename");
    fs::create_dir(root.join("ssd")).expect("an empty mount point");
    let mut command = programs::halocline();
    command.arg("mount").arg("--tier").arg(&root).arg(mount.path());
    let refused = command.output().expect("starts");
    let message = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && message.contains("mount its device"), "{message}");
    assert_eq!(fs::read(root.join("hdd/slow")).expect("an ordinary file"), b"slow");
    fs::remove_dir_all(root.join("ssd")).expect("remove");
    fs::rename(&away, root.join("ssd")).expect("rename");
    mount.start();
    // The HDD vanishes under the mount.
    fs::remove_file(root.join("hdd/slow")).expect("remove");
    assert_eq!(fs::read(mount.path().join("fast")).expect("read"), b"fast");
    let error = fs::read(mount.path().join("slow")).expect_err("its file is gone");
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    mount.unmount();
    let fsck = programs::halocline().arg("fsck").arg(mount.root()).output().expect("starts");
    let said = String::from_utf8_lossy(&fsck.stdout);
    assert!(!fsck.status.success() && said.contains("slow: its file"), "{said}");
}

/// A name was removed whose data is on a disk that became read-only: nothing could end the mount.
#[test]
fn a_mount_over_a_read_only_hdd_ends() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    let mut mount = Mount::tier_prepared(&[]);
    let hdd = mount.root().join("hdd");
    let _hdd = Tmpfs::mount(&hdd, "8M");
    let remount = |how: &str| {
        programs::run(Command::new("mount").args(["-o", &format!("remount,{how}")]).arg(&hdd));
    };
    mount.start();
    let path = mount.path().join("file");
    fs::write(&path, b"content").expect("write");
    programs::run(programs::halocline().arg("demote").arg(&path));
    remount("ro");
    fs::remove_file(&path).expect("its name is on the SSD");
    programs::run(programs::halocline().arg("flush").arg(mount.path()));
    mount.unmount();
    assert!(hdd.join("file").exists());
    remount("rw");
    mount.start();
    assert!(!hdd.join("file").exists(), "the data goes when that is possible");
    // What is lost below can be removed.
    fs::create_dir(mount.path().join("dir")).expect("a directory");
    let path = mount.path().join("dir/lost");
    fs::write(&path, b"content").expect("write");
    programs::run(programs::halocline().arg("demote").arg(&path));
    fs::remove_file(hdd.join("dir/lost")).expect("remove");
    assert!(fs::read(&path).is_err());
    fs::remove_dir_all(mount.path().join("dir")).expect("what is lost can be removed");
    mount.unmount();
    programs::run(programs::halocline().arg("fsck").arg(mount.root()));
}
