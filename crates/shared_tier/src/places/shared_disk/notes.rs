//! Notes of renames of directories: where each directory may be on the disk meanwhile.
//!
//! A note is a symbolic link in `.halocline/renaming` that leads nowhere. Its name is `NUMBER.RANDOM.NODE`, so that
//! nobody else removes the notes of a rename; its target, `/DIRECTORY/NAME/DIRECTORY/NAME`, gives directories by
//! number, because they are renamed, too.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use halocline_cluster::names::attributes::RelativePath;
use halocline_model::namespace::Name;
use halocline_os::error::Result;
use halocline_os::private::PrivateDir;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, readlinkat, symlinkat, unlinkat};
use rustix::io::Errno;

use crate::places::tree::Tree;

/// A name in the directory with a number.
pub(crate) type Position = (u64, Name);

/// The most positions of one note.
const POSITIONS_MAX: usize = 2;

/// Names of this process's notes that are in use.
type InUse = Arc<Mutex<BTreeSet<String>>>;

/// The notes of one rename. Dropped without [`Notes::end`], they stay on the disk for an unfinished rename.
#[derive(Debug)]
pub(crate) struct RenameNotes {
    number: u64,
    names: Vec<String>,
    in_use: InUse,
}

impl RenameNotes {
    /// The number of the directory that is renamed.
    #[must_use]
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for RenameNotes {
    fn drop(&mut self) {
        let mut in_use = self.in_use.lock();
        in_use.retain(|name| !self.names.contains(name));
    }
}

/// The directory with the notes.
#[derive(Debug)]
pub(super) struct Notes {
    dir: PrivateDir,
    node: String,
    in_use: InUse,
}

impl Notes {
    pub(super) fn new(tree: &Tree, node: &str) -> Result<Self> {
        let dir = tree.private.sub("renaming")?;
        Ok(Self { dir, node: node.to_owned(), in_use: Arc::default() })
    }

    /// Begins notes of a directory.
    pub(super) fn begin(&self, number: u64) -> RenameNotes {
        RenameNotes { number, names: Vec::new(), in_use: Arc::clone(&self.in_use) }
    }

    /// Notes where the directory may be.
    pub(super) fn add(
        &self,
        tree: &Tree,
        notes: &mut RenameNotes,
        positions: &[Position],
    ) -> Result<()> {
        debug_assert!(positions.len() <= POSITIONS_MAX);
        let name = format!(
            "{}.{:x}.{}",
            notes.number,
            RandomState::new().hash_one(notes.number),
            self.node
        );
        self.in_use.lock().insert(name.clone());
        notes.names.push(name.clone());
        tree.step("noting where a directory is", || symlinkat(target(positions), &self.dir, &name))
    }

    /// Removes the notes: the disk has the directory where the store has it.
    pub(super) fn end(&self, tree: &Tree, notes: &RenameNotes) -> Result<()> {
        notes.names.iter().try_for_each(|name| self.remove(tree, name))
    }

    pub(super) fn remove(&self, tree: &Tree, name: &str) -> Result<()> {
        let remove = || unlinkat(&self.dir, name, AtFlags::empty());
        match tree.step("forgetting where a directory was", remove) {
            Err(error) if error.errno() == libc::ENOENT => Ok(()),
            other => other,
        }
    }

    /// All notes that exist now, of all nodes.
    pub(super) fn all(&self) -> Result<Noted<'_>> {
        let read = |name: OsString| {
            let number = name.to_str()?.split('.').next()?.parse().ok()?;
            Some((number, name))
        };
        Ok(Noted {
            dir: &self.dir,
            names: self.dir.names()?.into_iter().filter_map(read).collect(),
        })
    }

    /// This node's notes of renames that are not under way: the directories, and the names of the notes.
    pub(super) fn left(&self) -> Result<Vec<(u64, String)>> {
        let all = self.all()?;
        let in_use = self.in_use.lock();
        let own = all.names.into_iter().filter_map(|(number, name)| {
            let name = name.into_string().ok()?;
            let node = name.splitn(3, '.').nth(2)?;
            (node == self.node && !in_use.contains(&name)).then(|| (number, name.clone()))
        });
        Ok(own.collect())
    }
}

/// The notes that existed at some moment.
pub(super) struct Noted<'a> {
    dir: &'a PrivateDir,
    names: Vec<(u64, OsString)>,
}

impl Noted<'_> {
    /// Where a directory may be.
    pub(super) fn positions(&self, number: u64) -> Result<Vec<Position>> {
        let mut positions = Vec::new();
        for (_, name) in self.names.iter().filter(|(of, _)| *of == number) {
            match readlinkat(self.dir, name, Vec::new()) {
                Ok(target) => positions.extend(read(target.as_bytes())),
                // It was removed, or is no link.
                Err(Errno::NOENT | Errno::INVAL) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(positions)
    }
}

/// The target of a note of these positions.
pub(super) fn target(positions: &[Position]) -> Vec<u8> {
    let position = |(directory, name): &Position| {
        [b"/", directory.to_string().as_bytes(), b"/", name.as_bytes()].concat()
    };
    positions.iter().flat_map(position).collect()
}

/// The positions in a note; those that no node can have written are left out.
pub(super) fn read(target: &[u8]) -> Vec<Position> {
    let parts: Vec<&[u8]> = target.split(|byte| *byte == b'/').skip(1).collect();
    let (pairs, _) = parts.as_chunks::<2>();
    let position = |[directory, name]: &[&[u8]; 2]| {
        let directory = std::str::from_utf8(directory).ok()?.parse().ok()?;
        RelativePath::new(name).map(|_| (directory, Name::from(*name)))
    };
    pairs.iter().take(POSITIONS_MAX).filter_map(position).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_node_wrote_is_no_position() {
        let name = |name: &str| Name::from(name);
        assert_eq!(read(b"/1/a/27/b c"), [(1, name("a")), (27, name("b c"))]);
        assert_eq!(read(b"/1/a/27"), [(1, name("a"))]);
        assert_eq!(read(b"/1/a/2/b/3/c").len(), POSITIONS_MAX);
        for wrong in [&b""[..], b"a/b", b"/x/a", b"/1/..", b"/1/.", b"/1//2/", b"/-1/a", b"1/a"] {
            assert_eq!(read(wrong), [], "{}", wrong.escape_ascii());
        }
    }
}
