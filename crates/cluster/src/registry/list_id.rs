//! The id of a list of sessions, and the origin's mark that names this list as its own.
//!
//! The id distinguishes origins that share a store. The inode number of the directory would not do, because new file
//! systems number their directories alike. The id records the directory for which it was made, so that a copy of an
//! origin, with its list, is not mistaken for the original.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use halocline_api::control::tier::PRIVATE;
use halocline_api::file_tier::shared_disk::TIER;
use halocline_meta::cluster_mark;
use halocline_os::error::{Error, Result};
use halocline_os::random::random_bytes;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags};
use rustix::fs::{fstat, fsync, linkat, openat, renameat_with, unlinkat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::file_identity::FileIdentity;

/// The file that contains the id.
const FILE: &str = "id";
/// The largest such file that is read, in bytes.
const BYTES_MAX: u64 = 4096;
/// Random bytes of an id.
const RANDOM_BYTES: usize = 16;

/// An id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ListId(String);

/// The contents of the file.
#[derive(Debug, Serialize, Deserialize)]
struct IdFile {
    id: String,
    /// The inode number of the list's directory.
    inode: u64,
    born_ns: u64,
}

fn random_id() -> io::Result<String> {
    Ok(format!("{:032x}", u128::from_le_bytes(random_bytes::<RANDOM_BYTES>()?)))
}

/// Renames `temporary` to the file of the id, unless that exists.
fn publish(dir: &OwnedFd, temporary: &str) -> rustix::io::Result<()> {
    match linkat(dir, temporary, dir, FILE, AtFlags::empty()) {
        Ok(()) => unlinkat(dir, temporary, AtFlags::empty()),
        Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::MLINK) => {
            renameat_with(dir, temporary, dir, FILE, RenameFlags::NOREPLACE)
        }
        Err(error) => Err(error),
    }
}

