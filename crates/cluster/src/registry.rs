//! The authoritative list of sessions, on the origin: a store may forget which sessions had tokens, this list does not.
//!
//! A session enters before it joins the store's members, and is removed when nothing of it is left: it ended, or its
//! cache was recovered or given up. Each session has a file, in a directory that only the nodes' own user may change.
//! `registry/list_id.rs` has the directory's id in the store, and notices if the directory is lost.

mod file_identity;
mod list_id;

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use halocline_model::token::Session;
use halocline_os::client_pages::ClientPages;
use halocline_os::error::{Error, Result};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, StatxFlags};
use rustix::fs::{fstat, fsync, mkdirat, open, openat, renameat, statx, unlinkat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

pub use file_identity::FileIdentity;
use list_id::ListId;

/// Sessions that can be listed.
const SESSIONS_MAX: usize = 100_000;
/// The largest entry that is read, in bytes.
const ENTRY_MAX: u64 = 32 << 10;
/// Prefix of the names of entries, followed by the session's number in hexadecimal digits.
const PREFIX: &str = "session-";
/// The longest name of a node, in bytes.
const NAME_MAX: usize = 255;

/// The entry of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its number.
    pub session: Session,
    /// The node's name.
    pub node: String,
    /// Its cache directory, as that node names it.
    pub cache: PathBuf,
    /// The id of that cache, because directories of different nodes may have the same name.
    pub cache_id: String,
    /// The boot id of the machine on which its process runs.
    pub boot_id: String,
    /// When it began, in seconds since 1970.
    pub since: u64,
    /// The identity of its cache directory on its machine: two containers may have different ones under the same path.
    #[serde(default)]
    pub cache_seen: Option<FileIdentity>,
    /// The identity of this entry's file, as its node sees it; set when the session enters.
    #[serde(default)]
    pub seen: Option<FileIdentity>,
    /// The id of the list that its node found; set when the session enters. Earlier versions had none, and use another
    /// name for the origin in the store.
    #[serde(default)]
    pub list_id: Option<String>,
}

/// Where a session finds its list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// Where it was, and the session is in it.
    Here,
    /// Where it was, without the session: others ended it.
    Unlisted,
    /// Another directory has its name, or none has.
    Elsewhere,
}

/// The directory with the list.
#[derive(Debug)]
pub struct Registry {
    path: PathBuf,
    /// The origin, which a mount may cover later.
    origin: OwnedFd,
    dir: OwnedFd,
    /// `None` while sessions of earlier versions are listed.
    id: Option<ListId>,
}

impl Registry {
    /// Opens the directory to take part. Creates it if the origin never had one, and gives it an id if it has none.
    ///
    /// # Errors
    /// If it is a link, belongs to someone else, can be changed by others, or lies on NFS or SMB; if it is not the one
    /// that belongs to the origin, or that one is missing.
    pub fn open(path: &Path) -> Result<Self> {
        let mut registry = Self::open_as_found(path, true)?;
        if registry.id.is_none() && registry.sessions()?.is_empty() {
            registry.id = Some(ListId::create(&registry.dir).map_err(Error::at(path, "name"))?);
        }
        if let Some(id) = &registry.id {
            id.mark(&registry.origin, path)?;
        }
        Ok(registry)
    }

