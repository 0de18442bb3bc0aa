//! The file tier as an engine: what a front end asks of it.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering;

use rustix::io::Errno;

use super::FileTier;
use super::files::Handle;
use super::inode::{Place, Vnode};
use super::lost_files;
use super::statfs;
use super::tier_links::Target;
use halocline_api::control::SOCKET_XATTR;
use halocline_os::error::Result;
use halocline_vfs::Allocate;
use halocline_vfs::namespace::xattr::{hidden_xattr, shown_xattrs};
use halocline_vfs::namespace::{self, Directory, Namespace, contents, xattr};
use halocline_vfs::{Caller, DirEntry, Engine, Make, Maker, OpenMode, Seek, SetAttr, Stat};

impl Engine for FileTier {
    type Vnode = Vnode;
    type Handle = Handle;
    type Tree = Namespace;

    fn below<'a>(&'a self, vnode: &'a Vnode) -> (&'a Namespace, Cow<'a, namespace::Vnode>) {
        (self.components.base.tiers.tree(), Cow::Owned(vnode.0.entry()))
    }

    fn root(&self) -> Vnode {
        let root = self.components.base.tiers.tree().root();
        let number = root.key().1;
        Vnode(self.components.base.table.intern(&root, || (number, None, None)))
    }

    fn key(&self, vnode: &Vnode) -> (u64, u64) {
        (vnode.0.id, vnode.0.number)
    }

    fn lookup(&self, parent: &Vnode, name: &OsStr) -> Result<(Vnode, Stat)> {
        self.components.inodes.lookup(&parent.0.entry(), name)
    }

    fn stat(&self, vnode: &Vnode, _handle: Option<&Handle>) -> Result<Stat> {
        self.components.inodes.stat(&vnode.0)
    }

    fn set_attr(
        &self,
        vnode: &Vnode,
        handle: Option<&Handle>,
        change: &SetAttr,
        _caller: Caller,
    ) -> Result<Stat> {
        self.components.files.set_attr(&vnode.0, handle, change)
    }

    fn read_link(&self, vnode: &Vnode) -> Result<OsString> {
        let place = vnode.0.place.read();
        if place.away.is_some() {
            return Err(Errno::INVAL.into());
        }
        let stored = self.components.base.tiers.tree().read_link(&place.entry)?;
        Ok(match self.components.base.tiers.links().read(stored.as_bytes()) {
            Target::Users(target) => target,
            // It is not ours, whatever it looks like.
            Target::Away(..) => stored,
        })
    }

    fn make(
        &self,
        (parent, name): (&Vnode, &OsStr),
        what: Make<'_>,
        by: Maker,
    ) -> Result<(Vnode, Stat)> {
        let (components, dir) = (&self.components, parent.0.entry());
        if components.base.tiers.is_private(&dir, name) {
            return Err(Errno::PERM.into());
        }
        let stored;
        let what = match what {
            Make::Symlink(target) => {
                stored = components.base.tiers.links().stored(target);
                Make::Symlink(&stored)
            }
            other => other,
        };
        components.executor.with_room(|| {
            let _names = components.base.names.read();
            let make = || components.base.tiers.tree().make((&dir, name), what, by);
            let (entry, stat) = components.base.tiers.ssd().steps.step("making a name", make)?;
            let inode = components.base.table.intern(&entry, || {
                let number =
                    components.base.inode_numbers.here(&components.base.tiers, &entry, &stat);
                let regular = stat.kind() == libc::S_IFREG;
                let resident = regular.then(|| {
                    let name = (dir.clone(), name.to_owned());
                    components.base.residents.add(entry.key(), number, name, 0)
                });
                (number, None, resident)
            });
            components.archive_queue.add_made(&inode);
            Ok((Vnode(inode), stat))
        })
    }

    fn create(
        &self,
        (parent, name): (&Vnode, &OsStr),
        mode: u32,
        flags: i32,
        by: Maker,
    ) -> Result<(Vnode, Stat, Handle)> {
        let dir = parent.0.entry();
        if self.components.base.tiers.is_private(&dir, name) {
            return Err(Errno::PERM.into());
        }
        self.components
            .executor
            .with_room(|| self.components.files.create((&dir, name), mode, flags, by))
    }

    fn link(&self, vnode: &Vnode, parent: &Vnode, name: &OsStr) -> Result<Stat> {
        let dir = parent.0.entry();
        self.components
            .executor
            .with_room(|| self.components.name_changes.link(&vnode.0, &dir, name))
    }

    /// Nobody but the kernel, which compares owners, changes names of the tier.
    fn unlink(&self, parent: &Vnode, name: &OsStr, _by: Caller) -> Result<()> {
        let dir = parent.0.entry();
        self.components.executor.with_room(|| self.components.name_changes.unlink(&dir, name))
    }

    fn remove_dir(&self, parent: &Vnode, name: &OsStr, _by: Caller) -> Result<()> {
        let dir = parent.0.entry();
        if self.components.base.tiers.is_private(&dir, name) {
            return Err(Errno::NOENT.into());
        }
        let path = self.components.base.tiers.tree().path_of(&dir).join(name);
        self.components.executor.with_room(|| {
            let _names = self.components.base.names.read();
            let remove =
                || self.components.base.tiers.tree().remove_dir(&dir, name, None).map(drop);
            self.components.base.tiers.ssd().steps.step("removing a directory", remove)
        })?;
        self.components.base.tiers.directory_gone(&path);
        Ok(())
    }

    fn rename(
        &self,
        from: (&Vnode, &OsStr),
        to: (&Vnode, &OsStr),
        flags: u32,
        _by: Caller,
    ) -> Result<()> {
        let (from_dir, to_dir) = (from.0.0.entry(), to.0.0.entry());
        self.components.executor.with_room(|| {
            self.components.name_changes.rename((&from_dir, from.1), (&to_dir, to.1), flags)
        })
    }

    fn open(&self, vnode: &Vnode, flags: i32, caller: Caller) -> Result<Handle> {
        self.components.files.open_file(&vnode.0, flags, caller.pid)
    }

    fn passes_through(&self) -> bool {
        self.components.base.options.passthrough
    }

    fn pass_through(
        &self,
        handle: &Handle,
        must: bool,
        register: &mut dyn FnMut(BorrowedFd<'_>) -> std::io::Result<()>,
    ) -> bool {
        let (components, opened) = (&self.components, &handle.0);
        let ready = |place: &Place| components.files.ready_for_kernel(&opened.inode, place);
        components.base.passthrough.pass_through(
            (opened, must),
            (&components.base.tiers, &components.base.residents),
            ready,
            register,
        )
    }

    fn open_mode(&self, handle: &Handle) -> OpenMode {
        let direct = handle.0.maps_only.load(Ordering::Acquire);
        OpenMode { direct, keep_cache: true }
    }

    fn read(&self, handle: &Handle, offset: u64, buf: &mut [u8], _caller: Caller) -> Result<usize> {
        self.components.files.with_file(&handle.0, |place, file| {
            let steps = self.components.base.tiers.steps(place.tier());
            let read = steps.step("reading", || contents::read(file, offset, buf))?;
            self.components.base.counters.read(place.tier(), read);
            Ok(read)
        })
    }

    fn write(&self, handle: &Handle, offset: u64, data: &[u8], _caller: Caller) -> Result<()> {
        self.components.files.write(&handle.0, offset, data)
    }

    fn sync_dir(&self, dir: &Directory) -> Result<()> {
        dir.sync()?;
        self.components.archiver.remove_given_up();
        Ok(())
    }

    fn reports_at_close(&self) -> bool {
        false
    }

    fn fsync(&self, handle: &Handle, data_only: bool) -> Result<()> {
        self.components.files.with_file(&handle.0, |place, file| {
            let steps = self.components.base.tiers.steps(place.tier());
            if data_only {
                steps.sync_data("syncing", file)?;
            } else {
                steps.sync("syncing", file)?;
            }
            self.components
                .base
                .pending_syncs
                .sync(handle.0.inode.number, &self.components.base.tiers)?;
            if let Some(resident) = place.resident.as_ref().filter(|_| !data_only) {
                self.components.permissions.record_one_again(resident);
            }
            Ok(())
        })
    }

    fn allocate(&self, handle: &Handle, offset: u64, len: u64, how: Allocate) -> Result<()> {
        self.components.files.allocate(&handle.0, offset, len, how)
    }

    fn seek(&self, handle: &Handle, offset: u64, what: Seek) -> Result<u64> {
        self.components.files.with_file(&handle.0, |_, file| contents::seek(file, offset, what))
    }

    fn read_dir(
        &self,
        dir: &Directory,
        offset: u64,
        take: &mut dyn FnMut(DirEntry) -> bool,
    ) -> Result<()> {
        let (components, vnode) = (&self.components, dir.vnode());
        dir.read(offset, &mut |entry| {
            components.base.tiers.is_private(vnode, &entry.name)
                || take(components.inodes.shown(vnode, entry))
        })
    }

    fn statfs(&self, _node: &Vnode) -> Result<libc::statvfs64> {
        let base = &self.components.base;
        let (tiers, residents) = (base.tiers.clone(), base.residents.clone());
        let records = base.copy_records.clone();
        // Every `df` on the machine requests this, and it must not hang together with a tier.
        let ask = move || statfs::of_all(&tiers, &residents, &records);
        self.components.liveness.while_alive(ask)
    }

    fn get_xattr(&self, vnode: &Vnode, name: &OsStr) -> Result<Vec<u8>> {
        if name == SOCKET_XATTR {
            return Ok(self.components.base.tiers.socket().into_os_string().into_encoded_bytes());
        }
        if hidden_xattr(name) {
            return Err(Errno::NODATA.into());
        }
        let place = vnode.0.place.read();
        // Listing a directory asks for these, too, and must show a lost name.
        let file = lost_files::found(&self.components.base.tiers, &vnode.0, &place)?
            .ok_or(Errno::NODATA)?;
        xattr::get_on(&*file, name)
    }

    fn list_xattr(&self, vnode: &Vnode) -> Result<Vec<u8>> {
        let place = vnode.0.place.read();
        let file = lost_files::found(&self.components.base.tiers, &vnode.0, &place)?;
        file.map_or(Ok(Vec::new()), |file| Ok(shown_xattrs(&xattr::list_on(&*file)?)))
    }

    fn set_xattr(&self, vnode: &Vnode, name: &OsStr, value: &[u8], flags: i32) -> Result<()> {
        if hidden_xattr(name) {
            return Err(Errno::PERM.into());
        }
        let set = |fd: &OwnedFd| xattr::set_on(fd, name, value, flags);
        self.components.files.change_attribute(&vnode.0, ("setting an attribute", name), set)
    }

    fn remove_xattr(&self, vnode: &Vnode, name: &OsStr) -> Result<()> {
        if hidden_xattr(name) {
            return Err(Errno::NODATA.into());
        }
        let remove = |fd: &OwnedFd| xattr::remove_on(fd, name);
        self.components.files.change_attribute(&vnode.0, ("removing an attribute", name), remove)
    }
}
