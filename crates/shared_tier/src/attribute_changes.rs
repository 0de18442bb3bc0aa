//! Changes attributes: first on the file with the bytes, or on the directory on the shared disk, then in the store.
//! So programs see what the disks refuse, and a scan of the disks finds every change that was acknowledged.

mod applied;

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use halocline_cluster::names::attributes::{Attributes, Kind};
use halocline_cluster::names::namespace::{self, Failure, StoredInode};
use halocline_model::namespace::EntryName;
use halocline_os::error::{Error, Result};
use halocline_vfs::namespace::stat_descriptor;
use halocline_vfs::namespace::statx::set_attr_on;
use halocline_vfs::namespace::xattr::hidden_xattr;
use halocline_vfs::{SetAttr, SetTime, Stat};
use rustix::io::Errno;

use crate::acl::{ACCESS, Acl, DEFAULT};
use crate::base::Base;
use crate::clean_copies::take_away;
use crate::errors::of_names;
use crate::files::{Files, Handle, place_of};
use crate::inodes::{Inode, Vnode};
use crate::late_names::Late;
use crate::lookup::{FoundInode, Lookup};
use crate::places::copies::mtime_ns;
use crate::places::tree::Tree;
use crate::places::users_xattrs::{check_room, remove_xattr, set_xattr};
use crate::renames;
use crate::stat_conversion::time_ns;
use applied::{apply, at};

/// How often something is found again that other nodes rename while it is changed.
const TRIES: usize = 16;

/// Changes attributes.
#[derive(Debug)]
pub(crate) struct AttributeChanges {
    base: Arc<Base>,
    lookup: Arc<Lookup>,
    files: Arc<Files>,
}

/// Whether a change may have failed since the name, or the bytes, are no longer where they were found.
fn is_gone(error: &Error) -> bool {
    matches!(error.errno(), libc::ENOENT | libc::ESTALE)
}

/// A removed attribute may be missing on the disk.
fn or_none(removed: Result<()>) -> Result<()> {
    match removed {
        Err(error) if error.errno() == libc::ENODATA => Ok(()),
        removed => removed,
    }
}

/// # Errors
/// `EOPNOTSUPP` for extended attributes of kinds that we do not know; `EINVAL` for those without a name.
fn check_kind(name: &OsStr) -> Result<()> {
    let bytes = name.as_bytes();
    let is_known =
        [&b"user."[..], b"trusted.", b"security."].iter().any(|kind| bytes.starts_with(kind))
            || bytes == ACCESS
            || bytes == DEFAULT;
    match bytes {
        b"user." | b"trusted." | b"security." => Err(Errno::INVAL.into()),
        _ if is_known => Ok(()),
        _ => Err(Errno::OPNOTSUPP.into()),
    }
}

impl AttributeChanges {
    pub(crate) fn new(base: &Arc<Base>, lookup: &Arc<Lookup>, files: &Arc<Files>) -> Self {
        Self { base: Arc::clone(base), lookup: Arc::clone(lookup), files: Arc::clone(files) }
    }

    /// Changes attributes of an inode.
    ///
    /// # Errors
    /// What the disks refuse; if the bytes are not reached.
    pub(crate) fn set(
        &self,
        vnode: &Vnode,
        handle: Option<&Handle>,
        change: &SetAttr,
    ) -> Result<Stat> {
        if let Some(size) = change.size {
            self.truncate(vnode, handle, size)?;
        }
        let now_ns = self.base.now_ns();
        let fixed = |time: Option<SetTime>| time.map(|time| at(time_ns(time, now_ns)));
        let change = SetAttr {
            size: None,
            atime: fixed(change.atime),
            mtime: fixed(change.mtime),
            ..*change
        };
        let is_all = (change.mode, change.uid, change.gid) == (None, None, None)
            && change.atime.is_none()
            && change.mtime.is_none();
        if !is_all {
            self.set_all_but_size(&vnode.0, &change, now_ns)?;
        }
        self.lookup.stat(&vnode.0)
    }

    /// Truncates as an open, a change and a close: while nobody has the file open, the size in the store is always
    /// that of the file with the bytes.
    fn truncate(&self, vnode: &Vnode, handle: Option<&Handle>, size: u64) -> Result<()> {
        match handle.filter(|handle| handle.is_writable()) {
            Some(handle) => handle.truncate(size),
            None => self.files.open(vnode, libc::O_WRONLY, 0)?.truncate(size),
        }
    }

