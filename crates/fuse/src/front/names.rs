//! Names in directories.

use std::ffi::{OsStr, OsString};
use std::sync::Arc;

use fuser::{Errno, INodeNo};
use halocline_os::error::{Error, Result};
use halocline_vfs::{Caller, Engine, Make, Maker, Stat};

use super::directory_places::DirectoryPlaces;
use super::inode_table::Inode;
use super::inodes::{Entry, EntryName, Inodes};
use super::lost_races::LostRaces;
use super::{Answer, Refused};

/// How often what has lost its name is linked by that name again.
const LINK_TRIES: usize = 64;

/// Requests that look up, create, change and remove names.
#[derive(Debug)]
pub(crate) struct Names<E: Engine> {
    pub(super) engine: Arc<E>,
    pub(super) inodes: Arc<Inodes<E>>,
    /// `None` where no other node renames files.
    pub(super) races: Option<LostRaces>,
    /// The same.
    pub(super) places: Option<Arc<DirectoryPlaces>>,
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
            let at = (INodeNo(parent.number), name);
            if races.lost(by.pid, at, inode, leads_to) {
                return Err(Refused(Errno::ESTALE));
            }
            if let (Ok((_, stat)), Some(inode)) = (&found, inode) {
                races.found(by.pid, at, inode, stat);
            }
        }
        let found = found.map_err(self.inodes.failed_at(&parent, name, "look-up"))?;
        let entry = self.inodes.entry(found);
        if let Some(places) = &self.places {
            places.looked_up(&entry, (INodeNo(parent.number), name), by.pid);
        }
        Ok(entry)
    }

    pub(crate) fn forget(&self, number: INodeNo, lookups: u64) {
        if self.inodes.forget(number, lookups)
            && let Some(places) = &self.places
        {
            places.forgotten(number.0);
        }
    }

    pub(crate) fn make(&self, at: EntryName<'_>, what: Make<'_>, by: Maker) -> Answer<Entry> {
        let parent = self.inodes.get(at.0)?;
        let made = self.engine.make((&parent.vnode, at.1), what, by);
        self.inodes.changed(&parent);
        let made = made.map_err(self.inodes.failed_at(&parent, at.1, "make"))?;
        let entry = self.inodes.entry(made);
        if let Some(places) = &self.places {
            places.listed(&entry, at);
        }
        Ok(entry)
    }

    pub(crate) fn link(
        &self,
        number: INodeNo,
        (parent, name): EntryName<'_>,
        by: Caller,
    ) -> Answer<Entry> {
        let (inode, parent) = (self.inodes.get(number)?, self.inodes.get(parent)?);
        let linked = self.engine.link(&inode.vnode, &parent.vnode, name);
        let mut linked = linked.map(|stat| (inode.vnode.clone(), stat));
        if let Some(races) = &self.races {
            let refused = linked.as_ref().err().map(|error| Errno::from_i32(error.errno()));
            match races.linked(by.pid, refused) {
                Some(errno) if errno.code() == libc::ENOENT => {
                    linked = self.link_again((&inode, races), (&parent, name), by);
                }
                Some(errno) => {
                    self.inodes.changed(&parent);
                    return Err(Refused(errno));
                }
                None => {}
            }
        }
        self.inodes.changed(&parent);
        Ok(self.inodes.entry(linked.map_err(self.inodes.failed_at(&parent, name, "link"))?))
    }

    /// Links what the name leads to now by which a program has found what has lost it, twice.
    ///
    /// # Errors
    /// `ENOENT` if it leads to nothing, or to something that the kernel might refuse.
    fn link_again(
        &self,
        (inode, races): (&Inode<E::Vnode>, &LostRaces),
        (parent, name): (&Inode<E::Vnode>, &OsStr),
        by: Caller,
    ) -> Result<(E::Vnode, Stat)> {
        let gone = || Error::from(rustix::io::Errno::NOENT);
        let source = races.source(by.pid, self.engine.key(&inode.vnode)).ok_or_else(gone)?;
        let above = self.inodes.get(INodeNo(source.parent)).map_err(|_| gone())?;
        for _ in 0..LINK_TRIES {
            let (vnode, found) = self.engine.lookup(&above.vnode, &source.name)?;
            if !source.admits(&found, by) {
                break;
            }
            match self.engine.link(&vnode, &parent.vnode, name) {
                Err(error) if matches!(error.errno(), libc::ENOENT | libc::ESTALE) => {}
                linked => return linked.map(|stat| (vnode, stat)),
            }
        }
        Err(gone())
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
        renamed.map_err(self.inodes.failed_at(&old, from.1, "rename"))?;
        if let Some(places) = &self.places {
            places.renamed(from, to, flags & libc::RENAME_EXCHANGE != 0);
        }
        Ok(())
    }

    pub(crate) fn read_link(&self, number: INodeNo) -> Answer<OsString> {
        let inode = self.inodes.get(number)?;
        self.engine.read_link(&inode.vnode).map_err(self.inodes.failed(&inode, "readlink"))
    }
}
