//! What a mount shows.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::ledger::{FILES, Name, PROBE, Version, WORD, word};

/// All that is below a directory; paths from there.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct MountContents {
    pub(crate) directories: BTreeSet<String>,
    files: BTreeMap<String, FoundFile>,
}

#[derive(Debug, PartialEq, Eq)]
struct FoundFile {
    inode: u64,
    links: u64,
    /// Whose file it is; one without bytes is known by its name.
    item: usize,
    words: Vec<u64>,
}

/// Which file's item a name was made for.
fn item_of_name(name: &str) -> Option<usize> {
    name.get(1..)?.split_once('.')?.0.parse().ok()
}

impl FoundFile {
    fn read(path: &Path) -> io::Result<Self> {
        let stat = fs::symlink_metadata(path)?;
        let bytes = fs::read(path)?;
        assert_eq!(bytes.len() as u64, stat.len(), "{}: its size", path.display());
        assert_eq!(bytes.len() % WORD, 0, "{}: torn", path.display());
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let words = bytes.chunks_exact(WORD).map(|word| {
            let word = word.try_into().expect("eight bytes");
            u64::from_le_bytes(word)
        });
        let words: Vec<u64> = words.collect();
        let first = words.first().and_then(|first| usize::try_from(first >> 52).ok());
        let item = match first {
            Some(item) => item.checked_sub(1),
            None => item_of_name(&name),
        };
        let item = item.unwrap_or_else(|| panic!("{}: nobody wrote this", path.display()));
        let written = words.iter().enumerate().map(|(at, found)| {
            let write = found & ((1 << 40) - 1);
            assert_eq!(*found, word(item, at, write), "{}: word {at}", path.display());
            write
        });
        Ok(Self { inode: stat.ino(), links: stat.nlink(), item, words: written.collect() })
    }
}

impl MountContents {
    /// Reads everything below a directory, but not the file [`PROBE`].
    pub(crate) fn below(root: &Path) -> io::Result<Self> {
        let (mut seen, mut todo) = (Self::default(), vec![String::new()]);
        while let Some(directory) = todo.pop() {
            for entry in fs::read_dir(root.join(&directory))? {
                let entry = entry?;
                let name = entry.file_name().into_string().expect("a name that somebody gave");
                let path = if directory.is_empty() { name } else { format!("{directory}/{name}") };
                if path == PROBE {
                    continue;
                }
                if entry.file_type()?.is_dir() {
                    todo.push(path.clone());
                    seen.directories.insert(path);
                } else {
                    let file = FoundFile::read(&root.join(&path))?;
                    seen.files.insert(path, file);
                }
            }
        }
        Ok(seen)
    }

    /// The items: files, and these of the directories. `folder_of` says which folder is at a path.
    pub(crate) fn items(
        &self,
        directories: &BTreeSet<String>,
        folder_of: impl Fn(&str) -> Option<usize>,
    ) -> BTreeMap<usize, Version> {
        let mut items: BTreeMap<usize, Version> = BTreeMap::new();
        let name = |path: &str| -> Name {
            let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
            let folder = folder_of(above).unwrap_or_else(|| panic!("{path} is in no folder"));
            (folder, name.to_owned())
        };
        for path in directories {
            let name = name(path);
            let item = item_of_name(&name.1).filter(|item| *item >= FILES);
            let item = item.unwrap_or_else(|| panic!("nobody made {path}"));
            items.entry(item).or_default().names.insert(name);
        }
        let mut inodes: BTreeMap<usize, u64> = BTreeMap::new();
        for (path, file) in &self.files {
            let first = inodes.entry(file.item).or_insert(file.inode);
            assert_eq!(*first, file.inode, "{path}: two files of one item");
            let item = items.entry(file.item).or_default();
            item.words.clone_from(&file.words);
            item.names.insert(name(path));
        }
        for (path, file) in &self.files {
            let names = items[&file.item].names.len() as u64;
            assert_eq!(file.links, names, "{path}: the count of its names");
        }
        items
    }

    /// What is on one side and not, or otherwise, on the other one.
    pub(crate) fn differences(&self, other: &Self) -> Vec<String> {
        let directories = self.directories.symmetric_difference(&other.directories).cloned();
        let files = self.files.keys().chain(other.files.keys());
        let files = files.filter(|path| self.files.get(*path) != other.files.get(*path)).cloned();
        directories.chain(files).collect()
    }
}
