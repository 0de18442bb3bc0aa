//! The files of a log: their names, and how each is made, durably.

use std::ffi::OsStr;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{fsync, renameat};

use super::log_file::{LogFile, allocate};
use super::snapshot::{Head, Writer};
use halocline_os::error::{Error, Result};
use halocline_os::private::{PrivateDir, Use};

pub(super) const SNAPSHOT: &str = "snapshot-";
pub(super) const LOG: &str = "log-";
/// A snapshot that is not complete yet.
pub(super) const FRESH: &str = "snapshot.new";
/// How far the log was synced.
pub(super) const SYNCED: &str = "synced";
/// A file of the log that has no head yet.
pub(super) const FRESH_LOG: &str = "log.new";
/// Allocated ahead, to become the next file of the log where the file system has no free blocks or inodes.
const SPARE: &str = "log.spare";
/// Bytes of the spare file.
pub(super) const SPARE_BYTES: usize = 64 << 10;

/// Makes file `number` of a log, durably: it gets its name when it is complete. Where the file system is full the spare
/// file is used instead, which may be shorter.
pub(super) fn make(dir: &PrivateDir, number: u64, generation: u64, bytes: u64) -> Result<LogFile> {
    let path = dir.path().join(log_name(number));
    let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::FileTooLarge);
    let bytes = bytes.map_err(|kind| Error::at(&path, "make")(kind.into()))?;
    let begin = |name: &'static str, using, bytes| {
        let segment = LogFile::make(dir.file(name, using)?, number, generation, bytes);
        segment.map(|segment| (name, segment)).map_err(Error::at(&path, "make"))
    };
    dir.remove(FRESH_LOG)?;
    let made = begin(FRESH_LOG, Use::New, bytes).or_else(|error| {
        dir.remove(FRESH_LOG)?;
        if error.is_full() && has_spare(dir)? {
            begin(SPARE, Use::Write, SPARE_BYTES)
        } else {
            Err(error)
        }
    });
    let (name, segment) = made?;
    let named = renameat(dir.as_fd(), name, dir.as_fd(), log_name(number));
    let named = named.and_then(|()| fsync(dir.as_fd()));
    named.map_err(|errno| Error::at(&path, "give its name to")(errno.into()))?;
    Ok(segment)
}

/// Makes the spare file where it is missing. Without it the log only fails earlier on a full file system.
pub(super) fn keep_spare(dir: &PrivateDir) {
    let kept = has_spare(dir).and_then(|is_there| {
        if is_there {
            return Ok(());
        }
        dir.remove(SPARE)?;
        let file = dir.file(SPARE, Use::New)?;
        let allocated = allocate(&file, 0, SPARE_BYTES).and_then(|()| file.sync_all());
        allocated.map_err(Error::at(dir.path().join(SPARE), "allocate"))
    });
    if let Err(error) = kept {
        tracing::debug!(%error, "no spare file of the log");
    }
}

/// Whether there is a complete spare file. Nothing but a head was ever written to it.
fn has_spare(dir: &PrivateDir) -> Result<bool> {
    let file = match dir.file(SPARE, Use::Read) {
        Err(error) if error.errno() == libc::ENOENT => return Ok(false),
        other => other?,
    };
    let found = file.metadata().map_err(Error::at(dir.path().join(SPARE), "look at"))?;
    Ok(found.len() == SPARE_BYTES as u64 && found.blocks() * 512 >= SPARE_BYTES as u64)
}

/// Writes the first snapshot of a log, with the records that `fill` puts.
pub(crate) fn write_first(
    dir: &PrivateDir,
    fill: &mut dyn FnMut(&mut Writer) -> Result<()>,
) -> Result<()> {
    let generation = RandomState::new().build_hasher().finish();
    write_snapshot(dir, Head { number: 0, generation, batch: 0 }, fill).map(drop)
}

/// Writes a snapshot that is complete and durable, or else absent; returns its bytes.
pub(super) fn write_snapshot(
    dir: &PrivateDir,
    head: Head,
    fill: &mut dyn FnMut(&mut Writer) -> Result<()>,
) -> Result<u64> {
    dir.remove(FRESH)?;
    let path = dir.path().join(FRESH);
    let fresh = dir.file(FRESH, Use::New)?;
    let written = Writer::begin(fresh, head).map_err(Error::at(&path, "write"));
    let written = written.and_then(|mut writer| {
        fill(&mut writer)?;
        let bytes = writer.end().map_err(Error::at(&path, "write"))?;
        let named = renameat(dir.as_fd(), FRESH, dir.as_fd(), snapshot_name(head.number));
        let named = named.and_then(|()| fsync(dir.as_fd()));
        named.map_err(|errno| Error::at(&path, "give its name to")(errno.into()))?;
        Ok(bytes)
    });
    if written.is_err() {
        let _ = dir.remove(FRESH);
    }
    written
}

pub(super) fn log_name(number: u64) -> String {
    format!("{LOG}{number:016x}")
}

pub(super) fn snapshot_name(number: u64) -> String {
    format!("{SNAPSHOT}{number:016x}")
}

/// The number in the name of a file of a log or of a snapshot.
pub(super) fn number_in(name: &OsStr, prefix: &str) -> Option<u64> {
    let digits = name.to_str()?.strip_prefix(prefix)?;
    let number = u64::from_str_radix(digits, 16).ok()?;
    (format!("{number:016x}") == digits && number < u64::MAX).then_some(number)
}

/// Whether a log gives a file this name.
pub(crate) fn is_name(name: &OsStr) -> bool {
    [FRESH, FRESH_LOG, SPARE, SYNCED].iter().any(|other| name == *other)
        || [SNAPSHOT, LOG].iter().any(|prefix| number_in(name, prefix).is_some())
}

/// Whether a directory has a log.
pub(crate) fn is_in(dir: &PrivateDir) -> Result<bool> {
    Ok(dir.names()?.iter().any(|name| number_in(name, SNAPSHOT).is_some()))
}
