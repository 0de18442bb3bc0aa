//! Clean copies are as closed as their files, before a program is told that these are.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::io::Errno;

use halocline_os::error::Result;
use halocline_tier::Chore;
use halocline_vfs::namespace::xattr;
use halocline_vfs::{Engine, SetAttr};

use crate::clean_copies::{archiving, keeping};
use crate::copying::noting;
use crate::fixture::{BY, CALLER, Fixture};

const ACL: &str = "system.posix_acl_access";

fn mode(path: impl AsRef<Path>) -> u32 {
    path.as_ref().metadata().unwrap().mode() & 0o7777
}

impl Fixture {
    fn chmod(&self, path: &str, mode: u32) -> Result<()> {
        let change = SetAttr { mode: Some(mode), ..SetAttr::default() };
        self.tier().set_attr(&self.vnode(path)?, None, &change, CALLER).map(drop)
    }

    fn record_again(&self) {
        self.work(Chore::RecordCopies);
    }
}

/// A copy stayed as open as the file once was, for whoever gets past the mount.
#[test]
fn a_copy_is_closed_with_its_file_and_stays_clean() {
    for anew in [false, true] {
        let fixture = keeping();
        fixture.with_copy("file", b"content");
        for bits in [0o600, 0o000, 0o4711, 0o644, 0o600] {
            fixture.chmod("file", bits).unwrap();
            assert_eq!(mode(fixture.hdd("file")), bits);
            assert!(fixture.has_copy("file"), "its bytes are the same");
        }
        if anew {
            fixture.record_again();
            assert_eq!(fixture.copies(), [fixture.hdd("file")]);
        }
        assert_eq!(fixture.demote("file").clean_bytes, 7);
        assert_eq!(mode(fixture.hdd("file")), 0o600);
        fixture.check_places();
    }
}

/// Owner, group and others may read; user 1 may, too.
fn acl() -> Vec<u8> {
    let entries: [[u8; 8]; 5] = [
        [1, 0, 4, 0, 255, 255, 255, 255],
        [2, 0, 4, 0, 1, 0, 0, 0],
        [4, 0, 4, 0, 255, 255, 255, 255],
        [16, 0, 4, 0, 255, 255, 255, 255],
        [32, 0, 0, 0, 255, 255, 255, 255],
    ];
    [&[2, 0, 0, 0][..], entries.as_flattened()].concat()
}

/// Where the file system has ACLs, or lets us give capabilities or an owner.
#[test]
fn owners_acls_and_attributes_of_the_system_go_to_the_copy() {
    let fixture = keeping();
    fixture.with_copy("file", b"content");
    // `cap_net_raw` permitted and effective.
    let mut capability = vec![0; 20];
    (capability[0], capability[3], capability[5]) = (1, 2, 0x20);
    for (name, value) in [(ACL, acl()), ("security.capability", capability), ("trusted.a", vec![1])]
    {
        let (name, vnode) = (OsStr::new(name), fixture.vnode("file").unwrap());
        if fixture.tier().set_xattr(&vnode, name, &value, 0).is_err() {
            continue;
        }
        let on_copy = || xattr::get_on(&fs::File::open(fixture.hdd("file")).unwrap(), name);
        assert_eq!(on_copy().unwrap(), value, "{name:?}");
        fixture.chmod("file", 0o640).unwrap();
        let wanted = xattr::get_on(&fs::File::open(fixture.ssd("file")).unwrap(), name);
        assert_eq!(on_copy().unwrap(), wanted.unwrap(), "{name:?}");
        fixture.tier().remove_xattr(&vnode, name).unwrap();
        assert!(on_copy().is_err(), "{name:?} is gone");
    }
    let owner = SetAttr { uid: Some(65_533), gid: Some(65_533), ..SetAttr::default() };
    let vnode = fixture.vnode("file").unwrap();
    if fixture.tier().set_attr(&vnode, None, &owner, CALLER).is_ok() {
        let meta = fixture.hdd("file").metadata().unwrap();
        assert_eq!((meta.uid(), meta.gid()), (65_533, 65_533));
    }
    assert!(fixture.has_copy("file"));
    assert_eq!(fixture.demote("file").clean_bytes, 7);
    fixture.check_places();
}

