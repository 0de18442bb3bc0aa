//! Names in directories.

use std::ffi::OsString;
use std::sync::Arc;

use fuser::{Errno, INodeNo};
use halocline_vfs::{Caller, Engine, Make, Maker};

use super::inodes::{Entry, EntryName, Inodes};
use super::lost_races::LostRaces;
use super::{Answer, Refused};

/// Requests that look up, create, change and remove names.
#[derive(Debug)]
pub(crate) struct Names<E: Engine> {
    pub(super) engine: Arc<E>,
    pub(super) inodes: Arc<Inodes<E>>,
    /// `None` where no other node renames files.
    pub(super) races: Option<LostRaces>,
}

impl<E: Engine> Names<E> {
    /// What a name leads to. `ESTALE` makes the kernel begin a rename again that another node has made meanwhile.
    pub(crate) fn lookup(&self, (parent, name): EntryName<'_>, by: Caller) -> Answer<Entry> {
        let parent = self.inodes.get(parent)?;
        let found = self.engine.lookup(&parent.vnode, name);
        if let Some(races) = &self.races {
            let inode = found.as_ref().ok().map(|(vnode, _)| self.engine.key(vnode));
            let leads_to = |at: EntryName<'_>| {
                let found = self.engine.lookup(&self.inodes.get(at.0).ok()?.vnode, at.1);
                found.ok().map(|(vnode, _)| self.engine.key(&vnode))
            };
            if races.lost(by.pid, (INodeNo(parent.number), name), inode, leads_to) {
                return Err(Refused(Errno::ESTALE));
            }
        }
        Ok(self.inodes.entry(found.map_err(self.inodes.failed_at(&parent, name, "look-up"))?))
    }

    pub(crate) fn forget(&self, number: INodeNo, lookups: u64) {
        self.inodes.forget(number, lookups);
    }

    pub(crate) fn make(&self, at: EntryName<'_>, what: Make<'_>, by: Maker) -> Answer<Entry> {
        let parent = self.inodes.get(at.0)?;
        let made = self.engine.make((&parent.vnode, at.1), what, by);
        self.inodes.changed(&parent);
        Ok(self.inodes.entry(made.map_err(self.inodes.failed_at(&parent, at.1, "make"))?))
    }

    pub(crate) fn link(
        &self,
        number: INodeNo,
        (parent, name): EntryName<'_>,
        by: Caller,
    ) -> Answer<Entry> {
        let (inode, parent) = (self.inodes.get(number)?, self.inodes.get(parent)?);
        let stat = self.engine.link(&inode.vnode, &parent.vnode, name);
        self.inodes.changed(&parent);
        let stat = stat.map_err(self.inodes.failed_at(&parent, name, "link"));
        if let Some(races) = &self.races {
            let refused = stat.as_ref().err().map(|refused| refused.0);
            if let Some(errno) = races.linked(by.pid, refused) {
                return Err(Refused(errno));
            }
        }
        let stat = stat?;
        Ok(self.inodes.entry((inode.vnode.clone(), stat)))
    }

    pub(crate) fn unlink(&self, (parent, name): EntryName<'_>, by: Caller) -> Answer<()> {
        let parent = self.inodes.get(parent)?;
        let removed = self.engine.unlink(&parent.vnode, name, by);
        self.inodes.changed(&parent);
        removed.map_err(self.inodes.failed_at(&parent, name, "unlink"))
    }

    pub(crate) fn remove_dir(&self, (parent, name): EntryName<'_>, by: Caller) -> Answer<()> {
        let parent = self.inodes.get(parent)?;
        let removed = self.engine.remove_dir(&parent.vnode, name, by);
        self.inodes.changed(&parent);
        removed.map_err(self.inodes.failed_at(&parent, name, "rmdir"))
    }

    /// `flags` are those of `renameat2(2)`.
    pub(crate) fn rename(
        &self,
        from: EntryName<'_>,
        to: EntryName<'_>,
        flags: u32,
        by: Caller,
    ) -> Answer<()> {
        let (old, new) = (self.inodes.get(from.0)?, self.inodes.get(to.0)?);
        let renamed = self.engine.rename((&old.vnode, from.1), (&new.vnode, to.1), flags, by);
        self.inodes.changed(&old);
        self.inodes.changed(&new);
        renamed.map_err(self.inodes.failed_at(&old, from.1, "rename"))
    }

    pub(crate) fn read_link(&self, number: INodeNo) -> Answer<OsString> {
        let inode = self.inodes.get(number)?;
        self.engine.read_link(&inode.vnode).map_err(self.inodes.failed(&inode, "readlink"))
    }
}
