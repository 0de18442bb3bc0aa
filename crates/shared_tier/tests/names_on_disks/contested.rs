//! Another node takes a name away between two requests of the kernel for one call.

use std::ffi::OsStr;
use std::sync::Arc;

use halocline_cluster::names::namespace::{Namespace, WaitLimit};
use halocline_model::namespace::{EntryName, Name, ROOT};
use halocline_model::token::Session;
use halocline_shared_tier::{SharedTier, Vnode};
use halocline_testkit::waiting::eventually;
use halocline_vfs::{Engine, SetAttr, SetTime, Tree};

use crate::disks::{Disks, NODES};
use crate::mounted::{CALLER, Mounted};

fn errno<T>(done: halocline_os::error::Result<T>) -> Option<i32> {
    done.err().map(|error| error.errno())
}

/// What a program reads of a file that was looked up.
fn read(tier: &SharedTier, vnode: &Vnode) -> Vec<u8> {
    let handle = tier.open(vnode, libc::O_RDONLY, CALLER).unwrap();
    let mut bytes = vec![0; 100];
    let len = tier.read(&handle, 0, &mut bytes, CALLER).unwrap();
    bytes.truncate(len);
    bytes
}

/// Looks a name up that is taken away at once, as the kernel does first, and then a new one of it, which is taken away, too.
fn looked_up_again(two: &Mounted, name: &str, make: &dyn Fn(), take: &dyn Fn()) -> Vnode {
    make();
    let first = two.at(name).unwrap();
    take();
    assert_eq!(errno(two.tier.stat(&first, None)), Some(libc::ESTALE), "{name}");
    make();
    let second = two.at(name).unwrap();
    take();
    assert!(two.at(name).is_err(), "{name}");
    second
}

/// Regression: the kernel looked it up again, another node took it away again, and the program got `ESTALE`.
#[test]
fn what_the_kernel_looks_up_again_stays_usable_without_its_name() {
    let disks = Disks::new();
    let (one, two) = (Mounted::new(&disks, true), Mounted::of_node(&disks, NODES[1], true));
    let root = Engine::root(&two.tier);
    let make = || one.create("f", "bytes").unwrap();
    let vnode = looked_up_again(&two, "f", &make, &|| one.unlink("f").unwrap());
    let stat = two.tier.stat(&vnode, None).unwrap().raw;
    // As it was looked up: Linux links nothing without a name, and would not ask.
    assert_eq!((stat.st_size, stat.st_nlink), (5, 1));
    let opened = two.tier.open(&vnode, libc::O_RDONLY, CALLER).unwrap();
    assert_eq!(two.tier.stat(&vnode, Some(&opened)).unwrap().raw.st_nlink, 0);
    drop(opened);
    assert_eq!(read(&two.tier, &vnode), b"bytes");
    let now = Some(SetTime::Now);
    let change = SetAttr { mode: Some(0o600), mtime: now, size: Some(2), ..SetAttr::default() };
    assert_eq!(
        two.tier.set_attr(&vnode, None, &change, CALLER).unwrap().raw.st_mode & 0o777,
        0o600
    );
    assert_eq!(read(&two.tier, &vnode), b"by");
    let (names, below) = two.tier.below(&vnode);
    let (of_user, none) = (OsStr::new("user.a"), Some(libc::ENODATA));
    names.set_xattr(&below, of_user, b"value", 0).unwrap();
    assert_eq!(names.get_xattr(&below, of_user).unwrap(), b"value");
    names.remove_xattr(&below, of_user).unwrap();
    assert_eq!(errno(names.remove_xattr(&below, of_user)), none);
    assert_eq!(errno(two.tier.link(&vnode, &root, OsStr::new("g"))), Some(libc::ENOENT));
    // It is replaced by a rename, as programs replace files.
    let replace = || {
        one.create("new", "newer").unwrap();
        one.rename("new", "r", 0).unwrap();
    };
    replace();
    let first = two.at("r").unwrap();
    replace();
    assert_eq!(errno(two.tier.open(&first, libc::O_RDONLY, CALLER)), Some(libc::ESTALE));
    let second = two.at("r").unwrap();
    replace();
    assert_eq!(read(&two.tier, &second), b"newer");
    // What has no bytes.
    let make = || one.symlink("target", "l").unwrap();
    let vnode = looked_up_again(&two, "l", &make, &|| one.unlink("l").unwrap());
    let (names, below) = two.tier.below(&vnode);
    assert_eq!(names.read_link(&below).unwrap(), "target");
    assert_eq!(two.tier.stat(&vnode, None).unwrap().raw.st_nlink, 1);
    let make = || one.mkdir("d").unwrap();
    let vnode = looked_up_again(&two, "d", &make, &|| one.rmdir("d").unwrap());
    let stat = two.tier.stat(&vnode, None).unwrap().raw;
    assert_eq!(stat.st_mode & libc::S_IFMT, libc::S_IFDIR);
    assert_eq!(errno(two.tier.lookup(&vnode, OsStr::new("x"))), Some(libc::ENOENT));
}

/// What is kept is open to others; it is closed in the end, and nothing else is.
#[test]
fn what_is_kept_for_the_kernel_is_closed_before_the_session_ends() {
    let disks = Disks::new();
    let (one, two) = (Mounted::new(&disks, true), Mounted::of_node(&disks, NODES[1], true));
    let elsewhere = disks.names.for_another_node();
    let elsewhere =
        Namespace::open(Arc::new(elsewhere), Session(99), WaitLimit::default()).unwrap();
    let opens = |name: &str| {
        let at = EntryName { directory: ROOT, name: Name::from(name) };
        elsewhere.lookup(&at).unwrap().attributes.opens.len()
    };
    for name in ["f", "other"] {
        one.create(name, name).unwrap();
    }
    let first = two.at("f").unwrap();
    one.unlink("f").unwrap();
    assert_eq!(errno(two.tier.stat(&first, None)), Some(libc::ESTALE));
    one.create("f", "again").unwrap();
    eventually("its maker's close is noted", || opens("f") + opens("other") == 0);
    two.at("f").unwrap();
    two.at("other").unwrap();
    assert_eq!((opens("f"), opens("other")), (1, 0));
    two.tier.close().unwrap();
    assert_eq!(opens("f"), 0);
}
