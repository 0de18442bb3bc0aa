//! The times that a namespace file had before commands of ours changed its attributes past a mount.
//!
//! A cache tells what its origin's disk lost from what others changed by the change time: a file that lost data is older than its
//! record. A command that changes an attribute, such as the number of the object, gives the file a new change time, and the file
//! would seem to be changed by others. So where a cache may have newer bytes, each change time that goes is noted in the file.
//!
//! What must hold:
//! - it is noted, in the same inode, before the first attribute changes, so that neither a kill nor a power loss leaves a new
//!   change time without it;
//! - it says nothing of a file whose size or modification time is another than when it was noted: others changed that;
//! - it says nothing to a cache that has recorded the file since: that knows the file as it was after the change.

use std::fmt::Write as _;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{XattrFlags, getxattr, listxattr, setxattr};
use rustix::io::Errno;

use super::Origin;
use halocline_os::clock::coarse_ms;

/// The attribute: size, modification time, and for each change the change times before and after it; times in nanoseconds since
/// the epoch.
pub const ATTRIBUTE: &str = "user.halocline.times";

/// The names of marks of caches that may have newer bytes begin so (docs/FORMAT.md).
const MARKS: [&[u8]; 2] = [b"trusted.halocline.dirty.", b"user.halocline.dirty."];

/// Limit of the changes that are noted. Those before the last mount say nothing, those since are few.
const CHANGES_MAX: usize = 8;

/// More bytes than the attribute has.
const BYTES_MAX: usize = 512;

/// A change of attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AttributeChange {
    /// The change time before it, in nanoseconds since the epoch.
    before_ns: i64,
    /// A change time during it: later than all records of before, and earlier than all since.
    at_ns: i64,
}

/// What a file looked like before our changes of its attributes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EarlierTimes {
    size: u64,
    mtime_ns: i64,
    changes: Vec<AttributeChange>,
}

impl EarlierTimes {
    /// The change time in nanoseconds since the epoch that the file had before our first change after `since_ns`; `None` if there
    /// was none, or the file has not the size and modification time that it had then.
    pub fn changed_ns(&self, (size, mtime_ns): (u64, i64), since_ns: i64) -> Option<i64> {
        if (self.size, self.mtime_ns) != (size, mtime_ns) {
            return None;
        }
        let first = self.changes.iter().find(|change| change.at_ns > since_ns);
        first.map(|change| change.before_ns)
    }

    /// The value of [`ATTRIBUTE`]; `None` for one that is not ours: who may write to the file can set it.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(value).ok()?;
        let (first, changes) = text.split_once(';')?;
        let (size, mtime_ns) = first.split_once(' ')?;
        let change = |text: &str| {
            let (before_ns, at_ns) = text.split_once(' ')?;
            Some(AttributeChange { before_ns: before_ns.parse().ok()?, at_ns: at_ns.parse().ok()? })
        };
        let changes = changes.split(';').map(change).collect::<Option<Vec<_>>>()?;
        let times = Self { size: size.parse().ok()?, mtime_ns: mtime_ns.parse().ok()?, changes };
        (times.changes.len() <= CHANGES_MAX).then_some(times)
    }

    fn encode(&self) -> String {
        let mut text = format!("{} {}", self.size, self.mtime_ns);
        for change in &self.changes {
            write!(text, ";{} {}", change.before_ns, change.at_ns).expect("a string grows");
        }
        text
    }

    /// Adds a change that begins at `at_ns`. Of too many, one in the middle goes: without it the file seems to be changed by others,
    /// never the other way round.
    fn add(&mut self, before_ns: i64, at_ns: i64) {
        if self.changes.len() >= CHANGES_MAX {
            self.changes.remove(CHANGES_MAX / 2);
        }
        self.changes.push(AttributeChange { before_ns, at_ns });
    }
}

/// Notes the change time of the namespace file at `path`, if a cache may have bytes that it has not; says whether that is so. To
/// be called before an attribute of the file changes.
///
/// # Errors
/// If the file takes no attribute: its attributes must not change.
pub(super) fn note_if_needed(origin: &Origin, path: &Path) -> io::Result<bool> {
    let is_needed = origin.namespace_dir().parent().is_some_and(are_needed);
    if is_needed {
        note(path)?;
    }
    Ok(is_needed)
}

/// Whether a cache may have bytes that the volume in `dir` has not: one has marked it, or that cannot be found out.
fn are_needed(dir: &Path) -> bool {
    let mut names = vec![0_u8; 1 << 16];
    match listxattr(dir, &mut names) {
        Ok(len) => {
            let mut names = names[..len].split(|&byte| byte == 0);
            names.any(|name| MARKS.iter().any(|mark| name.starts_with(mark)))
        }
        Err(errno) => errno != Errno::OPNOTSUPP,
    }
}

