//! Lists directories page by page, also while they are split.

use halocline_model::namespace::{
    Answer, Buckets, Cursor, Entry, InodeNumber, Name, PLACE_MAX, Script,
};
use rustix::io::Errno;

use super::super::coding::decode_attributes;
use super::super::{NamesError, PAGE_ENTRIES_MAX};
use super::driver::{Driver, TRIES};
use super::{Failure, Listed, Result, refused};

/// Pages of directories.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pages<'a> {
    driver: &'a Driver,
}

/// What a page shows of an entry.
fn listed((name, entry): (Name, &Entry), cursor: u64) -> Result<Listed> {
    let attributes = match entry {
        Entry::Single(_, attributes) => Some(decode_attributes(attributes)?),
        _ => None,
    };
    let is_directory = matches!(entry, Entry::Directory(_));
    Ok(Listed { cursor, name, inode: entry.inode(), attributes, is_directory })
}

fn unsound<T>(what: &str) -> Result<T> {
    Err(NamesError::Unsound(what.to_owned()).into())
}

impl<'a> Pages<'a> {
    pub(super) const fn of(driver: &'a Driver) -> Self {
        Self { driver }
    }

    /// See [`Namespace::list`](super::Namespace::list).
    pub(super) fn list(
        self,
        directory: InodeNumber,
        cursor: u64,
        limit: usize,
    ) -> Result<(Vec<Listed>, bool)> {
        let mut cursor = Cursor::from_number(cursor);
        let mut tries = 0;
        while tries < TRIES {
            let Some(buckets) = self.buckets(directory, cursor)? else {
                // A listing of buckets that are no longer there.
                return Ok((Vec::new(), true));
            };
            if !buckets.is_empty() {
                cursor = cursor.among_buckets();
            }
            let Some((shard, after)) = cursor.shard(directory, Some(&buckets)) else {
                return Ok((Vec::new(), true));
            };
            let list = Script::List(after, limit.clamp(1, PAGE_ENTRIES_MAX));
            let before = self.driver.listings.changes(shard);
            let (entries, is_last, version) = match self.driver.read(shard, &list)? {
                Answer::Entries { entries, is_last, version } => (entries, is_last, version),
                Answer::Split(buckets) => {
                    self.driver.buckets.learn(directory, &buckets);
                    tries += 1;
                    continue;
                }
                Answer::Gone if shard != directory => {
                    self.driver.buckets.forget(directory);
                    tries += 1;
                    continue;
                }
                Answer::Differs => return refused(Errno::NOTDIR),
                _ => return refused(Errno::NOENT),
            };
            if entries.is_empty() && !is_last
                || entries.first().is_some_and(|(first, ..)| *first <= after)
                || entries.last().is_some_and(|(last, ..)| *last > place_max(cursor))
            {
                return unsound("a page that leads nowhere");
            }
            let page = (after, &*entries, is_last);
            self.driver.listings.add((shard, version), page, before, self.driver.now());
            let next = cursor.next_bucket(&buckets).filter(|_| is_last);
            match next {
                Some(next) if entries.is_empty() => cursor = next,
                _ => return Ok((shown(entries, cursor, next)?, is_last && next.is_none())),
            }
        }
        Err(Failure::Contended)
    }

    /// The buckets of a directory; none if it has none, or is not known to have any. `None` if there are none, though the
    /// cursor leads to one.
    fn buckets(self, directory: InodeNumber, cursor: Cursor) -> Result<Option<Buckets>> {
        let known = self.driver.buckets.of(directory);
        match (known, cursor) {
            (Some(buckets), _) => return Ok(Some(buckets)),
            (None, Cursor::Directory(_)) => return Ok(Some(Buckets::default())),
            (None, Cursor::Bucket { .. }) => {}
        }
        match self.driver.read(directory, &Script::List(0, 1))? {
            Answer::Split(buckets) => {
                self.driver.buckets.learn(directory, &buckets);
                Ok(Some(buckets))
            }
            Answer::Entries { .. } => Ok(None),
            Answer::Differs => refused(Errno::NOTDIR),
            _ => refused(Errno::NOENT),
        }
    }
}

/// The highest place that a cursor can have.
const fn place_max(cursor: Cursor) -> u64 {
    match cursor {
        Cursor::Directory(_) => (1 << 62) - 1,
        Cursor::Bucket { .. } => PLACE_MAX,
    }
}

/// What a page shows; after the last of these entries, a listing continues in the next bucket, if there is one.
fn shown(
    entries: Vec<(u64, Name, Entry)>,
    cursor: Cursor,
    next: Option<Cursor>,
) -> Result<Vec<Listed>> {
    let last = entries.len().saturating_sub(1);
    let show = |(at, (place, name, entry)): (usize, (u64, Name, Entry))| {
        let after = next.filter(|_| at == last).unwrap_or_else(|| cursor.after(place));
        listed((name, &entry), after.number())
    };
    entries.into_iter().enumerate().map(show).collect()
}
