use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::*;
use crate::{Caller, Make, Maker};

fn by(caller: Caller, umask: u32) -> Maker {
    Maker { caller, umask }
}

fn me() -> Caller {
    Caller {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        pid: 0,
    }
}

fn tree() -> (tempfile::TempDir, Namespace) {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let namespace = Namespace::open(dir.path()).expect("open the scratch directory");
    (dir, namespace)
}

fn name(name: &str) -> &OsStr {
    OsStr::new(name)
}

#[test]
fn one_inode_is_one_node() {
    let (dir, namespace) = tree();
    fs::write(dir.path().join("a"), "x").unwrap();
    fs::hard_link(dir.path().join("a"), dir.path().join("b")).unwrap();
    let (a, _) = namespace.lookup(&namespace.root(), name("a")).unwrap();
    let (b, _) = namespace.lookup(&namespace.root(), name("b")).unwrap();
    assert_eq!(a, b);
    let removed = namespace.unlink(&namespace.root(), name("a"), None).unwrap();
    assert!(!removed.last);
    assert_eq!(namespace.path_of(&b), Path::new("b"));
}

/// Regression: the drop of the lowest directory dropped the one above it, and so on: everybody could end a mount with a deep
/// tree.
#[test]
fn a_deep_tree_is_dropped_without_recursion() {
    const DEPTH: u64 = 300_000;
    let (dir, _) = tree();
    let table = Arc::new(VnodeTable::new(Descriptors::with_bounds(16, 4)));
    let root = rustix::fs::openat(CWD, dir.path(), OFlags::PATH, Mode::empty()).unwrap();
    let mut stat = stat_descriptor(&root).unwrap();
    let first = stat.raw.st_ino;
    let root = table.root(&stat, root);
    let mut at = root.clone();
    for number in 1..=DEPTH {
        stat.raw.st_ino = first + number;
        at = table.intern(&stat, &at, name("d"));
    }
    drop(at);
    let keys = (1..=DEPTH).map(|number| (stat.raw.st_dev, first + number));
    assert!(keys.into_iter().all(|key| table.find(key).is_none()), "none is left in the table");
    assert_eq!(table.find(root.key()), Some(root));
}

#[test]
fn more_nodes_than_descriptors_stay_usable() {
    let (dir, mut namespace) = tree();
    let vnodes = Arc::new(VnodeTable::new(Descriptors::with_bounds(16, 4)));
    let root = rustix::fs::openat(CWD, dir.path(), OFlags::PATH, Mode::empty()).unwrap();
    let stat = stat_descriptor(&root).unwrap();
    namespace.root = vnodes.root(&stat, root);
    namespace.vnodes = vnodes;
    fs::create_dir_all(dir.path().join("d/e")).unwrap();
    let (d, _) = namespace.lookup(&namespace.root(), name("d")).unwrap();
    let (e, _) = namespace.lookup(&d, name("e")).unwrap();
    let mut found = Vec::new();
    for i in 0..500_u32 {
        fs::write(dir.path().join(format!("d/e/{i}")), i.to_string()).unwrap();
        found.push(namespace.lookup(&e, name(&i.to_string())).unwrap().0);
    }
    for pass in 0..2 {
        for (i, vnode) in found.iter().enumerate() {
            let len = namespace.stat(vnode).unwrap().raw.st_size;
            assert_eq!(len, i64::try_from(i.to_string().len()).unwrap(), "pass {pass}");
        }
    }
    let open = found.iter().filter(|vnode| vnode.0.state.lock().fd.is_some()).count();
    assert!(open <= 20, "{open} descriptors are open for 500 nodes");
}

#[test]
fn a_node_never_stands_for_another_inode() {
    let (dir, namespace) = tree();
    fs::write(dir.path().join("a"), "old").unwrap();
    let (vnode, _) = namespace.lookup(&namespace.root(), name("a")).unwrap();
    // Behind our back, and with the old inode kept alive so that its number is not used again.
    fs::rename(dir.path().join("a"), dir.path().join("away")).unwrap();
    fs::write(dir.path().join("a"), "new").unwrap();
    let errno = namespace.stat(&vnode).unwrap_err().errno();
    assert_eq!(errno, libc::ESTALE);
    let (again, _) = namespace.lookup(&namespace.root(), name("away")).unwrap();
    assert_eq!(again, vnode);
    assert!(namespace.stat(&vnode).is_ok());
}

