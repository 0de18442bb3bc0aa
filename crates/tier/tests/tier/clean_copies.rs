//! Clean copies: kept, believed, given up, made, and what is left of a tier without its SSD.

use std::fs;
use std::fs::{File, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use halocline_api::config::Copies;
use halocline_api::control::Controlled;
use halocline_api::control::tier::{PRIVATE, Problem};
use halocline_os::clock::Clock;
use halocline_tier::{Chore, FileTier, Handle, TierOptions};
use halocline_vfs::{Allocate, Engine, SetAttr, SetTime};

use crate::copy_record::{CopyRecord, Stamp};
use crate::fixture::{AMPLE_ROOM, BY, CALLER, Fixture, files_below, limited};

pub(super) fn keeping() -> Fixture {
    Fixture::new(TierOptions { copies: Copies::Keep, ..limited(64 << 20) })
}

pub(super) fn archiving() -> Fixture {
    let archive_after = Duration::ZERO;
    Fixture::new(TierOptions { copies: Copies::Archive, archive_after, ..limited(64 << 20) })
}

impl Fixture {
    /// Makes a file on the SSD that has a clean copy.
    pub(super) fn with_copy(&self, path: &str, bytes: &[u8]) {
        self.write(path, bytes);
        assert_eq!(self.demote(path).files, 1);
        assert_eq!(self.warm(path).files, 1);
        assert!(self.has_copy(path), "{path}");
    }

    pub(super) fn has_copy(&self, path: &str) -> bool {
        self.tier().files(Path::new(path)).unwrap()[0].clean_copy.is_some()
    }

    pub(super) fn archive(&self) {
        self.work(Chore::RecordCopies);
        self.work(Chore::Archive);
    }

    /// The SSD is lost: an empty one takes its place, and the disk forgets the set.
    pub(super) fn loses_the_ssd(&mut self) {
        self.held.lock().clear();
        self.tier = None;
        fs::remove_dir_all(self.ssd("")).unwrap();
        fs::create_dir(self.ssd("")).unwrap();
        fs::remove_file(self.hdd(PRIVATE).join("tier.json")).unwrap();
        self.open();
    }
}

/// The file is what it was before it was promoted, and nothing is copied.
#[test]
fn a_demote_of_an_unchanged_file_copies_nothing() {
    let mut fixture = keeping();
    fixture.write("file", &vec![7; 100_000]);
    fixture.demote("file");
    let before = fixture.hdd("file").metadata().unwrap().ino();
    fixture.warm("file");
    assert!(fixture.hdd("file").exists() && fixture.has_copy("file"));
    fixture.check_places();
    fixture.open();
    assert_eq!((fixture.found.problems.len(), fixture.found.copies), (0, 1));
    let report = fixture.demote("file");
    assert_eq!((report.files, report.bytes, report.clean_bytes), (1, 0, 100_000));
    assert_eq!(fixture.hdd("file").metadata().unwrap().ino(), before, "the same file");
    assert_eq!(fixture.content("file").unwrap(), vec![7; 100_000]);
    let told = fixture.tier().tier_status().unwrap();
    assert_eq!((told.demoted.files, told.copies.demoted.files), (1, 1));
    fixture.check_places();
}

#[test]
fn without_the_option_a_promote_keeps_nothing() {
    let fixture = Fixture::new(limited(1 << 20));
    fixture.write("file", b"content");
    fixture.demote("file");
    fixture.warm("file");
    fixture.reap().unwrap();
    assert!(!fixture.hdd("file").exists() && !fixture.has_copy("file"));
}

/// A change of the file `file`, which is open.
type Change = fn(&Fixture, &Handle);

/// Changes of a file that holds `original`, and what it holds afterwards.
const CHANGES: [(&str, Change, &[u8]); 8] = [
    ("write", |on, file| on.tier().write(file, 1, b"XX", CALLER).unwrap(), b"oXXginal"),
    (
        "append",
        |on, _| {
            let file = on.open_file("file", libc::O_WRONLY | libc::O_APPEND);
            on.tier().write(&file, 0, b"X", CALLER).unwrap();
        },
        b"originalX",
    ),
    (
        "truncate",
        |on, _| {
            let change = SetAttr { size: Some(4), ..SetAttr::default() };
            on.tier().set_attr(&on.vnode("file").unwrap(), None, &change, CALLER).unwrap();
        },
        b"orig",
    ),
    (
        "ftruncate",
        |on, file| {
            let change = SetAttr { size: Some(9), ..SetAttr::default() };
            let vnode = on.vnode("file").unwrap();
            on.tier().set_attr(&vnode, Some(file), &change, CALLER).unwrap();
        },
        b"original\0",
    ),
    ("open and truncate", |on, _| drop(on.open_file("file", libc::O_WRONLY | libc::O_TRUNC)), b""),
    (
        "allocate",
        |on, file| on.tier().allocate(file, 0, 4, Allocate::PunchHole).unwrap(),
        b"\0\0\0\0inal",
    ),
    (
        "a mapping or a write that the kernel makes by itself",
        |on, file| {
            let mut kernel = None;
            let register = &mut |fd: std::os::fd::BorrowedFd<'_>| {
                let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
                kernel = Some(File::options().write(true).open(path)?);
                Ok(())
            };
            assert!(on.tier().pass_through(file, true, register));
            assert!(!on.has_copy("file"), "before a write");
            kernel.unwrap().write_all_at(b"X", 0).unwrap();
        },
        b"Xriginal",
    ),
    (
        "create over",
        |on, _| {
            let (dir, name) = on.at("file");
            let flags = libc::O_RDWR | libc::O_TRUNC;
            drop(on.tier().create((&dir, name), 0o640, flags, BY).unwrap());
        },
        b"",
    ),
];

