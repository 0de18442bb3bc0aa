//! A file's contents and attributes, copied to another tier.

mod direct;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;

use rustix::fs::{Advice, FallocateFlags, SeekFrom, copy_file_range, fadvise, fallocate, seek};
use rustix::io::Errno;

use self::direct::Direct;
use super::steps::Steps;
use halocline_os::error::{Error, Result};
use halocline_vfs::namespace::statx::{set_attr_on, system_time};
use halocline_vfs::namespace::xattr::hidden_xattr;
use halocline_vfs::namespace::{stat_descriptor, xattr};
use halocline_vfs::{SetAttr, SetTime, Stat};

/// Bytes that are copied between two checks whether to continue. While a piece is copied, the one before it is being
/// written and the one after it is being read.
const PIECE: u64 = 8 << 20;
/// Size of the buffer used if the kernel cannot copy by itself: it stays in the processor's cache.
const BUFFER: usize = 256 << 10;

/// Called with how many more bytes were copied; `false` stops the copy.
pub(super) type OnProgress<'a> = &'a mut dyn FnMut(u64) -> bool;

/// A file that is read or written by a copy, and the tier that it is on.
#[derive(Debug, Clone, Copy)]
pub(super) struct End<'a> {
    pub(super) file: &'a File,
    pub(super) steps: &'a Steps,
}

/// Whether programs are expected to use a copy soon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expected {
    /// Its bytes stay in the page cache.
    Soon,
    /// They bypass it: this is faster, and nothing else is pushed out of memory.
    NotSoon,
}

/// How the kernel can be made to copy between these two files.
struct Copier<'a> {
    from: End<'a>,
    to: End<'a>,
    /// Length of the file: a file of a single piece is synced right after that piece.
    size: u64,
    /// Whether bypassing the page cache has not been refused yet.
    try_direct: bool,
    direct: Option<Direct<'a>>,
    /// Whether the kernel copies by itself; it cannot do so between some file systems.
    in_kernel: bool,
    buffer: Vec<u8>,
}

/// Copies all data of `from` (`size` bytes long) to the empty file `to`, keeping holes as holes.
pub(super) fn contents(
    from: End<'_>,
    to: End<'_>,
    size: u64,
    expected: Expected,
    on_progress: OnProgress<'_>,
) -> Result<()> {
    to.steps.step("sizing a copy", || Ok(to.file.set_len(size)?))?;
    let try_direct = expected == Expected::NotSoon;
    let mut copier =
        Copier { from, to, size, try_direct, direct: None, in_kernel: true, buffer: Vec::new() };
    let mut at = 0;
    while at < size {
        let start = match seek(from.file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL) => at,
            Err(errno) => return Err(errno.into()),
        };
        let end = match seek(from.file, SeekFrom::Hole(start)) {
            Ok(end) => end.min(size),
            Err(Errno::INVAL) => size,
            Err(errno) => return Err(errno.into()),
        };
        // Data that a program adds meanwhile may begin after the file's previous end.
        at = start;
        let direct = copier.prepare(at, end.saturating_sub(at));
        if direct {
            read_ahead(from.file, at, end);
        } else {
            read_in_order(from.file);
        }
        while at < end {
            let piece = PIECE.min(end - at);
            if direct {
                read_ahead(from.file, at + piece, end);
            }
            let done = copier.piece(at, piece, direct)?;
            if done == 0 {
                // The file was truncated meanwhile; the caller sees that.
                return Ok(());
            }
            at += done;
            if !on_progress(done) {
                return Err(io::Error::from_raw_os_error(libc::ECANCELED).into());
            }
        }
    }
    Ok(())
}

