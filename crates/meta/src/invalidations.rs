//! Invalidations: what must no longer be trusted although the store could not record it.
//!
//! A store whose disk refuses writes cannot remove a mapping, but programs continue, and their bytes go to the origin
//! (D11). The next opening would find the old mapping and serve old bytes. So before such bytes change, a line is added
//! here, durably; the next opening applies the lines before anything is read, and clears them once the store has
//! recorded their effect.
//!
//! The lines follow the header of the lock file, in a block that it already has, so that a full disk accepts them. If
//! the cache's device accepts no writes at all, they go to an extended attribute of the witness, a directory on other
//! storage: the origin.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use halocline_model::request::ByteRange;
use parking_lot::Mutex;
use rustix::io::Errno;

use super::FileId;
use super::origin_attribute::OriginAttribute;

/// Length of the lock file's header in bytes; lines follow it.
pub(crate) const HEADER_BYTES: u64 = 256;

/// Header and lines stay in one block of the file system, which the header has allocated.
const LINES_BYTES_MAX: usize = 4096 - 256;

/// Limit in bytes for all other lines: room is kept for the line that invalidates everything.
const OTHERS_BYTES_MAX: usize = LINES_BYTES_MAX - "all\n".len();

/// An invalidation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Invalidation {
    /// Every mapping of every file, even dirty ones.
    All,
    /// Every clean extent: the origin may have newer bytes.
    Clean,
    /// Every mapping of these bytes, even dirty ones.
    Bytes(FileId, ByteRange),
}

impl fmt::Display for Invalidation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => writeln!(f, "all"),
            Self::Clean => writeln!(f, "clean"),
            Self::Bytes(file, range) => {
                writeln!(f, "bytes {} {} {}", file.0, range.start, range.end)
            }
        }
    }
}

fn parse(line: &str) -> Option<Invalidation> {
    let words: Vec<_> = line.split(' ').collect();
    match words.as_slice() {
        ["all"] => Some(Invalidation::All),
        ["clean"] => Some(Invalidation::Clean),
        ["bytes", file, start, end] => {
            let (start, end) = (start.parse().ok()?, end.parse().ok()?);
            let file = FileId(file.parse().ok()?);
            // A range is only made if the bounds are valid.
            (start <= end).then(|| Invalidation::Bytes(file, ByteRange::new(start, end)))
        }
        _ => None,
    }
}

/// All invalidations, in the fewest statements.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Statements {
    all: bool,
    clean: bool,
    /// For each file, ranges that neither overlap nor touch.
    bytes: BTreeMap<FileId, BTreeMap<u64, u64>>,
}

impl Statements {
    fn add(&mut self, what: Invalidation) {
        match what {
            // The others add nothing to this one.
            Invalidation::All => *self = Self { all: true, ..Self::default() },
            _ if self.all => {}
            Invalidation::Clean => self.clean = true,
            Invalidation::Bytes(file, range) => {
                let ranges = self.bytes.entry(file).or_default();
                let mut whole = range;
                while let Some((&start, &end)) = ranges.range(..=whole.end).next_back()
                    && end >= whole.start
                {
                    ranges.remove(&start);
                    whole = ByteRange::new(start.min(whole.start), end.max(whole.end));
                }
                ranges.insert(whole.start, whole.end);
            }
        }
    }

    fn all(&self) -> impl Iterator<Item = Invalidation> {
        let all = self.all.then_some(Invalidation::All);
        let clean = self.clean.then_some(Invalidation::Clean);
        let bytes = self.bytes.iter().flat_map(|(&file, ranges)| {
            let range = move |(&start, &end)| Invalidation::Bytes(file, ByteRange::new(start, end));
            ranges.iter().map(range)
        });
        all.into_iter().chain(clean).chain(bytes)
    }

    fn text(&self) -> String {
        self.all().map(|what| what.to_string()).collect()
    }
}

/// What one of the two places certainly contains.
#[derive(Debug, Default)]
struct ListContent {
    statements: Statements,
    /// Its lines.
    lines: String,
}

/// The invalidations of one cache.
#[derive(Debug)]
pub(crate) struct InvalidationList {
    lock: File,
    witness: Option<OriginAttribute>,
    content: Mutex<ListContent>,
    /// Whether nothing more needs to be added: everything is invalidated already, or there is no means to record
    /// anything.
    given_up: AtomicBool,
}

