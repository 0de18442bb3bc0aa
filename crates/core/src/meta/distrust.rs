//! What must not be trusted any more although the store could not record it.
//!
//! A store whose disk refuses writes cannot forget a mapping, but programs go on, and their bytes
//! go to the origin (D11). A later opening would find the old mapping and serve old bytes. So
//! before such bytes change, a line is added here, durably; the next opening honours the lines
//! before anybody reads, and clears them once the store has recorded their effect.
//!
//! The lines stand behind the header of the lock file, in a block that it has anyway, so that a
//! full disk takes them. Where the cache's device takes nothing at all they go to an extended
//! attribute of the witness, a directory on other storage: the origin.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use halocline_model::request::ByteRange;
use parking_lot::Mutex;
use rustix::fs::{XattrFlags, fgetxattr, fremovexattr, fsetxattr};
use rustix::io::Errno;

use super::FileId;

/// The header of the lock file has this many bytes; what follows are lines.
pub(crate) const HEADER_BYTES: u64 = 256;

/// Header and lines stay in one block of the file system, which the header has allocated.
const LINES_BYTES_MAX: usize = 4096 - 256;

/// Prefix of the witness's attribute, before the cache's id. Programs on a mount do not see it.
const ATTRIBUTE: &str = "user.halocline.distrust.";

/// Something not to be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Distrusted {
    /// Every clean extent: the origin may have newer bytes.
    Clean,
    /// Every mapping of these bytes, dirty ones too.
    Bytes(FileId, ByteRange),
}

impl fmt::Display for Distrusted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Clean => writeln!(f, "clean"),
            Self::Bytes(file, range) => {
                writeln!(f, "bytes {} {} {}", file.0, range.start, range.end)
            }
        }
    }
}

fn parse(line: &str) -> Option<Distrusted> {
    let words: Vec<_> = line.split(' ').collect();
    match words.as_slice() {
        ["clean"] => Some(Distrusted::Clean),
        ["bytes", file, start, end] => {
            let (start, end) = (start.parse().ok()?, end.parse().ok()?);
            let whole = start <= end;
            whole.then_some(Distrusted::Bytes(
                FileId(file.parse().ok()?),
                ByteRange::new(start, end),
            ))
        }
        _ => None,
    }
}

/// The list of one cache.
#[derive(Debug)]
pub(crate) struct DistrustList {
    lock: File,
    witness: Option<File>,
    attribute: String,
    /// The lines that stand in one of the two places for sure.
    lines: Mutex<String>,
}

impl DistrustList {
    /// The list of the cache with this id, whose lock file is `lock`; with what it says, or the
    /// line that says nothing.
    pub(crate) fn load(
        lock: File,
        witness: Option<File>,
        cache_id: &str,
    ) -> io::Result<(Self, Result<Vec<Distrusted>, String>)> {
        let attribute = format!("{ATTRIBUTE}{cache_id}");
        let mut text = read_lines(&lock)?;
        if let Some(witness) = &witness {
            text.push_str(&read_attribute(witness, &attribute)?);
        }
        let parsed = text.lines().map(|line| parse(line).ok_or_else(|| line.to_owned())).collect();
        Ok((Self { lock, witness, attribute, lines: Mutex::new(text) }, parsed))
    }

    /// Adds to the list, durably; an error says that neither place took it.
    pub(crate) fn add(&self, what: Distrusted) -> io::Result<()> {
        let mut lines = self.lines.lock();
        let line = what.to_string();
        if lines.split_inclusive('\n').any(|known| known == line) {
            return Ok(());
        }
        let all = format!("{lines}{line}");
        if all.len() > LINES_BYTES_MAX {
            return Err(Errno::NOSPC.into());
        }
        self.write_lock_file(&all).or_else(|error| {
            let witness = self.witness.as_ref().ok_or(error)?;
            fsetxattr(witness, &*self.attribute, all.as_bytes(), XattrFlags::empty())?;
            witness.sync_all()
        })?;
        *lines = all;
        Ok(())
    }

