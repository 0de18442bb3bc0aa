//! What users may do to files that other nodes change at the same time, on a tier that they share and on caches of one origin.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, fchown};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::UNIX_EPOCH;

use halocline_testkit::nodes::{self, Nodes};
use halocline_testkit::program;
use halocline_testkit::scratch::Scratch;
use halocline_testkit::shared_tiers::SharedTiers;
use halocline_testkit::skipping::skip;
use rustix::fs::{Uid, XattrFlags, fsetxattr};
use rustix::thread::set_thread_res_uid;

const TIERS: [&str; 2] = ["one", "two"];
const NOBODY: u32 = 65534;

/// Tries something with a file as each of two nodes shows it, which are open to all users: on a tier that they share, and
/// on caches of one origin.
fn on_two_nodes(test: impl Fn([PathBuf; 2])) {
    if !rustix::process::geteuid().is_root() {
        skip("mounting for all users needs root");
        return;
    }
    let Some(scratch) = Scratch::with_mountpoints(program!(), &TIERS) else { return };
    let Some(tiers) = SharedTiers::new(scratch, &TIERS) else { return };
    // Others reach the mounts by descriptors only.
    chmod(&tiers.scratch.path(""), 0o700);
    let tiers = tiers.mounted(&TIERS, &["--allow-other"]);
    eprintln!("a tier");
    test(TIERS.map(|node| tiers.at(node, "file")));
    let Some(caches) = Nodes::new(program!(), &["--allow-other"]) else { return };
    eprintln!("caches");
    test(nodes::NODES.map(|node| caches.scratch.path(node).join("file")));
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

/// What another user gets, through what is open here.
fn as_nobody<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            let nobody = Uid::from_raw(NOBODY);
            set_thread_res_uid(nobody, nobody, nobody).unwrap();
            act()
        });
        other.join().unwrap()
    })
}

/// An ACL that lets everybody read and write.
fn open_acl() -> Vec<u8> {
    let entry = |tag: u16, id: u32| [&tag.to_le_bytes()[..], &[6, 0], &id.to_le_bytes()].concat();
    let named = [entry(1, u32::MAX), entry(2, NOBODY), entry(4, u32::MAX)].concat();
    let rest = [entry(0x10, u32::MAX), entry(0x20, u32::MAX)].concat();
    [&2_u32.to_le_bytes()[..], &named, &rest].concat()
}

/// Regression: the kernel compared with the owner that it had seen last on this node.
#[test]
fn whoever_owns_a_file_no_longer_changes_nothing_through_what_is_open() {
    on_two_nodes(|[path, elsewhere]| {
        fs::write(&path, "text").unwrap();
        chown(&path, Some(NOBODY), None).unwrap();
        let held = File::options().read(true).write(true).open(&path).unwrap();
        let to = |mode| held.set_permissions(Permissions::from_mode(mode));
        as_nobody(|| to(0o640)).unwrap();
        as_nobody(|| held.set_modified(UNIX_EPOCH)).unwrap();
        chown(&elsewhere, Some(0), None).unwrap();
        let acl = open_acl();
        let tried = [
            ("mode", as_nobody(|| to(0o666))),
            ("group", as_nobody(|| fchown(&held, None, Some(0)))),
            ("time", as_nobody(|| held.set_modified(UNIX_EPOCH))),
            (
                "ACL",
                as_nobody(|| {
                    let name = "system.posix_acl_access";
                    Ok(fsetxattr(held.as_fd(), name, &acl, XattrFlags::empty())?)
                }),
            ),
        ];
        for (what, done) in tried {
            let errno = done.err().and_then(|error| error.raw_os_error());
            assert_eq!(errno, Some(libc::EPERM), "{what}");
        }
        assert_eq!(mode(&elsewhere), 0o640);
        // Whoever owns it now may, and so may root.
        chown(&elsewhere, Some(NOBODY), None).unwrap();
        as_nobody(|| to(0o600)).unwrap();
        to(0o644).unwrap();
        assert_eq!(mode(&elsewhere), 0o644);
    });
}

/// Regression: a node that had looked once did not see bits that another node gave the file since.
#[test]
fn set_id_bits_that_another_node_gave_a_file_fall_when_somebody_else_writes() {
    on_two_nodes(|[path, elsewhere]| {
        fs::write(&path, "program").unwrap();
        chmod(&path, 0o777);
        let held = File::options().write(true).open(&path).unwrap();
        as_nobody(|| (&held).write_all(b"P")).unwrap();
        chmod(&elsewhere, 0o6777);
        assert_eq!(mode(&elsewhere), 0o6777);
        as_nobody(|| (&held).write_all(b"R")).unwrap();
        assert_eq!(mode(&elsewhere), 0o777);
        // Root may.
        chmod(&elsewhere, 0o4755);
        (&held).write_all(b"O").unwrap();
        assert_eq!(mode(&elsewhere), 0o4755);
    });
}