impl ListId {
    /// The id as a name.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Gives a directory an id, durably; returns its final id, which is another node's if that one was faster.
    pub(super) fn create(dir: &OwnedFd) -> io::Result<Self> {
        let seen = FileIdentity::of(dir)?;
        let id = random_id()?;
        let temporary = format!(".{FILE}-{id}");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let mode = Mode::RUSR | Mode::WUSR;
        let mut file = File::from(openat(dir, &temporary, flags | OFlags::CLOEXEC, mode)?);
        let content = IdFile { id: id.clone(), inode: seen.inode, born_ns: seen.born_ns };
        file.write_all(&serde_json::to_vec(&content)?)?;
        file.sync_all()?;
        let published = publish(dir, &temporary);
        if published.is_err() {
            let _ = unlinkat(dir, &temporary, AtFlags::empty());
        }
        match published {
            Ok(()) => {
                fsync(dir)?;
                Ok(Self(id))
            }
            Err(Errno::EXIST) => {
                let found = read(dir)?.map(|content| Self(content.id));
                found.ok_or_else(|| io::Error::other("its id was removed just now"))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The id of a directory, if it has one.
    ///
    /// # Errors
    /// If it cannot be read, or was made for another directory.
    pub(super) fn read(dir: &OwnedFd, path: &Path) -> Result<Option<Self>> {
        let Some(content) = read(dir).map_err(Error::at(path.join(FILE), "read"))? else {
            return Ok(None);
        };
        let seen = FileIdentity::of(dir).map_err(Error::at(path, "look at"))?;
        // Some nodes may not see birth times.
        let is_alike = |one: u64, two: u64| one == two || one == 0 || two == 0;
        if content.inode == seen.inode && is_alike(content.born_ns, seen.born_ns) {
            return Ok(Some(Self(content.id)));
        }
        if is_of_tier(path) {
            return Err(Error::invalid(
                format!(
                    "{} was made for another directory: the shared disk looks restored or copied, or this node's client shows other \
                     inode numbers than the others'",
                    path.display()
                ),
                format!(
                    "if it was restored from a backup, or is a copy that replaces it: see that no node of the tier is mounted, remove \
                     that list (rm -r {}), and have the names built again from the shared disk and all SSDs: halocline cluster fsck \
                     --tier ROOT --cluster URL [--peers PATTERN] --repair; what was changed since the backup and lies on the shared disk \
                     is not in it",
                    quoted(path)
                ),
            ));
        }
        Err(Error::invalid(
            format!(
                "{} is a copy of the list of sessions of another origin, or this node's client shows other inode \
                 numbers than the others'",
                path.display()
            ),
            "if the origin is a copy, remove that directory from it; what caches of the original had that was not \
             flushed is not in it",
        ))
    }

    /// Marks the origin with the id, so that a lost list is noticed.
    pub(super) fn mark(&self, origin: &OwnedFd, path: &Path) -> Result<()> {
        let at = || Error::at(path, "mark the origin of");
        let origin = File::from(origin.try_clone().map_err(at())?);
        if !cluster_mark::set(&origin, &self.0).map_err(at())? {
            tracing::debug!("{}: the origin takes no mark", path.display());
        }
        Ok(())
    }
}

/// Whether the directory of a list is the shared disk of a tier, and no origin of caches.
fn is_of_tier(path: &Path) -> bool {
    let tier = path.parent().map(|shared| shared.join(PRIVATE).join(TIER));
    tier.is_some_and(|tier| tier.symlink_metadata().is_ok())
}

/// A path as one word: an administrator copies it, whoever has chosen its names. (A path has no byte 0.)
fn quoted(path: &Path) -> String {
    let path = path.to_string_lossy();
    shlex::try_quote(&path).unwrap_or_default().into_owned()
}

/// The content of the file. Accepted only from a node of this user.
fn read(dir: impl AsFd) -> io::Result<Option<IdFile>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match openat(dir, FILE, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        file => file?,
    };
    let stat = fstat(&file)?;
    let is_own = stat.st_uid == rustix::process::geteuid().as_raw();
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || !is_own {
        return Err(io::Error::other("it is not a file of this user"));
    }
    let mut bytes = Vec::new();
    File::from(file).take(BYTES_MAX).read_to_end(&mut bytes)?;
    let content: IdFile = serde_json::from_slice(&bytes)?;
    let is_id = content.id.len() == 2 * RANDOM_BYTES
        && content.id.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    if is_id { Ok(Some(content)) } else { Err(io::Error::other("it has no id in it")) }
}

/// The other lists with which an origin is marked.
fn others(origin: &OwnedFd, path: &Path, own: Option<&ListId>) -> Result<Vec<(String, String)>> {
    let at = || Error::at(path, "read the marks on the origin of");
    let origin = File::from(origin.try_clone().map_err(at())?);
    let marks = cluster_mark::found_on(&origin);
    // Whoever may write to the origin can have given it so many on XFS and tmpfs. Then only a mark that is known is found.
    if marks.as_ref().is_err_and(|error| Errno::from_io_error(error) == Some(Errno::TOOBIG)) {
        let is_own = own.map(|own| cluster_mark::is_marked(&origin, own.as_str())).transpose();
        return if is_own.map_err(at())? == Some(true) {
            Ok(Vec::new())
        } else {
            Err(unlisted(path))
        };
    }
    let mut marks = marks.map_err(at())?;
    marks.retain(|(id, _)| own.is_none_or(|own| own.as_str() != id));
    Ok(marks)
}

/// The error for an origin with more extended attributes than the kernel lists, and without the mark of a list that is there.
fn unlisted(path: &Path) -> Error {
    let origin = path.parent().unwrap_or(path).display();
    Error::invalid(
        format!(
            "{origin}: the names of its extended attributes take more than the 64 KiB that the kernel lists, so it is not known which \
             list of nodes it had"
        ),
        "remove some of them (setfattr -x NAME)",
    )
}

fn refusal(what: String, path: &Path, marks: &[(String, String)]) -> Error {
    let origin = quoted(path.parent().unwrap_or(path));
    let commands = marks.iter().map(|(_, name)| format!("setfattr -x {name} {origin}"));
    let commands = commands.collect::<Vec<_>>().join(" && ");
    Error::invalid(
        what,
        format!(
            "put it back; if it is lost, unmount all nodes everywhere, and then have the origin forget it: {commands}"
        ),
    )
}

/// Refuses to begin a new list for an origin that has one.
pub(super) fn refuse_if_marked(origin: &OwnedFd, path: &Path) -> Result<()> {
    refuse_others(
        (origin, path, None),
        "is missing, the list of the nodes that cache the origin: they may be there still",
    )
}

/// Refuses a list in place of the one that the origin is marked with.
pub(super) fn refuse_if_marked_for_another(
    origin: &OwnedFd,
    path: &Path,
    own: Option<&ListId>,
) -> Result<()> {
    refuse_others(
        (origin, path, own),
        "is not the list of sessions that the origin had, whose nodes may be there still",
    )
}

fn refuse_others(
    (origin, path, own): (&OwnedFd, &Path, Option<&ListId>),
    what: &str,
) -> Result<()> {
    match &others(origin, path, own)?[..] {
        [] => Ok(()),
        marks => Err(refusal(format!("{} {what}", path.display()), path, marks)),
    }
}
