//! What is done while something fails, with what there is before and after it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use rustix::fs::{CWD, RenameFlags, renameat_with};

/// All that is in a directory: paths from there, and what is at each.
pub(crate) type Tree = BTreeMap<String, String>;

/// An operation on one node. Paths are below the directory of the round, which has the directories `a` and `b`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Operation {
    pub(crate) name: &'static str,
    /// Makes what there is before.
    pub(crate) prepare: fn(&Path) -> io::Result<()>,
    pub(crate) act: Act,
    /// What there may be in between, and what there is after it, each as changes: a path, and what is there.
    pub(crate) between: &'static [Changes],
    pub(crate) after: Changes,
    /// What there may be if the names are built again, because the store may have forgotten some before it was acknowledged.
    pub(crate) half_made: &'static [Changes],
}

/// Paths, each with what is there then; `None` if nothing is.
pub(crate) type Changes = &'static [(&'static str, Option<&'static str>)];

/// How an operation is done.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Act {
    /// By system calls.
    Calls(fn(&Path) -> io::Result<()>),
    /// By a command, to which the node's directory of the round is appended.
    Command(&'static [&'static str]),
}

fn file(dir: &Path) -> io::Result<()> {
    fs::write(dir.join("a/f"), "first")
}

fn two_files(dir: &Path) -> io::Result<()> {
    file(dir)?;
    fs::write(dir.join("b/g"), "second")
}

fn two_names(dir: &Path) -> io::Result<()> {
    file(dir)?;
    fs::hard_link(dir.join("a/f"), dir.join("b/g"))
}

fn directory(dir: &Path) -> io::Result<()> {
    fs::create_dir(dir.join("a/d"))?;
    fs::write(dir.join("a/d/f"), "first")
}

fn two_links(dir: &Path) -> io::Result<()> {
    symlink("first", dir.join("a/l"))?;
    symlink("second", dir.join("b/m"))
}

fn rename(dir: &Path, from: &str, to: &str, flags: RenameFlags) -> io::Result<()> {
    Ok(renameat_with(CWD, dir.join(from), CWD, dir.join(to), flags)?)
}

const REPLACE: RenameFlags = RenameFlags::empty();

/// An operation that nothing is prepared for, and that changes nothing.
const NOTHING: Operation = Operation {
    name: "nothing",
    prepare: |_| Ok(()),
    act: Act::Command(&[]),
    between: &[],
    after: &[],
    half_made: &[],
};