/// I10: whatever changes bytes ends that the copy is clean, before it does.
#[test]
fn i10_each_way_to_change_a_file_ends_its_clean_copy() {
    let limited = TierOptions { copies: Copies::Keep, ..limited(64 << 20) };
    let options = TierOptions { passthrough: true, passthrough_writes: true, ..limited };
    let fixture = Fixture::new(options);
    for (what, change, expected) in CHANGES {
        fixture.with_copy("file", b"original");
        let handle = fixture.open_file("file", libc::O_RDWR);
        change(&fixture, &handle);
        assert!(!fixture.has_copy("file"), "{what}");
        drop(handle);
        fixture.check_places();
        assert!(!fixture.hdd("file").exists(), "{what}: the old bytes are still there");
        let report = fixture.demote("file");
        assert_eq!((report.files, report.clean_bytes), (1, 0), "{what}: {report:?}");
        assert_eq!(fixture.content("file").unwrap(), expected, "{what}");
        let (dir, name) = fixture.at("file");
        fixture.tier().unlink(&dir, name, CALLER).unwrap();
        fixture.check_places();
    }
}

#[test]
fn other_attributes_go_to_the_copy_when_it_is_the_file() {
    let mut fixture = keeping();
    fixture.with_copy("file", b"content");
    let vnode = fixture.vnode("file").unwrap();
    fixture.tier().set_xattr(&vnode, "user.gone".as_ref(), b"1", 0).unwrap();
    fixture.demote("file");
    fixture.warm("file");
    assert!(fixture.has_copy("file"));
    let when = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let change =
        SetAttr { mode: Some(0o604), mtime: Some(SetTime::At(when)), ..SetAttr::default() };
    let vnode = fixture.vnode("file").unwrap();
    fixture.tier().set_attr(&vnode, None, &change, CALLER).unwrap();
    fixture.tier().set_xattr(&vnode, "user.new".as_ref(), b"2", 0).unwrap();
    fixture.tier().remove_xattr(&vnode, "user.gone".as_ref()).unwrap();
    drop(vnode);
    fixture.tier().close().unwrap();
    fixture.open();
    let report = fixture.demote("file");
    assert_eq!((report.bytes, report.clean_bytes), (0, 7), "{report:?}");
    let meta = fixture.hdd("file").metadata().unwrap();
    assert_eq!((meta.mode() & 0o7777, meta.mtime()), (0o604, 1_000_000_000));
    let vnode = fixture.vnode("file").unwrap();
    assert_eq!(fixture.tier().get_xattr(&vnode, "user.new".as_ref()).unwrap(), b"2");
    assert!(fixture.tier().get_xattr(&vnode, "user.gone".as_ref()).is_err());
    fixture.check_places();
}

