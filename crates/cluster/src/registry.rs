//! The authoritative list of sessions, on the origin: a store may forget which sessions had tokens, this list does not.
//!
//! A session enters before it joins the store's members, and is removed when nothing of it is left: it ended, or its
//! cache was recovered or given up. There is one file for each, in a directory that only the nodes' own user may
//! change.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use halocline_model::token::Session;
use halocline_os::client_pages::ClientPages;
use halocline_os::error::{Error, Result};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, StatxFlags};
use rustix::fs::{fstat, fsync, makedev, mkdir, open, openat, renameat, statx, unlinkat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// Sessions that can be listed.
const SESSIONS_MAX: usize = 100_000;
/// The largest entry that is read, in bytes.
const ENTRY_MAX: u64 = 32 << 10;
/// Prefix of the names of entries, followed by the session's number in hexadecimal digits.
const PREFIX: &str = "session-";
/// The longest name of a node, in bytes.
const NAME_MAX: usize = 255;

/// A file as a node identifies it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Device, where that is meant.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Birth time in nanoseconds since the epoch; 0 if the node's file system reports none.
    pub born_ns: u64,
}

impl Seen {
    /// As the system now shows an open file or directory here, whatever its client remembers.
    ///
    /// # Errors
    /// As of `statx(2)`.
    pub fn of(file: impl AsFd) -> io::Result<Self> {
        let how = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
        let found = statx(file, "", how, StatxFlags::BASIC_STATS | StatxFlags::BTIME)?;
        let has_birth = found.stx_mask & StatxFlags::BTIME.bits() != 0;
        let born_ns = i128::from(found.stx_btime.tv_sec) * 1_000_000_000
            + i128::from(found.stx_btime.tv_nsec);
        Ok(Self {
            device: makedev(found.stx_dev_major, found.stx_dev_minor),
            inode: found.stx_ino,
            born_ns: u64::try_from(born_ns).ok().filter(|_| has_birth).unwrap_or(0),
        })
    }

    /// Whether two nodes identify a file alike; each has its own number for the device.
    const fn is_alike(self, other: Self) -> bool {
        self.inode == other.inode && self.born_ns == other.born_ns
    }
}

/// The entry of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its number.
    pub session: Session,
    /// The node's name.
    pub node: String,
    /// Its cache directory, as that node names it.
    pub cache: PathBuf,
    /// Identifies that cache, because directories of different nodes may have the same name.
    pub cache_id: String,
    /// The boot of the machine that its process runs on.
    pub boot_id: String,
    /// When it began, in seconds since 1970.
    pub since: u64,
    /// Which directory its cache is on its machine; two containers may have different ones under one path.
    #[serde(default)]
    pub cache_seen: Option<Seen>,
    /// The file of this entry itself, as its node identifies it; set when it is entered.
    #[serde(default)]
    pub seen: Option<Seen>,
}

/// The directory.
#[derive(Debug)]
pub struct Registry {
    path: PathBuf,
    dir: OwnedFd,
}

impl Registry {
    /// Opens the directory, which is created if it does not exist.
    ///
    /// # Errors
    /// If it is a link, belongs to someone else, others may change it, or it lies on NFS or SMB.
    pub fn open(path: &Path) -> Result<Self> {
        match mkdir(path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(Error::at(path, "create the directory")(error.into())),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = open(path, flags, Mode::empty())
            .map_err(|error| Error::at(path, "open the directory")(error.into()))?;
        // Tokens are of bytes.
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
        if stat.st_uid != own || stat.st_mode & 0o022 != 0 {
            return Err(Error::invalid(
                format!("{} belongs to somebody else, or others may change it", path.display()),
                format!("make it belong to user {own}, with mode 0700"),
            ));
        }
        Ok(Self { path: path.to_owned(), dir })
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
            let entry = Entry { seen: Some(Seen::of(&file)?), ..entry.clone() };
            file.write_all(&serde_json::to_vec(&entry)?)?;
            file.sync_all()?;
            renameat(&self.dir, &temporary, &self.dir, &name)?;
            Ok(fsync(&self.dir)?)
        };
        write().map_err(Error::at(self.path.join(&name), "write the entry"))
    }

