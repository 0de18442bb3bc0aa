//! When a killed process ended, as the kernel records it: until then its last writes may have reached the origin (I9).
//!
//! A write that the origin's server has accepted but not answered completes when the server continues, possibly long
//! after a `kill -9`. The thread that waits for it ends only then, and the process with it. The kernel then lowers a
//! System V semaphore that was raised with `SEM_UNDO`, and `/proc/sysvipc/sem` shows when that was, to the second,
//! until the next boot. (The kernel also notes the end of a process that has lowered its semaphore itself: the lease
//! records whether it was raised.) This needs no watching process, which could be killed with a control group.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::path::Path;

use halocline_os::bounded;

/// Where the kernel lists all semaphores.
const SEMAPHORES: &str = "/proc/sysvipc/sem";
/// Limit for reading the list: some hundred thousand sets.
const SEMAPHORES_BYTES_MAX: u64 = 32 << 20;

/// Identifies a semaphore for other processes: its key and its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) key: i32,
    pub(super) id: i32,
}

/// A semaphore of this process, removed when this is dropped. The next process that opens the cache removes one that a
/// kill left behind.
#[derive(Debug)]
pub(super) struct ExitTime(Name);

impl ExitTime {
    /// Makes a semaphore that is not raised.
    ///
    /// # Errors
    /// The system has none left, or offers none.
    pub(super) fn new() -> io::Result<Self> {
        loop {
            // The id of a removed semaphore may be reused by another process; that the key matches, too, is next to
            // impossible.
            let hash = RandomState::new().build_hasher().finish().to_ne_bytes();
            let key = i32::from_ne_bytes([hash[0], hash[1], hash[2], hash[3]]);
            if key == libc::IPC_PRIVATE {
                continue;
            }
            let how = libc::IPC_CREAT | libc::IPC_EXCL | 0o600;
            // SAFETY: takes plain numbers.
            let id = unsafe { libc::semget(key, 1, how) };
            if id >= 0 {
                return Ok(Self(Name { key, id }));
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::AlreadyExists {
                return Err(error);
            }
        }
    }

    pub(super) const fn name(&self) -> Name {
        self.0
    }

    /// Makes the kernel note the end of this process from now on.
    pub(super) fn raise(&self) -> io::Result<()> {
        self.change(1)
    }

    /// Stops that.
    pub(super) fn lower(&self) -> io::Result<()> {
        self.change(-1)
    }

    fn change(&self, by: i16) -> io::Result<()> {
        let flags = i16::try_from(libc::SEM_UNDO | libc::IPC_NOWAIT).expect("bits of 16");
        let mut change = libc::sembuf { sem_num: 0, sem_op: by, sem_flg: flags };
        // SAFETY: one change, which lives until the call ends.
        match unsafe { libc::semop(self.0.id, &raw mut change, 1) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for ExitTime {
    fn drop(&mut self) {
        self.0.remove();
    }
}

impl Name {
    /// When the semaphore was last changed, in milliseconds since the epoch, rounded up: if the process that raised it
    /// has ended, this is after everything it did. `None` if the semaphore is gone, or does not belong to `user`.
    pub(super) fn last_ms(self, user: u32) -> Option<u64> {
        let all = bounded::read_to_string(Path::new(SEMAPHORES), SEMAPHORES_BYTES_MAX).ok()?;
        self.in_table(&all, user)
    }

    /// The same of the contents of the list.
    fn in_table(self, table: &str, user: u32) -> Option<u64> {
        table.lines().find_map(|line| self.in_line(line, user))
    }

    /// The same, if `line` of the list describes this semaphore.
    fn in_line(self, line: &str, user: u32) -> Option<u64> {
        let mut words = line.split_whitespace();
        let mut word = || words.next();
        let key: i32 = word()?.parse().ok()?;
        let id: i32 = word()?.parse().ok()?;
        let (_permissions, _count) = (word()?, word()?);
        let owner: u32 = word()?.parse().ok()?;
        let (_group, maker, _group_of_maker) = (word()?, word()?.parse().ok()?, word()?);
        let at_s: u64 = word()?.parse().ok()?;
        let is_it = (Self { key, id }) == self && [owner, maker] == [user; 2] && at_s > 0;
        is_it.then(|| at_s.saturating_add(1).saturating_mul(1000))
    }

    /// Removes a semaphore that a killed process of `user` left behind.
    pub(super) fn remove_left(self, user: u32) {
        if self.last_ms(user).is_some() {
            self.remove();
        }
    }

    fn remove(self) {
        // SAFETY: takes plain numbers; there is no fourth argument with this command.
        let removed = unsafe { libc::semctl(self.id, 0, libc::IPC_RMID) };
        if removed != 0 {
            let error = io::Error::last_os_error();
            tracing::debug!(%error, "a semaphore stays");
        }
    }
}

/// The kernel's list, with semaphores of anybody: part of a fuzz target (`crate::fuzzing`).
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing {
    use super::Name;

    /// What is found belongs to its user, and is a time after which something can be done.
    pub(crate) fn semaphores(bytes: &[u8]) {
        let Ok(table) = std::str::from_utf8(bytes) else { return };
        let name = Name { key: 1_234_567, id: 32_770 };
        let Some(found) = name.in_table(table, 1000) else { return };
        assert!(found > 1000, "{found}");
        assert!(table.contains("1234567") && table.contains("32770"));
        assert_eq!(Name { key: 7, ..name }.in_table(&table.replace("7", "8"), 1000), None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_of_its_own_semaphore_only() {
        let line = "1234567  32770   600          1  1000  1000  1000  1000 1795577225 1795577221";
        let name = Name { key: 1_234_567, id: 32_770 };
        assert_eq!(name.in_line(line, 1000), Some(1_795_577_226_000));
        assert_eq!(name.in_line(line, 0), None, "somebody else's");
        assert_eq!(Name { id: 2, ..name }.in_line(line, 1000), None);
        assert_eq!(Name { key: 2, ..name }.in_line(line, 1000), None);
        assert_eq!(name.in_line(&line.replace("1795577225", "0"), 1000), None, "never changed");
        for cut in 0..line.len() - 12 {
            let _no_panic = name.in_line(&line[..cut], 1000);
        }
        assert_eq!(name.in_line("       key      semid perms      nsems   uid", 1000), None);
    }
}
