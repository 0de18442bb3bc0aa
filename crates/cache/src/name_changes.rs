//! Changes of names on the origin; the cache's records follow.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bon::Builder;

use crate::degraded_mode::Relief;
use crate::extent::file::WHOLE;
use crate::extent::store::ExtentStore;
use crate::extent::table::FileTable;
use crate::flush::Sweeper;
use crate::known_files::KnownFiles;
use crate::lifecycle::Lifecycle;
use crate::mappings::Mappings;
use crate::origin_access::OriginAccess;
use crate::origin_space::OriginSpace;
use crate::own_changes::OwnChanges;
use crate::path_lookup::origin_key;
use crate::permits::Permits;
use halocline_meta::OriginKey;
use halocline_os::error::Result;
use halocline_vfs::namespace::{Namespace, Node, Removed};
use halocline_vfs::{Make, Maker, Stat};

/// Changes names.
#[derive(Debug, Builder)]
pub(crate) struct NameChanges {
    namespace: Arc<Namespace>,
    origin: Arc<OriginAccess>,
    store: Arc<ExtentStore>,
    files: Arc<FileTable>,
    mappings: Arc<Mappings>,
    own: Arc<OwnChanges>,
    permits: Arc<Permits>,
    known: Arc<KnownFiles>,
    space: Arc<OriginSpace>,
    relief: Arc<Relief>,
    sweeper: Arc<Sweeper>,
    lifecycle: Arc<Lifecycle>,
}

impl NameChanges {
    /// Makes a directory entry other than a regular file that is to be opened.
    pub(crate) fn make(
        &self,
        place: (&Node, &OsStr),
        what: Make<'_>,
        by: Maker,
    ) -> Result<(Node, Stat)> {
        let _space = self.space.take_name(0)?;
        self.namespace.make(place, what, by)
    }

    /// Gives a file one more name; returns its attributes afterwards.
    pub(crate) fn link(&self, node: &Node, parent: &Node, name: &OsStr) -> Result<Stat> {
        let _space = self.space.take_name(0)?;
        let _naming = self.own.name_change();
        let stat = self.namespace.link(node, parent, name)?;
        self.lifecycle.restamp(node)?;
        Ok(stat)
    }

    /// Removes a name.
    pub(crate) fn unlink(&self, parent: &Node, name: &OsStr) -> Result<()> {
        self.take_from_others(parent, name)?;
        self.before_name_goes(parent, name)?;
        let _naming = self.own.name_change();
        let removed = self.namespace.unlink(parent, name)?;
        self.name_gone(parent, &removed)
    }

    /// Renames as `renameat2(2)` does.
    pub(crate) fn rename(
        &self,
        from: (&Node, &OsStr),
        to: (&Node, &OsStr),
        flags: u32,
    ) -> Result<()> {
        self.take_from_others(to.0, to.1)?;
        self.before_name_goes(to.0, to.1)?;
        let paths = (self.path_under(from.0, from.1), self.path_under(to.0, to.1));
        let _naming = self.own.name_change();
        let replaced = self.namespace.rename(from, to, flags)?;
        if let Some(replaced) = &replaced {
            self.name_gone(to.0, replaced)?;
        }
        let dmt = &self.store.dmt;
        if flags & libc::RENAME_EXCHANGE != 0 {
            self.mappings.advisory(dmt.exchange(&paths.0, &paths.1))?;
            self.restamp_name(from.0, from.1)?;
        } else {
            self.mappings.advisory(dmt.rename(&paths.0, &paths.1))?;
        }
        self.restamp_name(to.0, to.1)
    }

    /// Does what is needed for a regular file that lost a name in `parent`.
    fn name_gone(&self, parent: &Node, removed: &Removed) -> Result<()> {
        if !is_regular(&removed.stat) {
            return Ok(());
        }
        let key = origin_key(&removed.stat);
        let file = self.files.by_key(key);
        if !removed.last {
            self.restamp_other_name(key, removed);
            return Ok(());
        }
        // If the name reappears after a power loss, it must have the bytes that were fsynced (I4).
        if let Some(id) = self.store.dmt.find(key)
            && self.store.dmt.promised(id, WHOLE)
        {
            self.namespace.open_dir(parent)?.sync()?;
        }
        if let Some(file) = file {
            file.unlinked.store(true, Ordering::SeqCst);
            if file.is_open() {
                return Ok(());
            }
            let forgotten = match file.id() {
                Some(id) => self.relief.relieved(|| self.lifecycle.forget_file(&file, id)),
                None => self.lifecycle.forget_data(&file),
            };
            self.known.forget_idle(&file);
            return forgotten;
        }
        self.lifecycle.forget_key(key, removed)
    }

    /// Before a name of a file is removed that other nodes may have cached: makes them flush their dirty bytes of it.
    fn take_from_others(&self, parent: &Node, name: &OsStr) -> Result<()> {
        if !self.permits.are_needed() {
            return Ok(());
        }
        match self.namespace.lookup(parent, name) {
            Ok((node, stat)) if is_regular(&stat) => {
                let file = self.known.file_of(&node)?;
                self.permits.to_resize(&file, 0).map(drop)
            }
            // The removal itself will report why it is impossible.
            _ => Ok(()),
        }
    }

    /// Before one of several names of a file is removed: the records know the file by one name, so its dirty bytes are
    /// flushed and caching starts anew.
    fn before_name_goes(&self, parent: &Node, name: &OsStr) -> Result<()> {
        let Ok((node, stat)) = self.namespace.lookup(parent, name) else {
            return Ok(());
        };
        if !is_regular(&stat) || stat.raw.st_nlink <= 1 {
            return Ok(());
        }
        if self.store.dmt.find(origin_key(&stat)).is_some() {
            let file = self.known.file_of(&node)?;
            self.sweeper.flush_whole(&file, &|_| true)?;
        }
        Ok(())
    }

    /// A file lost one of several names, so its ctime advanced. If it cannot be reached by another name, its clean
    /// bytes are read anew next time.
    fn restamp_other_name(&self, key: OriginKey, removed: &Removed) {
        let node = removed.node.clone().or_else(|| {
            let record = self.store.dmt.file(self.store.dmt.find(key)?)?;
            self.origin.node_of(&record).ok().flatten()
        });
        if let Some(node) = node
            && let Err(error) = self.lifecycle.restamp(&node)
        {
            tracing::debug!("{}: {error}", self.namespace.path_of(&node).display());
        }
    }

    /// Updates the record of the file with this name after our own change of its ctime.
    fn restamp_name(&self, parent: &Node, name: &OsStr) -> Result<()> {
        match self.namespace.lookup(parent, name) {
            Ok((node, stat)) if is_regular(&stat) => self.lifecycle.restamp(&node),
            _ => Ok(()),
        }
    }

    fn path_under(&self, parent: &Node, name: &OsStr) -> PathBuf {
        self.namespace.path_of(parent).join(name)
    }
}

fn is_regular(stat: &Stat) -> bool {
    stat.kind() == libc::S_IFREG
}
