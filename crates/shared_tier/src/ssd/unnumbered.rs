//! What the store says of directories on this node's SSD, and numbers for those that have none.
//!
//! An earlier version adopted tiers without numbering them. What must hold: a directory gets a number only if nobody but us
//! can have put anything into it, and the store has one of the files in it in the directory with that number. Where it was
//! renamed before, its path leads to nothing, or to another one; then a repair finds it by its files.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use halocline_cluster::names::attributes::Kind;
use halocline_cluster::names::namespace::Failure;
use halocline_model::namespace::{EntryName, InodeNumber, Name};
use halocline_os::beneath;
use halocline_os::error::Result;
use halocline_os::process_user::own_uid;
use halocline_vfs::namespace::stat_descriptor;
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;

use super::empty_directories::EmptyDirectories;
use super::scan::InStore;
use crate::base::Base;
use crate::places::{SSD, own_xattrs};

/// How many of a directory's files are compared with the store, if the first ones have other names or places there.
const COMPARED_MAX: usize = 16;

/// Permission bits of everybody but the owner.
const OTHERS: u32 = 0o077;

/// The store is asked.
pub(super) struct Asked<'a> {
    pub(super) base: &'a Base,
    pub(super) empty: &'a mut EmptyDirectories,
}

impl InStore for Asked<'_> {
    fn is_gone(&mut self, number: u64) -> bool {
        let found = || self.base.names.directory(InodeNumber(number));
        self.empty.is_due(number) && matches!(found(), Err(Failure::Refused(Errno::NOENT)))
    }

    fn number(&mut self, above: u64, name: &OsStr, directory: &OwnedFd) -> Option<u64> {
        if !is_closed(directory) {
            return None;
        }
        let at = EntryName { directory: InodeNumber(above), name: Name::from(name.as_bytes()) };
        let found = self.base.names.lookup(&at).ok()?;
        if found.attributes.kind != Kind::Directory {
            return None;
        }
        let number = found.inode.0;
        if has_files_of(self.base, directory, number).ok()? {
            let set = || own_xattrs::set_number(directory, own_xattrs::DIRECTORY, number);
            let given = self.base.places.ssd().step("numbering a directory", set);
            if let Err(error) = given {
                tracing::warn!(?name, %error, "a directory on the SSD gets no number");
            }
        }
        // Those below may have files.
        Some(number)
    }
}

/// Nobody is asked.
pub(super) struct Unasked;

impl InStore for Unasked {
    fn is_gone(&mut self, _: u64) -> bool {
        false
    }

    fn number(&mut self, _: u64, _: &OsStr, _: &OwnedFd) -> Option<u64> {
        None
    }
}

/// Whether a directory is ours, and closed to others, as an adoption leaves it.
fn is_closed(directory: &OwnedFd) -> bool {
    let raw = stat_descriptor(directory).map(|stat| stat.raw);
    raw.is_ok_and(|raw| raw.st_uid == own_uid() && raw.st_mode & OTHERS == 0)
}

/// Whether the store has one of the files in a directory in the directory with this number.
fn has_files_of(base: &Base, directory: &OwnedFd, number: u64) -> Result<bool> {
    let mut compared = 0;
    let readable = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    for name in beneath::names(openat(directory, ".", readable, Mode::empty())?)? {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(fd) = openat(directory, &name, flags, Mode::empty()) else { continue };
        if stat_descriptor(&fd)?.kind() != libc::S_IFREG {
            continue;
        }
        let Some(file) = own_xattrs::number(&fd, own_xattrs::INODE) else { continue };
        let name = Name::from(name.as_bytes());
        let at = EntryName { directory: InodeNumber(number), name };
        match base.names.lookup(&at) {
            Ok(found) if found.inode.0 == file => {
                let place = found.attributes.location;
                let node = place.filter(|place| place.tier == SSD).and_then(|place| place.node);
                if node.as_deref() == Some(base.places.node()) {
                    return Ok(true);
                }
            }
            _ => {}
        }
        compared += 1;
        if compared == COMPARED_MAX {
            break;
        }
    }
    Ok(false)
}
