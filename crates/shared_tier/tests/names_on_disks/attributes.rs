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

/// Regression: the store had the time before the file was made, so that each check told a difference.
#[test]
fn i15_files_that_were_made_and_never_opened_have_the_time_of_the_disk() {
    let disks = Disks::new();
    let mounted = Mounted::new(&disks, true);
    mounted.mkdir("d").unwrap();
    let above = mounted.at("d").unwrap();
    let by = Maker { caller: CALLER, umask: 0 };
    for number in 0..20 {
        let name = format!("f{number}");
        let regular = Make::Special(libc::S_IFREG | 0o644, 0);
        mounted.tier.make((&above, OsStr::new(&name)), regular, by).unwrap();
    }
    drop(mounted);
    disks.are_as_in_store("files that were made by mknod");
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

/// Regression: a node changed them at those names only that it knew. After a rebuild a device that only root could use
/// was everybody's again, by the name that another node had given it.
#[test]
fn i15_a_change_is_one_of_all_names_of_a_link_or_device() {
    let disks = Disks::new();
    let one = Mounted::new(&disks, true);
    make(&one);
    let two = Mounted::of_node(&disks, NODES[1], true);
    two.mkdir("e").unwrap();
    let names =
        [("d/pipe", "e/pipe"), ("d/device", "e/device"), ("d/acl", "e/acl"), ("d/link", "e/link")];
    for (old, new) in names {
        two.link(old, new).unwrap();
    }
    let shared = |name: &str| disks.at("shared").join(name);
    let inode = |name: &str| shared(name).symlink_metadata().unwrap().ino();
    let change_all = |one: &Mounted, mode: u32, uid: u32| {
        let by_acl = SetAttr { mode: Some(mode), uid: Some(uid), ..SetAttr::default() };
        for (old, _) in names {
            let change = SetAttr { mode: by_acl.mode.filter(|_| old != "d/link"), ..by_acl };
            one.tier.set_attr(&one.at(old).unwrap(), None, &change, CALLER).unwrap();
        }
    };
    let agree = |uid: u32| {
        for (old, new) in names {
            let [old_is, new_is] = [old, new].map(|name| of_disk(&shared(name)));
            assert_eq!((old_is, old_is.1), (new_is, uid), "{old}");
            assert_eq!(of_mount(&one, new), new_is, "{new}");
        }
    };
    change_all(&one, 0o600, 12);
    agree(12);
    // Whatever a node that died has left is put right by the next change.
    for name in ["d/pipe", "d/device"] {
        fs::set_permissions(shared(name), PermissionsExt::from_mode(0o777)).unwrap();
    }
    change_all(&one, 0o640, 34);
    agree(34);
    let wanted = names.map(|(old, new)| [old, new].map(|name| of_mount(&one, name)));
    drop((one, two));
    disks.are_as_in_store("changes at one of two names");
    disks.forget();
    disks.repair();
    disks.are_as_in_store("a rebuild");
    let one = Mounted::new(&disks, true);
    assert_eq!(names.map(|(old, new)| [old, new].map(|name| of_mount(&one, name))), wanted);
    change_all(&one, 0o644, 56);
    for (old, new) in names {
        let number = |name: &str| one.tier.stat(&one.at(name).unwrap(), None).unwrap().raw;
        let links = if old == "d/pipe" { 3 } else { 2 };
        assert_eq!(
            (number(old).st_nlink, number(old).st_ino),
            (links, number(new).st_ino),
            "{old}"
        );
        assert_eq!((inode(old), of_disk(&shared(old)).1), (inode(new), 56), "{old}");
        one.unlink(old).unwrap();
        one.unlink(new).unwrap();
    }
    one.unlink("d/again").unwrap();
    drop(one);
    disks.are_as_in_store("unlinks");
    let left = fs::read_dir(shared(".halocline/linked")).unwrap().count();
    assert_eq!(left, 0, "of inodes that have lost all names");
}

/// At each moment of a change all names have the same attributes on the disk: a node may die there.
#[test]
fn i15_no_step_of_a_change_tears_the_names_of_a_device_apart() {
    for before in 0.. {
        let disks = Disks::new();
        let one = Mounted::new(&disks, true);
        one.mkdir("d").unwrap();
        one.symlink("nowhere", "d/link").unwrap();
        let two = Mounted::of_node(&disks, NODES[1], true);
        two.link("d/link", "d/again").unwrap();
        let vnode = one.at("d/link").unwrap();
        let paths = ["d/link", "d/again"].map(|name| disks.at("shared").join(name));
        let are_one = move || {
            let [link, again] = [0, 1].map(|at| of_disk(&paths[at]));
            assert_eq!(link, again, "{paths:?}");
        };
        one.interrupt(before, are_one);
        let change = SetAttr { uid: Some(7), ..SetAttr::default() };
        one.tier.set_attr(&vnode, None, &change, CALLER).unwrap();
        if !one.was_interrupted() {
            assert!(before > 1, "a change takes requests");
            break;
        }
    }
}

/// A tier of an earlier version has an inode for each name: a check joins them.
#[test]
fn a_check_joins_the_names_of_a_device() {
    let disks = Disks::new();
    let one = Mounted::new(&disks, true);
    one.mkdir("d").unwrap();
    one.symlink("nowhere", "d/link").unwrap();
    one.link("d/link", "d/again").unwrap();
    one.link("d/link", "d/third").unwrap();
    let shared = |name: &str| disks.at("shared").join(name);
    let separate = || {
        for name in ["d/again", "d/third"] {
            fs::remove_file(shared(name)).unwrap();
            std::os::unix::fs::symlink("nowhere", shared(name)).unwrap();
        }
        fs::remove_dir_all(shared(".halocline/linked")).unwrap();
    };
    separate();
    // A change does that for the names that its node knows.
    let two = Mounted::of_node(&disks, NODES[1], true);
    let vnode = two.at("d/again").unwrap();
    let _also = two.at("d/third").unwrap();
    let change = SetAttr { uid: Some(7), ..SetAttr::default() };
    two.tier.set_attr(&vnode, None, &change, CALLER).unwrap();
    let inode = |name: &str| shared(name).symlink_metadata().unwrap().ino();
    assert_eq!(inode("d/again"), inode("d/third"));
    drop((one, two));
    let problems = disks.problems();
    assert!(problems.contains("d/link") && !problems.contains("d/again"), "{problems}");
    disks.repair();
    disks.are_as_in_store("a repair");
    assert_eq!(["d/again", "d/third"].map(inode), [inode("d/link"); 2]);
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

/// Regression: root's write left it in the store, where the disk had lost it.
#[test]
fn a_capability_is_lost_on_the_disk_and_in_the_store_with_any_change_of_the_content() {
    const CAPABILITY: &str = "security.capability";
    /// `cap_net_raw+ep`, in the form of the attribute.
    const VALUE: [u8; 20] = [1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let disks = Disks::new();
    let tried = disks.at("tried");
    fs::write(&tried, "").unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    if rustix::fs::setxattr(&tried, CAPABILITY, &VALUE, flags).is_err() {
        skip("this user gives files no capabilities");
        return;
    }
    let [one, two] = NODES.map(|node| Mounted::of_node(&disks, node, true));
    one.create("f", "text").unwrap();
    // A node takes what it uses often to its own SSD.
    let paths = NODES.map(|node| disks.at(node).join("ssd/f"));
    let opened = |mounted: &Mounted, flags: i32| {
        mounted.tier.open(&mounted.at("f").unwrap(), flags, CALLER).unwrap()
    };
    let set = |mounted: &Mounted, change: &SetAttr| {
        mounted.tier.set_attr(&mounted.at("f").unwrap(), None, change, CALLER).map(drop)
    };
    let change = |mounted: &Mounted, what: usize| match what {
        0 => mounted.tier.write(&opened(mounted, libc::O_WRONLY), 0, b"T", CALLER),
        1 => {
            let handle = opened(mounted, libc::O_WRONLY | libc::O_APPEND);
            mounted.tier.write(&handle, 0, b"more", CALLER).unwrap();
            // Before the close, too.
            let left = mounted.tier.get_xattr(&mounted.at("f").unwrap(), OsStr::new(CAPABILITY));
            assert_eq!(left.map_err(|error| error.errno()), Err(libc::ENODATA));
            Ok(())
        }
        2 => set(mounted, &SetAttr { size: Some(3), ..SetAttr::default() }),
        3 => {
            drop(opened(mounted, libc::O_WRONLY | libc::O_TRUNC));
            Ok(())
        }
        4 => {
            let how = halocline_vfs::Allocate::Reserve;
            mounted.tier.allocate(&opened(mounted, libc::O_WRONLY), 0, 9, how)
        }
        5 => set(mounted, &SetAttr { uid: Some(12), ..SetAttr::default() }),
        _ => set(mounted, &SetAttr { gid: Some(3), mode: Some(0o755), ..SetAttr::default() }),
    };
    for mounted in [&one, &two] {
        for what in 0..7 {
            let vnode = mounted.at("f").unwrap();
            let (tree, at) = mounted.tier.below(&vnode);
            tree.set_xattr(&at, OsStr::new(CAPABILITY), &VALUE, 0).unwrap();
            let is_set = |path| rustix::fs::getxattr(path, CAPABILITY, &mut [0; 64]).is_ok();
            let has = || paths.iter().any(is_set);
            assert!(has(), "{what}: it is set");
            change(mounted, what).unwrap();
            assert!(!has(), "{what}: Linux takes it away");
            for other in [&one, &two] {
                let left = other.tier.get_xattr(&other.at("f").unwrap(), OsStr::new(CAPABILITY));
                assert_eq!(left.map_err(|error| error.errno()), Err(libc::ENODATA), "{what}");
            }
        }
    }
    drop((one, two));
    disks.are_as_in_store("changes of the content");
}

/// Regression: ENODATA, or success.
#[test]
fn an_attribute_without_a_name_is_refused() {
    let disks = Disks::new();
    let mounted = Mounted::new(&disks, true);
    mounted.create("f", "text").unwrap();
    let vnode = mounted.at("f").unwrap();
    let (tree, at) = mounted.tier.below(&vnode);
    for name in ["user.", "trusted.", "security."].map(OsStr::new) {
        for flags in [0, libc::XATTR_CREATE, libc::XATTR_REPLACE] {
            let set = tree.set_xattr(&at, name, b"value", flags);
            assert_eq!(set.unwrap_err().errno(), libc::EINVAL, "{name:?} {flags}");
        }
        assert_eq!(mounted.tier.get_xattr(&vnode, name).unwrap_err().errno(), libc::EINVAL);
    }
}