/// The operations.
pub(crate) const ALL: [Operation; 16] = [
    Operation {
        name: "create and write",
        act: Act::Calls(|dir| fs::File::create_new(dir.join("a/f"))?.write_all(b"first")),
        between: &[&[("a/f", Some(""))]],
        after: &[("a/f", Some("first"))],
        ..NOTHING
    },
    Operation {
        name: "mkdir",
        act: Act::Calls(|dir| fs::create_dir(dir.join("a/d"))),
        after: &[("a/d", Some("directory"))],
        ..NOTHING
    },
    Operation {
        name: "rename",
        prepare: file,
        act: Act::Calls(|dir| rename(dir, "a/f", "a/g", REPLACE)),
        after: &[("a/f", None), ("a/g", Some("first"))],
        ..NOTHING
    },
    Operation {
        name: "rename to another directory",
        prepare: file,
        act: Act::Calls(|dir| rename(dir, "a/f", "b/g", REPLACE)),
        after: &[("a/f", None), ("b/g", Some("first"))],
        ..NOTHING
    },
    Operation {
        name: "rename over a file",
        prepare: two_files,
        act: Act::Calls(|dir| rename(dir, "a/f", "b/g", REPLACE)),
        after: &[("a/f", None), ("b/g", Some("first"))],
        ..NOTHING
    },
    Operation {
        name: "exchange",
        prepare: two_files,
        act: Act::Calls(|dir| rename(dir, "a/f", "b/g", RenameFlags::EXCHANGE)),
        after: &[("a/f", Some("second")), ("b/g", Some("first"))],
        ..NOTHING
    },
    Operation {
        name: "rename a directory",
        prepare: directory,
        act: Act::Calls(|dir| rename(dir, "a/d", "b/e", REPLACE)),
        after: &[
            ("a/d", None),
            ("a/d/f", None),
            ("b/e", Some("directory")),
            ("b/e/f", Some("first")),
        ],
        ..NOTHING
    },
    Operation {
        name: "rename a link over a link",
        prepare: two_links,
        act: Act::Calls(|dir| rename(dir, "a/l", "b/m", REPLACE)),
        after: &[("a/l", None), ("b/m", Some("-> first"))],
        half_made: &[&[("a/l", Some("-> second")), ("b/m", Some("-> first"))]],
        ..NOTHING
    },
    Operation {
        name: "link",
        prepare: file,
        act: Act::Calls(|dir| fs::hard_link(dir.join("a/f"), dir.join("b/g"))),
        after: &[("a/f", Some("first, 2 names")), ("b/g", Some("first, 2 names"))],
        ..NOTHING
    },
    Operation {
        name: "unlink",
        prepare: file,
        act: Act::Calls(|dir| fs::remove_file(dir.join("a/f"))),
        after: &[("a/f", None)],
        ..NOTHING
    },
    Operation {
        name: "unlink one of two names",
        prepare: two_names,
        act: Act::Calls(|dir| fs::remove_file(dir.join("a/f"))),
        after: &[("a/f", None), ("b/g", Some("first"))],
        ..NOTHING
    },
    Operation {
        name: "rmdir",
        prepare: |dir| fs::create_dir(dir.join("a/d")),
        act: Act::Calls(|dir| fs::remove_dir(dir.join("a/d"))),
        after: &[("a/d", None)],
        ..NOTHING
    },
    Operation {
        name: "promote from the other node",
        prepare: two_files,
        act: Act::Command(&["warm"]),
        ..NOTHING
    },
    Operation { name: "demote", prepare: two_files, act: Act::Command(&["demote"]), ..NOTHING },
    Operation {
        name: "promote from the shared disk",
        prepare: two_files,
        act: Act::Command(&["warm"]),
        ..NOTHING
    },
    Operation {
        name: "drain",
        prepare: two_files,
        act: Act::Command(&["cluster", "drain", "two"]),
        ..NOTHING
    },
];

impl Operation {
    /// Whether the node that acts is the one that prepares: what is demoted lies on its SSD.
    pub(crate) fn is_of_own_files(&self) -> bool {
        self.name == "demote"
    }

    /// Whether what is prepared goes to the shared disk first.
    pub(crate) fn begins_below(&self) -> bool {
        self.name == "promote from the shared disk"
    }
}

/// A tree with changes made.
pub(crate) fn changed(tree: &Tree, changes: Changes) -> Tree {
    let mut tree = tree.clone();
    for (path, what) in changes {
        match what {
            Some(what) => drop(tree.insert((*path).to_owned(), (*what).to_owned())),
            None => drop(tree.remove(*path)),
        }
    }
    tree
}

/// What a directory shows.
pub(crate) fn seen(dir: &Path) -> io::Result<Tree> {
    let (mut tree, mut todo) = (Tree::new(), vec![dir.to_owned()]);
    while let Some(directory) = todo.pop() {
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            let stat = fs::symlink_metadata(&path)?;
            let what = if stat.is_dir() {
                todo.push(path.clone());
                "directory".to_owned()
            } else if stat.is_symlink() {
                format!("-> {}", fs::read_link(&path)?.display())
            } else {
                let text = fs::read_to_string(&path)?;
                match stat.nlink() {
                    1 => text,
                    names => format!("{text}, {names} names"),
                }
            };
            let below = path.strip_prefix(dir).expect("it is below").display().to_string();
            tree.insert(below, what);
        }
    }
    Ok(tree)
}