    /// Checks that this node identifies the files of all other sessions as their nodes do: tokens belong to files by
    /// inode number and birth time, which some file systems' clients make up, or report on some machines only. To be
    /// called after the own session has entered, so that of two that begin at once one sees the other.
    ///
    /// # Errors
    /// Names a node that sees a file otherwise.
    pub fn check_views(&self, own: Session) -> Result<()> {
        for session in self.sessions()?.into_iter().filter(|session| *session != own) {
            // One that cannot be read, or of an earlier version, says nothing.
            let Some((entry, here)) = self.read_entry(session) else { continue };
            let Some(there) = entry.seen.filter(|there| !there.is_alike(here)) else { continue };
            let shown = |seen: Seen| format!("inode {}, born {} ns", seen.inode, seen.born_ns);
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
    fn read_entry(&self, session: Session) -> Option<(Entry, Seen)> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&self.dir, name_of(session), flags, Mode::empty()).ok()?;
        let stat = fstat(&file).ok()?;
        let is_own = stat.st_uid == rustix::process::geteuid().as_raw();
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || !is_own {
            return None;
        }
        let seen = Seen::of(&file).ok()?;
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

fn name_of(session: Session) -> String {
    format!("{PREFIX}{:016x}", session.0)
}

fn session_of(name: &str) -> Option<Session> {
    let digits = name.strip_prefix(PREFIX)?;
    let session = Session(u64::from_str_radix(digits, 16).ok()?);
    (name_of(session) == name).then_some(session)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn entry(session: u64) -> Entry {
        Entry {
            session: Session(session),
            node: "n1".to_owned(),
            cache: PathBuf::from("/ssd"),
            cache_id: "id".to_owned(),
            boot_id: "boot".to_owned(),
            since: 1,
            cache_seen: None,
            seen: None,
        }
    }

    fn without_look(entry: Entry) -> Entry {
        Entry { seen: None, ..entry }
    }

    #[test]
    fn sessions_enter_and_leave() {
        let place = tempfile::tempdir().unwrap();
        let registry = Registry::open(&place.path().join("r")).unwrap();
        registry.enter(&entry(5)).unwrap();
        registry.enter(&entry(u64::MAX)).unwrap();
        let mut sessions = registry.sessions().unwrap();
        sessions.sort();
        assert_eq!(sessions, [Session(5), Session(u64::MAX)]);
        assert_eq!(registry.entry(Session(5)).map(without_look), Some(entry(5)));
        assert_eq!(registry.name(Session(5)), "node n1 (session 0000000000000005)");
        registry.leave(Session(5)).unwrap();
        registry.leave(Session(5)).unwrap();
        assert_eq!(registry.sessions().unwrap(), [Session(u64::MAX)]);
    }

    /// Regression: nodes whose clients show the same file with different numbers had tokens of their own each, and
    /// cached the same bytes.
    #[test]
    fn i11_nodes_that_identify_files_differently_do_not_share_them() {
        let place = tempfile::tempdir().unwrap();
        let registry = Registry::open(&place.path().join("r")).unwrap();
        let [own, other] = [1, 2].map(Session);
        for session in [1, 2] {
            registry.enter(&entry(session)).unwrap();
        }
        registry.check_views(own).unwrap();
        let path = place.path().join("r").join(name_of(other));
        let right = registry.entry(other).unwrap();
        let seen = right.seen.unwrap();
        let write = |seen| {
            let entry = Entry { node: "far".to_owned(), seen, ..right.clone() };
            fs::write(&path, serde_json::to_vec(&entry).unwrap()).unwrap();
        };
        for wrong in [
            Seen { inode: seen.inode + 1, ..seen },
            Seen { born_ns: u64::from(seen.born_ns == 0), ..seen },
        ] {
            write(Some(wrong));
            let refused = registry.check_views(own).unwrap_err().to_string();
            assert!(refused.contains("on node far"), "{refused}");
            registry.check_views(other).unwrap();
        }
        for right in [None, Some(seen), Some(Seen { device: 0, ..seen })] {
            write(right);
            registry.check_views(own).unwrap();
        }
    }

    #[test]
    fn what_others_put_there_is_not_followed() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("r");
        let registry = Registry::open(&dir).unwrap();
        fs::write(place.path().join("else"), "{}").unwrap();
        symlink(place.path().join("else"), dir.join(name_of(Session(1)))).unwrap();
        fs::create_dir(dir.join(name_of(Session(2)))).unwrap();
        fs::write(dir.join(name_of(Session(3))), "{\"session\":4}").unwrap();
        fs::write(dir.join("session-xyz"), "").unwrap();
        for session in 1..4 {
            assert_eq!(registry.entry(Session(session)), None);
        }
        assert_eq!(registry.sessions().unwrap().len(), 3, "each counts until it is recovered");
        symlink(&dir, place.path().join("link")).unwrap();
        Registry::open(&place.path().join("link")).unwrap_err();
        fs::set_permissions(&dir, Permissions::from_mode(0o777)).unwrap();
        let refused = Registry::open(&dir).unwrap_err().to_string();
        assert!(refused.contains("mode 0700"), "{refused}");
    }
}