    /// Makes a change of what is found. If another node renames, replaces or removes it meanwhile, it is found again; in the
    /// end it may have no name, and is changed nevertheless if it is open here, as on one machine.
    ///
    /// # Errors
    /// Those of `change`.
    fn change(
        &self,
        inode: &Inode,
        change: impl Fn(Option<&FoundInode>) -> Result<()>,
    ) -> Result<()> {
        let mut tries = TRIES;
        loop {
            tries -= 1;
            let found = self.lookup.find(inode)?;
            match change(found.as_ref()) {
                Err(error) if tries > 0 && found.is_some() && is_gone(&error) => {}
                changed => return changed,
            }
        }
    }

    fn set_all_but_size(&self, inode: &Inode, change: &SetAttr, now_ns: i64) -> Result<()> {
        self.change(inode, |found| match found {
            Some(found) => self.set_found(inode, found, change, now_ns),
            None => self.change_without_name(
                inode,
                |file| set_attr_on(file, change).map(drop),
                |last| {
                    apply(change, last, now_ns);
                    Ok(())
                },
            ),
        })
    }

    fn set_found(
        &self,
        inode: &Inode,
        found: &FoundInode,
        change: &SetAttr,
        now_ns: i64,
    ) -> Result<()> {
        // With the mode that results from it: the file system below may know another owner.
        let mut after = found.stored.attributes.clone();
        apply(change, &mut after, now_ns);
        let mode = (after.mode != found.stored.attributes.mode || change.mode.is_some())
            .then_some(after.mode);
        let below = SetAttr { mode, ..*change };
        let mut kept_ns = None;
        match found.stored.attributes.kind {
            Kind::File => {
                let place = place_of(&found.stored.attributes)?;
                take_away(&self.base.places, &found.stored.attributes, inode.number)?;
                let is = self.base.places.set_attributes(place, inode.number.0, &below)?;
                // File systems keep times in their own units, and only some years.
                kept_ns = change.mtime.map(|_| mtime_ns(&is));
            }
            Kind::Directory => {
                self.base.places.set_directory_attributes(inode.number.0, &below)?;
            }
            kind => {
                let below = SetAttr { mode: mode.filter(|_| kind != Kind::Symlink), ..below };
                let late = self.change_other(inode, found, &|tree, fd| {
                    let set = || set_attr_on(fd, &below);
                    tree.step("setting attributes of a link or device", set).map(drop)
                })?;
                return self.update_then_follow(inode, found, late, |attributes| {
                    apply(change, attributes, now_ns);
                    Ok(())
                });
            }
        }
        self.update(inode, found, |attributes| {
            apply(change, attributes, now_ns);
            attributes.mtime_ns = kept_ns.unwrap_or(attributes.mtime_ns);
            Ok(())
        })
        .map(drop)
    }

    /// Changes a link or special file on the shared disk: the inode of all its names, or what is at its only one. Returns
    /// those names that are known here at which the disk has yet to follow the store.
    fn change_other(
        &self,
        inode: &Inode,
        found: &FoundInode,
        change: &dyn Fn(&Tree, &OwnedFd) -> Result<()>,
    ) -> Result<Vec<EntryName>> {
        let of = (inode.number, &found.stored.attributes);
        let several = match &found.name {
            Some(name) if found.stored.links > 1 => {
                let several = self.base.disk().one_of_several(name, of)?;
                change(&self.base.places.shared().tree, &several)?;
                true
            }
            _ => false,
        };
        let mut late = Vec::new();
        for name in inode.names() {
            let leads_to_it = || match self.base.names.lookup(&name) {
                Ok(stored) => Ok(stored.inode == inode.number),
                Err(Failure::Refused(_)) => Ok(false),
                Err(failure) => Err(of_names(failure)),
            };
            if found.name.as_ref() != Some(&name) && !leads_to_it()? {
                continue;
            }
            // Those that were made before its second name are made links of the one inode.
            if several || !self.base.disk().change_other(&name, of, change)? {
                late.push(name);
            }
        }
        Ok(late)
    }

    /// As [`update`](Self::update); what was not there on the shared disk is made with the new attributes.
    fn update_then_follow(
        &self,
        inode: &Inode,
        found: &FoundInode,
        late: Vec<EntryName>,
        change: impl Fn(&mut Attributes) -> namespace::Result<()>,
    ) -> Result<()> {
        let changed = self.update(inode, found, change)?;
        if let Some(name) =
            found.name.as_ref().filter(|_| changed.links > 1 && changed.attributes.kind.is_other())
        {
            let settled = self.base.disk().settle_attributes(name, &changed);
            let of = || vec![Late::Other(name.clone(), inode.number)];
            renames::follow("attributes", name, self.base.late.add(settled, of))?;
        }
        for name in late {
            let made = self.base.disk().follow_later(&name, inode.number).map(drop);
            let made = self.base.late.add(made, || vec![Late::Other(name.clone(), inode.number)]);
            renames::follow("attributes", &name, made)?;
        }
        Ok(())
    }

