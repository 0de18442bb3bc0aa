//! All entries of a directory, for those who ask the store itself: checks and repairs.

use halocline_model::namespace::{
    Answer, Buckets, Change, Cursor, Entry, EntryName, InodeNumber, Name, Script, Slot,
};

use super::{NameStore, NamesError, PAGE_ENTRIES_MAX, Result};

/// What a directory was found to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FoundDirectory {
    /// All entries were listed; it has these buckets, or none.
    Listed(Buckets),
    /// There is no such directory, or one of these buckets is missing.
    Broken(Buckets),
}

/// Calls `each` for all entries of a directory. What is there all the time is told once.
///
/// # Errors
/// If the store does not answer, or answers what cannot be; those of `each`.
pub fn each_entry(
    store: &dyn NameStore,
    directory: InodeNumber,
    each: &mut dyn FnMut(Name, Entry) -> Result<()>,
) -> Result<FoundDirectory> {
    let mut cursor = Cursor::Directory(0);
    let mut buckets: Option<Buckets> = None;
    while let Some((shard, after)) = cursor.shard(directory, buckets.as_ref()) {
        match store.run(shard, &Script::List(after, PAGE_ENTRIES_MAX))? {
            Answer::Entries { entries, is_last, .. } => {
                let last = entries.last().map(|(place, ..)| *place);
                if last.map_or(!is_last, |last| last <= after) {
                    return Err(NamesError::Unsound("a page that leads nowhere".to_owned()));
                }
                entries.into_iter().try_for_each(|(_, name, entry)| each(name, entry))?;
                let next = buckets.as_ref().and_then(|buckets| cursor.next_bucket(buckets));
                match (is_last, next, last) {
                    (false, _, Some(last)) => cursor = cursor.after(last),
                    (true, Some(next), _) => cursor = next,
                    _ => return Ok(FoundDirectory::Listed(buckets.unwrap_or_default())),
                }
            }
            Answer::Split(found) if buckets.is_none() => {
                (buckets, cursor) = (Some(found), cursor.among_buckets());
            }
            _ => break,
        }
    }
    Ok(FoundDirectory::Broken(buckets.unwrap_or_default()))
}

/// The shard that has a name: its directory, or one of that one's buckets.
///
/// # Errors
/// If the store does not answer.
pub fn shard_of(store: &dyn NameStore, at: &EntryName) -> Result<InodeNumber> {
    let read = Script::Read(Slot::Name(at.name.clone()));
    let buckets = match store.run(at.directory, &read)? {
        Answer::Split(buckets) => buckets.of(&at.name),
        _ => None,
    };
    Ok(buckets.unwrap_or(at.directory))
}

/// Changes names and attributes of a directory that nobody else changes, wherever its names are.
///
/// # Errors
/// If the store does not answer, or one of the values is not what was expected.
pub fn change_entries(
    store: &dyn NameStore,
    directory: InodeNumber,
    changes: Vec<Change>,
) -> Result<()> {
    let unsound = |shard: InodeNumber, answer: Answer| {
        Err(NamesError::Unsound(format!("directory {}: {answer:?}", shard.0)))
    };
    let buckets = match store.run(directory, &Script::Alone(changes.clone()))? {
        Answer::Done => return Ok(()),
        Answer::Split(buckets) => buckets,
        answer => return unsound(directory, answer),
    };
    let shard = |change: &Change| match change {
        Change::Name(name, ..) => buckets.of(name).unwrap_or(directory),
        _ => directory,
    };
    let (of_names, others): (Vec<_>, Vec<_>) =
        changes.into_iter().partition(|change| shard(change) != directory);
    for bucket in buckets.numbers() {
        let changes: Vec<_> =
            of_names.iter().filter(|change| shard(change) == *bucket).cloned().collect();
        if changes.is_empty() {
            continue;
        }
        match store.run(*bucket, &Script::Alone(changes))? {
            Answer::Done => {}
            answer => return unsound(*bucket, answer),
        }
    }
    let last = if others.is_empty() { Script::Touch } else { Script::Alone(others) };
    match store.run(directory, &last)? {
        Answer::Done => Ok(()),
        answer => unsound(directory, answer),
    }
}
