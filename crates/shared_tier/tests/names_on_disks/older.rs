//! A store that came back without its last changes, and does not know it: the disks have them.

use std::ffi::OsStr;

use halocline_shared_tier::repair;
use halocline_vfs::{Engine, SetAttr, Tree};

use crate::disks::{Disks, NODES};
use crate::mounted::{CALLER, Mounted};

const PATHS: [&str; 5] = ["ssd", "d/shared", "two", "d", ""];
const USERS: &str = "user.of_a_program";

/// Files on an SSD and on the shared disk, one with two names, and directories.
fn fill(disks: &Disks) {
    let mounted = Mounted::new(disks, true);
    mounted.mkdir("d").unwrap();
    for file in ["ssd", "d/shared", "two"] {
        mounted.create(file, "old").unwrap();
    }
    mounted.link("two", "d/two").unwrap();
    mounted.demote("d/shared").unwrap();
    mounted.tier.close().unwrap();
}

/// Mode, owner, size, time of the last change of the content, and an attribute, of each.
type Known = Vec<(u32, u32, i64, (i64, i64), Option<Vec<u8>>)>;

fn known(mounted: &Mounted) -> Known {
    let known = PATHS.map(|path| {
        let vnode = mounted.at(path).unwrap();
        let (tree, at) = mounted.tier.below(&vnode);
        let xattr = tree.get_xattr(&at, OsStr::new(USERS)).ok();
        let raw = mounted.tier.stat(&vnode, None).unwrap().raw;
        // Those of directories are the store's.
        let is_file = raw.st_mode & libc::S_IFMT == libc::S_IFREG;
        let mtime = if is_file { (raw.st_mtime, raw.st_mtime_nsec) } else { (0, 0) };
        (raw.st_mode & 0o7777, raw.st_uid, raw.st_size, mtime, xattr)
    });
    known.to_vec()
}

/// Makes all of them root's, and writes the files.
fn change(mounted: &Mounted) {
    for path in PATHS {
        let vnode = mounted.at(path).unwrap();
        let is_file = !matches!(path, "d" | "");
        let mode = Some(if is_file { 0o600 } else { 0o700 });
        let change = SetAttr { mode, uid: Some(7), ..SetAttr::default() };
        mounted.tier.set_attr(&vnode, None, &change, CALLER).unwrap();
        let (tree, at) = mounted.tier.below(&vnode);
        tree.set_xattr(&at, OsStr::new(USERS), b"secret", 0).unwrap();
        if is_file {
            let handle = mounted.tier.open(&vnode, libc::O_WRONLY, CALLER).unwrap();
            mounted.tier.write(&handle, 3, b" and new", CALLER).unwrap();
        }
    }
}

/// Regression: a file that was only root's could be read by all, and had three of its eleven bytes.
#[test]
fn i15_what_an_older_store_has_forgotten_of_attributes_is_found_and_taken_from_the_disks() {
    for is_confirmed in [true, false] {
        let disks = Disks::new();
        fill(&disks);
        disks.are_as_in_store("a new tier");
        let saved = disks.names.saved();
        // Each file stays where the saved store has it: what is written is not promoted, and nothing is demoted in the background.
        let mounted = Mounted::excluding(&["d/**"], &disks, NODES[0], Some(&disks.peers()));
        change(&mounted);
        mounted.tier.close().unwrap();
        let wanted = known(&mounted);
        drop(mounted);
        assert_eq!((wanted[0].0, wanted[0].1, wanted[0].2), (0o600, 7, 11));
        disks.are_as_in_store("changes of attributes");
        disks.names.restart(saved);
        if is_confirmed {
            repair::confirm(&disks.at("n1"), None, &disks.names, &disks.alone()).unwrap();
            let found =
                repair::run(&disks.at("n1"), Some(&disks.peers()), &disks.names, None).unwrap();
            assert!(found.may_be_older && found.told.is_empty(), "{found:?}");
            assert_eq!(found.attributes.len(), PATHS.len(), "{found:?}");
            for what in ["mode 600", "mode 700", "owner 7:0", "size 11", "changed at", USERS] {
                let all = found.attributes.join("\n");
                assert!(all.contains(what), "{what}: {all}");
            }
        }
        disks.repair();
        disks.are_as_in_store("a repair");
        assert_eq!(known(&Mounted::new(&disks, true)), wanted, "confirmed: {is_confirmed}");
    }
}

/// While a file is written, the store does not claim to know its size.
#[test]
fn a_check_takes_no_open_file_for_one_that_the_store_has_forgotten() {
    let disks = Disks::new();
    fill(&disks);
    let mounted = Mounted::new(&disks, true);
    let vnode = mounted.at("ssd").unwrap();
    let handle = mounted.tier.open(&vnode, libc::O_WRONLY, CALLER).unwrap();
    mounted.tier.write(&handle, 3, b" and new", CALLER).unwrap();
    disks.are_as_in_store("a file that is being written");
    drop(handle);
    mounted.tier.close().unwrap();
    drop(mounted);
    disks.are_as_in_store("a file that was written");
}

/// Regression: an open that failed was noted as the close before it, without what had been written: the file had no bytes.
#[test]
fn i15_an_open_that_fails_leaves_what_was_written_before() {
    let disks = Disks::new();
    let mounted = Mounted::new(&disks, false);
    mounted.create("f", "text").unwrap();
    let [bytes, away] = ["shared/f", "away"].map(|path| disks.at(path));
    std::fs::rename(&bytes, &away).unwrap();
    let vnode = mounted.at("f").unwrap();
    assert!(mounted.tier.open(&vnode, libc::O_RDONLY, CALLER).is_err());
    std::fs::rename(&away, &bytes).unwrap();
    assert_eq!(mounted.tier.stat(&vnode, None).unwrap().raw.st_size, 4);
    mounted.tier.close().unwrap();
    drop(mounted);
    disks.are_as_in_store("an open that failed");
}
