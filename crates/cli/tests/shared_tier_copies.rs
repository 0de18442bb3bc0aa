//! Clean copies of a tier that nodes share (`--copies archive`): the loss of an SSD loses nothing that has one, and no copy is
//! taken for a file that was changed (I13, I14).

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::Write;
use std::ops::Deref;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::PathBuf;
use std::process::Command;

use halocline_testkit::program;
use halocline_testkit::sandbox::{said, written};
use halocline_testkit::scratch::Scratch;
use halocline_testkit::shared_tiers::{self, SharedTiers};
use halocline_testkit::skipping::skip;
use halocline_testkit::waiting::eventually;
use rustix::fs::{FallocateFlags, copy_file_range, fallocate};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

const NODES: [&str; 2] = ["one", "two"];
const ARCHIVE: [&str; 4] = ["--copies", "archive", "--archive-after", "1s"];
const BYTES: usize = 100 << 10;

struct Nodes(SharedTiers);

impl Deref for Nodes {
    type Target = SharedTiers;

    fn deref(&self) -> &SharedTiers {
        &self.0
    }
}

impl Nodes {
    /// Two mounts that archive; `None`, with the reason, where that cannot be tried.
    fn new() -> Option<Self> {
        Some(Self(SharedTiers::started(program!(), &NODES, &ARCHIVE)?))
    }

    /// The copies of files on the SSD of `one`, by the inode numbers of the files.
    fn copies(&self) -> BTreeMap<u64, PathBuf> {
        let Ok(listed) = fs::read_dir(self.scratch.path("disk/.halocline/copies/one")) else {
            return BTreeMap::new();
        };
        let paths = listed.map(|entry| entry.unwrap().path());
        paths
            .filter_map(|path| {
                let name = path.file_name()?.to_str()?;
                let (inode, number) = name.split_once('.')?;
                number.parse::<u64>().ok()?;
                Some((inode.parse().ok()?, path.clone()))
            })
            .collect()
    }

    fn inode(&self, name: &str) -> u64 {
        fs::metadata(self.at("one", name)).unwrap().ino()
    }

    /// Waits until a file has a copy with its content.
    #[track_caller]
    fn until_copied(&self, name: &str) {
        let inode = self.inode(name);
        eventually("that it is copied", || {
            let path = self.copies().get(&inode).cloned();
            path.is_some_and(|path| {
                let of_file = fs::read(self.at("one", name)).unwrap();
                fs::read(path).is_ok_and(|of_copy| of_copy == of_file)
            })
        });
    }

    /// Kills `one`, and takes its SSD away.
    fn lose_ssd(&self) {
        self.scratch.kill("one");
        fs::rename(self.scratch.path("one-tiers/ssd"), self.scratch.path("lost")).unwrap();
    }

    /// What lies on the lost SSD is given up: the files that stay without bytes.
    fn give_up(&self) -> Vec<String> {
        let drained = self.scratch.halocline(&["cluster", "drain", "one", "two", "--json"]);
        let report: serde_json::Value = serde_json::from_str(&written(&drained))
            .unwrap_or_else(|error| panic!("{error}: {}", said(&drained)));
        let skipped = report["skipped"].as_array().unwrap().iter();
        let mut names: Vec<String> =
            skipped.map(|one| one["path"].as_str().unwrap().to_owned()).collect();
        assert_eq!(drained.status.success(), names.is_empty(), "{report}");
        names.sort();
        names
    }

    fn fsck_of_two(&self, more: &[&str]) -> String {
        let (url, peers) = (self.store.url(), shared_tiers::peers(&self.scratch));
        let tier = ["cluster", "fsck", "--tier", "two-tiers", "--cluster", &url];
        let done = self.scratch.halocline(&[&tier[..], &["--peers", &peers], more].concat());
        [written(&done), said(&done)].concat()
    }
}

fn content(letter: u8) -> Vec<u8> {
    vec![letter; BYTES]
}

#[test]
fn what_has_no_effect_is_refused() {
    let Some(scratch) = Scratch::with_mountpoints(program!(), &["one"]) else { return };
    let Some(tiers) = SharedTiers::new(scratch, &["one"]) else { return };
    let mounted = tiers.mount("one", &["--copies", "keep"]);
    assert!(!mounted.status.success());
    let told = said(&mounted);
    assert!(told.contains("--copies keep"), "{told}");
}