/// I10: changes past the mount are seen in the stamps, on whichever tier.
#[test]
fn i10_what_was_changed_past_the_mount_is_not_believed() {
    for remount in [false, true] {
        let mut fixture = keeping();
        fixture.with_copy("file", b"original");
        let before = fixture.ssd("file").metadata().unwrap();
        fs::write(fixture.ssd("file"), b"ORIGINAL").unwrap();
        let file = File::options().write(true).open(fixture.ssd("file")).unwrap();
        file.set_modified(before.modified().unwrap()).unwrap();
        if remount {
            fixture.tier = None;
            let found = FileTier::check(&fixture.set(), false).unwrap();
            assert!(matches!(&found.problems[..], [Problem::CopyDiffers { .. }]), "{found:?}");
            fixture.open();
            assert_eq!((fixture.found.removed, &fixture.found.problems[..]), (1, &[][..]));
        }
        assert_eq!(fixture.demote("file").clean_bytes, 0);
        assert_eq!(fixture.content("file").unwrap(), b"ORIGINAL");
        fixture.check_places();
    }
}

/// What somebody made of a copy is theirs.
#[test]
fn a_copy_that_was_changed_past_the_mount_is_left_alone() {
    for remount in [false, true] {
        let mut fixture = keeping();
        fixture.with_copy("file", b"original");
        fs::write(fixture.hdd("file"), b"theirs!!").unwrap();
        if remount {
            fixture.open();
            assert!(matches!(&fixture.found.problems[..], [Problem::Conflict { .. }]));
        }
        assert_eq!(fixture.demote("file").clean_bytes, 0);
        assert_eq!(fixture.content("file").unwrap(), b"original");
        fixture.reap().unwrap();
        assert_eq!(fs::read(fixture.hdd("file")).unwrap(), b"theirs!!");
        fixture.open();
        assert!(matches!(&fixture.found.problems[..], [Problem::Conflict { .. }]));
    }
}

/// I10: after the machine went down what records say is compared with what is there.
#[test]
fn i10_copy_records_of_another_era_are_believed_after_a_look_at_the_bytes() {
    for equal in [true, false] {
        let mut fixture = keeping();
        fixture.with_copy("file", b"original");
        fixture.tier = None;
        let records = fixture.ssd(PRIVATE).join("copies");
        fs::remove_file(records.join("era")).unwrap();
        std::os::unix::fs::symlink("1 another-boot", records.join("era")).unwrap();
        if !equal {
            // As if the disk had not kept what it said it had.
            fs::write(fixture.hdd("file"), b"ORIGINAL").unwrap();
            let name = fs::read_dir(&records).unwrap().map(|entry| entry.unwrap().file_name());
            let mut name = name.filter_map(|name| name.into_string().ok());
            let name = name.find(|name| name != "era").unwrap();
            let target = fs::read_link(records.join(&name)).unwrap();
            let record = CopyRecord::of(&name, &target).unwrap();
            let lies = CopyRecord { copy: Stamp::at(&fixture.hdd("file")), ..record };
            fs::rename(records.join(&name), records.join(lies.name())).unwrap();
        }
        fixture.open();
        assert_eq!(fixture.found.copies, 1);
        let report = fixture.demote("file");
        assert_eq!(report.clean_bytes, if equal { 8 } else { 0 });
        assert_eq!(fixture.content("file").unwrap(), b"original");
        fixture.check_places();
    }
}

#[test]
fn a_copy_that_is_gone_is_told_of_and_forgotten() {
    let mut fixture = keeping();
    fixture.with_copy("file", b"content");
    fixture.tier = None;
    fs::remove_file(fixture.hdd("file")).unwrap();
    let found = FileTier::check(&fixture.set(), false).unwrap();
    assert!(matches!(&found.problems[..], [Problem::CopyGone { .. }]), "{found:?}");
    assert!(FileTier::check(&fixture.set(), true).unwrap().problems.is_empty());
    assert!(FileTier::check(&fixture.set(), false).unwrap().problems.is_empty());
    fixture.open();
    assert_eq!(fixture.demote("file").bytes, 7);
    fixture.check_places();
}

/// A file that was lost on the SSD, or removed there past the mount, comes back from its copy.
#[test]
fn a_copy_whose_file_is_gone_is_the_file() {
    let mut fixture = keeping();
    fixture.with_copy("file", b"content");
    fixture.tier = None;
    fs::remove_file(fixture.ssd("file")).unwrap();
    fixture.open();
    assert_eq!(fixture.found.adopted, [PathBuf::from("file")]);
    assert_eq!(fixture.content("file").unwrap(), b"content");
    fixture.check_places();
}