/// The end of a mount records what the background had not recorded; a kill leaves no copy of it.
#[test]
fn a_copy_that_was_closed_is_recorded_at_the_end_or_goes() {
    for ends in [true, false] {
        let mut fixture = keeping();
        for count in 0..20 {
            let name = format!("file{count}");
            fixture.with_copy(&name, b"content");
            fixture.chmod(&name, 0o600).unwrap();
        }
        if ends {
            fixture.tier().close().unwrap();
        }
        fixture.open();
        assert_eq!((&fixture.found.problems[..], &fixture.found.adopted[..]), (&[][..], &[][..]));
        assert_eq!(fixture.found.copies, if ends { 20 } else { 0 });
        assert_eq!(fixture.found.removed, if ends { 0 } else { 20 });
        assert_eq!(fixture.demote("").clean_bytes, if ends { 140 } else { 0 });
        fixture.check_places();
    }
}

/// What came back after the loss of the SSD was as open as it once was.
#[test]
fn what_comes_back_without_the_ssd_is_as_closed_as_it_was() {
    for written in [false, true] {
        let mut fixture = archiving();
        fixture.write("file", b"content");
        fixture.archive();
        if written {
            let handle = fixture.open_file("file", libc::O_RDWR);
            fixture.tier().write(&handle, 0, b"changed", CALLER).unwrap();
        }
        fixture.chmod("file", 0o600).unwrap();
        assert_eq!(mode(fixture.hdd("file")), 0o600, "also the copy of before a change");
        fixture.loses_the_ssd();
        assert_eq!(mode(fixture.hdd("file")), 0o600);
        assert_eq!(fixture.content("file").unwrap(), b"content");
    }
}

/// A copy of before a change waits to be removed: not longer than until the file is closed.
#[test]
fn a_copy_that_ended_is_gone_when_its_file_is_closed() {
    let fixture = keeping();
    fixture.with_copy("file", b"content");
    let handle = fixture.open_file("file", libc::O_RDWR);
    fixture.tier().write(&handle, 0, b"changed", CALLER).unwrap();
    assert!(fixture.hdd("file").exists(), "nobody waits for its removal");
    let dead = [("closing a copy", Errno::ROFS), ("removing a file", Errno::ROFS)];
    noting(&fixture, &dead, || {
        assert_eq!(fixture.chmod("file", 0o600).unwrap_err().errno(), libc::EROFS);
    });
    assert_eq!(mode(fixture.ssd("file")), 0o640);
    noting(&fixture, &dead[1..], || fixture.chmod("file", 0o600).unwrap());
    assert_eq!(mode(fixture.hdd("file")), 0);
    fixture.reap().unwrap();
    assert!(!fixture.hdd("file").exists());
    fixture.with_copy("other", b"content");
    let handle = fixture.open_file("other", libc::O_RDWR);
    fixture.tier().write(&handle, 0, b"changed", CALLER).unwrap();
    fixture.chmod("other", 0o600).unwrap();
    assert!(!fixture.hdd("other").exists());
    fixture.check_places();
}

