//! Attributes of links, pipes and devices, which have no bytes: the shared disk has them as the store does.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use halocline_testkit::skipping::skip;
use halocline_vfs::{Engine, Make, Maker, SetAttr, SetTime, Tree};

use crate::disks::{Disks, NODES};
use crate::mounted::{CALLER, Mounted};

const ACL: &str = "system.posix_acl_access";

/// An ACL in the form of the attribute: the owner reads and writes, and so does one more user; nobody else.
fn acl() -> Vec<u8> {
    let entry = |tag: u16, mode: u16, id: u32| {
        [&tag.to_le_bytes()[..], &mode.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let none = u32::MAX;
    let entries = [(1, 6, none), (2, 6, 1234), (4, 0, none), (16, 6, none), (32, 0, none)];
    let entries = entries.map(|(tag, mode, id)| entry(tag, mode, id)).concat();
    [&2_u32.to_le_bytes()[..], &entries].concat()
}

/// Mode, owner, group and the time of the last change of the content.
fn of_disk(path: &Path) -> (u32, u32, u32, i64) {
    let is = path.symlink_metadata().unwrap();
    (is.mode() & 0o7777, is.uid(), is.gid(), is.mtime())
}

fn of_mount(mounted: &Mounted, path: &str) -> (u32, u32, u32, i64) {
    let raw = mounted.tier.stat(&mounted.at(path).unwrap(), None).unwrap().raw;
    (raw.st_mode & 0o7777, raw.st_uid, raw.st_gid, raw.st_mtime)
}

fn make(mounted: &Mounted) {
    mounted.mkdir("d").unwrap();
    let above = mounted.at("d").unwrap();
    let by = Maker { caller: CALLER, umask: 0 };
    for (name, kind) in
        [("pipe", libc::S_IFIFO), ("device", libc::S_IFCHR), ("acl", libc::S_IFSOCK)]
    {
        let device = if kind == libc::S_IFCHR { libc::makedev(1, 3) } else { 0 };
        mounted
            .tier
            .make((&above, OsStr::new(name)), Make::Special(kind | 0o666, device), by)
            .unwrap();
    }
    mounted.link("d/pipe", "d/again").unwrap();
    mounted.symlink("nowhere", "d/link").unwrap();
}

fn change(mounted: &Mounted) {
    let set = |path: &str, change: &SetAttr| {
        mounted.tier.set_attr(&mounted.at(path).unwrap(), None, change, CALLER).unwrap();
    };
    // Both names of the pipe are known to this node.
    let _looked_up = mounted.at("d/pipe").unwrap();
    set("d/again", &SetAttr { mode: Some(0o600), ..SetAttr::default() });
    set(
        "d/device",
        &SetAttr { mode: Some(0o640), uid: Some(12), gid: Some(34), ..SetAttr::default() },
    );
    let at = Some(SetTime::At(UNIX_EPOCH + Duration::from_secs(1_000_000)));
    set(
        "d/link",
        &SetAttr { uid: Some(56), gid: Some(78), atime: at, mtime: at, ..SetAttr::default() },
    );
    let vnode = mounted.at("d/acl").unwrap();
    let (tree, at) = mounted.tier.below(&vnode);
    tree.set_xattr(&at, OsStr::new(ACL), &acl(), 0).unwrap();
}

/// Regression: they stayed on the disk as they were made, and were so again after a rebuild: a device that only root could
/// use was everybody's.
#[test]
fn i15_links_and_devices_have_their_attributes_also_on_the_disk() {
    let disks = Disks::new();
    let mounted = Mounted::new(&disks, true);
    if rustix::fs::mknodat(
        rustix::fs::CWD,
        disks.at("tried"),
        rustix::fs::FileType::CharacterDevice,
        rustix::fs::Mode::RUSR,
        libc::makedev(1, 3),
    )
    .is_err()
    {
        skip("no devices can be made here");
        return;
    }
    make(&mounted);
    change(&mounted);
    let shared = |name: &str| disks.at("shared").join(name);
    let names = ["d/pipe", "d/again", "d/device", "d/acl", "d/link"];
    let wanted: Vec<_> = names.iter().map(|name| of_mount(&mounted, name)).collect();
    assert_eq!((wanted[0].0, wanted[1].0, wanted[3].0), (0o600, 0o600, 0o660));
    assert_eq!((wanted[2].0, wanted[2].1, wanted[2].2), (0o640, 12, 34));
    assert_eq!((wanted[4].1, wanted[4].2, wanted[4].3), (56, 78, 1_000_000));
    let on_disk: Vec<_> = names.iter().map(|name| of_disk(&shared(name))).collect();
    assert_eq!(on_disk, wanted);
    drop(mounted);
    disks.are_as_in_store("changes of attributes");
    disks.forget();
    disks.repair();
    let mounted = Mounted::of_node(&disks, NODES[1], true);
    let rebuilt: Vec<_> = names.iter().map(|name| of_mount(&mounted, name)).collect();
    assert_eq!(rebuilt, wanted);
    let vnode = mounted.at("d/acl").unwrap();
    assert_eq!(mounted.tier.get_xattr(&vnode, OsStr::new(ACL)).unwrap(), acl());
}

/// Regression: a check did not see the difference.
#[test]
fn a_check_puts_attributes_of_links_and_devices_right() {
    let disks = Disks::new();
    let mounted = Mounted::new(&disks, true);
    make(&mounted);
    change(&mounted);
    let wanted = ["d/pipe", "d/acl", "d/link"].map(|name| of_mount(&mounted, name));
    drop(mounted);
    let shared = |name: &str| disks.at("shared").join(name);
    fs::set_permissions(shared("d/pipe"), PermissionsExt::from_mode(0o666)).unwrap();
    fs::remove_file(shared("d/acl")).unwrap();
    std::os::unix::fs::lchown(shared("d/link"), Some(0), Some(0)).unwrap();
    let problems = disks.problems();
    assert!(["d/pipe", "d/acl", "d/link"].iter().all(|name| problems.contains(name)), "{problems}");
    disks.repair();
    disks.are_as_in_store("a repair");
    assert_eq!(["d/pipe", "d/acl", "d/link"].map(|name| of_disk(&shared(name))), wanted);
}

/// Regression: the directory was made, but the disk had not taken its default ACL, which was gone after a rebuild.
#[test]
fn i15_a_directory_whose_default_acl_finds_no_room_is_not_made() {
    const DEFAULT: &str = "system.posix_acl_default";
    let disks = Disks::new();
    let mounted = Mounted::new(&disks, true);
    mounted.mkdir("a").unwrap();
    let many = (1..=300_u32).flat_map(|id| [2, 0, 6, 0].into_iter().chain(id.to_le_bytes()));
    let (plain, begin) = (acl(), 4 + 8);
    let mut acl = plain[..begin].to_vec();
    acl.extend(many);
    acl.extend(&plain[begin + 8..]);
    // Where the file system has room for so many, there is nothing to see.
    let bare = disks.at("bare");
    fs::create_dir(&bare).unwrap();
    let is_set =
        rustix::fs::setxattr(&bare, DEFAULT, &acl, rustix::fs::XattrFlags::empty()).is_ok();
    if !is_set || fs::create_dir(bare.join("d")).is_ok() {
        skip("a file system that keeps two ACLs of 300 users, or none");
        return;
    }
    let vnode = mounted.at("a").unwrap();
    let (tree, at) = mounted.tier.below(&vnode);
    tree.set_xattr(&at, OsStr::new(DEFAULT), &acl, 0).unwrap();
    let made = mounted.mkdir("a/d").map_err(|error| error.errno());
    assert_eq!(made, Err(libc::ENOSPC));
    assert!(mounted.at("a/d").is_err());
    assert!(disks.at("shared/a/d").symlink_metadata().is_err());
    drop(mounted);
    disks.are_as_in_store("a directory that was not made");
}