#[test]
fn a_removed_node_stays_usable_until_dropped() {
    let (dir, namespace) = tree();
    fs::write(dir.path().join("a"), "bytes").unwrap();
    let (vnode, _) = namespace.lookup(&namespace.root(), name("a")).unwrap();
    assert!(namespace.unlink(&namespace.root(), name("a"), None).unwrap().last);
    assert_eq!(namespace.stat(&vnode).unwrap().raw.st_nlink, 0);
    let mut file = namespace.open_file(&vnode, libc::O_WRONLY | libc::O_APPEND).unwrap();
    file.write_all(b"more").unwrap();
    assert_eq!(namespace.stat(&vnode).unwrap().raw.st_size, 9);
}

#[test]
fn rename_carries_names_of_directories() {
    let (dir, namespace) = tree();
    fs::create_dir_all(dir.path().join("a/b")).unwrap();
    fs::create_dir(dir.path().join("c")).unwrap();
    fs::write(dir.path().join("a/b/f"), "").unwrap();
    let root = namespace.root();
    let (a, _) = namespace.lookup(&root, name("a")).unwrap();
    let (b, _) = namespace.lookup(&a, name("b")).unwrap();
    let (f, _) = namespace.lookup(&b, name("f")).unwrap();
    let (c, _) = namespace.lookup(&root, name("c")).unwrap();
    assert!(namespace.rename((&a, name("b")), (&c, name("x")), 0, None).unwrap().is_none());
    assert_eq!(namespace.path_of(&f), Path::new("c/x/f"));
    namespace.rename((&root, name("a")), (&root, name("c")), libc::RENAME_EXCHANGE, None).unwrap();
    assert_eq!(namespace.path_of(&f), Path::new("a/x/f"));
    assert_eq!(namespace.path_of(&a), Path::new("c"));
}

#[test]
fn a_replaced_target_is_reported_and_survives() {
    let (dir, namespace) = tree();
    fs::write(dir.path().join("a"), "a").unwrap();
    fs::write(dir.path().join("b"), "bb").unwrap();
    let root = namespace.root();
    let (b, _) = namespace.lookup(&root, name("b")).unwrap();
    let replaced =
        namespace.rename((&root, name("a")), (&root, name("b")), 0, None).unwrap().unwrap();
    assert_eq!(replaced.key, b.key());
    assert!(replaced.last);
    assert_eq!(namespace.stat(&b).unwrap().raw.st_size, 2);
}

#[test]
fn umask_and_owner_are_the_callers() {
    let (dir, namespace) = tree();
    let root = namespace.root();
    let (_, stat) =
        namespace.make((&root, name("d")), Make::Directory(0o777), by(me(), 0o027)).unwrap();
    assert_eq!(stat.raw.st_mode & 0o7777, 0o750);
    if me().uid == 0 {
        let nobody = Caller { uid: 65534, gid: 65533, pid: 0 };
        // The directory is not writable for nobody: the kernel above has decided already.
        let flags = libc::O_RDWR | libc::O_EXCL;
        let (_, stat, ..) =
            namespace.create((&root, name("f")), 0o666, flags, by(nobody, 0o002)).unwrap();
        assert_eq!((stat.raw.st_uid, stat.raw.st_gid), (65534, 65533));
        assert_eq!(stat.raw.st_mode & 0o7777, 0o664);
        fs::write(dir.path().join("mine"), "").unwrap();
        let (_, stat) = namespace.lookup(&root, name("mine")).unwrap();
        assert_eq!(stat.raw.st_uid, 0, "ids must be switched back");
    }
}

