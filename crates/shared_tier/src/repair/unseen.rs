//! What a check cannot read: directories and files whose modes keep their owner out, on disks of an ordinary user. A mount
//! and a repair let themselves in; a check changes nothing.
//!
//! What must hold: all that is told of it is that it was not read. So the check takes it to be as a sound store has it, unless
//! what the store has there is found somewhere else on that disk.

use std::collections::{BTreeMap, BTreeSet};

use halocline_cluster::names::attributes::{Attributes, Kind};
use halocline_model::namespace::{Name, ROOT};

use super::disks::{Disk, Disks};
use super::scan::{Item, Scanned};
use super::view::{StoredFile, View};
use crate::places::tree::candidates;

/// A place of a file: node, number of the directory at which the path begins, path.
type Place<'v> = (Option<&'v str>, u64, &'v [u8]);

/// Device number of what was not read; together with its number it is unlike that of all that was.
const NO_DEVICE: u64 = u64::MAX;

/// Fills in what was not read of the disks.
pub(super) fn assume(disks: &mut Disks, view: &View) {
    let is_unseen = |scanned: &Scanned| {
        !scanned.unlisted.is_empty() || scanned.items.iter().any(|item| item.is_closed)
    };
    if !disks.all.iter().any(|disk| is_unseen(&disk.scanned)) {
        return;
    }
    let stored = Stored::of(view);
    for disk in &mut disks.all {
        let Disk { node, scanned, several, .. } = disk;
        let claimed = scanned.items.iter().filter_map(|item| item.number).collect();
        let node = node.as_deref();
        let mut assumed = Assumed { stored: &stored, node, several, scanned, claimed };
        assumed.closed();
        let unlisted = assumed.scanned.unlisted.clone();
        for at in unlisted {
            match node {
                None => assumed.on_shared_disk(at),
                Some(_) => assumed.on_ssd(at),
            }
        }
        scanned.forget_numbered();
    }
}

/// The store's names by where they are.
struct Stored<'v> {
    view: &'v View,
    /// Directories by their parents and by all that they may be called on a disk.
    shown: BTreeMap<(u64, Name), u64>,
    /// Directories by their parents.
    below: BTreeMap<u64, Vec<(u64, &'v Name)>>,
    files: BTreeMap<Place<'v>, (u64, &'v StoredFile)>,
}

impl<'v> Stored<'v> {
    fn of(view: &'v View) -> Self {
        let (mut shown, mut below) = (BTreeMap::new(), BTreeMap::<_, Vec<_>>::new());
        for (number, (parent, name)) in &view.directories {
            for called in candidates(name, *number) {
                shown.insert((*parent, called), *number);
            }
            below.entry(*parent).or_default().push((*number, name));
        }
        // A directory's own name comes before one that another would have beside it.
        shown.extend(view.directories.iter().map(|(number, place)| (place.clone(), *number)));
        let files = view.files.iter().filter_map(|(number, file)| {
            let place = file.attributes.location.as_ref()?;
            let at = (place.node.as_deref(), place.base, place.path.as_bytes());
            Some((at, (*number, file)))
        });
        Self { view, shown, below, files: files.collect() }
    }
}

/// One disk, and what is filled in there.
struct Assumed<'a, 'v> {
    stored: &'a Stored<'v>,
    node: Option<&'a str>,
    several: &'a BTreeMap<u64, (u64, u64)>,
    scanned: &'a mut Scanned,
    /// Numbers that something on the disk has.
    claimed: BTreeSet<u64>,
}