impl InvalidationList {
    /// The list of the cache with this id, whose lock file is `lock`, and its statements; or the line that cannot be
    /// parsed.
    pub(crate) fn load(
        lock: File,
        witness: Option<File>,
        cache_id: &str,
    ) -> io::Result<(Self, Result<Vec<Invalidation>, String>)> {
        let witness =
            witness.map(|dir| OriginAttribute::new(dir, "distrust", cache_id)).transpose()?;
        let mut text = read_lines(&lock)?;
        if let Some(witness) = &witness {
            text.push_str(&whole_lines(&witness.read(LINES_BYTES_MAX)?));
        }
        let lines = text
            .lines()
            .filter(|line| !line.is_empty())
            .map(|line| parse(line).ok_or_else(|| line.to_owned()));
        let parsed: Result<Vec<_>, _> = lines.collect();
        let mut statements = Statements::default();
        for what in parsed.iter().flatten() {
            statements.add(*what);
        }
        let parsed = parsed.map(|_| statements.all().collect());
        let content = Mutex::new(ListContent { statements, lines: text });
        let given_up = AtomicBool::new(false);
        Ok((Self { lock, witness, content, given_up }, parsed))
    }

    /// Adds to the list, durably; an error means that neither place accepted it, or that there is only room for
    /// [`Invalidation::All`].
    pub(crate) fn add(&self, what: Invalidation) -> io::Result<()> {
        let mut content = self.content.lock();
        let mut all = content.statements.clone();
        all.add(what);
        if all == content.statements {
            return Ok(());
        }
        // Appended, so that a write that a power loss cut short loses nothing; and the statement that invalidates
        // everything always fits.
        let max = if what == Invalidation::All { LINES_BYTES_MAX } else { OTHERS_BYTES_MAX };
        let mut lines = format!("{}{what}", content.lines);
        if lines.len() > max {
            lines = all.text();
        }
        if lines.len() > max {
            return Err(Errno::NOSPC.into());
        }
        self.write_lock_file(&lines)
            .or_else(|error| self.witness.as_ref().ok_or(error)?.write(lines.as_bytes()))?;
        *content = ListContent { statements: all, lines };
        Ok(())
    }

    /// Notes that nothing more needs to be added.
    pub(crate) fn give_up(&self) {
        self.given_up.store(true, Ordering::Release);
    }

    /// Whether nothing more needs to be added.
    pub(crate) fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire)
    }

    /// Empties the list, because the store has recorded its effect.
    pub(crate) fn clear(&self) -> io::Result<()> {
        let mut content = self.content.lock();
        if content.lines.is_empty() {
            return Ok(());
        }
        if let Some(witness) = &self.witness {
            witness.clear()?;
        }
        self.lock.set_len(HEADER_BYTES)?;
        self.lock.sync_all()?;
        *content = ListContent::default();
        Ok(())
    }

    /// If there are fewer lines than before, empty lines replace the rest.
    fn write_lock_file(&self, lines: &str) -> io::Result<()> {
        let before = self.lock.metadata()?.len().saturating_sub(HEADER_BYTES);
        let before = usize::try_from(before).unwrap_or(0).min(LINES_BYTES_MAX);
        let mut bytes = lines.as_bytes().to_vec();
        bytes.resize(bytes.len().max(before), b'\n');
        self.lock.write_all_at(&bytes, HEADER_BYTES)?;
        // A failed device may still accept pages; only a sync reveals it.
        self.lock.sync_all()
    }
}

/// The complete lines of the lock file. A kill may have cut off the last one, which was never acknowledged.
fn read_lines(lock: &File) -> io::Result<String> {
    let len = lock.metadata()?.len().saturating_sub(HEADER_BYTES);
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(0).min(LINES_BYTES_MAX)];
    lock.read_exact_at(&mut bytes, HEADER_BYTES)?;
    Ok(whole_lines(&bytes))
}