#[test]
fn a_copy_that_cannot_be_closed_goes_or_the_file_stays_open() {
    for step in ["closing a copy", "giving a copy its permissions", "giving up a clean copy"] {
        let fixture = keeping();
        fixture.with_copy("file", b"content");
        noting(&fixture, &[(step, Errno::IO)], || fixture.chmod("file", 0o600).unwrap());
        assert_eq!(mode(fixture.ssd("file")), 0o600);
        assert!(!fixture.has_copy("file") && !fixture.hdd("file").exists(), "{step}");
        fixture.check_places();
    }
    let fixture = keeping();
    fixture.with_copy("file", b"content");
    let dead = [("closing a copy", Errno::ROFS), ("removing a file", Errno::ROFS)];
    noting(&fixture, &dead, || {
        let error = fixture.chmod("file", 0o600).unwrap_err();
        assert_eq!(error.errno(), libc::EROFS);
        assert!(error.to_string().contains("hdd/file"), "{error}");
    });
    assert_eq!((mode(fixture.ssd("file")), mode(fixture.hdd("file"))), (0o640, 0o640));
    fixture.chmod("file", 0o600).unwrap();
    assert_eq!(mode(fixture.hdd("file")), 0o600, "the disk is back");
    fixture.check_places();
}

/// What somebody put in the place of a copy is theirs.
#[test]
fn what_took_the_place_of_a_copy_keeps_its_permissions() {
    let fixture = keeping();
    fixture.with_copy("file", b"content");
    fs::remove_file(fixture.hdd("file")).unwrap();
    fs::write(fixture.hdd("file"), b"theirs!").unwrap();
    fs::set_permissions(fixture.hdd("file"), fs::Permissions::from_mode(0o644)).unwrap();
    fixture.chmod("file", 0o600).unwrap();
    assert_eq!(mode(fixture.hdd("file")), 0o644);
    assert!(!fixture.has_copy("file"));
    assert_eq!(fs::read(fixture.hdd("file")).unwrap(), b"theirs!");
}

/// Files without a copy pay nothing for those that have one, and no call waits for the disk.
#[test]
fn a_change_of_permissions_waits_for_no_sync_of_the_disk() {
    let fixture = keeping();
    fixture.write("file", b"content");
    let steps = noting(&fixture, &[], || fixture.chmod("file", 0o600).unwrap());
    assert_eq!(steps, ["setting attributes"]);
    fixture.with_copy("copied", b"content");
    let steps = noting(&fixture, &[], || fixture.chmod("copied", 0o600).unwrap());
    let first = [
        "giving up a clean copy",
        "syncing the end of a clean copy",
        "closing a copy",
        "setting attributes",
        "giving a copy its permissions",
    ];
    assert_eq!(steps, first);
    let steps = noting(&fixture, &[], || fixture.chmod("copied", 0o400).unwrap());
    assert_eq!(steps, first[2..]);
    let steps = noting(&fixture, &[], || fixture.record_again());
    assert_eq!(steps, ["syncing a copy's permissions", "recording a clean copy again"]);
}

/// The directory in which the copy of a renamed file lies may let in whom the file's keeps out.
#[test]
fn the_copy_of_a_file_in_another_directory_is_closed_until_it_is_there() {
    for (remount, back) in [(false, false), (false, true), (true, false)] {
        let mut fixture = keeping();
        let (root, name) = fixture.at("closed");
        fixture.tier().make((&root, name), halocline_vfs::Make::Directory(0o700), BY).unwrap();
        fixture.with_copy("file", b"content");
        let rename = |from: &str, to: &str| {
            let ((from_dir, from), (to_dir, to)) = (fixture.at(from), fixture.at(to));
            fixture.tier().rename((&from_dir, from), (&to_dir, to), 0, CALLER).unwrap();
        };
        rename("file", "same-directory");
        assert_eq!(mode(fixture.hdd("file")), 0o640);
        rename("same-directory", "closed/file");
        assert_eq!(mode(fixture.hdd("file")), 0);
        let own = if back { "file" } else { "closed/file" };
        if back {
            rename("closed/file", "file");
        }
        if remount {
            fixture.tier().close().unwrap();
            fixture.open();
        }
        fixture.archive();
        assert_eq!(mode(fixture.hdd(own)), 0o640);
        assert!(back || mode(fixture.hdd("closed")) == 0o700);
        assert!(back || !fixture.hdd("file").exists());
        assert_eq!(fixture.demote(own).clean_bytes, 7);
        fixture.check_places();
    }
}
