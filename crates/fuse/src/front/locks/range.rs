//! OFD locks over a range of bytes.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use fuser::Errno;

/// What a lock allows others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockKind {
    /// Shared locks.
    Shared,
    /// Nothing.
    Exclusive,
    /// Not a lock: releases it.
    Unlock,
}

/// A lock over some bytes of a file, or its release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LockRange {
    kind: LockKind,
    /// First byte.
    start: i64,
    /// Number of bytes; 0 for all from `start` on.
    length: i64,
}

/// The last byte that a lock without an end covers (`OFFSET_MAX`).
const LAST: u64 = i64::MAX as u64;

impl LockRange {
    /// Releases all locks.
    pub(super) const ALL: Self = Self { kind: LockKind::Unlock, start: 0, length: 0 };

    /// From the kernel's form, which gives the last byte, and as kind `fcntl`'s `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    ///
    /// # Errors
    /// `EINVAL` for anything else.
    pub(crate) fn new(kind: i32, first: u64, last: u64) -> Result<Self, Errno> {
        let kind = match kind {
            libc::F_RDLCK => LockKind::Shared,
            libc::F_WRLCK => LockKind::Exclusive,
            libc::F_UNLCK => LockKind::Unlock,
            _ => return Err(Errno::EINVAL),
        };
        if first > last || last > LAST {
            return Err(Errno::EINVAL);
        }
        let length = if last == LAST { 0 } else { (last - first + 1).cast_signed() };
        Ok(Self { kind, start: first.cast_signed(), length })
    }

    pub(crate) fn kind(self) -> LockKind {
        self.kind
    }

    /// `fcntl`'s kind, first and last byte.
    pub(crate) fn for_kernel(self) -> (i32, u64, u64) {
        let first = self.start.cast_unsigned();
        let last = if self.length == 0 { LAST } else { first + self.length.cast_unsigned() - 1 };
        (i32::from(self.code()), first, last)
    }

    fn code(self) -> i16 {
        let code = match self.kind {
            LockKind::Shared => libc::F_RDLCK,
            LockKind::Exclusive => libc::F_WRLCK,
            LockKind::Unlock => libc::F_UNLCK,
        };
        i16::try_from(code).expect("0 to 2")
    }

    /// Takes the lock if no other conflicts; `EAGAIN` or `EACCES` otherwise.
    pub(in crate::front) fn try_lock(self, file: &File) -> io::Result<()> {
        self.ask(file, libc::F_OFD_SETLK).map(drop)
    }

    /// Takes the lock once no other conflicts; `EINTR` if this thread gets a signal.
    pub(super) fn lock_waiting(self, file: &File) -> io::Result<()> {
        self.ask(file, libc::F_OFD_SETLKW).map(drop)
    }

    /// Releases all locks in the range.
    pub(in crate::front) fn unlock(self, file: &File) -> io::Result<()> {
        Self { kind: LockKind::Unlock, ..self }.ask(file, libc::F_OFD_SETLK).map(drop)
    }

    /// A conflicting lock of another owner.
    pub(in crate::front) fn find(self, file: &File) -> io::Result<Option<Self>> {
        let found = self.ask(file, libc::F_OFD_GETLK)?;
        let kind = match i32::from(found.l_type) {
            libc::F_RDLCK => LockKind::Shared,
            libc::F_WRLCK => LockKind::Exclusive,
            _ => return Ok(None),
        };
        Ok(Some(Self { kind, start: found.l_start, length: found.l_len }))
    }

    fn ask(self, file: &File, command: i32) -> io::Result<libc::flock> {
        // SAFETY: zeros are a valid `flock`; the pid must be 0 for an open file description.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = self.code();
        lock.l_whence = 0; // SEEK_SET
        (lock.l_start, lock.l_len) = (self.start, self.length);
        // SAFETY: the descriptor is open, and the command reads and writes one `flock`.
        match unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) } {
            0 => Ok(lock),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_the_kernels() {
        for (first, last) in [(0, 0), (5, 9), (0, LAST), (7, LAST), (LAST - 1, LAST - 1)] {
            let lock = LockRange::new(libc::F_WRLCK, first, last).unwrap();
            assert_eq!(lock.for_kernel(), (libc::F_WRLCK, first, last));
        }
        for (kind, first, last) in [(3, 0, 1), (0, 2, 1), (0, 0, u64::MAX), (0, LAST + 1, LAST + 1)]
        {
            assert_eq!(LockRange::new(kind, first, last), Err(Errno::EINVAL));
        }
    }

    #[test]
    fn open_file_descriptions_exclude_each_other() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = || File::options().read(true).write(true).open(file.path()).unwrap();
        let (one, other) = (open(), open());
        let lock = |kind, first, last| LockRange::new(kind, first, last).unwrap();
        lock(libc::F_WRLCK, 10, 19).try_lock(&one).unwrap();
        let wanted = lock(libc::F_RDLCK, 0, LAST);
        assert_eq!(wanted.find(&other).unwrap(), Some(lock(libc::F_WRLCK, 10, 19)));
        let refused = wanted.try_lock(&other).unwrap_err();
        assert!(super::super::is_conflict(&refused), "{refused}");
        lock(libc::F_RDLCK, 0, 9).try_lock(&other).unwrap();
        lock(libc::F_UNLCK, 0, LAST).unlock(&one).unwrap();
        assert_eq!(wanted.find(&other).unwrap(), None);
        wanted.lock_waiting(&other).unwrap();
    }
}
