//! The files of a log: their names, and how each is made, durably.

use std::ffi::OsStr;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::AsFd;

use rustix::fs::{fsync, renameat};

use super::segment::Segment;
use super::snapshot::{Head, Writer};
use crate::error::{Error, Result};
use crate::private::{PrivateDir, Use};

pub(super) const SNAPSHOT: &str = "snapshot-";
pub(super) const LOG: &str = "log-";
/// A snapshot that is not whole yet.
pub(super) const FRESH: &str = "snapshot.new";

/// Makes file `number` of a log, durably, in the place of one that nobody needs.
pub(super) fn make(
    dir: &PrivateDir,
    number: u64,
    generation: u64,
    bytes: u64,
) -> io::Result<Segment> {
    let name = log_name(number);
    let told = |error: Error| io::Error::other(error.to_string());
    dir.remove(&name).map_err(told)?;
    let file = dir.file(&name, Use::New).map_err(told)?;
    let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::FileTooLarge)?;
    let made = Segment::make(file, number, generation, bytes)
        .and_then(|segment| fsync(dir.as_fd()).map(|()| segment).map_err(io::Error::from));
    if made.is_err() {
        let _ = dir.remove(&name);
    }
    made
}

/// Writes the first snapshot of a log, with the records that `fill` puts.
pub(in crate::meta) fn write_first(
    dir: &PrivateDir,
    fill: &mut dyn FnMut(&mut Writer) -> Result<()>,
) -> Result<()> {
    let generation = RandomState::new().build_hasher().finish();
    write_snapshot(dir, Head { number: 0, generation, batch: 0 }, fill).map(drop)
}

/// Writes a snapshot, which then is whole and durable, or not there; returns its bytes.
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
pub(in crate::meta) fn is_name(name: &OsStr) -> bool {
    name == FRESH || [SNAPSHOT, LOG].iter().any(|prefix| number_in(name, prefix).is_some())
}

/// Whether a directory has a log.
pub(in crate::meta) fn is_in(dir: &PrivateDir) -> Result<bool> {
    Ok(dir.names()?.iter().any(|name| number_in(name, SNAPSHOT).is_some()))
}
