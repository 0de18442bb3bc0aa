//! What names stand for: the inodes behind them, wherever their files are.
//!
//! `names` is held shared here, so that no cutover changes what a name stands for meanwhile; no
//! `place` is taken while it is held.

use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::sync::Arc;

use parking_lot::RwLock;
use rustix::io::Errno;

use super::dir_times::DirTimes;
use super::foundation::Foundation;
use super::inode::{Inode, Place, Table, Vnode};
use super::inode_numbers::InodeNumbers;
use super::link_owner;
use super::linked_vnodes::LinkedVnodes;
use super::lost_files;
use super::residents::{Resident, Residents};
use super::tiers::{Entry, Tiers};
use halocline_os::error::Result;
use halocline_vfs::namespace;
use halocline_vfs::namespace::stat_descriptor;
use halocline_vfs::{DirEntry, Stat};

/// Finds inodes by their names, and reports their attributes.
#[derive(Debug)]
pub(super) struct Inodes {
    tiers: Arc<Tiers>,
    table: Arc<Table>,
    inode_numbers: Arc<InodeNumbers>,
    residents: Arc<Residents>,
    linked_vnodes: Arc<LinkedVnodes>,
    dir_times: Arc<DirTimes>,
    names: Arc<RwLock<()>>,
}

impl Inodes {
    /// Built over the components that it uses.
    pub(super) fn new(base: &Foundation) -> Self {
        Self {
            tiers: base.tiers.clone(),
            table: base.table.clone(),
            inode_numbers: base.inode_numbers.clone(),
            residents: base.residents.clone(),
            linked_vnodes: base.linked_vnodes.clone(),
            dir_times: base.dir_times.clone(),
            names: base.names.clone(),
        }
    }

    /// Looks a name up; the stat is of the file itself, wherever it is.
    pub(super) fn lookup(&self, parent: &namespace::Vnode, name: &OsStr) -> Result<(Vnode, Stat)> {
        if self.tiers.is_private(parent, name) {
            return Err(Errno::NOENT.into());
        }
        let names = self.names.read();
        let (entry, stat) = self.tiers.tree().lookup(parent, name)?;
        let (inode, here) = self.meaning(parent, name, &entry, &stat)?;
        let shown = inode.show(self.dir_times.show(stat));
        drop(names);
        let stat = if here { shown } else { self.stat(&inode)? };
        Ok((Vnode(inode), stat))
    }

    /// The inode that an entry stands for, and whether the entry is known to be the inode itself. The
    /// caller holds `names`.
    pub(super) fn meaning(
        &self,
        parent: &namespace::Vnode,
        name: &OsStr,
        entry: &namespace::Vnode,
        stat: &Stat,
    ) -> Result<(Arc<Inode>, bool)> {
        let mut away = None;
        if stat.kind() == libc::S_IFLNK {
            // What a known one stands for was determined when it became known.
            if let Some(inode) = self.table.find(entry.key()) {
                return Ok((inode, false));
            }
            away = match link_owner::away(&self.tiers, parent, name)? {
                Some((_, link)) if link != entry.key() => return Err(Errno::STALE.into()),
                said => said.map(|(away, _)| away),
            };
        }
        let here = away.is_none();
        let inode = self.table.intern(entry, || match away {
            None => {
                let number = self.inode_numbers.here(&self.tiers, entry, stat);
                (number, None, self.residents.get(entry.key()))
            }
            Some(away) => {
                (self.inode_numbers.away(&self.tiers, entry, stat, &away), Some(away), None)
            }
        });
        Ok((inode, here))
    }

    /// Attributes of an inode, wherever it is.
    pub(super) fn stat(&self, inode: &Inode) -> Result<Stat> {
        let place = inode.place.read();
        let stat = match &place.away {
            None if !place.may_be_directory() => self.tiers.tree().stat(&place.entry)?,
            None => {
                // A directory's times are transient while a cutover changes it.
                let _names = self.names.read();
                self.dir_times.show(self.tiers.tree().stat(&place.entry)?)
            }
            Some(_) => match lost_files::found(&self.tiers, inode, &place)? {
                None => return lost_files::stat_lost(&self.tiers, inode, &place),
                Some(found) => stat_descriptor(&*found)?,
            },
        };
        Ok(inode.show_at(&self.tiers, &place, stat))
    }

    /// The inode of a file on the SSD.
    pub(super) fn inode_of(&self, entry: Entry, resident: &Resident) -> Option<Arc<Inode>> {
        if let Some(live) = self.table.find(entry) {
            return Some(live);
        }
        let (parent, name) = resident.name.lock().clone();
        let (vnode, _) = self.lookup(&parent, &name).ok()?;
        (vnode.0.entry().key() == entry).then_some(vnode.0)
    }

    /// An entry as programs see it: files on lower tiers are files.
    pub(super) fn shown(&self, dir: &namespace::Vnode, mut entry: DirEntry) -> DirEntry {
        let key = (dir.key().0, entry.inode);
        if entry.kind == libc::DT_LNK || entry.kind == libc::DT_UNKNOWN {
            let live = self.table.find(key);
            let known = live.as_ref().and_then(|live| Some(live.place.try_read()?.away.is_some()));
            match (live, known) {
                (Some(live), Some(true)) => (entry.kind, entry.inode) = (libc::DT_REG, live.number),
                (_, Some(false)) => {}
                _ => self.show_link(dir, &mut entry),
            }
        } else if let Some(number) = self.table.number(key) {
            entry.inode = number;
        }
        entry
    }

    /// Shows an entry that may be a link of ours as the file for which it stands.
    fn show_link(&self, dir: &namespace::Vnode, entry: &mut DirEntry) {
        let Ok(Some((away, key))) = link_owner::away(&self.tiers, dir, &entry.name) else { return };
        let names = self.names.read();
        let known = self.tiers.tree().lookup(dir, &entry.name);
        drop(names);
        if let Ok((vnode, link)) = known
            && vnode.key() == key
        {
            entry.kind = libc::DT_REG;
            entry.inode = self.inode_numbers.away(&self.tiers, &vnode, &link, &away);
        }
    }

    /// Puts a new link, made as `id` with `target`, in place of the one of a file with one name.
    pub(super) fn replace_own_link(
        &self,
        inode: &Arc<Inode>,
        place: &mut Place,
        name: &(namespace::Vnode, OsString),
        (id, target): (&str, &OsStr),
    ) -> Result<()> {
        let replaced = self.tiers.make_link(id, target, Some(inode.number)).and_then(|()| {
            let names = self.names.write();
            let before = place.entry.key();
            let from = (self.tiers.ssd().tmp().as_fd(), OsStr::new(id));
            let to = (&name.0, name.1.as_os_str());
            let (entry, _) = self.dir_times.replace_unseen(
                &self.tiers,
                "cutting a place over",
                from,
                to,
                before,
            )?;
            self.table.moved(inode, before, entry.key());
            self.linked_vnodes.forget(before);
            drop(names);
            Ok(entry)
        });
        place.entry = replaced.inspect_err(|_| self.tiers.ssd().drop_temporary(id))?;
        Ok(())
    }
}