    /// Changes what has no name any more, and the file with its bytes.
    ///
    /// # Errors
    /// Those of the changes; `ESTALE` if nothing is left of it here, `ENOENT` of a directory.
    fn change_without_name(
        &self,
        inode: &Inode,
        below: impl FnOnce(&File) -> Result<()>,
        change: impl FnOnce(&mut Attributes) -> namespace::Result<()>,
    ) -> Result<()> {
        let mut without_name = inode.without_name.lock();
        match &without_name.file {
            // It has a name that is unknown here: an open by that name would miss the change.
            Some(file) if stat_descriptor(&**file)?.raw.st_nlink > 0 => {
                return Err(Errno::STALE.into());
            }
            Some(file) => below(file)?,
            None if without_name.last.as_ref().is_some_and(|last| last.kind != Kind::File) => {}
            None => return Err(self.lookup.gone(inode)),
        }
        without_name.last.as_mut().map_or(Ok(()), change).map_err(of_names)
    }

    /// Changes attributes in the store.
    fn update(
        &self,
        inode: &Inode,
        found: &FoundInode,
        change: impl Fn(&mut Attributes) -> namespace::Result<()>,
    ) -> Result<StoredInode> {
        let names = &self.base.names;
        let changed = match &found.name {
            None => names.attributes().update_directory(inode.number, change),
            Some(name) => names.attributes().update_of((name, inode.number), change),
        };
        let changed = changed.map_err(of_names)?;
        // It may have been copied, with the old attributes, since they were changed on the disk.
        take_away(&self.base.places, &changed.attributes, inode.number)?;
        let mut without_name = inode.without_name.lock();
        if without_name.last.is_some() {
            without_name.last = Some(changed.attributes.clone());
        }
        Ok(changed)
    }

    /// The value of an extended attribute.
    ///
    /// # Errors
    /// `ENODATA`.
    pub(crate) fn get_xattr(&self, inode: &Inode, name: &OsStr) -> Result<Vec<u8>> {
        check_kind(name)?;
        let attributes = self.lookup.attributes(inode)?;
        let value = attributes.xattrs.get(name.as_bytes());
        value.cloned().ok_or_else(|| Errno::NODATA.into())
    }

    /// The names of all extended attributes, each followed by a zero byte.
    ///
    /// # Errors
    /// If the store does not answer.
    pub(crate) fn list_xattr(&self, inode: &Inode) -> Result<Vec<u8>> {
        let attributes = self.lookup.attributes(inode)?;
        Ok(attributes.xattrs.keys().flat_map(|name| [name, &b"\0"[..]].concat()).collect())
    }

    /// Sets an extended attribute; `flags` are those of `setxattr(2)`.
    ///
    /// # Errors
    /// `EEXIST`, `ENODATA`, `ENOSPC`, and what the disks refuse.
    pub(crate) fn set_xattr(
        &self,
        inode: &Inode,
        name: &OsStr,
        value: &[u8],
        flags: i32,
    ) -> Result<()> {
        check_kind(name)?;
        if hidden_xattr(name) {
            return Err(Errno::PERM.into());
        }
        let name_bytes = name.as_bytes();
        if name_bytes == ACCESS || name_bytes == DEFAULT {
            let acl = Acl::parse(value).ok_or(Errno::INVAL)?;
            return self.set_acl(inode, name, Some(&acl).filter(|acl| !acl.is_empty()));
        }
        let is_there = match flags {
            libc::XATTR_CREATE => Some(false),
            libc::XATTR_REPLACE => Some(true),
            _ => None,
        };
        let now_ns = self.base.now_ns();
        let change = |attributes: &mut Attributes| {
            match (is_there, attributes.xattrs.contains_key(name_bytes)) {
                (Some(true), false) => return Err(Failure::Refused(Errno::NODATA)),
                (Some(false), true) => return Err(Failure::Refused(Errno::EXIST)),
                _ => {}
            }
            attributes.xattrs.insert(name_bytes.to_vec(), value.to_vec());
            attributes.ctime_ns = attributes.ctime_ns.max(now_ns);
            Ok(())
        };
        match self.change_xattr(inode, (name, Some(value)), &change) {
            Err(error) if error.is_full() && self.files.make_room_for_attributes(inode.number) => {
                self.change_xattr(inode, (name, Some(value)), &change)
            }
            changed => changed,
        }
    }

