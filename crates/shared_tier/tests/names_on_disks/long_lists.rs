//! Files and directories with many extended attributes on file systems that keep more than the kernel lists (XFS, tmpfs): the mount
//! refuses so many, and one that has them all the same keeps nobody else's names from being built again.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use halocline_shared_tier::repair;
use halocline_testkit::skipping::skip;
use halocline_testkit::small_disk::SmallDisk;
use halocline_vfs::{Engine, Tree};
use rustix::fs::{XattrFlags, listxattr, removexattr, setxattr};
use rustix::io::Errno;

use crate::disks::{Disks, NODES, tree};
use crate::mounted::Mounted;

const ACL: &str = "system.posix_acl_access";
const MANY: usize = 400;
/// The first of those that were set past the mounts.
const PAST: usize = 1000;

/// The disks in memory. Those that are mounted go first.
struct InMemory {
    _small: [SmallDisk; 2],
    disks: Disks,
}

impl InMemory {
    /// `None`, with the reason, where there are no such file systems, or they keep no attributes.
    fn new() -> Option<Self> {
        let disks = Disks::new();
        let one = SmallDisk::over(disks.at("n1/ssd"), 32 << 20)?;
        let other = SmallDisk::over(disks.at("shared"), 32 << 20)?;
        let keeps = |path: &str| {
            setxattr(disks.at(path), "user.a", b"", XattrFlags::empty())
                .and_then(|()| removexattr(disks.at(path), "user.a"))
        };
        if keeps("shared").is_err() {
            skip("tmpfs keeps no attributes of users here");
            return None;
        }
        Some(Self { _small: [one, other], disks })
    }
}

/// The name of an attribute, as long as one may be.
fn name(at: usize) -> String {
    format!("user.{at:0>250}")
}

fn set(mounted: &Mounted, path: &str, name: &str, value: &[u8]) -> Result<(), i32> {
    let vnode = mounted.at(path).unwrap();
    let (tree, at) = mounted.tier.below(&vnode);
    tree.set_xattr(&at, OsStr::new(name), value, 0).map_err(|error| error.errno())
}

fn listed(mounted: &Mounted, path: &str) -> Vec<u8> {
    let vnode = mounted.at(path).unwrap();
    let (tree, at) = mounted.tier.below(&vnode);
    tree.list_xattr(&at).unwrap()
}

/// Gives something as many attributes as it takes by the mount; the first one that is refused.
fn fill(mounted: &Mounted, path: &str) -> usize {
    let refused = (0..MANY).find_map(|at| Some((at, set(mounted, path, &name(at), b"").err()?)));
    let (at, errno) = refused.expect("some are refused");
    assert_eq!(errno, libc::ENOSPC, "{path}");
    at
}

/// Gives something more of them than the kernel lists, past the mounts.
fn fill_past(path: &Path) {
    for at in 0..MANY {
        setxattr(path, name(PAST + at), b"", XattrFlags::empty()).unwrap();
    }
    assert_eq!(listxattr(path, &mut vec![0; 1 << 16]), Err(Errno::TOOBIG), "{}", path.display());
}

/// An ACL that lets one more user in.
fn acl() -> Vec<u8> {
    let none = u32::MAX;
    let entries = [(1_u16, 6_u16, none), (2, 6, 1234), (4, 0, none), (16, 6, none), (32, 0, none)];
    let entries = entries.map(|(tag, mode, id)| {
        [&tag.to_le_bytes()[..], &mode.to_le_bytes(), &id.to_le_bytes()].concat()
    });
    [&2_u32.to_le_bytes()[..], &entries.concat()].concat()
}

/// Regression: the mount took as many as the disk. Then the disk could no longer be read, no names were built again from it, and no
/// node could be mounted any more.
#[test]
fn i15_the_mount_refuses_more_attributes_than_the_kernel_lists() {
    let Some(InMemory { _small, disks }) = InMemory::new() else { return };
    let mounted = Mounted::new(&disks, true);
    for file in ["f", "moved"] {
        mounted.create(file, file).unwrap();
    }
    mounted.mkdir("d").unwrap();
    let counts = ["f", "d", "moved"].map(|path| fill(&mounted, path));
    assert!(counts.iter().all(|count| (200..256).contains(count)), "{counts:?}");
    // What is there may be changed, and what Halocline adds has room.
    set(&mounted, "f", &name(0), b"changed").unwrap();
    set(&mounted, "f", ACL, &acl()).unwrap();
    set(&mounted, "d", ACL, &acl()).unwrap();
    mounted.rename("moved", "d/renamed", 0).unwrap();
    mounted.demote("d/renamed").unwrap();
    mounted.rename("f", "d/f", 0).unwrap();
    mounted.link("d/f", "again").unwrap();
    let before = ["d/f", "d", "d/renamed", "again"].map(|path| listed(&mounted, path));
    let shown = tree(&mounted.tier);
    drop(mounted);
    disks.are_as_in_store("as many attributes as the mount takes");
    disks.forget();
    disks.repair();
    let mounted = Mounted::of_node(&disks, NODES[1], true);
    assert_eq!(shown, tree(&mounted.tier));
    assert_eq!(before, ["d/f", "d", "d/renamed", "again"].map(|path| listed(&mounted, path)));
}

