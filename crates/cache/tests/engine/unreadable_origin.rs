//! Origins of which a part cannot be looked at: a directory that is closed to us, a mount point on which
//! nothing is mounted yet. What is dirty there is not taken for a removed file's: it waits, it is told of, and
//! it stands in nobody's way (I4).

use std::ffi::{CString, OsStr};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::ptr;
use std::thread;

use halocline_api::control::{Controlled, MoveReport};
use halocline_testkit::skipping::skip;
use halocline_vfs::Engine;
use rustix::thread::{UnshareFlags, unshare_unsafe};
use tempfile::TempDir;

use crate::fixture::{Fixture, ME, still};
use crate::truth::pattern;

const KIB: u64 = 1 << 10;
const NOBODY: u32 = 65_534;

/// Does something as an ordinary user, whom permissions stop.
fn as_ordinary_user(act: impl FnOnce() + Send) {
    if !rustix::process::geteuid().is_root() {
        return act();
    }
    // The ids by which the kernel judges are a thread's own, and so are the capabilities they take.
    let user = || {
        // SAFETY: plain numbers that concern the calling thread only.
        unsafe {
            libc::setfsgid(NOBODY);
            libc::setfsuid(NOBODY);
        }
        assert!(fs::read("/proc/1/environ").is_err(), "permissions stop this thread");
        act();
    };
    thread::scope(|scope| scope.spawn(user).join().unwrap());
}

/// Does something where it may mount, and nobody else sees that.
fn where_one_may_mount(act: impl FnOnce() + Send) {
    let apart = || {
        // SAFETY: the thread's own view of mounts and directories; no descriptor is concerned.
        if let Err(errno) = unsafe { unshare_unsafe(UnshareFlags::NEWNS) } {
            return skip(format!("no mounts can be made here: {errno}"));
        }
        mount("none", Path::new("/"), "", libc::MS_REC | libc::MS_PRIVATE);
        act();
    };
    thread::scope(|scope| scope.spawn(apart).join().unwrap());
}