    /// Changes extended attributes: `below`, on a disk, to that value, or to none, and in the store by `change`, which
    /// refuses what may not be changed.
    fn change_xattr(
        &self,
        inode: &Inode,
        below: (&OsStr, Option<&[u8]>),
        change: &dyn Fn(&mut Attributes) -> namespace::Result<()>,
    ) -> Result<()> {
        self.change(inode, |found| {
            // Whoever opens a file without a name has it from here, not from the disk.
            let Some(found) = found else {
                return self.change_without_name(inode, |_| Ok(()), change);
            };
            let StoredInode { attributes: before, links, .. } = &found.stored;
            let mut after = before.clone();
            change(&mut after).map_err(of_names)?;
            check_room(before, &after, *links)?;
            let late = self.below(inode, found, below)?;
            self.update_then_follow(inode, found, late, change)
        })
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// `ENODATA`, and what the disks refuse.
    pub(crate) fn remove_xattr(&self, inode: &Inode, name: &OsStr) -> Result<()> {
        check_kind(name)?;
        let bytes = name.as_bytes();
        if bytes == ACCESS || bytes == DEFAULT {
            return self.set_acl(inode, name, None);
        }
        if hidden_xattr(name) {
            return Err(Errno::NODATA.into());
        }
        let now_ns = self.base.now_ns();
        self.change_xattr(inode, (name, None), &|attributes| {
            attributes.xattrs.remove(bytes).ok_or(Failure::Refused(Errno::NODATA))?;
            attributes.ctime_ns = attributes.ctime_ns.max(now_ns);
            Ok(())
        })
    }

    /// Sets or removes an ACL. If the ACL decides access, the permission bits follow it; an ACL that says no more
    /// than the permission bits is not kept.
    fn set_acl(&self, inode: &Inode, name: &OsStr, acl: Option<&Acl>) -> Result<()> {
        let is_access = name.as_bytes() == ACCESS;
        let kept = acl.filter(|acl| !is_access || !acl.is_only_mode());
        let value = acl.map(Acl::to_value);
        let now_ns = self.base.now_ns();
        let set = self.change_xattr(inode, (name, value.as_deref()), &|attributes| {
            let refused = match attributes.kind {
                Kind::Directory => None,
                Kind::Symlink => Some(Errno::OPNOTSUPP),
                _ if is_access => None,
                _ if acl.is_none() => Some(Errno::NODATA),
                _ => Some(Errno::ACCESS),
            };
            if let Some(errno) = refused {
                return Err(Failure::Refused(errno));
            }
            if let Some(acl) = acl.filter(|_| is_access) {
                attributes.mode = attributes.mode & !0o777 | acl.mode();
            }
            match kept {
                Some(acl) => attributes.xattrs.insert(name.as_bytes().to_vec(), acl.to_value()),
                None => attributes.xattrs.remove(name.as_bytes()),
            };
            attributes.ctime_ns = attributes.ctime_ns.max(now_ns);
            Ok(())
        });
        // What has no default ACL has lost it.
        or_none(set)
    }

    /// Sets, or removes with `None`, an extended attribute of the file with the bytes, of the directory, or of a link or
    /// device; returns the names at which one of these has yet to be made.
    fn below(
        &self,
        inode: &Inode,
        found: &FoundInode,
        (name, value): (&OsStr, Option<&[u8]>),
    ) -> Result<Vec<EntryName>> {
        let (places, number) = (&self.base.places, inode.number.0);
        let attributes = &found.stored.attributes;
        take_away(places, attributes, inode.number)?;
        let done = match (attributes.kind, value) {
            (Kind::File, Some(value)) => {
                places.set_xattr(place_of(attributes)?, number, name, value, 0)
            }
            (Kind::File, None) => places.remove_xattr(place_of(attributes)?, number, name),
            (Kind::Directory, Some(value)) => places.set_directory_xattr(number, name, value, 0),
            (Kind::Directory, None) => places.remove_directory_xattr(number, name),
            _ => {
                return self.change_other(inode, found, &|tree, fd| match value {
                    Some(value) => set_xattr(tree, fd, name, value, 0),
                    None => or_none(remove_xattr(tree, fd, name)),
                });
            }
        };
        let done = if value.is_none() { or_none(done) } else { done };
        done.map(|()| Vec::new())
    }
}
