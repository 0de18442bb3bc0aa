//! Names and what hangs on them: links, renames, extended attributes, time.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::time::{Duration, UNIX_EPOCH};

use halocline_fuse::Unmounted;
use rustix::fs::{CWD, RenameFlags, XattrFlags, getxattr, listxattr, renameat_with, setxattr};
use rustix::io::Errno;

use crate::harness::{Kind, errno, in_both_modes, mounted, mounted_with, skip};

#[test]
fn rename_honours_its_flags() {
    in_both_modes(|mounted| {
        fs::write(mounted.path("a"), "a").unwrap();
        fs::write(mounted.path("b"), "b").unwrap();
        let rename = |flags| renameat_with(CWD, mounted.path("a"), CWD, mounted.path("b"), flags);
        assert_eq!(rename(RenameFlags::NOREPLACE), Err(Errno::EXIST));
        rename(RenameFlags::EXCHANGE).unwrap();
        assert_eq!(fs::read(mounted.path("a")).unwrap(), b"b");
        rename(RenameFlags::empty()).unwrap();
        assert_eq!(fs::read(mounted.origin("b")).unwrap(), b"b");
        assert!(!mounted.path("a").exists());
    });
}

#[test]
fn open_files_follow_renames_of_their_directories() {
    in_both_modes(|mounted| {
        fs::create_dir_all(mounted.path("x/y")).unwrap();
        fs::write(mounted.path("x/y/f"), "1").unwrap();
        let file = fs::OpenOptions::new().write(true).open(mounted.path("x/y/f")).unwrap();
        fs::rename(mounted.path("x"), mounted.path("z")).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"22", 0).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 2);
        assert_eq!(fs::read(mounted.origin("z/y/f")).unwrap(), b"22");
        assert_eq!(fs::read(mounted.path("z/y/f")).unwrap(), b"22");
    });
}

#[test]
fn hard_links_are_one_file() {
    in_both_modes(|mounted| {
        fs::write(mounted.path("a"), "x").unwrap();
        fs::hard_link(mounted.path("a"), mounted.path("b")).unwrap();
        let (a, b) =
            (fs::metadata(mounted.path("a")).unwrap(), fs::metadata(mounted.path("b")).unwrap());
        assert_eq!((a.ino(), a.nlink()), (b.ino(), 2));
        if mounted.kind != Kind::Moving {
            assert_eq!(a.ino(), fs::metadata(mounted.origin("a")).unwrap().ino());
        }
        fs::write(mounted.path("b"), "yy").unwrap();
        assert_eq!(fs::read(mounted.path("a")).unwrap(), b"yy");
        fs::remove_file(mounted.path("a")).unwrap();
        assert_eq!(fs::metadata(mounted.path("b")).unwrap().nlink(), 1);
        assert_eq!(fs::read(mounted.path("b")).unwrap(), b"yy");
    });
}

#[test]
fn extended_attributes_pass() {
    in_both_modes(|mounted| {
        let path = mounted.path("f");
        fs::write(&path, "").unwrap();
        let set = setxattr(&path, "user.colour", b"blue", XattrFlags::CREATE);
        if set == Err(Errno::OPNOTSUPP) {
            return skip("the scratch file system has no extended attributes");
        }
        set.unwrap();
        let again = setxattr(&path, "user.colour", b"red", XattrFlags::CREATE);
        assert_eq!(again, Err(Errno::EXIST));
        let mut room = [0; 64];
        assert_eq!(getxattr(&path, "user.colour", &mut room).unwrap(), 4);
        assert_eq!(getxattr(&path, "user.colour", &mut room[..2]), Err(Errno::RANGE));
        let len = listxattr(&path, &mut room).unwrap();
        assert!(room[..len].starts_with(b"user.colour\0"));
        assert_eq!(getxattr(&path, "user.none", &mut room), Err(Errno::NODATA));
    });
}

