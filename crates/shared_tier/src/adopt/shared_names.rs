//! What is on the shared disk before an adoption, compared with the names on the SSD.
//!
//! The tier of one node shows no directories below that its SSD does not have: they were made for files, and renamed or
//! removed on the SSD since. Empty ones do not become names of the shared tier.

use std::collections::{BTreeMap, BTreeSet};

use halocline_cluster::names::attributes::Kind;
use halocline_model::namespace::Name;
use halocline_os::error::Result;
use rustix::fs::AtFlags;

use crate::places::tree::Tree;
use crate::repair::scan::{Item, Scanned};

/// The shared disk's names.
pub(super) struct SharedNames<'a> {
    disk: &'a Scanned,
    /// For each item of the SSD, the one with the same path.
    twins: Vec<Option<usize>>,
    /// Items that stay where they are.
    stay: BTreeSet<usize>,
}

impl<'a> SharedNames<'a> {
    /// `leaves` says which files are elsewhere afterwards.
    pub(super) fn new(ssd: &Scanned, disk: &'a Scanned, leaves: impl Fn(&Item) -> bool) -> Self {
        let all = disk.items.iter().enumerate();
        let by_name: BTreeMap<(Option<usize>, &Name), usize> =
            all.map(|(at, item)| ((item.above, &item.name), at)).collect();
        let mut twins: Vec<Option<usize>> = Vec::with_capacity(ssd.items.len());
        for item in &ssd.items {
            let above = match item.above {
                None => Some(None),
                // Directories come before their contents.
                Some(above) => twins[above].map(Some),
            };
            twins.push(above.and_then(|above| by_name.get(&(above, &item.name)).copied()));
        }
        let pairs = ssd.items.iter().zip(&twins);
        let directories = pairs.filter(|(item, _)| item.attributes.kind == Kind::Directory);
        let named: BTreeSet<usize> = directories.filter_map(|(_, twin)| *twin).collect();
        let (mut stay, mut filled) = (BTreeSet::new(), BTreeSet::new());
        for (at, item) in disk.items.iter().enumerate().rev() {
            let stays = match item.attributes.kind {
                // One with a number is another node's.
                Kind::Directory => {
                    item.number.is_some() || named.contains(&at) || filled.contains(&at)
                }
                _ => !leaves(item),
            };
            if stays {
                stay.insert(at);
                filled.extend(item.above);
            }
        }
        Self { disk, twins, stay }
    }

    /// What will be in the way of an item of the SSD.
    pub(super) fn at(&self, item: usize) -> Option<&'a Item> {
        let twin = self.twins[item].filter(|twin| self.stay.contains(twin))?;
        Some(&self.disk.items[twin])
    }

    /// Removes directories that do not stay: those in which nothing is left.
    pub(super) fn remove_empty(&self, shared: &Tree) -> Result<()> {
        for (at, item) in self.disk.items.iter().enumerate().rev() {
            if item.attributes.kind != Kind::Directory || self.stay.contains(&at) {
                continue;
            }
            match shared.unlink(&self.disk.path(at), AtFlags::REMOVEDIR) {
                // One that the disk keeps becomes an empty directory of the tier.
                Err(error)
                    if matches!(
                        error.errno(),
                        libc::ENOENT | libc::ENOTEMPTY | libc::EPERM | libc::EACCES | libc::EBUSY
                    ) => {}
                removed => removed?,
            }
        }
        Ok(())
    }
}
