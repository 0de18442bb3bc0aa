//! What the first server notes of the tree: which directory it was when the objects were bound to its files, and whether files
//! of it are attested.
//!
//! The label has the tree's inode number alone, and the root of a file system has the same one in each copy; a birth time
//! nobody can choose. Earlier versions neither read nor write this file: what must hold is that a volume without it is used as
//! they do, and that a note about another inode number than the label's says nothing.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

use halocline_os::birth_time::born_ns_of;
use halocline_os::bounded;
use halocline_os::error::{Error, Result};
use halocline_os::private::PrivateDir;

/// Its name in the directory of the first server.
const NAME: &str = "halocline-tree";

/// The word behind the numbers where files are attested.
const ATTESTED: &str = "attested";

/// Whether the note, or what an interrupted write of one left, has this name.
pub(super) fn is_record(name: &str) -> bool {
    name.strip_prefix(NAME).is_some_and(|rest| rest.is_empty() || rest == ".new")
}

/// A directory with the names of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TreeRecord {
    pub(super) inode: u64,
    /// Its birth time, in nanoseconds since 1970; 0 if the file system tells none.
    born_ns: u64,
    /// Whether each file whose object has data says so in an attribute that only root sets, as far as root made it.
    pub(super) is_attested: bool,
}

impl TreeRecord {
    /// What is to be noted of `tree`.
    pub(super) fn of(tree: &File, is_attested: bool) -> io::Result<Self> {
        let (inode, born_ns) = (tree.metadata()?.ino(), born_ns_of(tree)?);
        Ok(Self { inode, born_ns, is_attested })
    }

    /// What is noted on the first server, whose directory is `first`; `None` by earlier versions.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is nothing that this version writes.
    pub(super) fn read(first: &PrivateDir) -> Result<Option<Self>> {
        let Some(found) = first.read(NAME, bounded::SMALL_FILE_BYTES_MAX)? else { return Ok(None) };
        Self::parse(&found).map(Some).ok_or_else(|| {
            let path = first.path().join(NAME);
            Error::invalid(
                format!("{}: not what this version of Halocline writes there", path.display()),
                "use a newer version, or restore the file from a backup: docs/FORMAT.md shows what it holds",
            )
        })
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let line = std::str::from_utf8(bytes).ok()?.strip_suffix('\n')?;
        let mut words = line.split(' ');
        let mut number = || words.next()?.parse().ok();
        let (inode, born_ns) = (number()?, number()?);
        let is_attested = match words.next() {
            None => false,
            Some(word) if word == ATTESTED && words.next().is_none() => true,
            Some(_) => return None,
        };
        let found = Self { inode, born_ns, is_attested };
        (found.line().as_bytes() == bytes).then_some(found)
    }

    fn line(self) -> String {
        let attested = if self.is_attested { format!(" {ATTESTED}") } else { String::new() };
        format!("{} {}{attested}\n", self.inode, self.born_ns)
    }

    /// Notes it on the first server, durably.
    pub(super) fn write(self, first: &PrivateDir) -> Result<()> {
        first.replace(NAME, self.line().as_bytes())
    }

    /// The same with the birth time that was `noted` of it, if none is told now: another node's file system may tell it.
    pub(super) fn with_what_was(self, noted: Option<Self>) -> Self {
        let known = noted.filter(|noted| noted.inode == self.inode && self.born_ns == 0);
        Self { born_ns: known.map_or(self.born_ns, |noted| noted.born_ns), ..self }
    }

    /// Whether the directory that was noted is another one than `now`, though both have the same inode number.
    pub(super) fn is_copied_to(self, now: Self) -> bool {
        let are_known = self.born_ns != 0 && now.born_ns != 0;
        self.inode == now.inode && are_known && self.born_ns != now.born_ns
    }
}

/// Notes in directories that others may write: body of a fuzz target (`crate::fuzzing`).
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing {
    use super::TreeRecord;

    /// A note: it is the same when it is written again.
    pub(crate) fn tree_record(bytes: &[u8]) {
        let found = TreeRecord::parse(bytes);
        assert!(found.is_none_or(|found| found.line().as_bytes() == bytes));
    }

    /// Seeds of [`tree_record`].
    #[cfg(test)]
    pub(crate) fn seeds() -> [(&'static str, Vec<u8>); 2] {
        let tree = |is_attested| TreeRecord { inode: 131, born_ns: 1 << 60, is_attested };
        [("tree", tree(false)), ("tree-attested", tree(true))]
            .map(|(name, tree)| (name, tree.line().into_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        for is_attested in [false, true] {
            let record = TreeRecord { inode: 2, born_ns: 1_764_000_000_123_456_789, is_attested };
            assert_eq!(TreeRecord::parse(record.line().as_bytes()), Some(record));
        }
        for other in [
            "",
            "2\n",
            "2 3",
            "2  3\n",
            "+2 3\n",
            "02 3\n",
            "2 3 \n",
            "2 3 sure\n",
            "2 3 attested x\n",
        ] {
            assert_eq!(TreeRecord::parse(other.as_bytes()), None, "{other:?}");
        }
    }

    #[test]
    fn a_tree_of_which_less_is_known_is_the_same() {
        let tree = |inode, born_ns| TreeRecord { inode, born_ns, is_attested: true };
        assert!(tree(2, 7).is_copied_to(tree(2, 8)));
        for (noted, now) in [((2, 7), (2, 7)), ((2, 0), (2, 8)), ((2, 7), (2, 0)), ((3, 7), (2, 8))]
        {
            let kept = tree(now.0, now.1).with_what_was(Some(tree(noted.0, noted.1)));
            assert_eq!(kept, tree(now.0, if now.1 == 0 { noted.1 } else { now.1 }));
            assert!(!tree(noted.0, noted.1).is_copied_to(tree(now.0, now.1)), "{noted:?} {now:?}");
        }
    }
}