#[track_caller]
fn mount(what: &str, at: &Path, kind: &str, flags: libc::c_ulong) {
    let text = |text: &OsStr| CString::new(text.as_bytes()).unwrap();
    let (what, at, kind) = (text(what.as_ref()), text(at.as_ref()), text(kind.as_ref()));
    // SAFETY: three strings that end, and no data.
    let done =
        unsafe { libc::mount(what.as_ptr(), at.as_ptr(), kind.as_ptr(), flags, ptr::null()) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

#[track_caller]
fn unmount(at: &Path) {
    let at = CString::new(at.as_os_str().as_bytes()).unwrap();
    // SAFETY: a string that ends.
    let done = unsafe { libc::umount2(at.as_ptr(), libc::MNT_DETACH) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// An origin with `names`, directories made, each 32 KiB.
fn origin(names: &[&str]) -> Fixture {
    let mut fixture = Fixture::new(still(1 << 20, "always"));
    fixture.others = true;
    for name in names {
        let path = fixture.origin.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, pattern(1, 0, 32 * KIB)).unwrap();
    }
    fixture
}

/// Writes 4 KiB at 8 KiB through the mount.
fn write(fixture: &Fixture, path: &str) {
    let engine = fixture.engine();
    let step = |vnode, name: &OsStr| engine.lookup(&vnode, name).unwrap().0;
    let vnode = Path::new(path).iter().fold(engine.root(), step);
    let handle = engine.open(&vnode, libc::O_RDWR, ME).unwrap();
    engine.write(&handle, 8 * KIB, &pattern(2, 8 * KIB, 4 * KIB), ME).unwrap();
}

fn written() -> Vec<u8> {
    let mut want = pattern(1, 0, 32 * KIB);
    want[8 << 10..12 << 10].copy_from_slice(&pattern(2, 8 * KIB, 4 * KIB));
    want
}

fn close_directory(fixture: &Fixture, name: &str, mode: u32) {
    let path = fixture.origin.path().join(name);
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// The dirty bytes of `path` wait, and that is told of, also by a flush.
#[track_caller]
fn waits(fixture: &Fixture, path: &str, why: &str) -> MoveReport {
    let status = fixture.engine().status();
    assert_eq!(status.dirty_bytes, 4 * KIB, "{:?}", status.notes);
    let told = |note: &&String| note.contains(path) && note.contains(why);
    assert!(status.notes.iter().any(|note| told(&note)), "{:?}", status.notes);
    let report = fixture.flush();
    assert_eq!((report.left_bytes, report.conflicts.len()), (4 * KIB, 0), "{report:?}");
    let left = &report.skipped[0];
    assert!(left.path == Path::new(path) && left.reason.contains(why), "{report:?}");
    assert!(!fixture.cache.path().join("conflicts").exists());
    report
}

#[track_caller]
fn goes_to_origin(fixture: &Fixture, path: &str) {
    let report = fixture.flush();
    assert_eq!((report.left_bytes, report.conflicts.len()), (0, 0), "{report:?}");
    assert!(fs::read(fixture.origin.path().join(path)).unwrap() == written());
}

/// A directory that could not be searched for once had its dirty files "gone": their bytes went to
/// `conflicts`, and the files were what they had been before.
#[test]
fn i4_dirty_files_in_a_directory_that_is_closed_wait() {
    as_ordinary_user(|| {
        for flushed_live in [false, true] {
            let mut fixture = origin(&["a/f", "g"]);
            write(&fixture, "a/f");
            fixture.crash();
            close_directory(&fixture, "a", 0o444);
            fixture.open();
            waits(&fixture, "a/f", "Permission denied");
            fixture.close_dirty();
            fixture.open();
            waits(&fixture, "a/f", "Permission denied");
            if !flushed_live {
                fixture.crash();
            }
            close_directory(&fixture, "a", 0o755);
            if !flushed_live {
                fixture.open();
            }
            goes_to_origin(&fixture, "a/f");
            fixture.close();
        }
    });
}

/// One directory that nobody may list kept every mount from being made, when a dirty file was not where
/// it had been.
#[test]
fn i4_a_search_goes_past_what_it_may_not_read() {
    as_ordinary_user(|| {
        let mut fixture = origin(&["a/f", "a/g", "closed/h"]);
        write(&fixture, "a/f");
        write(&fixture, "a/g");
        fixture.crash();
        let at = |name: &str| fixture.origin.path().join(name);
        fs::remove_file(at("a/f")).unwrap();
        fs::rename(at("a/g"), at("moved")).unwrap();
        close_directory(&fixture, "closed", 0);
        fixture.open();
        assert_eq!(fixture.engine().status().dirty_bytes, 8 * KIB);
        assert_eq!(fixture.flush().left_bytes, 4 * KIB);
        assert!(fs::read(fixture.origin.path().join("moved")).unwrap() == written());
        waits(&fixture, "a/f", "closed");
        close_directory(&fixture, "closed", 0o755);
        let report = fixture.flush();
        assert_eq!((report.left_bytes, report.conflicts.len()), (0, 1), "now it is gone");
        fixture.close();
    });
}

/// What is mounted below the origin may come later than the origin itself.
#[test]
fn i4_dirty_files_below_a_mount_point_without_its_mount_wait() {
    where_one_may_mount(|| {
        for other_device in [false, true] {
            let elsewhere = TempDir::new().unwrap();
            if other_device {
                mount("none", elsewhere.path(), "tmpfs", 0);
            }
            let mut fixture = origin(&["proj/in/below"]);
            let proj = fixture.origin.path().join("proj");
            let bind = || mount(elsewhere.path().to_str().unwrap(), &proj, "", libc::MS_BIND);
            bind();
            for name in ["in/a", "in/removed"] {
                let path = proj.join(name);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, pattern(1, 0, 32 * KIB)).unwrap();
            }
            write(&fixture, "proj/in/a");
            fixture.crash();
            unmount(&proj);
            fixture.open();
            waits(&fixture, "proj/in/a", "not mounted");
            fixture.close_dirty();
            // Another file by that name is another file.
            fs::write(proj.join("in/a"), "placeholder").unwrap();
            fixture.open();
            waits(&fixture, "proj/in/a", "not mounted");
            fs::remove_dir_all(proj.join("in")).unwrap();
            waits(&fixture, "proj/in/a", "not mounted");
            bind();
            goes_to_origin(&fixture, "proj/in/a");
            write(&fixture, "proj/in/removed");
            fixture.crash();
            fs::remove_file(proj.join("in/removed")).unwrap();
            fixture.open();
            assert_eq!(fixture.flush().conflicts.len(), 1, "what is removed from a mount is gone");
            fixture.close();
            unmount(&proj);
            if other_device {
                unmount(elsewhere.path());
            }
        }
    });
}

#[test]
fn i4_dirty_files_that_something_is_mounted_over_wait() {
    where_one_may_mount(|| {
        let mut fixture = origin(&["proj/a"]);
        let proj = fixture.origin.path().join("proj");
        write(&fixture, "proj/a");
        fixture.crash();
        mount("none", &proj, "tmpfs", 0);
        fixture.open();
        waits(&fixture, "proj/a", "mounted there");
        fixture.crash();
        unmount(&proj);
        fixture.open();
        goes_to_origin(&fixture, "proj/a");
        fixture.close();
    });
}