impl<'v> Assumed<'_, 'v> {
    /// The number of a directory on the disk.
    fn number(&self, at: Option<usize>) -> Option<u64> {
        at.map_or(Some(ROOT.0), |at| self.scanned.items[at].number)
    }

    /// The number of a directory of the store, by what the disk shows.
    fn directory(&self, above: Option<usize>, shown: &Name) -> Option<u64> {
        let parent = self.number(above)?;
        self.stored.shown.get(&(parent, shown.clone())).copied()
    }

    /// Gives what was found, but does not let this process read its attributes, those that the store has at its place.
    fn closed(&mut self) {
        for at in 0..self.scanned.items.len() {
            let Item { above, name, attributes, is_closed, .. } = &self.scanned.items[at];
            if !is_closed {
                continue;
            }
            if attributes.kind == Kind::Directory {
                let number = self.directory(*above, name);
                if let Some(number) = number.filter(|number| self.claimed.insert(*number)) {
                    let item = &mut self.scanned.items[at];
                    item.number = Some(number);
                    if let Some(stored) = self.stored.view.directory_attributes.get(&number) {
                        add_unread(&mut item.attributes, stored);
                    }
                }
            } else if let Some((number, file)) = self.file_at(at)
                && self.claimed.insert(number)
            {
                let item = &mut self.scanned.items[at];
                item.number = Some(number);
                add_unread(&mut item.attributes, &file.attributes);
                list(item, file);
            }
        }
    }

    /// The file that the store has where an item is.
    fn file_at(&self, at: usize) -> Option<(u64, &'v StoredFile)> {
        let item = &self.scanned.items[at];
        let (base, path) = match self.node {
            None => (self.number(item.above)?, item.name.as_bytes().to_vec()),
            Some(_) => (ROOT.0, self.scanned.path(at).as_bytes().to_vec()),
        };
        self.stored.files.get(&(self.node, base, &*path)).map(|(number, file)| (*number, *file))
    }

    fn push(&mut self, name: &Name, above: Option<usize>, number: u64, of: &Attributes) -> usize {
        let mut attributes = of.clone();
        (attributes.location, attributes.writer, attributes.copy) = (None, None, None);
        let is_other = !matches!(of.kind, Kind::Directory | Kind::File);
        let known = self.several.get(&number).filter(|_| is_other);
        self.scanned.items.push(Item {
            name: name.clone(),
            above,
            attributes,
            key: known.copied().unwrap_or((NO_DEVICE, number)),
            number: (!is_other).then_some(number),
            names: Vec::new(),
            leaving: None,
            copied: None,
            is_only_copied: false,
            arriving: None,
            from: None,
            renaming: None,
            dated: None,
            directory_name: None,
            is_closed: false,
            has_long_list: false,
        });
        self.scanned.items.len() - 1
    }

    fn push_file(&mut self, name: &Name, above: Option<usize>, (number, file): (u64, &StoredFile)) {
        if !self.claimed.insert(number) {
            return;
        }
        let at = self.push(name, above, number, &file.attributes);
        list(&mut self.scanned.items[at], file);
    }

    /// All that the store has below a directory of the shared disk.
    fn on_shared_disk(&mut self, directory: Option<usize>) {
        let stored = self.stored;
        let mut todo: Vec<(Option<usize>, u64)> =
            self.number(directory).map(|number| (directory, number)).into_iter().collect();
        while let Some((above, number)) = todo.pop() {
            for (child, name) in stored.below.get(&number).into_iter().flatten() {
                let of = stored.view.directory_attributes.get(child);
                if let Some(of) = of.filter(|_| self.claimed.insert(*child)) {
                    todo.push((Some(self.push(name, above, *child, of)), *child));
                }
            }
            let files = stored.files.range((None, number, &[][..])..);
            for ((_, _, path), file) in
                files.take_while(|((node, base, _), _)| (*node, *base) == (None, number))
            {
                self.push_file(&Name::from(*path), above, *file);
            }
            let others = stored.view.others.range((number, Name::from(&[][..]))..);
            for ((_, name), (other, of)) in others.take_while(|((above, _), _)| *above == number) {
                self.push(name, above, *other, of);
            }
        }
    }

    /// All files that the store has below a directory of an SSD, and the directories on the way.
    fn on_ssd(&mut self, directory: Option<usize>) {
        let (stored, node) = (self.stored, self.node);
        let path = directory.map(|at| self.scanned.path(at));
        let begin = path.map_or_else(Vec::new, |path| [path.as_bytes(), b"/"].concat());
        let mut ways: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
        let files = stored.files.range((node, ROOT.0, &*begin)..);
        let files = files.take_while(|((of, base, path), _)| {
            (*of, *base) == (node, ROOT.0) && path.starts_with(&begin)
        });
        for ((_, _, path), (number, file)) in files {
            // Of a directory that has other names there than in the store, any number will do: its files list their names.
            let any = file.names[0].0;
            if let Some(at) = directory.filter(|at| self.scanned.items[*at].is_closed) {
                self.scanned.items[at].number.get_or_insert(any);
            }
            let (mut above, mut way) = (directory, begin.clone());
            let mut names: Vec<&[u8]> = path[begin.len()..].split(|byte| *byte == b'/').collect();
            let Some(last) = names.pop() else { continue };
            for name in names {
                way.extend_from_slice(name);
                way.push(b'/');
                let known = ways.get(&way).copied();
                let at = known.unwrap_or_else(|| self.directory_on_the_way(name, above, any));
                ways.insert(way.clone(), at);
                above = Some(at);
            }
            self.push_file(&Name::from(last), above, (*number, file));
        }
    }

    /// A directory of an SSD above a file; `any` is its number if the store has none of that name there.
    fn directory_on_the_way(&mut self, name: &[u8], above: Option<usize>, any: u64) -> usize {
        let name = Name::from(name);
        let number = self.directory(above, &name).unwrap_or(any);
        let of = self.stored.view.directory_attributes.get(&number).cloned();
        let of = of.unwrap_or_else(|| Attributes::new(Kind::Directory, 0, 0));
        self.push(&name, above, number, &of)
    }
}

/// Adds what cannot be read where the mode forbids it: attributes that users set.
fn add_unread(attributes: &mut Attributes, stored: &Attributes) {
    let unread = stored.xattrs.iter().filter(|(name, _)| name.starts_with(b"user."));
    attributes.xattrs.extend(unread.map(|(name, value)| (name.clone(), value.clone())));
}

/// Has an item list what a file lists: its names, and the number of its last clean copy.
fn list(item: &mut Item, file: &StoredFile) {
    item.names.clone_from(&file.names);
    item.names.sort();
    item.copied = file.attributes.copy.map(|copy| copy.number);
    (item.leaving, item.is_only_copied) = (item.copied, item.copied.is_some());
}

#[cfg(test)]
mod tests;
