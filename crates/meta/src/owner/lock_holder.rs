//! The process named in a lock file, and whether it is alive.

use std::fmt;
use std::fs;

use halocline_os::process_status::ProcessStatus;

/// Value of `started` where it is unknown.
const UNKNOWN: &str = "?";
/// Bit of SIGKILL in a mask of signals (`proc_pid_status(5)`).
const KILL_BIT: u64 = 1 << (libc::SIGKILL - 1);
/// The flag of a process that is ending (`PF_EXITING` of the kernel's `sched.h`).
const EXITING: u64 = 4;

/// The process that holds a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LockHolder {
    pub(super) pid: u32,
    /// When it was started, in clock ticks since boot: distinguishes it from a later process with the same id.
    pub(super) started: String,
}

impl LockHolder {
    /// This process.
    pub(super) fn this_process() -> Self {
        let pid = std::process::id();
        let started = Stat::of(pid).map_or_else(|| UNKNOWN.to_owned(), |stat| stat.started);
        Self { pid, started }
    }

    /// The process that wrote the header of a lock file.
    pub(super) fn parse(header: &str) -> Option<Self> {
        let mut words = header.split_whitespace();
        let mut after = |word| words.by_ref().skip_while(|found| *found != word).nth(1);
        let pid = after("pid")?.parse().ok()?;
        Some(Self { pid, started: after("started")?.to_owned() })
    }

    /// Whether the process has ended or been killed, so that it releases everything by itself, but late if one of its
    /// threads waits for a disk.
    pub(super) fn is_ending(&self) -> bool {
        let Some(stat) = Stat::of(self.pid) else { return true };
        let is_other = self.started != UNKNOWN && stat.started != self.started;
        is_other || stat.is_ending || is_killed(self.pid)
    }
}

impl fmt::Display for LockHolder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "pid {} started {}", self.pid, self.started)
    }
}

/// The contents of `/proc/PID/stat`.
#[cfg_attr(any(test, fuzzing), derive(Debug, PartialEq))]
pub(super) struct Stat {
    started: String,
    is_ending: bool,
}

impl Stat {
    /// `None` if there is no such process.
    fn of(pid: u32) -> Option<Self> {
        Self::parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        // The name before this may contain anything, also what is no text.
        let text = String::from_utf8_lossy(text);
        let words: Vec<_> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let (state, flags, started) = (words.first()?, words.get(6)?, words.get(19)?);
        let is_exiting = flags.parse::<u64>().ok()? & EXITING != 0;
        let is_ending = is_exiting || ["Z", "X"].contains(state);
        Some(Self { started: (*started).to_owned(), is_ending })
    }
}

/// Whether a SIGKILL is pending for the process.
fn is_killed(pid: u32) -> bool {
    let Ok(status) = ProcessStatus::of(pid) else { return false };
    (status.signals("SigPnd") | status.signals("ShdPnd")) & KILL_BIT != 0
}

/// What the kernel says of a process, whose name anybody may choose: part of a fuzz target (`crate::fuzzing`).
#[cfg(any(test, fuzzing))]
pub(in crate::owner) mod fuzzing {
    use super::{LockHolder, Stat};

    /// The contents of a file of the kernel, or a name, which changes nothing, or the header of a lock file.
    pub(in crate::owner) fn process(bytes: &[u8]) {
        if let Some(stat) = Stat::parse(bytes) {
            assert!(!stat.started.is_empty() && !stat.started.contains(char::is_whitespace));
        }
        for (flags, is_ending) in [("0", false), ("4", true)] {
            let behind = format!(") S 1 2 3 4 5 {flags} 7 8 9 10 11 12 13 14 15 16 17 18 19 20\n");
            let named = [b"1 (", bytes, behind.as_bytes()].concat();
            let expected = Stat { started: "19".to_owned(), is_ending };
            assert_eq!(Stat::parse(&named), Some(expected));
        }
        let header = String::from_utf8_lossy(bytes);
        if let Some(holder) = LockHolder::parse(&header) {
            assert_eq!(LockHolder::parse(&holder.to_string()), Some(holder));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_living_process_is_told_from_an_ended_and_a_later_one() {
        let alive = LockHolder::this_process();
        assert!(!alive.is_ending());
        let header = format!("pid {} boot x started {}  \n", alive.pid, alive.started);
        assert_eq!(LockHolder::parse(&header), Some(alive.clone()));
        assert!(LockHolder { started: "1".to_owned(), ..alive.clone() }.is_ending());
        assert!(!LockHolder { started: UNKNOWN.to_owned(), ..alive }.is_ending());
        assert_eq!(LockHolder::parse(""), None);
    }
}