fn whole_lines(bytes: &[u8]) -> String {
    let end = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |last| last + 1);
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever is in the block after the header, nothing panics, and what is parsed means the same when it is
        /// rewritten in the fewest statements.
        #[test]
        fn hostile_lines_are_refused_or_mean_one_thing(
            lines in proptest::collection::vec(
                prop_oneof![
                    "(all|clean)",
                    "bytes [0-9]{1,2} [0-9]{1,3} [0-9]{1,3}",
                    "bytes (0|18446744073709551615) (0|7|18446744073709551615) 18446744073709551615",
                    "[a-z0-9 -]{0,30}",
                ],
                0..40,
            ),
            cut in 0_usize..4,
        ) {
            let dir = tempfile::tempdir().unwrap();
            let text = lines.join("\n") + "\n";
            let file = lock_file(dir.path());
            file.write_all_at(&text.as_bytes()[..text.len() - cut.min(text.len())], 256).unwrap();
            let (_, parsed) = InvalidationList::load(file, None, "id").unwrap();
            let mut statements = Statements::default();
            for what in parsed.iter().flatten() {
                statements.add(*what);
            }
            let again: Option<Vec<_>> = statements.text().lines().map(parse).collect();
            prop_assert_eq!(again, Some(parsed.unwrap_or_default()));
        }
    }

    fn lock_file(dir: &std::path::Path) -> File {
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(false);
        let file = file.open(dir.join("lock")).unwrap();
        file.write_all_at(&[b' '; 256], 0).unwrap();
        file
    }

    const SOME: Invalidation = Invalidation::Bytes(FileId(7), ByteRange::new(10, u64::MAX));

    #[test]
    fn what_was_added_is_there_after_a_kill_until_it_is_cleared() {
        let dir = tempfile::tempdir().unwrap();
        let load = || InvalidationList::load(lock_file(dir.path()), None, "id").unwrap();
        let (list, found) = load();
        assert_eq!(found, Ok(Vec::new()));
        for what in [Invalidation::Clean, SOME, Invalidation::Clean] {
            list.add(what).unwrap();
        }
        // A line that a kill cut off.
        let lock = lock_file(dir.path());
        lock.write_all_at(b"bytes 9 0 1", lock.metadata().unwrap().len()).unwrap();
        let (list, found) = load();
        assert_eq!(found, Ok(vec![Invalidation::Clean, SOME]));
        list.clear().unwrap();
        assert_eq!(load().1, Ok(Vec::new()));
    }

    #[test]
    fn ranges_that_touch_are_one_statement() {
        let dir = tempfile::tempdir().unwrap();
        let load = || InvalidationList::load(lock_file(dir.path()), None, "id").unwrap();
        let (list, _) = load();
        let bytes = |start, end| Invalidation::Bytes(FileId(1), ByteRange::new(start, end));
        for (start, end) in [(0, 2), (4, 6), (10, 12), (2, 10), (1, 5)] {
            list.add(bytes(start, end)).unwrap();
        }
        assert_eq!(load().1, Ok(vec![bytes(0, 12)]));
        for at in 6..10_000 {
            list.add(bytes(2 * at, 2 * at + 2)).unwrap();
        }
        assert_eq!(load().1, Ok(vec![bytes(0, 20_000)]));
    }

    #[test]
    fn a_lock_file_that_takes_nothing_sends_the_lines_to_the_witness() {
        let (dir, origin) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        drop(lock_file(dir.path()));
        let witness = || Some(File::open(origin.path()).unwrap());
        let dead = File::open(dir.path().join("lock")).unwrap();
        let (list, _) = InvalidationList::load(dead, witness(), "id").unwrap();
        list.add(SOME).unwrap();
        let load = |id| InvalidationList::load(lock_file(dir.path()), witness(), id).unwrap();
        assert_eq!(load("another cache").1, Ok(Vec::new()));
        let (list, found) = load("id");
        assert_eq!(found, Ok(vec![SOME]));
        list.clear().unwrap();
        assert_eq!(load("id").1, Ok(Vec::new()));
    }

    #[test]
    fn a_full_list_and_an_unknown_line_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let load = || InvalidationList::load(lock_file(dir.path()), None, "id").unwrap();
        let (list, _) = load();
        let bytes = |file| Invalidation::Bytes(FileId(file), ByteRange::new(0, 1));
        let full = (0..1000).find_map(|file| list.add(bytes(file)).err()).unwrap();
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        list.add(Invalidation::All).unwrap();
        list.add(bytes(1000)).unwrap();
        assert_eq!(load().1, Ok(vec![Invalidation::All]), "it says the rest");
        list.clear().unwrap();
        lock_file(dir.path()).write_all_at(b"what\n", HEADER_BYTES).unwrap();
        assert_eq!(load().1, Err("what".to_owned()));
    }
}