#[test]
fn times_before_and_after_the_epoch_pass() {
    in_both_modes(|mounted| {
        let file = fs::File::create(mounted.path("f")).unwrap();
        for time in [
            UNIX_EPOCH - Duration::new(12345, 250_000_000),
            UNIX_EPOCH + Duration::new(5_000_000_000, 123_456_789),
        ] {
            file.set_times(fs::FileTimes::new().set_modified(time)).unwrap();
            assert_eq!(fs::metadata(mounted.origin("f")).unwrap().modified().unwrap(), time);
            assert_eq!(fs::metadata(mounted.path("f")).unwrap().modified().unwrap(), time);
        }
    });
}

/// Each try ended one of the mount's threads: any user could stop it for all.
#[test]
fn the_earliest_and_latest_times_that_a_program_may_set_do_no_harm() {
    use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
    in_both_modes(|mounted| {
        fs::write(mounted.path("f"), "").unwrap();
        for tv_sec in [i64::MIN, i64::MIN + 1, i64::MAX] {
            for tv_nsec in [0, 1, 999_999_999] {
                let time = Timespec { tv_sec, tv_nsec };
                let times = Timestamps { last_access: time, last_modification: time };
                // The origin keeps what is nearest of what it can keep.
                for path in [mounted.origin("f"), mounted.path("f")] {
                    let set = utimensat(CWD, &path, &times, AtFlags::empty());
                    assert_eq!(set, Ok(()), "{tv_sec} s {tv_nsec} ns: {}", path.display());
                }
                let seen = |path| fs::metadata(path).unwrap().modified().unwrap();
                assert_eq!(seen(mounted.path("f")), seen(mounted.origin("f")));
            }
        }
    });
}

#[test]
fn symbolic_links_are_links() {
    in_both_modes(|mounted| {
        fs::write(mounted.path("target"), "t").unwrap();
        symlink("target", mounted.path("link")).unwrap();
        assert_eq!(fs::read(mounted.path("link")).unwrap(), b"t");
        assert_eq!(fs::read_link(mounted.path("link")).unwrap().to_str(), Some("target"));
        symlink("loop", mounted.path("loop")).unwrap();
        assert_eq!(errno(fs::read(mounted.path("loop"))), libc::ELOOP);
    });
}

#[test]
fn a_read_only_mount_refuses_changes() {
    let Some(mounted) = mounted_with(Kind::Plain, false, |options| options.read_only = true) else {
        return;
    };
    fs::write(mounted.origin("f"), "bytes").unwrap();
    assert_eq!(fs::read(mounted.path("f")).unwrap(), b"bytes");
    for result in [
        fs::write(mounted.path("f"), ""),
        fs::create_dir(mounted.path("d")),
        fs::remove_file(mounted.path("f")),
        fs::rename(mounted.path("f"), mounted.path("g")),
    ] {
        assert_eq!(errno(result), libc::EROFS);
    }
}

#[test]
fn a_mount_may_cover_its_own_origin_and_uncovers_it() {
    let Some(mut mounted) = mounted_with(Kind::Plain, false, |options| {
        // Over the origin: the engine opened it before.
        options.mountpoint.set_file_name("origin");
    }) else {
        return;
    };
    fs::write(mounted.origin("f"), "through the mount").unwrap();
    let (inner, outer) = (mounted.origin("f"), mounted.dir.path().to_owned());
    let device = |path: &std::path::Path| fs::metadata(path).unwrap().dev();
    assert_ne!(device(&inner), device(&outer));
    // Another process that makes itself a namespace just now has a copy of the mount.
    if let Unmounted::Busy(session) = mounted.session.take().unwrap().unmount().unwrap() {
        session.wait().unwrap();
    }
    assert_eq!(device(&inner), device(&outer));
    assert_eq!(fs::read(&inner).unwrap(), b"through the mount");
}

#[test]
fn a_busy_mount_is_detached_and_ends_when_unused() {
    let Some(mut mounted) = mounted(false) else { return };
    fs::write(mounted.path("f"), "bytes").unwrap();
    let file = fs::File::open(mounted.path("f")).unwrap();
    let Unmounted::Busy(session) = mounted.session.take().unwrap().unmount().unwrap() else {
        panic!("an open file must keep the mount busy");
    };
    assert!(!mounted.path("f").exists());
    assert_eq!(file.metadata().unwrap().len(), 5);
    drop(file);
    session.wait().unwrap();
}