impl Copier<'_> {
    /// Whether the next `len` bytes may be copied past the page cache; if so, they are allocated. Failures here are
    /// left to the other ways of copying, which report the cause.
    fn prepare(&mut self, at: u64, len: u64) -> bool {
        let goes = self.try_direct && len >= direct::BYTES_MIN && at.is_multiple_of(direct::BLOCK);
        if !goes {
            return false;
        }
        let (from, to) = (self.from.file, self.to);
        let room = || Ok(fallocate(to.file, FallocateFlags::empty(), at, len)?);
        self.try_direct = to.steps.step("allocating a copy", room).is_ok();
        if self.try_direct && self.direct.is_none() {
            let open = || Ok(Direct::between(from, to.file)?);
            self.direct = to.steps.step("opening a copy for direct writes", open).ok();
            self.try_direct = self.direct.is_some();
        }
        self.try_direct
    }

    /// Copies up to `len` bytes; `direct` if they were prepared for that.
    fn piece(&mut self, at: u64, len: u64, direct: bool) -> Result<u64> {
        if direct && let Some(done) = self.past_the_cache(at, len) {
            return Ok(done);
        }
        let done = self.through_the_cache(at, len)?;
        if self.size > PIECE {
            write_behind(self.to.file, at, done);
        }
        Ok(done)
    }

    /// Copies whole blocks past the page cache; `None` if there are none or if that fails.
    fn past_the_cache(&mut self, at: u64, len: u64) -> Option<u64> {
        let len = len - len % direct::BLOCK;
        let direct = self.direct.as_ref().filter(|_| len > 0)?;
        let step = || Ok(direct.copy(at, len)?);
        let copied = self.to.steps.step("copying past the page cache", step);
        if copied.is_err() {
            (self.try_direct, self.direct) = (false, None);
        }
        copied.ok().map(|()| len)
    }

    fn through_the_cache(&mut self, at: u64, len: u64) -> Result<u64> {
        if self.in_kernel {
            match self.by_kernel(at, usize::try_from(len).expect("a piece is small")) {
                Ok(0) => self.in_kernel = false,
                Ok(done) => return Ok(done as u64),
                // It cannot, or one of the two devices fails: our own calls will show which.
                Err(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS | Errno::IO) => {
                    self.in_kernel = false;
                }
                Err(errno) => return Err(errno.into()),
            }
        }
        self.buffer.resize(BUFFER, 0);
        let mut copied = 0;
        while copied < len {
            let done = self.through_buffer(at + copied, len - copied)?;
            if done == 0 {
                break;
            }
            copied += done;
        }
        Ok(copied)
    }

    fn through_buffer(&mut self, at: u64, len: u64) -> Result<u64> {
        let len = usize::try_from(len).expect("a piece is small").min(BUFFER);
        let (from, to, buffer) = (self.from, self.to, &mut self.buffer[..len]);
        let done = from
            .steps
            .step("reading a file to copy it", || Ok(from.file.read_at(buffer, at)?))?;
        let piece = &self.buffer[..done];
        to.steps.step("writing a copy", || Ok(to.file.write_all_at(piece, at)?))?;
        Ok(done as u64)
    }

    fn by_kernel(&self, at: u64, len: usize) -> rustix::io::Result<usize> {
        let (from, to, mut read, mut write) = (self.from.file, self.to.file, at, at);
        let step = || Ok(copy_file_range(from, Some(&mut read), to, Some(&mut write), len)?);
        let done = self.to.steps.step("copying in the kernel", step);
        done.map_err(|error| Errno::from_raw_os_error(error.errno()))
    }
}

/// Lets the kernel read further ahead by itself: a cold file gets through the page cache faster that way than in pieces
/// that are requested. This, too, is only a hint.
fn read_in_order(file: &File) {
    let _ = fadvise(file, 0, None, Advice::Sequential);
}

/// Lets the kernel read the piece at `at` before several threads request parts of it. This is a hint: a refusal costs
/// only time.
fn read_ahead(file: &File, at: u64, end: u64) {
    if let Some(len) = NonZeroU64::new(PIECE.min(end.saturating_sub(at))) {
        let _ = fadvise(file, at, Some(len), Advice::WillNeed);
    }
}

/// Starts writing a piece without waiting for it, so that little is left for the sync at the end, which reports what
/// fails here.
fn write_behind(file: &File, at: u64, len: u64) {
    let (at, len) = (at.cast_signed(), len.cast_signed());
    // SAFETY: plain numbers about an open file.
    unsafe { libc::sync_file_range(file.as_raw_fd(), at, len, libc::SYNC_FILE_RANGE_WRITE) };
}