    /// Opens the directory as it is, to read it; an error of the kind of `ENOENT` if there is none.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_existing(path: &Path) -> Result<Self> {
        Self::open_as_found(path, false)
    }

    fn open_as_found(path: &Path, creates: bool) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let above = path.parent().filter(|above| !above.as_os_str().is_empty());
        let origin = open(above.unwrap_or(Path::new(".")), flags, Mode::empty())
            .map_err(|error| Error::at(path, "open the directory above")(error.into()))?;
        let name = path.file_name().unwrap_or_default();
        let open_dir = || openat(&origin, name, flags | OFlags::NOFOLLOW, Mode::empty());
        let dir = match open_dir() {
            Err(Errno::NOENT) if creates => match list_id::refuse_if_marked(&origin, path) {
                Ok(()) => {
                    match mkdirat(&origin, name, Mode::RWXU) {
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(error) => {
                            return Err(Error::at(path, "create the directory")(error.into()));
                        }
                    }
                    open_dir()
                }
                // Another node may have begun the list since.
                Err(refused) => match open_dir() {
                    Err(Errno::NOENT) => return Err(refused),
                    dir => dir,
                },
            },
            dir => dir,
        };
        let dir = dir.map_err(|error| Error::at(path, "open the directory")(error.into()))?;
        // Tokens protect bytes; some clients write whole pages.
        let pages = ClientPages::of(&dir).map_err(Error::at(path, "see what it lies on"))?;
        if pages == ClientPages::WrittenWhole {
            return Err(Error::invalid(
                format!(
                    "{} lies on NFS or SMB, whose clients write whole pages: what another node wrote beside could be lost",
                    path.display()
                ),
                "share a directory of a file system that keeps its clients coherent: Lustre, GPFS, CephFS, GlusterFS \
                 with its caches off, or one machine's own",
            ));
        }
        let stat = fstat(&dir)?;
        let own = rustix::process::geteuid().as_raw();
        check_owner(path, (stat.st_uid, own), stat.st_mode)?;
        let mut id = ListId::read(&dir, path)?;
        let refuse = |id: Option<&ListId>| list_id::refuse_if_marked_for_another(&origin, path, id);
        match refuse(id.as_ref()) {
            // Another node may have begun the list since.
            Err(_) if id.is_none() => {
                id = ListId::read(&dir, path)?;
                refuse(id.as_ref())?;
            }
            done => done?,
        }
        Ok(Self { path: path.to_owned(), origin, dir, id })
    }

    /// The name that distinguishes the origin from others in the same store: the list's id, which no other list ever
    /// had. While sessions of earlier versions are listed, the inode number of the directory, as they use it.
    ///
    /// # Errors
    /// If the directory cannot be examined.
    pub fn store_name(&self) -> Result<String> {
        match &self.id {
            Some(id) => Ok(id.as_str().to_owned()),
            None => Ok(format!("{:x}", fstat(&self.dir)?.st_ino)),
        }
    }

    /// Whether sessions of earlier versions prevent nodes of this version from taking part.
    #[must_use]
    pub const fn is_of_earlier_version(&self) -> bool {
        self.id.is_none()
    }

    /// Where a session now finds the list.
    ///
    /// # Errors
    /// If that cannot be examined.
    pub fn presence_of(&self, session: Session) -> io::Result<Presence> {
        let name = self.path.file_name().unwrap_or_default();
        let how = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_FORCE_SYNC;
        let found = statx(&self.origin, name, how, StatxFlags::BASIC_STATS | StatxFlags::BTIME);
        match found {
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(Presence::Elsewhere),
            found => {
                let own = match FileIdentity::of(&self.dir) {
                    // Clients of some file systems report a removed directory this way.
                    Err(error)
                        if matches!(
                            Errno::from_io_error(&error),
                            Some(Errno::STALE | Errno::NOENT)
                        ) =>
                    {
                        return Ok(Presence::Elsewhere);
                    }
                    own => own?,
                };
                if FileIdentity::of_statx(&found?) != own {
                    return Ok(Presence::Elsewhere);
                }
            }
        }
        match statx(&self.dir, name_of(session), how, StatxFlags::BASIC_STATS) {
            Err(Errno::NOENT) => Ok(Presence::Unlisted),
            found => found.map(|_| Presence::Here).map_err(io::Error::from),
        }
    }

    /// Refuses an origin whose list is gone although it may have nodes. For callers that do not take part themselves.
    ///
    /// # Errors
    /// If it was marked as shared, or that cannot be examined.
    pub fn refuse_if_missing(path: &Path) -> Result<()> {
        let origin = File::open(path.parent().unwrap_or(Path::new("/")))
            .map_err(Error::at(path, "open the directory above"))?;
        list_id::refuse_if_marked(&origin.into(), path)
    }

    /// What to do about a missing list, for people.
    pub(crate) fn what_is_elsewhere(&self) -> String {
        format!(
            "{} is not the nodes' list of sessions any more: it was renamed, removed or replaced; put it back",
            self.path.display()
        )
    }

    /// Enters a session, durably.
    pub fn enter(&self, entry: &Entry) -> Result<()> {
        if entry.node.len() > NAME_MAX || entry.node.chars().any(char::is_control) {
            return Err(Error::invalid(
                "the node's name is too long, or has control characters",
                "give another one",
            ));
        }
        let name = name_of(entry.session);
        let temporary = format!(".{name}");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let write = || -> io::Result<()> {
            let mode = Mode::RUSR | Mode::WUSR;
            let file = openat(&self.dir, &temporary, flags | OFlags::CLOEXEC, mode)?;
            let mut file = File::from(file);
            let list_id = self.id.as_ref().map(|id| id.as_str().to_owned());
            let entry = Entry { seen: Some(FileIdentity::of(&file)?), list_id, ..entry.clone() };
            file.write_all(&serde_json::to_vec(&entry)?)?;
            file.sync_all()?;
            renameat(&self.dir, &temporary, &self.dir, &name)?;
            Ok(fsync(&self.dir)?)
        };
        write().map_err(Error::at(self.path.join(&name), "write the entry"))
    }

    /// Checks that this node identifies the files of all other sessions as their nodes do: tokens belong to files by
    /// inode number and birth time, which the clients of some file systems make up, or report on some machines only.
    /// To be called after the own session has entered, so that of two sessions that begin at once one sees the other.
    ///
    /// # Errors
    /// Names a node that sees a file differently.
    pub(crate) fn check_views(&self, own: Session) -> Result<()> {
        for session in self.sessions()?.into_iter().filter(|session| *session != own) {
            // An entry that cannot be read says nothing.
            let Some((entry, here)) = self.read_entry(session) else { continue };
            if entry.list_id.as_deref() != self.id.as_ref().map(ListId::as_str) {
                return Err(self.other_version(&entry.node));
            }
            let Some(there) = entry.seen.filter(|there| !there.is_alike(here)) else { continue };
            let shown =
                |seen: FileIdentity| format!("inode {}, born {} ns", seen.inode, seen.born_ns);
            let file = self.path.join(name_of(session));
            return Err(Error::Cluster {
                what: format!(
                    "{} is {} here and {} on node {}: tokens of one node would not be those of the other",
                    file.display(),
                    shown(here),
                    shown(there),
                    entry.node,
                ),
                remedy: "have all nodes mount the origin with the same version and options of its file system's client, \
                         so that inode numbers and birth times are the server's; a node that is gone is ended with \
                         `halocline cluster recover` or `forget`"
                    .to_owned(),
            });
        }
        Ok(())
    }

    /// The error about a node of an earlier version, which uses another name for the origin in the store.
    fn other_version(&self, node: &str) -> Error {
        Error::Cluster {
            what: format!(
                "{}: node {node} is in it with another version of Halocline, which does not see this one's tokens",
                self.path.display()
            ),
            remedy: "have all nodes use one version, and unmount that node first; if it is gone, mount it again, which \
                     brings its bytes to the origin and ends its session, and then this one. `halocline cluster recover` \
                     does the same from here; `forget` gives the bytes up"
                .to_owned(),
        }
    }

    /// Checks that no sessions of earlier versions are listed.
    ///
    /// # Errors
    /// Names one of them.
    pub(crate) fn check_version(&self) -> Result<()> {
        if !self.is_of_earlier_version() {
            return Ok(());
        }
        let one = self.sessions()?.first().map(|session| self.node(*session));
        Err(self.other_version(&one.unwrap_or_else(|| "that has just left".to_owned())))
    }

    /// Removes a session, if it is there.
    pub fn leave(&self, session: Session) -> Result<()> {
        let name = name_of(session);
        let remove = || -> rustix::io::Result<()> {
            match unlinkat(&self.dir, &name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => fsync(&self.dir),
                Err(error) => Err(error),
            }
        };
        remove().map_err(|error| Error::at(self.path.join(&name), "remove")(error.into()))
    }

    /// The sessions in the list.
    ///
    /// # Errors
    /// If it cannot be read, or is impossibly large.
    pub fn sessions(&self) -> Result<Vec<Session>> {
        let read = || -> io::Result<Vec<Session>> {
            let mut sessions = Vec::new();
            for name in Dir::read_from(&self.dir)? {
                let name = name?;
                let Some(session) = name.file_name().to_str().ok().and_then(session_of) else {
                    continue;
                };
                if sessions.len() >= SESSIONS_MAX {
                    return Err(io::Error::other("too many entries"));
                }
                sessions.push(session);
            }
            Ok(sessions)
        };
        read().map_err(Error::at(&self.path, "list the sessions"))
    }

    /// A session's entry, as far as it can be read and trusted.
    pub fn entry(&self, session: Session) -> Option<Entry> {
        self.read_entry(session).map(|(entry, _)| entry)
    }

    /// The same, with its file as this node sees it.
    fn read_entry(&self, session: Session) -> Option<(Entry, FileIdentity)> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&self.dir, name_of(session), flags, Mode::empty()).ok()?;
        let stat = fstat(&file).ok()?;
        let is_own = stat.st_uid == rustix::process::geteuid().as_raw();
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || !is_own {
            return None;
        }
        let seen = FileIdentity::of(&file).ok()?;
        let mut bytes = Vec::new();
        File::from(file).take(ENTRY_MAX).read_to_end(&mut bytes).ok()?;
        let entry: Entry = serde_json::from_slice(&bytes).ok()?;
        let is_sound = entry.session == session && !entry.node.chars().any(char::is_control);
        is_sound.then_some((entry, seen))
    }

    /// The name of a session's node alone; the session's number if its entry cannot be read.
    pub fn node(&self, session: Session) -> String {
        self.entry(session).map_or_else(|| format!("{:016x}", session.0), |entry| entry.node)
    }

    /// The name of a session for people.
    pub fn name(&self, session: Session) -> String {
        self.entry(session).map_or_else(
            || format!("session {:016x}", session.0),
            |entry| format!("node {} (session {:016x})", entry.node, session.0),
        )
    }
}

/// Checks that nobody else can change the list: who `found` is its owner, and `own` the one who uses it.
fn check_owner(path: &Path, (found, own): (u32, u32), mode: u32) -> Result<()> {
    let path = path.display();
    if found != own {
        // Given to another user, it would refuse the nodes of its owner.
        let remedy = match own {
            0 => format!("run this as that user (setpriv --reuid {found})"),
            _ => "run this as that user".to_owned(),
        };
        let what = format!("{path} belongs to user {found}, not to user {own}");
        return Err(Error::invalid(what, format!("{remedy}: all nodes are of one user")));
    }
    if mode & 0o022 != 0 {
        return Err(Error::invalid(
            format!("{path}: others may change it"),
            "see that all in it is yours, and close it: chmod 0700",
        ));
    }
    Ok(())
}

fn name_of(session: Session) -> String {
    format!("{PREFIX}{:016x}", session.0)
}

fn session_of(name: &str) -> Option<Session> {
    let digits = name.strip_prefix(PREFIX)?;
    let session = Session(u64::from_str_radix(digits, 16).ok()?);
    (name_of(session) == name).then_some(session)
}

#[cfg(test)]
pub(crate) mod tests;