    /// Empties the list: the store has recorded what it said.
    pub(crate) fn clear(&self) -> io::Result<()> {
        let mut lines = self.lines.lock();
        if lines.is_empty() {
            return Ok(());
        }
        if let Some(witness) = &self.witness {
            match fremovexattr(witness, &*self.attribute) {
                Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => witness.sync_all()?,
                Err(errno) => return Err(errno.into()),
            }
        }
        self.lock.set_len(HEADER_BYTES)?;
        self.lock.sync_all()?;
        lines.clear();
        Ok(())
    }

    fn write_lock_file(&self, lines: &str) -> io::Result<()> {
        self.lock.write_all_at(lines.as_bytes(), HEADER_BYTES)?;
        // A device that is gone may still take pages: only a sync tells.
        self.lock.sync_all()
    }
}

/// The whole lines of the lock file. The last one may have been cut off by a kill: nobody was told
/// that it stands.
fn read_lines(lock: &File) -> io::Result<String> {
    let len = lock.metadata()?.len().saturating_sub(HEADER_BYTES);
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(0).min(LINES_BYTES_MAX)];
    lock.read_exact_at(&mut bytes, HEADER_BYTES)?;
    Ok(whole_lines(&bytes))
}

fn read_attribute(witness: &File, name: &str) -> io::Result<String> {
    let mut value = vec![0; LINES_BYTES_MAX];
    match fgetxattr(witness, name, &mut value) {
        Ok(len) => Ok(whole_lines(&value[..len])),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(String::new()),
        Err(errno) => Err(errno.into()),
    }
}

fn whole_lines(bytes: &[u8]) -> String {
    let end = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |last| last + 1);
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock_file(dir: &std::path::Path) -> File {
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(false);
        let file = file.open(dir.join("lock")).unwrap();
        file.write_all_at(&[b' '; 256], 0).unwrap();
        file
    }

    const SOME: Distrusted = Distrusted::Bytes(FileId(7), ByteRange::new(10, u64::MAX));

    #[test]
    fn what_was_added_is_there_after_a_kill_until_it_is_cleared() {
        let dir = tempfile::tempdir().unwrap();
        let load = || DistrustList::load(lock_file(dir.path()), None, "id").unwrap();
        let (list, found) = load();
        assert_eq!(found, Ok(Vec::new()));
        for what in [Distrusted::Clean, SOME, Distrusted::Clean] {
            list.add(what).unwrap();
        }
        // A line that a kill cut off.
        let lock = lock_file(dir.path());
        lock.write_all_at(b"bytes 9 0 1", lock.metadata().unwrap().len()).unwrap();
        let (list, found) = load();
        assert_eq!(found, Ok(vec![Distrusted::Clean, SOME]));
        list.clear().unwrap();
        assert_eq!(load().1, Ok(Vec::new()));
    }

    #[test]
    fn a_lock_file_that_takes_nothing_sends_the_lines_to_the_witness() {
        let (dir, origin) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        drop(lock_file(dir.path()));
        let witness = || Some(File::open(origin.path()).unwrap());
        let dead = File::open(dir.path().join("lock")).unwrap();
        let (list, _) = DistrustList::load(dead, witness(), "id").unwrap();
        list.add(SOME).unwrap();
        let load = |id| DistrustList::load(lock_file(dir.path()), witness(), id).unwrap();
        assert_eq!(load("another cache").1, Ok(Vec::new()));
        let (list, found) = load("id");
        assert_eq!(found, Ok(vec![SOME]));
        list.clear().unwrap();
        assert_eq!(load("id").1, Ok(Vec::new()));
    }

    #[test]
    fn a_full_list_and_a_strange_line_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let load = || DistrustList::load(lock_file(dir.path()), None, "id").unwrap();
        let (list, _) = load();
        let bytes = |file| Distrusted::Bytes(FileId(file), ByteRange::new(0, 1));
        let full = (0..1000).find_map(|file| list.add(bytes(file)).err()).unwrap();
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        list.clear().unwrap();
        lock_file(dir.path()).write_all_at(b"what\n", HEADER_BYTES).unwrap();
        assert_eq!(load().1, Err("what".to_owned()));
    }
}
