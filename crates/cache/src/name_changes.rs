//! Changes of names on the origin; the cache's records follow.

use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bon::Builder;

use crate::degraded_mode::DegradedMode;
use crate::extent::file::{CachedFile, WHOLE};
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
use halocline_meta::{FileId, OriginKey, Removal};
use halocline_os::error::{Error, Result};
use halocline_vfs::namespace::{Namespace, Removed, Vnode};
use halocline_vfs::{Caller, Make, Maker, Stat};

/// How often to look a name up again because other nodes gave it to another file meanwhile.
const NAME_TRIES: u32 = 8;

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
    degraded_mode: Arc<DegradedMode>,
    sweeper: Arc<Sweeper>,
    lifecycle: Arc<Lifecycle>,
}

/// A file whose record says that its last name is being removed.
#[derive(Debug, Clone, Copy)]
struct BegunRemoval {
    id: FileId,
    key: OriginKey,
}

impl NameChanges {
    /// Makes a directory entry other than a regular file that is to be opened.
    pub(crate) fn make(
        &self,
        entry: (&Vnode, &OsStr),
        what: Make<'_>,
        by: Maker,
    ) -> Result<(Vnode, Stat)> {
        let _space = self.space.take_name(0)?;
        self.origin.with_room(|| self.namespace.make(entry, what, by))
    }

    /// Gives a file one more name; returns its attributes afterwards.
    pub(crate) fn link(&self, vnode: &Vnode, parent: &Vnode, name: &OsStr) -> Result<Stat> {
        let _space = self.space.take_name(0)?;
        let _naming = self.own.name_change();
        let stat = self.namespace.link(vnode, parent, name)?;
        self.lifecycle.restamp(vnode)?;
        Ok(stat)
    }

    /// Removes a name.
    pub(crate) fn unlink(&self, parent: &Vnode, name: &OsStr, by: Caller) -> Result<()> {
        self.without_others(parent, name, || {
            let begun = self.before_name_goes(parent, name, true)?;
            let _naming = self.own.name_change();
            let removed = self.namespace.unlink(parent, name, Some(by));
            self.tried_to_remove(begun, removed.as_ref().ok())?;
            self.name_gone(parent, &removed?)
        })
    }

    /// Renames as `renameat2(2)` does.
    pub(crate) fn rename(
        &self,
        from: (&Vnode, &OsStr),
        to: (&Vnode, &OsStr),
        how: (u32, Caller),
    ) -> Result<()> {
        self.without_others(to.0, to.1, || self.rename_here(from, to, how))
    }

    fn rename_here(
        &self,
        from: (&Vnode, &OsStr),
        to: (&Vnode, &OsStr),
        (flags, by): (u32, Caller),
    ) -> Result<()> {
        // Others may not replace: they fail if there is something, or exchange the two.
        let begun = self.before_name_goes(to.0, to.1, flags == 0)?;
        let paths = (self.path_under(from.0, from.1), self.path_under(to.0, to.1));
        let _naming = self.own.name_change();
        let replaced = self.namespace.rename(from, to, flags, Some(by));
        self.tried_to_remove(begun, replaced.as_ref().ok().and_then(Option::as_ref))?;
        let replaced = replaced?;
        if let Some(replaced) = &replaced {
            self.name_gone(to.0, replaced)?;
        }
        let dmt = &self.store.dmt;
        if flags & libc::RENAME_EXCHANGE != 0 {
            self.mappings.advisory(dmt.files().exchange(&paths.0, &paths.1))?;
            self.restamp_name(from.0, from.1)?;
        } else {
            self.mappings.advisory(dmt.files().rename(&paths.0, &paths.1))?;
        }
        self.restamp_name(to.0, to.1)
    }

    /// Does what is needed for a regular file that lost a name in `parent`.
    fn name_gone(&self, parent: &Vnode, removed: &Removed) -> Result<()> {
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
        if let Some(id) = self.store.dmt.files().find(key)
            && self.store.dmt.changes().promised(id, WHOLE)
        {
            self.namespace.open_dir(parent)?.sync()?;
        }
        if let Some(file) = file {
            file.unlinked.store(true, Ordering::SeqCst);
            if file.is_open() {
                // The last close may be under way, of which the kernel tells after the program's `close` has returned.
                if let Some(id) = file.id() {
                    self.mappings
                        .advisory(self.store.dmt.files().note_removal(id, Removal::Done))?;
                }
                self.flush_unlinked(&file);
                return Ok(());
            }
            let forgotten = if let Some(id) = file.id() {
                let forget = || self.lifecycle.forget_file(&file, id);
                self.degraded_mode.retry_after_giving_up(forget)
            } else {
                self.lifecycle.forget_data(&file);
                Ok(())
            };
            self.known.forget_idle(&file);
            return forgotten;
        }
        self.lifecycle.forget_key(key, removed)
    }

    /// The regular file with this name, which other nodes may have cached; `None` if no other nodes use the origin.
    fn known_to_others(&self, parent: &Vnode, name: &OsStr) -> Result<Option<Arc<CachedFile>>> {
        if !self.permits.are_needed() {
            return Ok(None);
        }
        match self.namespace.lookup(parent, name) {
            Ok((vnode, stat)) if is_regular(&stat) => self.known.file_of(&vnode).map(Some),
            // The removal itself will report why it is impossible.
            _ => Ok(None),
        }
    }