/// The names of a file with several are attributes on its disk, too.
#[test]
fn i15_the_mount_refuses_more_names_of_a_file_than_the_kernel_lists() {
    let Some(InMemory { _small, disks }) = InMemory::new() else { return };
    let mounted = Mounted::new(&disks, true);
    mounted.create("f", "f").unwrap();
    (0..200).for_each(|at| set(&mounted, "f", &name(at), b"").unwrap());
    let refused = (0..600).find_map(|at| Some((at, mounted.link("f", &format!("l{at}")).err()?)));
    let (at, error) = refused.expect("some are refused");
    assert_eq!(error.errno(), libc::EMLINK);
    assert!((200..300).contains(&at), "{at}");
    assert_eq!(set(&mounted, "f", &name(200), b""), Err(libc::ENOSPC));
    mounted.unlink("l0").unwrap();
    mounted.link("f", "l0").unwrap();
    let shown = tree(&mounted.tier);
    drop(mounted);
    disks.are_as_in_store("as many names as the mount takes");
    disks.forget();
    disks.repair();
    assert_eq!(shown, tree(&Mounted::new(&disks, true).tier));
}

/// Regression: the disk took a value for which the store had no room, and differed from it from then on.
#[test]
fn values_for_which_the_store_has_no_room_are_refused_before_the_disk_has_them() {
    let Some(InMemory { _small, disks }) = InMemory::new() else { return };
    let mounted = Mounted::new(&disks, true);
    mounted.create("f", "f").unwrap();
    mounted.mkdir("d").unwrap();
    let value = vec![b'v'; 60_000];
    for path in ["f", "d"] {
        set(&mounted, path, "user.a", &value).unwrap();
        set(&mounted, path, "user.b", b"small").unwrap();
        for other in ["user.b", "user.c"] {
            assert_eq!(set(&mounted, path, other, &value), Err(libc::ENOSPC), "{path} {other}");
        }
    }
    // It can be opened, moved and renamed.
    mounted.rename("f", "d/f", 0).unwrap();
    mounted.demote("d/f").unwrap();
    assert_eq!(tree(&mounted.tier)["/d/f"], "f");
    drop(mounted);
    disks.are_as_in_store("values that were refused");
}

/// What its owner can do past the mount.
#[test]
fn i15_what_has_too_many_attributes_stops_no_check_and_no_rebuild() {
    let Some(InMemory { _small, disks }) = InMemory::new() else { return };
    let mounted = Mounted::new(&disks, true);
    for file in ["low", "high", "linked", "other"] {
        mounted.create(file, file).unwrap();
    }
    mounted.demote("low").unwrap();
    mounted.mkdir("d").unwrap();
    mounted.create("d/below", "below").unwrap();
    mounted.link("linked", "d/second").unwrap();
    for path in ["low", "high", "d"] {
        set(&mounted, path, &name(1), b"kept").unwrap();
        set(&mounted, path, ACL, &acl()).unwrap();
    }
    let hostile = ["shared/low", "n1/ssd/high", "n1/ssd/linked", "shared/d", "shared"];
    for path in hostile {
        fill_past(&disks.at(path));
    }
    // It stays where it is, and others do not.
    let _refused = mounted.demote("high");
    mounted.demote("d/below").unwrap();
    assert!(disks.at("n1/ssd/high").exists() && disks.at("shared/d/below").exists());
    set(&mounted, "low", &name(1), b"changed").unwrap();
    set(&mounted, "d", &name(1), b"").unwrap();
    let shown = tree(&mounted.tier);
    drop(mounted);
    disks.are_as_in_store("attributes that cannot be listed");
    let run = |is_repair: bool| {
        let alone = is_repair.then(|| disks.alone());
        let peers = disks.peers();
        repair::run(&disks.at("n1"), Some(&peers), &disks.names, alone.as_ref()).unwrap()
    };
    let repaired = run(true);
    assert!(repaired.is_clean(), "{repaired:?}");
    assert_eq!(repaired.not_rebuilt.len(), hostile.len(), "{repaired:?}");
    disks.forget();
    let rebuilt = run(true);
    let told = |path: &str| {
        let path = disks.at(path).display().to_string();
        rebuilt.not_rebuilt.iter().any(|line| line.starts_with(&format!("{path}: ")))
    };
    assert_eq!(rebuilt.not_rebuilt.len(), hostile.len(), "{rebuilt:?}");
    assert!(told("shared/low") || told("n1/hdd/low"), "{rebuilt:?}");
    disks.are_as_in_store("a rebuild");
    let mounted = Mounted::new(&disks, true);
    let mut now = tree(&mounted.tier);
    // The second name of the file that cannot be read any more is lost.
    let mut expected = shown;
    expected.remove("/d/second");
    assert_eq!(expected, now);
    for path in ["low", "high", "d"] {
        let names = listed(&mounted, path);
        assert_eq!(names, [ACL.as_bytes(), b"\0"].concat(), "{path}");
    }
    drop(mounted);
    // Once some are removed, the others are found again.
    for path in hostile.map(|path| disks.at(path)) {
        (200..MANY).for_each(|at| removexattr(&path, name(PAST + at)).unwrap());
    }
    assert!(!disks.problems().is_empty(), "the store lacks attributes of the disk");
    run(true);
    disks.are_as_in_store("a repair");
    let mounted = Mounted::new(&disks, true);
    now = tree(&mounted.tier);
    assert_eq!(expected, now);
    let low = mounted.at("low").unwrap();
    assert_eq!(mounted.tier.get_xattr(&low, OsStr::new(&name(1))).unwrap(), b"changed");
    nothing_is_set_aside(&disks);
}

fn nothing_is_set_aside(disks: &Disks) {
    for disk in ["shared", "n1/ssd"] {
        let aside = fs::read_dir(disks.at(disk).join(".halocline/leftovers"));
        let aside: Vec<_> =
            aside.into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
        assert!(aside.is_empty(), "{aside:?}");
    }
}
