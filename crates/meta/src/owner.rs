//! Ownership of a cache directory (I8): by one living process, and only if the directory is a cache.

mod lock_holder;

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use super::identity::{
    CACHE_FILE, CacheIdentity, FORMAT_NOW, fresh_name, identity_in, lost_identity, make_identity,
    write_identity,
};
use super::invalidations::{HEADER_BYTES, Invalidation, InvalidationList};
use super::origin_mark::OriginMark;
use super::record_stores::DEFAULT;
use super::records::StoreKind;
use halocline_os::bounded::SMALL_FILE_BYTES_MAX;
use halocline_os::error::{Error, Result};
use halocline_os::locked_file::LockedFile;
use halocline_os::private::{PrivateDir, Use};

use lock_holder::LockHolder;

/// Name of the file whose lock determines who owns the cache.
pub const LOCK_FILE: &str = "halocline.lock";

/// How often the lock of an owner that is ending is tried, and the pause in between: 2 s in total.
const TRIES: u32 = 200;
const PAUSE: Duration = Duration::from_millis(10);

/// The boot id in the lock file if no one has opened the store yet, or if a power loss erased it.
const NO_BOOT: &str = "?";

/// Ownership of a cache directory; released on drop.
#[derive(Debug)]
pub struct Owner {
    lock: LockedFile,
    dir: PrivateDir,
    last_boot: Option<String>,
    invalidations: InvalidationList,
    mark: OriginMark,
    identity: CacheIdentity,
}

impl AsFd for Owner {
    /// The owned directory.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }
}

impl Owner {
    /// Takes a cache directory; makes it a cache if it is empty or missing.
    pub fn take(dir: &Path) -> Result<Self> {
        Self::take_with_witness(dir, None).map(|(owner, _)| owner)
    }

    /// The same, with `witness` as the second place for invalidations; also returns those that were found.
    pub(crate) fn take_with_witness(
        dir: &Path,
        witness: Option<&Path>,
    ) -> Result<(Self, Vec<Invalidation>)> {
        Self::take_open(PrivateDir::look_or_make(dir)?, witness)
    }

    /// The same for an open directory.
    pub(crate) fn take_open(
        dir: PrivateDir,
        witness: Option<&Path>,
    ) -> Result<(Self, Vec<Invalidation>)> {
        let known = dir.read(CACHE_FILE, SMALL_FILE_BYTES_MAX)?.is_some();
        if !known {
            refuse_unknown_files(&dir)?;
        }
        let dir = dir.closed()?;
        let (lock, last_boot) = lock(&dir, || thread::sleep(PAUSE))?;
        let identity = if known { identity_in(&dir)? } else { None };
        let identity = identity.map_or_else(|| make_identity(&dir), Ok)?;
        let (invalidations, invalidated) =
            load_invalidations(dir.path(), &lock, witness, &identity)?;
        let mark = OriginMark::open(witness, dir.path(), &identity.cache_id);
        Ok((Self { lock, dir, last_boot, invalidations, mark, identity }, invalidated))
    }

    /// What must no longer be trusted although the store could not record it.
    pub(crate) fn invalidations(&self) -> &InvalidationList {
        &self.invalidations
    }

    /// The mark of this cache on the origin.
    pub(super) fn mark(&self) -> &OriginMark {
        &self.mark
    }

    #[cfg(test)]
    pub(super) fn mark_mut(&mut self) -> &mut OriginMark {
        &mut self.mark
    }

    /// Notes durably, before the store and the checksums are made, that the directory needs a program that knows them.
    pub(crate) fn announce_format(&mut self, store: &StoreKind) -> Result<()> {
        let record_store = (store.name != DEFAULT.name).then(|| store.name.to_owned());
        if self.identity.format < FORMAT_NOW || self.identity.record_store != record_store {
            self.identity.format = FORMAT_NOW;
            self.identity.record_store = record_store;
            write_identity(&self.dir, &self.identity)?;
        }
        Ok(())
    }

    /// The cache directory.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Notes that the store is open on this boot. Not earlier: until then a power loss may have torn it, however often
    /// opening it is tried.
    pub(crate) fn opened_on(&self, boot_id: &str) -> Result<()> {
        sign(&self.lock, boot_id).map_err(Error::at(self.dir().join(LOCK_FILE), "write the lock"))
    }

    /// The boot id on which the store was last opened.
    pub(crate) fn last_boot(&self) -> Option<&str> {
        self.last_boot.as_deref()
    }