/// Regression: a mount process of root removed whatever the name led to by then.
#[test]
fn names_in_a_sticky_directory_are_taken_only_from_what_is_the_callers() {
    if me().uid != 0 {
        return;
    }
    let nobody = Caller { uid: 65534, gid: 65533, pid: 0 };
    let (dir, namespace) = tree();
    let at = |name: &str| dir.path().join(name);
    let own = |path: &Path, uid| std::os::unix::fs::chown(path, Some(uid), None).unwrap();
    fs::create_dir(at("sticky")).unwrap();
    let (sticky, _) = namespace.lookup(&namespace.root(), name("sticky")).unwrap();
    for (file, uid) in [("sticky/roots", 0), ("sticky/f", 65534), ("sticky/g", 65534)] {
        fs::write(at(file), file).unwrap();
        own(&at(file), uid);
    }
    fs::create_dir(at("sticky/directory")).unwrap();
    let rename = |from, to, flags, by| {
        namespace.rename((&sticky, name(from)), (&sticky, name(to)), flags, Some(by)).map(drop)
    };
    let exchange = libc::RENAME_EXCHANGE;
    let all = |by| {
        [
            namespace.unlink(&sticky, name("roots"), Some(by)).map(drop),
            namespace.remove_dir(&sticky, name("directory"), Some(by)).map(drop),
            rename("roots", "new", 0, by),
            rename("f", "roots", 0, by),
            rename("f", "roots", exchange, by),
            rename("roots", "f", exchange, by),
        ]
        .map(|done| done.map_err(|error| error.errno()))
    };
    fs::set_permissions(at("sticky"), Permissions::from_mode(0o1777)).unwrap();
    assert_eq!(all(nobody), [Err(libc::EPERM); 6]);
    assert_eq!(fs::read_to_string(at("sticky/roots")).unwrap(), "sticky/roots");
    // Who has the capability may, who owns the files may, and root may.
    let capable = Caller { pid: std::process::id(), ..nobody };
    rename("roots", "moved", 0, capable).unwrap();
    rename("moved", "roots", 0, me()).unwrap();
    rename("f", "g", 0, nobody).unwrap();
    namespace.unlink(&sticky, name("g"), Some(nobody)).unwrap();
    fs::write(at("mine"), "").unwrap();
    assert_eq!(fs::metadata(at("mine")).unwrap().uid(), 0, "ids must be switched back");
    // So may the directory's owner, and everybody where there is no such bit.
    own(&at("sticky"), 65534);
    rename("roots", "moved", 0, nobody).unwrap();
    own(&at("sticky"), 0);
    fs::set_permissions(at("sticky"), Permissions::from_mode(0o777)).unwrap();
    rename("moved", "roots", 0, nobody).unwrap();
}

#[test]
fn directories_are_read_on_from_a_cookie() {
    let (dir, namespace) = tree();
    for i in 0..1000 {
        fs::write(dir.path().join(format!("file-{i}")), "").unwrap();
    }
    let open = namespace.open_dir(&namespace.root()).unwrap();
    let (mut names, mut at) = (Vec::new(), 0);
    loop {
        let (before, mut room) = (names.len(), 7);
        open.read(at, &mut |entry| {
            room -= 1;
            if room < 0 {
                return false;
            }
            at = entry.next;
            names.push(entry.name);
            true
        })
        .unwrap();
        if names.len() == before {
            break;
        }
    }
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 1002);
}

#[test]
fn xattrs_and_links_of_any_length() {
    let (dir, namespace) = tree();
    let target = "t".repeat(3000);
    std::os::unix::fs::symlink(&target, dir.path().join("l")).unwrap();
    let (link, _) = namespace.lookup(&namespace.root(), name("l")).unwrap();
    assert_eq!(namespace.read_link(&link).unwrap().len(), 3000);
    fs::write(dir.path().join("f"), "").unwrap();
    let (file, _) = namespace.lookup(&namespace.root(), name("f")).unwrap();
    let value = vec![7; 2000];
    match namespace.set_xattr(&file, name("user.long"), &value, 0) {
        Err(error) if error.errno() == libc::EOPNOTSUPP => return,
        other => other.unwrap(),
    }
    assert_eq!(namespace.get_xattr(&file, name("user.long")).unwrap(), value);
    assert_eq!(namespace.list_xattr(&file).unwrap(), b"user.long\0");
    namespace.remove_xattr(&file, name("user.long")).unwrap();
    let errno = namespace.get_xattr(&file, name("user.long")).unwrap_err().errno();
    assert_eq!(errno, libc::ENODATA);
}

/// Regression: another vnode gave the file a name between the count of its names and the removal of one, and its cached
/// bytes were forgotten.
#[test]
fn a_name_that_others_give_meanwhile_keeps_the_file() {
    let (dir, namespace) = tree();
    let root = namespace.root();
    for (old, new, last) in [("a", Some("b"), false), ("c", None, true)] {
        fs::write(dir.path().join(old), "").unwrap();
        let seen = namespace.before_removal(&root, name(old)).unwrap();
        assert!(seen.last);
        if let Some(new) = new {
            fs::hard_link(dir.path().join(old), dir.path().join(new)).unwrap();
        }
        assert_eq!(namespace.unlink_seen(seen, &root, name(old)).unwrap().last, last);
    }
}