#[test]
fn a_copy_is_removed_with_its_file() {
    let fixture = keeping();
    for path in ["removed", "replaced", "linked"] {
        fixture.with_copy(path, b"content");
    }
    fixture.write("other", b"other");
    let root = fixture.tier().root();
    fixture.tier().unlink(&root, "removed".as_ref(), CALLER).unwrap();
    let (from, to) = ((&root, "other".as_ref()), (&root, "replaced".as_ref()));
    fixture.tier().rename(from, to, 0, CALLER).unwrap();
    let linked = fixture.vnode("linked").unwrap();
    fixture.tier().link(&linked, &root, "twin".as_ref()).unwrap();
    fixture.check_places();
    assert!(files_below(&fixture.hdd("")).is_empty());
    assert_eq!(fixture.content("replaced").unwrap(), b"other");
}

/// What waits for the removal of copies is not more than a sync of the directory.
#[test]
fn a_removal_that_is_durable_is_one_of_the_copy_too() {
    let mut fixture = archiving();
    fixture.write("file", b"content");
    fixture.archive();
    let root = fixture.tier().root();
    fixture.tier().unlink(&root, "file".as_ref(), CALLER).unwrap();
    let dir = fixture.tier().open_dir(&root).unwrap();
    fixture.tier().sync_dir(&dir).unwrap();
    drop(dir);
    fixture.loses_the_ssd();
    assert!(fixture.vnode("file").is_err(), "it came back");
}

#[test]
fn copies_give_way_to_files_that_need_their_room() {
    let fixture = keeping();
    fixture.with_copy("file", &vec![1; 100_000]);
    fixture.write("other", b"other");
    let bytes_of_copies = || fixture.tier().tier_status().unwrap().copies.disk_bytes;
    assert!(bytes_of_copies() >= 100_000);
    fixture.set_room(1, 0);
    let root = fixture.tier().root();
    assert!(fixture.tier().statfs(&root).unwrap().f_bavail > 0, "copies are no hindrance");
    assert_eq!(fixture.demote("other").skipped.len(), 1, "that is how full it was made");
    assert_eq!(bytes_of_copies(), 0);
    assert!(!fixture.has_copy("file") && !fixture.hdd("file").exists());
    fixture.check_places();
    fixture.set_room(1, AMPLE_ROOM);
    assert_eq!(fixture.demote("file").bytes, 100_000);
}

/// Losing the SSD loses nothing that was archived, and brings nothing back that was removed.
#[test]
fn what_was_archived_outlives_the_ssd() {
    let mut fixture = archiving();
    let (root, name) = fixture.at("dir");
    fixture.tier().make((&root, name), halocline_vfs::Make::Directory(0o750), BY).unwrap();
    fixture.write("dir/kept", b"kept");
    fixture.write("changed", b"first");
    fixture.write("renamed", b"renamed");
    fixture.write("removed", b"removed");
    fs::set_permissions(fixture.ssd("dir/kept"), Permissions::from_mode(0o604)).unwrap();
    fixture.archive();
    for path in ["dir/kept", "changed", "renamed", "removed"] {
        assert!(fixture.has_copy(path) && fixture.where_is(path) == 0, "{path}");
    }
    let told = fixture.tier().tier_status().unwrap().copies;
    assert_eq!((told.clean.files, told.waiting.files, told.archived.files), (4, 0, 4));
    fixture.check_places();

    let handle = fixture.open_file("changed", libc::O_RDWR);
    fixture.tier().write(&handle, 0, b"SECON", CALLER).unwrap();
    drop(handle);
    let told = fixture.tier().tier_status().unwrap().copies;
    assert_eq!((told.clean.files, told.waiting.files), (3, 1));
    assert_eq!(fs::read(fixture.hdd("changed")).unwrap(), b"first", "until it is archived anew");
    let root = fixture.tier().root();
    let (from, to) = ((&root, "renamed".as_ref()), (&root, "dir2".as_ref()));
    fixture.tier().rename(from, to, 0, CALLER).unwrap();
    fixture.tier().unlink(&root, "removed".as_ref(), CALLER).unwrap();
    fixture.archive();
    assert_eq!(fs::read(fixture.hdd("changed")).unwrap(), b"SECON");
    fixture.check_places();
    fixture.open();
    assert_eq!(fixture.found.copies, 3);

    fixture.loses_the_ssd();
    let files: Vec<_> = fixture.tier().files(Path::new("")).unwrap();
    let files: Vec<_> = files.iter().map(|file| file.path.to_str().unwrap()).collect();
    assert_eq!(files, ["changed", "dir/kept", "dir2"]);
    assert_eq!(fixture.content("changed").unwrap(), b"SECON");
    assert_eq!(fixture.content("dir2").unwrap(), b"renamed");
    assert_eq!(fixture.content("dir/kept").unwrap(), b"kept");
    assert_eq!(fixture.hdd("dir/kept").metadata().unwrap().mode() & 0o777, 0o604);
}