    /// Whether the directory holds anything besides its identity files and `besides`.
    pub(crate) fn holds_data(&self, besides: &[&str]) -> Result<bool> {
        for name in self.dir.names()? {
            let plain = [CACHE_FILE, LOCK_FILE, "lost+found"].iter().chain(besides);
            if !plain.into_iter().any(|plain| name == *plain) && name != fresh_name().as_str() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The directory's identity.
    pub fn identity(&self) -> &CacheIdentity {
        &self.identity
    }
}

/// Refuses a directory that holds anything else. A lock file alone, or an incomplete identity, is left by a crash
/// during the first use.
fn refuse_unknown_files(dir: &PrivateDir) -> Result<()> {
    let names = dir.names()?;
    if let Some(lost) = lost_identity(dir.path(), &names) {
        return Err(lost);
    }
    for name in names {
        let ours = name == LOCK_FILE || name == fresh_name().as_str() || name == "lost+found";
        if !ours {
            return Err(Error::invalid(
                format!(
                    "{} is neither empty nor a cache: it holds {}",
                    dir.path().display(),
                    Path::new(&name).display()
                ),
                "name an empty directory as the cache",
            ));
        }
    }
    Ok(())
}

/// The lock ends with its process, so a crashed owner's lock becomes void by itself (I8), as soon as its last thread
/// has ended, for which this waits. `pause` is called between two tries.
fn lock(dir: &PrivateDir, mut pause: impl FnMut()) -> Result<(LockedFile, Option<String>)> {
    let path = dir.path().join(LOCK_FILE);
    let file = dir.file(LOCK_FILE, Use::Write)?;
    for tried in 1.. {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => break,
            Err(rustix::io::Errno::WOULDBLOCK) => {}
            Err(errno) => return Err(Error::at(&path, "lock")(errno.into())),
        }
        let holder = holder_of(&file).map_err(Error::at(&path, "read the lock"))?;
        let ending = holder.as_ref().is_some_and(LockHolder::is_ending);
        // For a moment, a killed process seems to be alive.
        if tried == TRIES || (tried > 1 && !ending) {
            return Err(owned(dir.path(), holder.as_ref(), ending));
        }
        pause();
    }
    let mut before = String::new();
    (&file)
        .take(HEADER_BYTES)
        .read_to_string(&mut before)
        .map_err(Error::at(&path, "read the lock"))?;
    let last_boot = before.split_whitespace().nth(3).map(str::to_owned);
    sign(&file, last_boot.as_deref().unwrap_or(NO_BOOT))
        .map_err(Error::at(&path, "write the lock"))?;
    Ok((LockedFile::new(file), last_boot))
}

/// Writes who owns the lock, and on which boot the store was last opened: a header of fixed length, so that the lines
/// after it stay.
fn sign(lock: &File, boot_id: &str) -> io::Result<()> {
    let LockHolder { pid, started } = LockHolder::this_process();
    let text = format!("pid {pid} boot {boot_id} started {started} ");
    let mut header = text.into_bytes();
    header.resize(usize::try_from(HEADER_BYTES).expect("a small number"), b' ');
    *header.last_mut().expect("it has bytes") = b'\n';
    lock.write_all_at(&header, 0)
}

fn load_invalidations(
    dir: &Path,
    lock: &File,
    witness: Option<&Path>,
    identity: &CacheIdentity,
) -> Result<(InvalidationList, Vec<Invalidation>)> {
    let failed = || Error::at(dir.join(LOCK_FILE), "read");
    // Opened now, because a mount may soon cover its path.
    let witness = witness.map(|path| File::open(path).map_err(Error::at(path, "open")));
    let (list, found) = InvalidationList::load(
        lock.try_clone().map_err(failed())?,
        witness.transpose()?,
        &identity.cache_id,
    )
    .map_err(failed())?;
    let invalidated = found.map_err(|line| Error::Store {
        path: dir.to_owned(),
        what: format!("{LOCK_FILE} lists what not to trust, and {line:?} says nothing"),
        remedy: "move the directory away and start with an empty cache (dirty data in it is then \
                 lost)"
            .to_owned(),
    })?;
    Ok((list, invalidated))
}

fn holder_of(lock: &File) -> io::Result<Option<LockHolder>> {
    let mut header = vec![0; usize::try_from(HEADER_BYTES).expect("a small number")];
    let len = lock.read_at(&mut header, 0)?;
    Ok(LockHolder::parse(&String::from_utf8_lossy(&header[..len])))
}

fn owned(dir: &Path, holder: Option<&LockHolder>, ending: bool) -> Error {
    let who = holder.map_or_else(|| "unknown".to_owned(), |holder| holder.pid.to_string());
    let (state, remedy) = if ending {
        (
            ", which is ending and has not let go of it yet",
            "try again: a thread of it may wait for a disk",
        )
    } else {
        ("", "unmount it there first, or name another cache directory")
    };
    // The private directory of a file tier, which is locked in the same way as a cache.
    let (what, remedy) = match dir.ends_with(".halocline") {
        true if !ending => ("file tier", "unmount it first"),
        true => ("file tier", remedy),
        false => ("cache", remedy),
    };
    Error::invalid(
        format!("the {what} {} is in use by process {who}{state}", dir.display()),
        remedy,
    )
}

/// Part of a fuzz target (`crate::fuzzing`).
#[cfg(any(test, fuzzing))]
pub(crate) fn process(bytes: &[u8]) {
    lock_holder::fuzzing::process(bytes);
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn i8_two_owners_are_refused_and_a_dead_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let cache = dir.path().join("cache");
        let first = Owner::take(&cache).unwrap();
        let error = Owner::take(&cache).unwrap_err().to_string();
        assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
        assert!(error.contains("unmount"), "{error}");
        let id = first.identity().clone();
        drop(first);
        assert_eq!(*Owner::take(&cache).unwrap().identity(), id);
    }

