//! Whether a link on the SSD is ours: then it says where a file is, and what becomes of that.
//!
//! Somebody may be able to write to a directory of the SSD past the mount, or make a link through it
//! whose target is where a tier will be one day. What must hold: such a link gives nobody another's
//! file. Ours belong to the user who mounts, to whom nobody else can give a link; a second name of
//! one of ours (a hard link) is believed only where it is the file's own path, so that copies made
//! of hard links do no harm, or where the link is that of a file with several names, of which it is
//! one then, as it would be of any file. A link and its owner are read through one descriptor: nobody can show
//! one and have us follow another.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, openat, readlinkat};

use super::Core;
use super::inode::{Away, Entry};
use super::links::Target;
use crate::engine::Stat;
use crate::error::Result;
use crate::namespace::{Node, stat_descriptor};

/// What a link in the form of ours says.
#[derive(Debug)]
pub(super) struct Said {
    /// The place that it names.
    pub(super) away: Away,
    /// Its attributes.
    pub(super) link: Stat,
    /// Whether it is ours.
    pub(super) ours: bool,
    /// Whether it names a root of an earlier mount.
    pub(super) former: bool,
}

impl Core {
    /// The place that a name's link gives, with the link's identity, if it is ours.
    pub(super) fn away(&self, parent: &Node, name: &OsStr) -> Result<Option<(Away, Entry)>> {
        let said = self.said(parent, name)?.filter(|said| said.ours);
        Ok(said.map(|said| (said.away, said.link.key())))
    }

    /// What a name's link says, if it has the form of ours. Most links of users are told by one look.
    pub(super) fn said(&self, parent: &Node, name: &OsStr) -> Result<Option<Said>> {
        let dir = self.namespace.descriptor(parent)?;
        let target = readlinkat(&*dir, name, Vec::new())?;
        if let Target::Users(_) = self.links.read(target.as_bytes()) {
            return Ok(None);
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let link = openat(&*dir, name, flags, Mode::empty())?;
        self.said_by(&link, || self.namespace.path_of(parent).join(name))
    }

    /// What an open link says, if it has the form of ours; `path` is that of its name.
    pub(super) fn said_by(
        &self,
        link: &OwnedFd,
        path: impl FnOnce() -> PathBuf,
    ) -> Result<Option<Said>> {
        let stat = stat_descriptor(link)?;
        if stat.kind() != libc::S_IFLNK {
            return Ok(None);
        }
        let target = readlinkat(link, "", Vec::new())?;
        Ok(match self.links.read(target.as_bytes()) {
            Target::Users(_) => None,
            Target::Away(tier, place) => {
                let shared = self.links.is_shared(target.as_bytes());
                let ours = self.is_ours(&stat, (&place, shared), path);
                let present = if shared {
                    self.links.to_shared(tier, &place)
                } else {
                    self.links.to(tier, &place)
                };
                let former = target.as_bytes() != present.as_encoded_bytes();
                Some(Said { away: Away { tier, path: place, shared }, link: stat, ours, former })
            }
        })
    }

    /// Whether a link with these attributes, which names `place` and may be `shared`, is ours.
    pub(super) fn is_ours(
        &self,
        link: &Stat,
        (place, shared): (&Path, bool),
        path: impl FnOnce() -> PathBuf,
    ) -> bool {
        link.raw.st_uid == self.uid && (link.raw.st_nlink == 1 || shared || path() == place)
    }
}