#[test]
fn i13_what_has_a_copy_outlives_its_ssd_and_what_has_none_is_named() {
    let Some(nodes) = Nodes::new() else { return };
    let one = |name: &str| nodes.at("one", name);
    fs::create_dir(one("dir")).unwrap();
    for (name, letter) in [("a", b'a'), ("dir/b", b'b'), ("dir/c", b'c'), ("renamed", b'd')] {
        fs::write(one(name), content(letter)).unwrap();
    }
    fs::set_permissions(one("a"), Permissions::from_mode(0o640)).unwrap();
    let dead = File::create(one("open")).unwrap();
    dead.write_all_at(b"no copy", 0).unwrap();
    for name in ["a", "dir/b", "dir/c", "renamed"] {
        nodes.until_copied(name);
    }
    let status = nodes.scratch.status("one")["tier"]["copies"].clone();
    assert_eq!(status["kept"], "archive", "{status}");
    eventually("that the status tells of them", || {
        nodes.scratch.status("one")["tier"]["copies"]["clean"]["files"] == 4
    });
    fs::rename(one("renamed"), one("dir/d")).unwrap();
    let changed = File::options().write(true).open(nodes.at("two", "dir/c")).unwrap();
    changed.write_all_at(b"changed", 0).unwrap();
    let times = fs::metadata(one("a")).unwrap().modified().unwrap();
    // Copies are no files, and nothing is wrong with them.
    let checked = shared_tiers::fsck(&nodes.scratch, &nodes.store.url(), &[]);
    assert!(checked.status.success(), "{}{}", written(&checked), said(&checked));
    nodes.lose_ssd();
    drop((dead, changed));
    let told = nodes.fsck_of_two(&[]);
    assert!(told.contains("copies of 3 of its files") && told.contains("drain one"), "{told}");
    assert_eq!(nodes.give_up(), ["dir/c", "open"]);
    for (name, letter) in [("a", b'a'), ("dir/b", b'b'), ("dir/d", b'd')] {
        assert_eq!(fs::read(nodes.at("two", name)).unwrap(), content(letter), "{name}");
    }
    let now = fs::metadata(nodes.at("two", "a")).unwrap();
    assert_eq!((now.mode() & 0o777, now.modified().unwrap()), (0o640, times));
    for name in ["dir/c", "open"] {
        let error = fs::read(nodes.at("two", name)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO), "{name}");
    }
    // They are ordinary files.
    fs::write(nodes.at("two", "a"), "new").unwrap();
    assert_eq!(fs::read(nodes.at("two", "a")).unwrap(), b"new");
    assert!(nodes.copies().is_empty(), "{:?}", nodes.copies());
}

/// One way to change a file, by its path, and a path beside it.
type Change = fn(&PathBuf, &PathBuf);

fn writable(path: &PathBuf) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

const CHANGES: [(&str, Change); 9] = [
    ("write", |path, _| writable(path).write_all_at(b"x", 7).unwrap()),
    ("append", |path, _| {
        File::options().append(true).open(path).unwrap().write_all(b"x").unwrap();
    }),
    ("O_TRUNC", |path, _| drop(File::create(path).unwrap())),
    ("truncate", |path, _| {
        rustix::fs::ftruncate(writable(path).as_fd(), 10).unwrap();
    }),
    ("truncate by path", |path, _| {
        let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: the path ends with a zero byte.
        assert_eq!(unsafe { libc::truncate(path.as_ptr(), 5) }, 0);
    }),
    ("fallocate", |path, _| {
        fallocate(writable(path), FallocateFlags::empty(), 0, 1 << 20).unwrap();
    }),
    ("punch a hole", |path, _| {
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(writable(path), how, 0, 8192).unwrap();
    }),
    ("copy_file_range", |path, other| {
        fs::write(other, "other bytes").unwrap();
        let copied = copy_file_range(File::open(other).unwrap(), None, writable(path), None, 11);
        assert_eq!(copied, Ok(11));
    }),
    ("mmap", |path, _| {
        // A reader first, so that the kernel serves the mapping where it can.
        let reader = File::open(path).unwrap();
        let file = writable(path);
        let how = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: nobody else has the address.
        let mapped = unsafe { mmap(std::ptr::null_mut(), 4096, how.0, how.1, &file, 0) };
        match mapped {
            // SAFETY: as above.
            Ok(at) => unsafe {
                at.cast::<u8>().write_volatile(b'm');
                munmap(at, 4096).unwrap();
            },
            // Not served by the kernel.
            Err(_) => file.write_all_at(b"m", 0).unwrap(),
        }
        drop(reader);
    }),
];