    /// A process that has ended, but whose parent has not reaped it.
    fn ended_process() -> (std::process::Child, LockHolder) {
        let child = std::process::Command::new("true").spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        let ended = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
        rustix::process::waitid(rustix::process::WaitId::Pid(pid), ended).unwrap();
        let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        let started = stat.split_whitespace().nth(21).unwrap().to_owned();
        let holder = LockHolder { pid: child.id(), started };
        (child, holder)
    }

    #[test]
    fn i8_the_lock_of_an_owner_that_is_ending_is_waited_for_but_not_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let (mut child, LockHolder { pid, started }) = ended_process();
        let text = format!("pid {pid} boot x started {started} \n");
        fs::write(dir.path().join(LOCK_FILE), text).unwrap();
        let held = File::open(dir.path().join(LOCK_FILE)).unwrap();
        flock(&held, FlockOperation::NonBlockingLockExclusive).unwrap();
        let mut pauses = 0;
        let error =
            lock(&PrivateDir::open(dir.path()).unwrap(), || pauses += 1).unwrap_err().to_string();
        assert_eq!(pauses, TRIES - 1);
        assert!(error.contains(&format!("in use by process {pid}, which is ending")), "{error}");
        let mut held = Some((held, 0));
        let (_, last_boot) = lock(&PrivateDir::open(dir.path()).unwrap(), || {
            held = held.take().map(|(file, pauses)| (file, pauses + 1)).filter(|held| held.1 < 7);
        })
        .unwrap();
        assert_eq!(last_boot.as_deref(), Some("x"));
        child.wait().unwrap();
    }

    #[test]
    fn i8_the_lock_of_a_living_owner_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let _owner = Owner::take(dir.path()).unwrap();
        let mut pauses = 0;
        let error =
            lock(&PrivateDir::open(dir.path()).unwrap(), || pauses += 1).unwrap_err().to_string();
        assert_eq!(pauses, 1);
        assert!(error.contains("unmount it there first"), "{error}");
    }

    #[test]
    fn a_directory_with_something_else_is_refused_untouched() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("thesis.tex"), "x").unwrap();
        let error = Owner::take(dir.path()).unwrap_err().to_string();
        assert!(error.contains("thesis.tex"), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn an_unknown_version_and_a_damaged_identity_are_named() {
        let dir = tempfile::tempdir().unwrap();
        drop(Owner::take(dir.path()).unwrap());
        let marker = dir.path().join(CACHE_FILE);
        let good = fs::read_to_string(&marker).unwrap();
        fs::write(&marker, good.replace("format = 1", "format = 7")).unwrap();
        let error = Owner::take(dir.path()).unwrap_err().to_string();
        assert!(error.contains("format is 7"), "{error}");
        fs::write(&marker, &good[..good.len() / 2]).unwrap();
        let error = Owner::take(dir.path()).unwrap_err().to_string();
        assert!(error.contains("cannot be read"), "{error}");
    }
}
