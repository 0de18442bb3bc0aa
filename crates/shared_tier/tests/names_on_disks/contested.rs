//! Another node takes a name away between two requests of the kernel for one call.

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::sync::Arc;

use halocline_api::control::{Controlled, Drain};
use halocline_cluster::names::namespace::{Namespace, WaitLimit};
use halocline_model::namespace::{EntryName, Name, ROOT};
use halocline_model::token::Session;
use halocline_shared_tier::{SharedTier, Vnode};
use halocline_testkit::waiting::eventually;
use halocline_vfs::{DirEntry, Engine, Make, SetAttr, SetTime, Tree};

use crate::disks::{Disks, NODES};
use crate::mounted::{BY, CALLER, Mounted};

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
}

/// Regression: all that was done with a directory that was open when another node removed it, and with names in it, failed
/// with `ESTALE`, so that two `rm -r` of one tree failed.
#[test]
fn a_directory_that_is_gone_is_empty_and_takes_no_names() {
    let disks = Disks::new();
    let (one, two) = (Mounted::new(&disks, true), Mounted::of_node(&disks, NODES[1], true));
    let gone = Some(libc::ENOENT);
    two.create("f", "bytes").unwrap();
    let (root, file) = (Engine::root(&two.tier), two.at("f").unwrap());
    for is_by_other in [true, false] {
        one.mkdir("d").unwrap();
        let vnode = two.at("d").unwrap();
        let open = two.tier.open_dir(&vnode).unwrap();
        let remover = if is_by_other { &one } else { &two };
        remover.rmdir("d").unwrap();
        let stat = two.tier.stat(&vnode, None).unwrap().raw;
        assert_eq!((stat.st_mode & libc::S_IFMT, stat.st_nlink), (libc::S_IFDIR, 0));
        let mut listed = Vec::new();
        let take = &mut |entry: DirEntry| {
            listed.push(entry.name);
            true
        };
        two.tier.read_dir(&open, 0, take).unwrap();
        assert_eq!(listed, [""; 0]);
        let change = SetAttr { mode: Some(0o700), ..SetAttr::default() };
        let changed = two.tier.set_attr(&vnode, None, &change, CALLER).unwrap().raw;
        assert_eq!((changed.st_mode & 0o777, changed.st_nlink), (0o700, 0));
        let (names, below) = two.tier.below(&vnode);
        assert_eq!(names.list_xattr(&below).unwrap(), b"");
        let (x, of_root) = (OsStr::new("x"), (&root, OsStr::new("f")));
        assert_eq!(errno(two.tier.lookup(&vnode, x)), gone);
        let flags = libc::O_CREAT | libc::O_WRONLY;
        assert_eq!(errno(two.tier.create((&vnode, x), 0o644, flags, BY)), gone);
        let symlink = Make::Symlink(OsStr::new("target"));
        for what in [Make::Directory(0o755), symlink, Make::Special(libc::S_IFIFO, 0)] {
            assert_eq!(errno(two.tier.make((&vnode, x), what, BY)), gone);
        }
        assert_eq!(errno(two.tier.link(&file, &vnode, x)), gone);
        assert_eq!(errno(two.tier.unlink(&vnode, x, CALLER)), gone);
        assert_eq!(errno(names.remove_dir(&below, x, CALLER)), gone);
        assert_eq!(errno(two.tier.rename((&vnode, x), of_root, 0, CALLER)), gone);
        assert_eq!(errno(two.tier.rename(of_root, (&vnode, x), 0, CALLER)), gone);
        assert_eq!(errno(two.at("d")), gone);
    }
    assert_eq!(read(&two.tier, &file), b"bytes");
}

/// The same in the middle of a change: before each of its requests of the store.
#[test]
fn a_directory_that_goes_meanwhile_takes_no_names() {
    const FLAGS: i32 = libc::O_CREAT | libc::O_WRONLY;
    type Act = fn(&Mounted, &Vnode) -> Option<i32>;
    let acts: [(&str, Act); 4] = [
        ("create", |node, at| errno(node.tier.create((at, OsStr::new("x")), 0o644, FLAGS, BY))),
        ("mkdir", |node, at| {
            errno(node.tier.make((at, OsStr::new("x")), Make::Directory(0o755), BY))
        }),
        ("link", |node, at| errno(node.tier.link(&node.at("f").unwrap(), at, OsStr::new("x")))),
        ("rename", |node, at| {
            let from = (&Engine::root(&node.tier), OsStr::new("f"));
            errno(node.tier.rename(from, (at, OsStr::new("x")), 0, CALLER))
        }),
    ];
    for (what, act) in acts {
        for requests in 0.. {
            let disks = Disks::new();
            let one = Arc::new(Mounted::new(&disks, true));
            let two = Mounted::of_node(&disks, NODES[1], true);
            one.create("f", "bytes").unwrap();
            one.mkdir("d").unwrap();
            let vnode = two.at("d").unwrap();
            let remover = Arc::clone(&one);
            two.interrupt(requests, move || drop(remover.rmdir("d")));
            let done = act(&two, &vnode);
            let is_right = matches!(done, None | Some(libc::ENOENT));
            assert!(is_right, "{what}: request {requests}: {done:?}");
            if !two.was_interrupted() {
                break;
            }
        }
    }
}

/// Regression: of a file whose size the disk does not have, but which takes little there, another node said that there was no
/// room, so that a drain of its node did not end.
#[test]
fn a_sparse_file_of_another_node_moves_if_its_bytes_fit() {
    let disks = Disks::new();
    let (one, two) = (Mounted::new(&disks, true), Mounted::of_node(&disks, NODES[1], true));
    one.create("sparse", "bytes").unwrap();
    let change = SetAttr { size: Some(8 << 40), ..SetAttr::default() };
    one.tier.set_attr(&one.at("sparse").unwrap(), None, &change, CALLER).unwrap();
    let goes_on = &mut |_| ControlFlow::Continue(());
    let drain = |dry_run| Drain { node: NODES[0].to_owned(), path: "".into(), dry_run };
    eventually("its close is noted", || {
        let drained = two.tier.drain(&drain(true), goes_on).unwrap();
        drained.skipped.iter().all(|skipped| !skipped.reason.contains("has it open"))
    });
    for dry_run in [true, false] {
        let drained = two.tier.drain(&drain(dry_run), goes_on).unwrap();
        assert_eq!((drained.files, &drained.skipped), (1, &Vec::new()), "{dry_run}");
    }
    for dry_run in [true, false] {
        let warmed = two.tier.warm(&["sparse".into()], dry_run, goes_on).unwrap();
        assert_eq!((warmed.files, &warmed.skipped), (1, &Vec::new()), "{dry_run}");
    }
    let read = read(&two.tier, &two.at("sparse").unwrap());
    assert_eq!(read[..6], *b"bytes\0");
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
