//! The files a cache knows: by identity, by origin identity and by path.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use super::{FileId, FileRecord, OriginKey, Stamp};

/// The files a cache knows.
#[derive(Debug, Default)]
pub(super) struct Names {
    files: BTreeMap<FileId, FileRecord>,
    by_key: HashMap<OriginKey, FileId>,
    by_path: BTreeSet<(PathBuf, FileId)>,
    next: u64,
}

impl Names {
    /// No files; identities start at `next`.
    pub(super) fn starting_at(next: u64) -> Self {
        Self { next, ..Self::default() }
    }

    /// The identity the next new file gets. Identities are never reused.
    pub(super) fn next(&self) -> FileId {
        FileId(self.next)
    }

    /// Adds or replaces a record.
    pub(super) fn put(&mut self, record: FileRecord) {
        self.next = self.next.max(record.id.0 + 1);
        self.remove(record.id);
        self.by_key.insert(record.key, record.id);
        self.by_path.insert((record.path.clone(), record.id));
        self.files.insert(record.id, record);
    }

    /// Removes a record.
    pub(super) fn remove(&mut self, file: FileId) {
        if let Some(old) = self.files.remove(&file) {
            if self.by_key.get(&old.key) == Some(&file) {
                self.by_key.remove(&old.key);
            }
            self.by_path.remove(&(old.path, file));
        }
    }

    /// Sets a file's stamp.
    pub(super) fn stamp(&mut self, file: FileId, stamp: Stamp) {
        if let Some(record) = self.files.get_mut(&file) {
            record.stamp = stamp;
        }
    }

    /// One file.
    pub(super) fn get(&self, file: FileId) -> Option<&FileRecord> {
        self.files.get(&file)
    }

    /// The file with an origin identity.
    pub(super) fn find(&self, key: OriginKey) -> Option<FileId> {
        self.by_key.get(&key).copied()
    }

    /// All files.
    pub(super) fn all(&self) -> impl Iterator<Item = &FileRecord> {
        self.files.values()
    }

    /// The records that a rename of `from`, and of all below it, to `to` changes, as they are
    /// afterwards.
    pub(super) fn renamed(&self, from: &Path, to: &Path) -> Vec<FileRecord> {
        let below = self.by_path.range((from.to_owned(), FileId(0))..);
        let below = below.take_while(|(path, _)| path.starts_with(from));
        below
            .filter_map(|(path, id)| {
                let rest = path.strip_prefix(from).ok()?;
                // Joining an empty rest would add a slash.
                let path = if rest.as_os_str().is_empty() { to.to_owned() } else { to.join(rest) };
                Some(FileRecord { path, ..self.files.get(id)?.clone() })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(paths: &[&str]) -> Names {
        let mut names = Names::starting_at(1);
        for path in paths {
            let id = names.next();
            let key = OriginKey { inode: id.0 * 10, born_ns: 0 };
            names.put(FileRecord { id, key, path: path.into(), stamp: Stamp::Writing });
        }
        names
    }

    #[test]
    fn a_directory_takes_what_is_below_it_and_nothing_that_only_begins_like_it() {
        let names = names(&["a", "a/b", "a/b/c", "a.b", "ab/c", "b"]);
        let mut renamed: Vec<_> =
            names.renamed(Path::new("a"), Path::new("x/y")).into_iter().map(|r| r.path).collect();
        renamed.sort();
        assert_eq!(renamed, ["x/y", "x/y/b", "x/y/b/c"].map(PathBuf::from));
    }

    #[test]
    fn a_reused_origin_identity_belongs_to_its_newest_file() {
        let mut names = names(&["a", "b"]);
        let mut again = names.get(FileId(2)).unwrap().clone();
        again.key = names.get(FileId(1)).unwrap().key;
        let key = again.key;
        names.put(again);
        names.remove(FileId(1));
        assert_eq!(names.find(key), Some(FileId(2)));
        assert_eq!(names.next(), FileId(3));
    }
}