    /// Removes, by `remove`, a name of a file that other nodes may have cached, after they have flushed their dirty
    /// bytes of it. The permit is held until the name is gone: a node that gets the file's tokens later finds that the
    /// file has no name ([`Permits`]), so that no node keeps dirty bytes of a file that nobody can find again.
    ///
    /// Others may give the name to another file while this node waits for the permit: then it takes that file's permit.
    fn without_others(
        &self,
        parent: &Vnode,
        name: &OsStr,
        remove: impl Fn() -> Result<()>,
    ) -> Result<()> {
        for _ in 0..NAME_TRIES {
            let Some(file) = self.known_to_others(parent, name)? else { return remove() };
            let _held = match self.permits.to_resize(&file, 0) {
                Ok(held) => Some(held),
                // Another node removed the file meanwhile.
                Err(error) if error.errno() == libc::ESTALE => None,
                Err(error) => return Err(error),
            };
            match self.namespace.lookup(parent, name) {
                Ok((_, stat)) if is_regular(&stat) && origin_key(&stat) != file.key => {}
                // If it leads to something else or nowhere, the removal itself finds that out.
                _ => return remove(),
            }
        }
        let busy = io::Error::from_raw_os_error(libc::EBUSY);
        Err(Error::at(
            self.path_under(parent, name),
            "take from the other nodes, which replace it,",
        )(busy))
    }

    /// Flushes a file without names that a program has open, and drops its clean bytes, if other nodes use the origin,
    /// too. After a kill its record would lead to whatever file has the inode number by
    /// then: with other nodes, tokens and not stamps say what may be flushed (I11).
    fn flush_unlinked(&self, file: &Arc<CachedFile>) {
        if !self.permits.are_needed() {
            return;
        }
        let brought = self.sweeper.flush_whole(file, &|_| true).and_then(|_| {
            let Some(id) = file.id() else { return Ok(()) };
            let _range = file.range.exclusive(WHOLE);
            self.mappings.unmap_clean(id, WHOLE)
        });
        if let Err(error) = brought {
            // The name is gone nevertheless; the cache has the bytes, and the rebuilder tries again.
            tracing::warn!("a removed file that is still open cannot be flushed now: {error}");
        }
    }

    /// Called before a name of a file is removed. If the file has other names, its dirty bytes are flushed and caching
    /// starts anew, because the records know it by one name. If it was the last one, programs of other nodes may have
    /// the file open, and must read what this node wrote (I11): so it is flushed, too.
    ///
    /// If its last name is about to be removed (`goes`) and only the cache has some of its bytes, that is recorded, and
    /// the file returned: a session that is killed after the removal must not leave them for a file that others removed.
    fn before_name_goes(
        &self,
        parent: &Vnode,
        name: &OsStr,
        goes: bool,
    ) -> Result<Option<BegunRemoval>> {
        let Ok((vnode, stat)) = self.namespace.lookup(parent, name) else {
            return Ok(None);
        };
        let is_last = stat.raw.st_nlink <= 1;
        // On striped servers the data goes with the last name, for everybody.
        let is_for_others = self.permits.are_needed() && !self.origin.data.is_striped();
        if !is_regular(&stat) {
            return Ok(None);
        }
        let key = origin_key(&stat);
        let Some(id) = self.store.dmt.files().find(key) else { return Ok(None) };
        if !is_last || is_for_others {
            let file = self.known.file_of(&vnode)?;
            match self.sweeper.flush_whole(&file, &|_| true) {
                Err(error) if is_last => {
                    // A full origin, for example, must not keep files from being removed.
                    tracing::warn!("a file that is removed cannot be flushed for others: {error}");
                }
                flushed => drop(flushed?),
            }
        }
        if !goes || !is_last || self.store.dmt.index().dirty(id, WHOLE, 1).is_empty() {
            return Ok(None);
        }
        self.mappings.advisory(self.store.dmt.files().note_removal(id, Removal::Begun))?;
        Ok(Some(BegunRemoval { id, key }))
    }

    /// Called after the attempt of a removal that is recorded as `begun`: if that file has a name nevertheless, it is
    /// recorded as before.
    fn tried_to_remove(
        &self,
        begun: Option<BegunRemoval>,
        removed: Option<&Removed>,
    ) -> Result<()> {
        let Some(begun) = begun else { return Ok(()) };
        if removed.is_some_and(|removed| removed.last && origin_key(&removed.stat) == begun.key) {
            return Ok(());
        }
        self.mappings.advisory(self.store.dmt.files().note_removal(begun.id, Removal::None))
    }

    /// A file lost one of several names, so its ctime advanced. If it cannot be reached by another name, its clean
    /// bytes are read anew next time.
    fn restamp_other_name(&self, key: OriginKey, removed: &Removed) {
        let vnode = removed.vnode.clone().or_else(|| {
            let record = self.store.dmt.files().record(self.store.dmt.files().find(key)?)?;
            self.origin.vnode_of(&record).ok().flatten()
        });
        if let Some(vnode) = vnode
            && let Err(error) = self.lifecycle.restamp(&vnode)
        {
            tracing::debug!("{}: {error}", self.namespace.path_of(&vnode).display());
        }
    }

    /// Updates the record of the file with this name after our own change of its ctime.
    fn restamp_name(&self, parent: &Vnode, name: &OsStr) -> Result<()> {
        match self.namespace.lookup(parent, name) {
            Ok((vnode, stat)) if is_regular(&stat) => self.lifecycle.restamp(&vnode),
            _ => Ok(()),
        }
    }

    fn path_under(&self, parent: &Vnode, name: &OsStr) -> PathBuf {
        self.namespace.path_of(parent).join(name)
    }
}

fn is_regular(stat: &Stat) -> bool {
    stat.kind() == libc::S_IFREG
}