/// Each change, by either node, takes the copy away before the call returns; what is copied after it has the new bytes.
#[test]
fn i13_each_way_to_change_a_file_ends_its_copy() {
    let Some(nodes) = Nodes::new() else { return };
    let cases: Vec<_> =
        CHANGES.iter().flat_map(|change| NODES.map(|node| (change, node))).collect();
    let name = |at: usize| format!("file{at}");
    for at in 0..cases.len() {
        fs::write(nodes.at("one", &name(at)), content(b'a')).unwrap();
    }
    for at in 0..cases.len() {
        nodes.until_copied(&name(at));
    }
    for (at, ((what, change), node)) in cases.iter().enumerate() {
        let inode = nodes.inode(&name(at));
        let before = nodes.copies()[&inode].clone();
        change(&nodes.at(node, &name(at)), &nodes.at(node, "other"));
        assert!(!before.exists(), "{what} by {node}: {before:?} is still there");
    }
    let expected: Vec<Vec<u8>> =
        (0..cases.len()).map(|at| fs::read(nodes.at("one", &name(at))).unwrap()).collect();
    assert!(expected.iter().all(|now| *now != content(b'a')));
    for at in 0..cases.len() {
        nodes.until_copied(&name(at));
    }
    nodes.lose_ssd();
    let left = nodes.give_up();
    assert!(left.iter().all(|name| name == "other"), "{left:?}");
    for (at, expected) in expected.iter().enumerate() {
        let now = fs::read(nodes.at("two", &name(at))).unwrap();
        assert!(now == *expected, "{} by {}", cases[at].0.0, cases[at].1);
    }
}

#[test]
fn a_demoted_file_with_a_copy_moves_no_bytes_and_names_and_attributes_are_right() {
    let Some(nodes) = Nodes::new() else { return };
    let one = |name: &str| nodes.at("one", name);
    for name in ["kept", "mode", "linked", "gone", "replaced", "by"] {
        fs::write(one(name), content(b'k')).unwrap();
    }
    for name in ["kept", "mode", "linked", "gone", "replaced", "by"] {
        nodes.until_copied(name);
    }
    let copy = |name: &str| nodes.copies().get(&nodes.inode(name)).cloned();
    let kept = fs::metadata(copy("kept").unwrap()).unwrap().ino();
    nodes.moves(&["demote", "one/kept"]);
    // It is the copy itself.
    assert_eq!(fs::metadata(nodes.scratch.path("disk/kept")).unwrap().ino(), kept);
    // A read through a mount would promote it.
    assert_eq!(fs::read(nodes.scratch.path("disk/kept")).unwrap(), content(b'k'));
    let before = copy("mode").unwrap();
    fs::set_permissions(nodes.at("two", "mode"), Permissions::from_mode(0o600)).unwrap();
    assert!(!before.exists(), "a copy with the old mode");
    let before = copy("linked").unwrap();
    fs::hard_link(one("linked"), one("second")).unwrap();
    assert!(!before.exists(), "a copy that knows one name");
    let (gone, replaced) = (copy("gone").unwrap(), copy("replaced").unwrap());
    fs::remove_file(nodes.at("two", "gone")).unwrap();
    fs::rename(one("by"), one("replaced")).unwrap();
    assert!(!gone.exists() && !replaced.exists(), "copies of files that are gone");
    assert!(copy("replaced").is_some(), "a renamed file keeps its copy");
    // Without the store and without the SSD it has its new name.
    symlink("elsewhere", one("link")).unwrap();
    nodes.until_copied("mode");
    nodes.lose_ssd();
    shared_tiers::unmount(&nodes.scratch, "two");
    nodes.store.command(&["FLUSHALL"]);
    eventually("that the dead session is over", || {
        let told = nodes.fsck_of_two(&["--repair"]);
        told.contains("copies of 2 of its files")
    });
    let mounted = nodes.mount("two", &[]);
    assert!(mounted.status.success(), "{}", said(&mounted));
    let mut names: Vec<_> = fs::read_dir(nodes.at("two", ""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["kept", "link", "mode", "replaced"]);
    assert_eq!(nodes.give_up(), [""; 0]);
    for name in ["kept", "mode", "replaced"] {
        assert_eq!(fs::read(nodes.at("two", name)).unwrap(), content(b'k'), "{name}");
    }
    assert_eq!(fs::metadata(nodes.at("two", "mode")).unwrap().mode() & 0o777, 0o600);
}

/// Programs write and a node is killed while its files are copied, and its SSD is lost: each file is as it was last written,
/// or is named.
#[test]
fn i13_a_node_that_is_killed_while_it_copies_leaves_no_old_bytes() {
    let Some(nodes) = Nodes::new() else { return };
    for round in 0..4_u64 {
        let name = |at: u64| format!("r{round}-{at}");
        let mut newest = BTreeMap::new();
        for at in 0..24 {
            fs::write(nodes.at("one", &name(at)), content(b'0')).unwrap();
            newest.insert(name(at), content(b'0'));
        }
        // Some are being copied by now, and others are changed.
        std::thread::sleep(std::time::Duration::from_millis(1900 + round * 300));
        for at in (0..24).filter(|at| at % 3 == round % 3) {
            let letter = b'a' + u8::try_from(at).unwrap();
            let mut of = content(b'0');
            of[..BYTES / 2].fill(letter);
            let node = NODES[usize::try_from(at % 2).unwrap()];
            writable(&nodes.at(node, &name(at))).write_all_at(&of[..BYTES / 2], 0).unwrap();
            newest.insert(name(at), of);
        }
        nodes.lose_ssd();
        let mut left = Vec::new();
        // What the dead session had open is noted until its lease is over.
        eventually("that only files without copies are left", || {
            left = nodes.give_up();
            let of = |name: &String| nodes.at("two", name);
            left.iter().all(|name| fs::read(of(name)).is_err())
        });
        let mut whole = 0;
        for (name, expected) in newest {
            match fs::read(nodes.at("two", &name)) {
                Ok(now) => {
                    assert!(now == expected, "round {round}: {name} has other bytes");
                    whole += 1;
                }
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(libc::EIO), "{name}");
                    assert!(left.contains(&name), "round {round}: {name} is not named");
                }
            }
        }
        println!("round {round}: {whole} whole, {} named", left.len());
        // The SSD is found again: what was not given up is there.
        fs::rename(nodes.scratch.path("lost"), nodes.scratch.path("one-tiers/ssd")).unwrap();
        let mounted = nodes.mount("one", &ARCHIVE);
        assert!(mounted.status.success(), "{}", said(&mounted));
        for name in left {
            assert!(fs::read(nodes.at("one", &name)).is_ok(), "{name}");
        }
    }
    for node in NODES {
        shared_tiers::unmount(&nodes.scratch, node);
    }
    drop(nodes.fsck_of_two(&["--repair"]));
    let checked = shared_tiers::fsck(&nodes.scratch, &nodes.store.url(), &[]);
    assert!(checked.status.success(), "{}{}", written(&checked), said(&checked));
}