fn note(path: &Path) -> io::Result<()> {
    let found = fs::metadata(path)?;
    let (size, mtime_ns) = (found.len(), mtime_ns(&found));
    let noted = read(path)?.filter(|noted| (noted.size, noted.mtime_ns) == (size, mtime_ns));
    let mut times = noted.unwrap_or(EarlierTimes { size, mtime_ns, changes: Vec::new() });
    // A kill leaves the time of this clock; else that of the file system follows, which the records of caches have.
    let now_ns = i64::try_from(coarse_ms().saturating_mul(1_000_000)).unwrap_or(i64::MAX);
    times.add(ctime_ns(&found), now_ns.max(ctime_ns(&found)));
    write(path, &times)?;
    if let Some(change) = times.changes.last_mut() {
        change.at_ns = ctime_ns(&fs::metadata(path)?);
    }
    write(path, &times)
}

fn read(path: &Path) -> io::Result<Option<EarlierTimes>> {
    let mut value = [0_u8; BYTES_MAX];
    match getxattr(path, ATTRIBUTE, &mut value) {
        Ok(len) => Ok(EarlierTimes::parse(&value[..len])),
        Err(Errno::NODATA | Errno::RANGE) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

fn write(path: &Path, times: &EarlierTimes) -> io::Result<()> {
    Ok(setxattr(path, ATTRIBUTE, times.encode().as_bytes(), XattrFlags::empty())?)
}

fn mtime_ns(found: &Metadata) -> i64 {
    in_nanoseconds(found.mtime(), found.mtime_nsec())
}

fn ctime_ns(found: &Metadata) -> i64 {
    in_nanoseconds(found.ctime(), found.ctime_nsec())
}

/// Saturates as the times in the records of caches do: anyone may give a file a time beyond the year 2262.
const fn in_nanoseconds(seconds: i64, nanoseconds: i64) -> i64 {
    seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds)
}

#[cfg(any(test, fuzzing))]
pub(super) mod fuzzing {
    use super::*;

    /// What is read is written so that it is read again.
    pub(in super::super) fn earlier_times(bytes: &[u8]) {
        if let Some(mut times) = EarlierTimes::parse(bytes) {
            assert_eq!(EarlierTimes::parse(times.encode().as_bytes()).as_ref(), Some(&times));
            times.add(0, 0);
            assert!(times.encode().len() <= BYTES_MAX);
        }
    }

    /// Seeds of it.
    #[cfg(test)]
    pub(in super::super) fn seeds() -> Vec<(&'static str, Vec<u8>)> {
        vec![("times", b"4096 50;50 200;205 210".to_vec())]
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::{Duration, SystemTime};

    use super::*;

    fn times(changes: &[(i64, i64)]) -> EarlierTimes {
        let change = |&(before_ns, at_ns): &(i64, i64)| AttributeChange { before_ns, at_ns };
        EarlierTimes { size: 9, mtime_ns: 50, changes: changes.iter().map(change).collect() }
    }

    #[test]
    fn a_record_is_compared_with_what_was_before_the_first_change_after_it() {
        let noted = times(&[(10, 100), (110, 200), (210, 300)]);
        let rows = [(5, Some(10)), (99, Some(10)), (100, Some(110)), (199, Some(110)), (300, None)];
        for (since_ns, want) in rows {
            assert_eq!(noted.changed_ns((9, 50), since_ns), want, "{since_ns}");
            assert_eq!(noted.changed_ns((9, 51), since_ns), None, "written since");
            assert_eq!(noted.changed_ns((8, 50), since_ns), None, "shortened since");
        }
    }

    #[test]
    fn what_is_written_is_read_and_anything_else_is_not() {
        let mut noted = times(&[(-10, i64::MIN), (i64::MAX, 3)]);
        assert_eq!(EarlierTimes::parse(noted.encode().as_bytes()), Some(noted.clone()));
        (noted.size, noted.mtime_ns) = (u64::MAX, i64::MIN);
        for _ in 0..20 {
            noted.add(i64::MIN, i64::MIN);
            let text = noted.encode();
            assert!(text.len() <= BYTES_MAX, "{}", text.len());
            assert_eq!(EarlierTimes::parse(text.as_bytes()), Some(noted.clone()));
        }
        assert_eq!(noted.changes[0].before_ns, -10, "the first ones stay");
        let too_many = format!("1 2{}", ";3 4".repeat(CHANGES_MAX + 1));
        for text in ["", "1", "1 2", "1 2;", "1 2;3", "1 2;3 4;", "-1 2;3 4", "x", &too_many] {
            assert_eq!(EarlierTimes::parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn times_are_noted_until_the_file_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "bytes").unwrap();
        let first = fs::metadata(&path).unwrap();
        let looks = (5, mtime_ns(&first));
        for _ in 0..2 {
            note(&path).unwrap();
            let noted = read(&path).unwrap().unwrap();
            assert_eq!(noted.changed_ns(looks, ctime_ns(&first) - 1), Some(ctime_ns(&first)));
            let now_ns = ctime_ns(&fs::metadata(&path).unwrap());
            assert_eq!(noted.changed_ns(looks, now_ns), None, "for who recorded it since");
        }
        let file = File::options().write(true).open(&path).unwrap();
        file.set_modified(SystemTime::now() + Duration::from_secs(9)).unwrap();
        note(&path).unwrap();
        assert_eq!(
            read(&path).unwrap().unwrap().changes.len(),
            1,
            "what was before is another file"
        );
    }
}