/// What was changed since comes back as it was archived last.
#[test]
fn a_file_that_changed_since_comes_back_as_it_was() {
    let mut fixture = archiving();
    fixture.write("file", b"first");
    fixture.archive();
    let handle = fixture.open_file("file", libc::O_RDWR);
    fixture.tier().write(&handle, 0, b"SECON", CALLER).unwrap();
    drop(handle);
    fixture.loses_the_ssd();
    assert_eq!(fixture.content("file").unwrap(), b"first");
    fixture.check_places();
}

#[test]
fn what_is_written_now_is_archived_later() {
    let archive_after = Duration::from_hours(1);
    let options = TierOptions { copies: Copies::Archive, archive_after, ..limited(64 << 20) };
    let fixture = Fixture::new(options);
    fixture.write("file", b"content");
    fixture.archive();
    assert!(!fixture.has_copy("file"));
    let told = fixture.tier().tier_status().unwrap().copies;
    assert_eq!((told.waiting.files, told.waiting_ms.is_some()), (1, true));
}

/// Minutes pass at once in a simulated time: the threads of a tier wait for nothing else.
#[test]
fn what_was_left_alone_for_long_enough_is_archived_by_itself() {
    let archive_after = Duration::from_mins(10);
    let options = TierOptions { copies: Copies::Archive, archive_after, ..limited(64 << 20) };
    let mut fixture = Fixture::new(options);
    fixture.clock = Clock::simulated();
    fixture.own_threads = true;
    // Or the time would run while this thread waits for a processor.
    let _working = fixture.clock.work().begin();
    fixture.open();
    fixture.write("file", b"content");
    fixture.clock.sleep(Duration::from_mins(5));
    assert!(!fixture.has_copy("file"));
    let waited_ms = fixture.tier().tier_status().unwrap().copies.waiting_ms.unwrap();
    assert!(waited_ms >= 300_000, "{waited_ms}");
    fixture.clock.sleep(Duration::from_mins(6));
    assert!(fixture.has_copy("file"));
    fixture.tier().close().unwrap();
}

#[test]
fn what_would_fill_the_disk_is_not_archived() {
    let fixture = archiving();
    fixture.write("file", &vec![7; 100_000]);
    fixture.set_room(1, 50_000);
    fixture.archive();
    assert!(!fixture.has_copy("file"));
    assert_eq!(fixture.tier().tier_status().unwrap().copies.waiting.files, 1);
}

/// The kernel's writes, and those of mappings that outlive their handles, are not seen.
#[test]
fn what_the_kernel_may_write_is_not_archived() {
    let archive_after = Duration::ZERO;
    let limited = TierOptions { copies: Copies::Archive, archive_after, ..limited(64 << 20) };
    let fixture =
        Fixture::new(TierOptions { passthrough: true, passthrough_writes: true, ..limited });
    fixture.write("file", b"content");
    let handle = fixture.open_file("file", libc::O_RDWR);
    let mut kernel = None;
    let register = &mut |fd: std::os::fd::BorrowedFd<'_>| {
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        kernel = Some(File::options().write(true).open(path)?);
        Ok(())
    };
    assert!(fixture.tier().pass_through(&handle, true, register));
    let _known = fixture.vnode("file").unwrap();
    for _ in 0..2 {
        fixture.archive();
        assert!(!fixture.has_copy("file"));
    }
    drop(handle);
    fixture.archive();
    assert!(!fixture.has_copy("file"), "a mapping is left");
    drop(kernel);
    fixture.archive();
    assert!(fixture.has_copy("file"));
    fixture.check_places();
}
