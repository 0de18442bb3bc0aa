//! What `/proc/ID/status` says of a process or a thread.
//!
//! What must hold: each process chooses its name there, which may be any bytes; nothing else that is read depends on it.

use std::io;

use crate::bounded;

/// Limit of the file in bytes: a process may be in 65,536 groups.
const BYTES_MAX: u64 = 2 << 20;

/// The status of a process or a thread when it was read.
#[derive(Debug)]
pub struct ProcessStatus(String);

impl ProcessStatus {
    /// Of the process or thread with this number.
    ///
    /// # Errors
    /// If it cannot be read: there is none, or it is hidden from this user.
    pub fn of(id: u32) -> io::Result<Self> {
        Self::read(&format!("/proc/{id}/status"))
    }

    /// Of a thread of a process.
    ///
    /// # Errors
    /// As [`of`](Self::of); also if the thread is another process's.
    pub fn of_thread(process: u32, thread: u32) -> io::Result<Self> {
        Self::read(&format!("/proc/{process}/task/{thread}/status"))
    }

    fn read(path: &str) -> io::Result<Self> {
        Ok(Self::parse(&bounded::read(path.as_ref(), BYTES_MAX)?))
    }

    /// The contents of such a file.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Self {
        Self(String::from_utf8_lossy(bytes).into_owned())
    }

    /// The numbers of a field, such as `Groups`; none if it is missing.
    pub fn numbers(&self, field: &str) -> impl Iterator<Item = u32> {
        self.field(field).split_whitespace().filter_map(|word| word.parse().ok())
    }

    /// The set of signals in a field, such as `SigPnd`; empty if it is missing.
    #[must_use]
    pub fn signals(&self, field: &str) -> u64 {
        u64::from_str_radix(self.field(field), 16).unwrap_or(0)
    }

    /// The text of a field; empty if it is missing.
    #[must_use]
    pub fn field(&self, field: &str) -> &str {
        let mut fields = self.0.lines().filter_map(|line| line.split_once(':'));
        fields.find(|(name, _)| *name == field).map_or("", |(_, value)| value.trim())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process with such a name was taken for a member of every group, and for one that has ended.
    #[test]
    fn a_name_that_is_no_text_hides_nothing() {
        let seen = std::thread::spawn(|| {
            rustix::thread::set_name(c"Gid:\xff").unwrap();
            let own = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
            let status = ProcessStatus::of(own).unwrap();
            let gid = rustix::process::getegid().as_raw();
            assert!(status.numbers("Gid").any(|found| found == gid), "{status:?}");
            (status.numbers("Tgid").next(), status.signals("SigPnd"))
        });
        assert_eq!(seen.join().unwrap(), (Some(std::process::id()), 0));
        assert!(ProcessStatus::of(u32::MAX).is_err());
    }

    #[test]
    fn fields_are_found_by_their_whole_names() {
        let status =
            ProcessStatus::parse(b"Name:\tx\nNSpid:\t7\npid:\t8 9\nSigPnd:\t0000000000000100\n");
        assert_eq!(status.numbers("pid").collect::<Vec<_>>(), [8, 9]);
        assert_eq!((status.numbers("Groups").count(), status.signals("SigPnd")), (0, 0x100));
    }
}