/// Regression: the repair took the old version of a file that had been written and given to another user since, and the newer copy
/// went to the leftovers; of one that had only got another mode it took the old one, and removed the copy.
#[test]
fn i13_i15_an_ssd_that_is_put_back_brings_no_owner_and_no_mode_back() {
    const USER: u32 = 1234;
    if !rustix::process::geteuid().is_root() {
        skip("only root gives files to others");
        return;
    }
    for forgets in [false, true] {
        let Some(nodes) = Nodes::new() else { return };
        let shared = |name: &str| nodes.copies().get(&nodes.inode(name)).cloned();
        for name in ["given", "narrowed"] {
            fs::write(nodes.at("one", name), content(b'o')).unwrap();
            nodes.until_copied(name);
        }
        copy_tree(&nodes, "one-tiers/ssd", "backup");
        writable(&nodes.at("one", "given")).write_all_at(b"new", 0).unwrap();
        chown(nodes.at("one", "given"), Some(USER), None).unwrap();
        fs::set_permissions(nodes.at("one", "narrowed"), Permissions::from_mode(0o600)).unwrap();
        for name in ["given", "narrowed"] {
            eventually("that it is copied again", || shared(name).is_some());
            nodes.until_copied(name);
        }
        for node in NODES {
            shared_tiers::unmount(&nodes.scratch, node);
        }
        fs::remove_dir_all(nodes.scratch.path("one-tiers/ssd")).unwrap();
        copy_tree(&nodes, "backup", "one-tiers/ssd");
        if forgets {
            nodes.store.command(&["FLUSHALL"]);
        }
        let told = nodes.fsck_of_two(&["--repair"]);
        assert!(told.contains("cluster drain one"), "{told}");
        assert!(nodes.mount("two", &ARCHIVE).status.success());
        assert!(nodes.give_up().is_empty());
        let mut newest = content(b'o');
        newest[..3].copy_from_slice(b"new");
        let are = [("given", USER, 0o644, newest), ("narrowed", 0, 0o600, content(b'o'))];
        for (name, uid, mode, bytes) in are {
            let path = nodes.at("two", name);
            let is = fs::metadata(&path).unwrap();
            assert_eq!((is.uid(), is.mode() & 0o7777), (uid, mode), "{forgets}, {name}: {told}");
            assert!(fs::read(path).unwrap() == bytes, "{forgets}, {name}: {told}");
        }
        shared_tiers::unmount(&nodes.scratch, "two");
        let checked = nodes.fsck_of_two(&[]);
        let sound = shared_tiers::fsck(&nodes.scratch, &nodes.store.url(), &[]);
        assert!(sound.status.success(), "{forgets}: {checked}");
    }
}

/// Copies a directory with all attributes.
fn copy_tree(nodes: &Nodes, from: &str, to: &str) {
    let [from, to] = [from, to].map(|path| nodes.scratch.path(path));
    let copied = Command::new("cp").arg("-a").args([from, to]).status().unwrap();
    assert!(copied.success());
}
