//! Names whose data is gone, and data whose names are gone that cannot be removed now.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use rustix::io::Errno;

use halocline_api::control::Controlled;
use halocline_api::control::tier::Problem;
use halocline_vfs::Engine;

use crate::faults::{Fault, Injected};
use crate::fixture::{BY, CALLER, Fixture, limited};

fn with_lost(names: &[&str]) -> Fixture {
    let fixture = Fixture::new(limited(1 << 20));
    let (root, name) = fixture.at("dir");
    fixture.tier().make((&root, name), halocline_vfs::Make::Directory(0o755), BY).unwrap();
    for name in names {
        fixture.write(name, name.as_bytes());
        assert_eq!(fixture.demote(name).files, 1);
        fs::remove_file(fixture.hdd(name)).unwrap();
    }
    fixture
}

/// A look at such a name failed with EIO, and so it could neither be removed nor replaced.
#[test]
fn lost_names_can_be_removed_replaced_and_restored() {
    let fixture = with_lost(&["dir/one", "two", "three"]);
    let tier = fixture.tier();
    let (dir, one) = fixture.at("dir/one");
    let (vnode, stat) = tier.lookup(&dir, one).unwrap();
    assert_eq!((stat.raw.st_mode, stat.raw.st_size), (libc::S_IFREG, 0), "nobody reads it");
    assert_eq!(tier.open(&vnode, libc::O_RDONLY, CALLER).unwrap_err().errno(), libc::EIO);
    let acl = tier.get_xattr(&vnode, "system.posix_acl_access".as_ref());
    assert_eq!(acl.unwrap_err().errno(), libc::ENODATA, "`ls -l` asks for it");
    assert_eq!(tier.list_xattr(&vnode).unwrap(), b"");
    let told = tier.files(Path::new("")).unwrap();
    assert_eq!(told.iter().filter(|file| file.lost).count(), 3, "all are told of");
    tier.unlink(&dir, one, CALLER).unwrap();
    let (root, dir) = fixture.at("dir");
    tier.remove_dir(&root, dir, CALLER).unwrap();
    fixture.write("new", b"new");
    tier.rename((&root, "new".as_ref()), (&root, "two".as_ref()), 0, CALLER).unwrap();
    assert_eq!(fixture.content("two").unwrap(), b"new");
    let notes = tier.status().notes;
    assert!(notes.iter().any(|note| note.contains("2 names were removed")), "{notes:?}");
    fs::write(fixture.hdd("three"), b"restored").unwrap();
    assert_eq!(tier.lookup(&root, "three".as_ref()).unwrap().1.raw.st_size, 8);
    assert_eq!(fixture.content("three").unwrap(), b"restored");
    fixture.check_places();
}

/// What is behind a link on a lower tier cannot be looked at, which does not make it lost.
#[test]
fn a_file_behind_a_link_on_its_tier_is_not_taken_for_lost() {
    let fixture = with_lost(&[]);
    fixture.write("dir/file", b"content");
    fixture.demote("dir/file");
    fs::rename(fixture.hdd("dir"), fixture.hdd("elsewhere")).unwrap();
    std::os::unix::fs::symlink("elsewhere", fixture.hdd("dir")).unwrap();
    assert!(fixture.vnode("dir/file").is_err());
}

/// `flush`, and with it `umount` and `umount --force`, failed for ever where a name had been removed
/// whose data is on a read-only disk.
#[test]
fn what_cannot_be_removed_does_not_keep_a_mount_from_ending() {
    for errno in [Errno::ROFS, Errno::IO, Errno::NOSPC] {
        let mut fixture = Fixture::new(limited(1 << 20));
        fixture.write("file", b"content");
        fixture.write("other", b"content");
        fixture.demote("file");
        let (root, name) = fixture.at("file");
        let fails = |fixture: &Fixture, tier| {
            let hit = Some((tier, "before"));
            let fault = Fault { after: 0, errno, for_good: true, hit };
            fixture.watch(Injected::of(fault));
        };
        fails(&fixture, 1);
        fixture.tier().unlink(&root, name, CALLER).unwrap();
        let flush = |fixture: &Fixture| {
            let sink = &mut |_| ControlFlow::Continue(());
            Controlled::flush(fixture.tier(), None, false, sink).expect("it ends")
        };
        let report = flush(&fixture);
        assert_eq!((report.left_bytes, report.skipped.len()), (0, 1), "{report:?}");
        assert!(report.skipped[0].reason.contains("next mount"), "{report:?}");
        fixture.tier().close().unwrap();
        // The disk is still so at the next mount, which takes place all the same.
        fixture.open();
        let leftover = Problem::Leftover { other: fixture.hdd("file") };
        assert_eq!(fixture.found.problems, [leftover]);
        assert!(fixture.vnode("file").is_err() && fixture.hdd("file").exists());
        // An SSD that fails is not a reason, either.
        let (root, name) = fixture.at("other");
        fixture.demote("other");
        fixture.unwatch();
        fixture.demote("other");
        fixture.tier().unlink(&root, name, CALLER).unwrap();
        fails(&fixture, 0);
        flush(&fixture);
        fixture.unwatch();
        fixture.open();
        fixture.assert_in_order(&|| errno.to_string());
        assert!(!fixture.hdd("file").exists() && !fixture.hdd("other").exists());
    }
}
