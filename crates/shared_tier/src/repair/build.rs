//! Writes names into a store in which nobody else changes any.

use std::collections::BTreeMap;

use halocline_cluster::names::attributes::Attributes;
use halocline_cluster::names::coding::encode_attributes;
use halocline_cluster::names::directory_entries::change_entries;
use halocline_cluster::names::{NameStore, NamesError, Result};
use halocline_model::namespace::{
    Answer, Body, Change, Entry, InodeNumber, Links, Name, Opaque, ROOT, Script,
};

use super::merge::Numbers;

/// How many names are sent at once.
const BATCH: usize = 64;

/// Writes names.
#[derive(Debug)]
pub(crate) struct Build<'a> {
    store: &'a dyn NameStore,
    waiting: BTreeMap<u64, Vec<Change>>,
    /// Directories that were made. Each name that they get changes their time, which is put right at the end.
    made: BTreeMap<u64, Opaque>,
}

fn opaque(attributes: &Attributes) -> Result<Opaque> {
    let what = "attributes that are too long for the store";
    encode_attributes(attributes).ok_or_else(|| NamesError::Unusable(what.to_owned()))
}

impl<'a> Build<'a> {
    pub(crate) const fn new(store: &'a dyn NameStore) -> Self {
        Self { store, waiting: BTreeMap::new(), made: BTreeMap::new() }
    }

    fn make(&self, shard: u64, body: Body) -> Result<()> {
        match self.store.run(InodeNumber(shard), &Script::Make(body))? {
            Answer::Done => Ok(()),
            answer => Err(NamesError::Unsound(format!("shard {shard}: {answer:?}"))),
        }
    }

    pub(crate) fn root(&mut self, attributes: &Attributes) -> Result<()> {
        self.make_directory(ROOT.0, ROOT.0, attributes)
    }

    fn make_directory(&mut self, number: u64, parent: u64, attributes: &Attributes) -> Result<()> {
        let attributes = opaque(attributes)?;
        self.make(number, Body::directory(InodeNumber(parent), attributes.clone()))?;
        self.made.insert(number, attributes);
        Ok(())
    }

    /// Adds a directory, whose parent was added before.
    pub(crate) fn directory(
        &mut self,
        number: u64,
        (parent, name): (u64, Name),
        attributes: &Attributes,
    ) -> Result<()> {
        self.make_directory(number, parent, attributes)?;
        self.name(parent, name, Entry::Directory(InodeNumber(number)))
    }

    /// Adds a file, or anything else that is no directory, with all its names.
    pub(crate) fn file(
        &mut self,
        number: u64,
        names: &[(u64, Name)],
        attributes: &Attributes,
        numbers: &mut dyn Numbers,
    ) -> Result<()> {
        let attributes = opaque(attributes)?;
        if let [(directory, name)] = names {
            return self.name(
                *directory,
                name.clone(),
                Entry::Single(InodeNumber(number), attributes),
            );
        }
        let fresh = numbers.fresh().map_err(|error| NamesError::NoAnswer(error.to_string()))?;
        let count = u32::try_from(names.len()).unwrap_or(u32::MAX);
        self.make(fresh, Body::Links(Links { count, attributes }))?;
        for (directory, name) in names {
            let entry = Entry::Linked(InodeNumber(number), InodeNumber(fresh));
            self.name(*directory, name.clone(), entry)?;
        }
        Ok(())
    }

    fn name(&mut self, directory: u64, name: Name, entry: Entry) -> Result<()> {
        let waiting = self.waiting.entry(directory).or_default();
        waiting.push(Change::Name(name, None, Some(entry)));
        if waiting.len() >= BATCH {
            let changes = std::mem::take(waiting);
            self.send(directory, changes)?;
        }
        Ok(())
    }

    fn send(&self, directory: u64, changes: Vec<Change>) -> Result<()> {
        change_entries(self.store, InodeNumber(directory), changes)
    }

    /// Writes the rest.
    pub(crate) fn end(mut self) -> Result<()> {
        for (directory, mut changes) in std::mem::take(&mut self.waiting) {
            if let Some(of) = self.made.remove(&directory) {
                let (from, to) = (of.clone(), of);
                changes.push(Change::Attributes { from, to, sets_changed: true });
            }
            if !changes.is_empty() {
                self.send(directory, changes)?;
            }
        }
        Ok(())
    }
}