/// Gives `to` the owner and extended attributes (including ACLs) of `from`. Mode and times are set after all attributes
/// ([`mode_and_times`]), because an ordinary user may set no attributes on a read-only file.
pub(super) fn attributes(from: &impl AsFd, stat: &Stat, to: &File) -> Result<()> {
    let raw = &stat.raw;
    let owner = SetAttr { uid: Some(raw.st_uid), gid: Some(raw.st_gid), ..SetAttr::default() };
    match set_attr_on(to, &owner) {
        // An unprivileged daemon serves its own files only.
        Err(error) if error.errno() == libc::EPERM && owned(to, raw)? => {}
        other => drop(other?),
    }
    // After the owner, whose change drops capabilities.
    let names = none_if_unsupported(xattr::list_on(from))?.unwrap_or_default();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let name = OsStr::from_bytes(name);
        let Some(value) = none_if_unsupported(xattr::get_on(from, name))? else { continue };
        xattr::set_on(to, name, &value, 0).map_err(|error| {
            let source = io::Error::from_raw_os_error(error.errno());
            Error::at(name, "keep the extended attribute")(source)
        })?;
    }
    Ok(())
}

/// Gives `to`, which has the bytes of `from`, its owner and extended attributes; returns whether anything but the time
/// of last access differed.
pub(super) fn match_attributes(from: &impl AsFd, stat: &Stat, to: &File) -> Result<bool> {
    let (is, now) = (&stat.raw, stat_descriptor(to)?.raw);
    let (wanted, there) = (values(from)?, values(to)?);
    let same = (is.st_uid, is.st_gid, is.st_mode) == (now.st_uid, now.st_gid, now.st_mode)
        && (is.st_mtime, is.st_mtime_nsec) == (now.st_mtime, now.st_mtime_nsec)
        && wanted == there;
    if same {
        return Ok(false);
    }
    for name in there.keys().filter(|name| !wanted.contains_key(*name)) {
        xattr::remove_on(to, name)?;
    }
    attributes(from, stat, to)?;
    Ok(true)
}

/// The extended attributes of a file that are visible to programs.
fn values(file: &impl AsFd) -> Result<BTreeMap<OsString, Vec<u8>>> {
    let names = none_if_unsupported(xattr::list_on(file))?.unwrap_or_default();
    let names = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let mut found = BTreeMap::new();
    for name in names.map(OsStr::from_bytes).filter(|name| !hidden_xattr(name)) {
        if let Some(value) = none_if_unsupported(xattr::get_on(file, name))? {
            found.insert(name.to_owned(), value);
        }
    }
    Ok(found)
}

/// Gives `to` the mode and times of a file.
pub(super) fn mode_and_times(stat: &Stat, to: &File) -> Result<()> {
    let raw = &stat.raw;
    let rest = SetAttr {
        mode: Some(raw.st_mode & 0o7777),
        atime: Some(SetTime::At(system_time((raw.st_atime, raw.st_atime_nsec)))),
        mtime: Some(SetTime::At(system_time((raw.st_mtime, raw.st_mtime_nsec)))),
        ..SetAttr::default()
    };
    set_attr_on(to, &rest).map(drop)
}

/// Whether a file belongs to the owner and group of another.
fn owned(file: &impl AsFd, wanted: &libc::stat64) -> Result<bool> {
    let now = stat_descriptor(file)?.raw;
    Ok((now.st_uid, now.st_gid) == (wanted.st_uid, wanted.st_gid))
}

fn none_if_unsupported<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if matches!(error.errno(), libc::EOPNOTSUPP | libc::ENODATA) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program adds bytes after a hole while the file is copied: they are not part of the copy.
    #[test]
    fn data_behind_the_end_that_a_file_had_is_left_out() {
        let (from, to) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        from.write_all_at(b"added", 8 << 20).unwrap();
        let steps = Steps::new(1, None);
        let end = |file| End { file, steps: &steps };
        contents(end(&from), end(&to), 1 << 20, Expected::NotSoon, &mut |_| true).unwrap();
        assert_eq!(to.metadata().unwrap().len(), 1 << 20);
    }
}
