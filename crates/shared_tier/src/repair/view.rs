//! All names in the store.

use std::collections::{BTreeMap, BTreeSet};

use halocline_cluster::names::attributes::{Attributes, Kind, Location};
use halocline_cluster::names::coding::decode_attributes;
use halocline_cluster::names::directory_entries::each_entry;
use halocline_cluster::names::{NameStore, Result};
use halocline_model::namespace::{Answer, Entry, InodeNumber, Name, Opaque, ROOT, Script, Slot};
use halocline_os::shown_name::shown_name;

use super::findings::About;
use super::scan::shown;
use crate::places::DirectoryStep;
use crate::places::tree::candidates;

/// A file in the store.
#[derive(Debug)]
pub(crate) struct StoredFile {
    pub(crate) attributes: Attributes,
    /// One of its names.
    pub(crate) directory: u64,
    pub(crate) name: Name,
    /// All of them.
    pub(crate) names: Vec<(u64, Name)>,
}

/// All names in the store.
#[derive(Debug, Default)]
pub(crate) struct View {
    /// Each directory, except the root, with its parent and its name there.
    pub(crate) directories: BTreeMap<u64, (u64, Name)>,
    /// The attributes of all directories, also of the root.
    pub(crate) directory_attributes: BTreeMap<u64, Attributes>,
    pub(crate) files: BTreeMap<u64, StoredFile>,
    pub(crate) names: BTreeSet<(u64, Name)>,
    /// Links and special files by their names, with number and attributes.
    pub(crate) others: BTreeMap<(u64, Name), (u64, Attributes)>,
}

impl View {
    /// The steps from the root to a directory.
    pub(super) fn steps(&self, mut number: u64) -> Vec<DirectoryStep> {
        let mut steps = Vec::new();
        while let Some((parent, name)) = self.directories.get(&number) {
            steps.push(DirectoryStep { number, name: name.clone() });
            number = *parent;
            if number == ROOT.0 || steps.len() > self.directories.len() {
                break;
            }
        }
        steps.reverse();
        steps
    }

    /// Whether the store has the directory with a number in this parent, where the disk shows it under a name: its own, or
    /// the one beside it if something else is there.
    pub(super) fn has_directory_at(&self, number: u64, parent: u64, shown: &Name) -> bool {
        self.directories.get(&number).is_some_and(|(stored, name)| {
            *stored == parent && candidates(name, number).contains(shown)
        })
    }

    /// What a finding about a file or directory with this number is about.
    pub(super) fn about(&self, number: u64) -> About {
        let of = self.files.get(&number).map(|file| &file.attributes);
        let of = of.or_else(|| self.directory_attributes.get(&number));
        About::Numbered(number, of.map_or(0, |of| of.ctime_ns))
    }

    /// Reads the store.
    pub(crate) fn read(store: &dyn NameStore) -> Result<Self> {
        let mut view = Self::default();
        let mut todo = vec![ROOT.0];
        while let Some(directory) = todo.pop() {
            let attributes = Script::Read(Slot::Attributes);
            if let Answer::Attributes(value, _) = store.run(InodeNumber(directory), &attributes)? {
                view.directory_attributes.insert(directory, decode_attributes(&value)?);
            }
            each_entry(store, InodeNumber(directory), &mut |name, entry| {
                view.names.insert((directory, name.clone()));
                match entry {
                    Entry::Directory(inode) => {
                        let new = view.directories.insert(inode.0, (directory, name));
                        if new.is_none() && inode != ROOT {
                            todo.push(inode.0);
                        }
                    }
                    Entry::Single(inode, attributes) => {
                        view.file(inode, &attributes, directory, name)?;
                    }
                    Entry::Linked(inode, shard) => {
                        let read = store.run(shard, &Script::Read(Slot::Whole))?;
                        if let Answer::Links(links) = read {
                            view.file(inode, &links.attributes, directory, name)?;
                        }
                    }
                }
                Ok(())
            })?;
        }
        Ok(view)
    }

    fn file(
        &mut self,
        inode: InodeNumber,
        attributes: &Opaque,
        directory: u64,
        name: Name,
    ) -> Result<()> {
        let attributes = decode_attributes(attributes)?;
        if attributes.kind == Kind::File {
            let names = vec![(directory, name.clone())];
            let new = StoredFile { attributes, directory, name: name.clone(), names };
            self.files
                .entry(inode.0)
                .and_modify(|known| known.names.push((directory, name)))
                .or_insert(new);
        } else if attributes.kind != Kind::Directory {
            self.others.insert((directory, name), (inode.0, attributes));
        }
        Ok(())
    }

    /// The path of a directory, for people, with a `/` behind it; empty for the root. `None` if it has no name.
    pub(super) fn directory_path(&self, directory: u64) -> Option<String> {
        if directory == ROOT.0 {
            return Some(String::new());
        }
        let (above, name) = self.directories.get(&directory)?;
        Some(self.path(*above, name) + "/")
    }

    /// A place, for people.
    pub(super) fn place(&self, place: &Location) -> String {
        let Location { node, base, path, .. } = place;
        if let Some(node) = node {
            return format!("on the SSD of node {node} at {path}");
        }
        self.directory_path(*base).map_or_else(
            || format!("on the shared disk as {path}, in a directory that has no name any more (number {base})"),
            |above| format!("on the shared disk at {above}{path}"),
        )
    }

    /// The path of a name, for people.
    pub(crate) fn path(&self, directory: u64, name: &Name) -> String {
        let above = |number| self.directories.get(&number).map(|(above, name)| (*above, name));
        path(&above, self.directories.len(), (directory, name))
    }
}

/// The path of a name, for people, in a tree of so many directories at most. `above` has the place of each.
pub(super) fn path<'a>(
    above: &dyn Fn(u64) -> Option<(u64, &'a Name)>,
    most: usize,
    (mut directory, name): (u64, &Name),
) -> String {
    let mut names = vec![shown_name(name.as_bytes())];
    while let Some((parent, name)) = above(directory) {
        names.push(shown_name(name.as_bytes()));
        directory = parent;
        // Forged names in the store may form a cycle.
        if names.len() > most + 1 {
            break;
        }
    }
    names.reverse();
    shown(&names.join("/"))
}

/// The positions of those that are so.
pub(super) fn positions<T>(all: &[T], is: impl Fn(&T) -> bool) -> Vec<usize> {
    all.iter().enumerate().filter(|(_, one)| is(one)).map(|(at, _)| at).collect()
}
