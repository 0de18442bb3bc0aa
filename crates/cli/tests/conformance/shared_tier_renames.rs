//! Directories that two nodes rename at once: what both answer, and what is there then, is what a plain directory has after
//! both renames, in one order or the other (I15).

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, openat, renameat};

use crate::kill::Random;
use crate::mount;
use crate::programs;
use crate::shared_tier_suites::nodes;

const PAIRS: usize = 60;
/// Directories at first, each with a file by which it is known.
const DIRECTORIES: u64 = 8;
const NAMES: [&str; 4] = ["a", "b", "c", "d"];
/// How often the kernel may know a directory by an older name.
const STALE_MAX: usize = 200;

/// What is below a directory: the paths of directories and files.
type Tree = BTreeSet<PathBuf>;

fn tree(root: &Path) -> Tree {
    let (mut tree, mut todo) = (Tree::new(), vec![root.to_owned()]);
    while let Some(directory) = todo.pop() {
        for entry in fs::read_dir(directory).expect("a directory") {
            let entry = entry.expect("an entry");
            if entry.file_type().expect("its type").is_dir() {
                todo.push(entry.path());
            }
            tree.insert(entry.path().strip_prefix(root).expect("below it").to_owned());
        }
    }
    tree
}

fn is_known_by(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("is-"))
}

fn make(root: &Path, tree: &Tree) {
    for path in tree {
        if is_known_by(path) {
            fs::write(root.join(path), "").expect("a file");
        } else {
            fs::create_dir(root.join(path)).expect("a directory");
        }
    }
}

type Rename = (PathBuf, PathBuf);

/// Renames; answers the error, or 0.
fn rename(root: &Path, (from, to): &Rename) -> i32 {
    let (from, to) = (root.join(from), root.join(to));
    for _ in 0..STALE_MAX {
        match fs::rename(&from, &to) {
            Ok(()) => return 0,
            // As on NFS, where another node has renamed a directory; see `differential`.
            Err(error) if error.raw_os_error() == Some(libc::ESTALE) => {
                let _looked = (fs::symlink_metadata(&from), fs::symlink_metadata(&to));
                thread::sleep(Duration::from_millis(2));
            }
            Err(error) => return error.raw_os_error().expect("an errno"),
        }
    }
    libc::ESTALE
}

/// What a plain directory answers and has after both, one after the other. A program's path may be looked up before the
/// other rename, and used after it, as on one machine: `looks_first` has both looked up before the first one.
fn in_order(
    before: &Tree,
    renames: &[Rename; 2],
    (first, looks_first): (usize, bool),
) -> ([bool; 2], Tree) {
    let plain = tempfile::tempdir().expect("scratch");
    make(plain.path(), before);
    let look = |path: &Path| {
        let above = plain.path().join(path.parent().unwrap_or(Path::new("")));
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let name = path.file_name().expect("a name").to_owned();
        openat(CWD, &above, flags, Mode::empty()).map(|above| (above, name))
    };
    let look_both = |(from, to): &Rename| (look(from), look(to));
    let known = renames.each_ref().map(look_both);
    let mut made = [false; 2];
    for at in [first, 1 - first] {
        let now = look_both(&renames[at]);
        let (from, to) = if looks_first { &known[at] } else { &now };
        if let (Ok(from), Ok(to)) = (from, to) {
            made[at] = renameat(&from.0, &from.1, &to.0, &to.1).is_ok();
        }
    }
    (made, tree(plain.path()))
}

fn draw(random: &mut Random, tree: &Tree) -> Rename {
    let directories: Vec<&PathBuf> = tree.iter().filter(|path| !is_known_by(path)).collect();
    let mut pick = |count: usize| usize::try_from(random.below(count as u64)).expect("small");
    let from = directories[pick(directories.len())].clone();
    let above = match pick(directories.len() + 2) {
        at if at < directories.len() => directories[at].clone(),
        _ => PathBuf::new(),
    };
    (from, above.join(NAMES[pick(NAMES.len())]))
}

#[test]
fn i15_directories_that_two_nodes_rename_at_once_are_where_one_order_puts_them() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    let Some(nodes) = nodes(&["one", "two"], &[]) else { return };
    let places = [0, 1].map(|at: usize| nodes.mounts[at].path());
    let mut random = Random::new(920);
    let mut now = Tree::new();
    for number in 0..DIRECTORIES {
        let directory = PathBuf::from(format!("d{number}"));
        now.insert(directory.join(format!("is-{number}")));
        now.insert(directory);
    }
    make(&places[0], &now);
    let mut both_made = 0;
    for pair in 0..PAIRS {
        let renames = [draw(&mut random, &now), draw(&mut random, &now)];
        let begin = Barrier::new(2);
        let run = |at: usize| {
            begin.wait();
            rename(&places[at], &renames[at])
        };
        let answers = thread::scope(|scope| {
            let other = scope.spawn(|| run(1));
            [run(0), other.join().expect("a rename")]
        });
        let after = tree(&places[0]);
        let ways = [(0, false), (1, false), (0, true), (1, true)];
        let orders = ways.map(|way| in_order(&now, &renames, way));
        // Why one is refused may differ.
        let is_one = orders.contains(&(answers.map(|answer| answer == 0), after.clone()));
        assert!(
            is_one,
            "pair {pair}: {renames:?} of {now:?}\nis {answers:?} {after:?},\nnot one of {orders:#?}"
        );
        assert_eq!(tree(&places[1]), after, "pair {pair}: on the other node");
        both_made += usize::from(answers == [0, 0]);
        now = after;
    }
    assert!(both_made > PAIRS / 10, "{both_made} pairs of renames were made");
    // The shared disk has all directories and no others; one whose name was taken there has its number behind it.
    let on_disk = tree(&nodes.mounts[0].root().join("hdd"));
    let is_ours = |path: &&PathBuf| !path.to_string_lossy().starts_with(".halocline");
    let directories = now.iter().filter(|path| !is_known_by(path)).count();
    assert_eq!(on_disk.iter().filter(is_ours).count(), directories, "{on_disk:?}");
}
