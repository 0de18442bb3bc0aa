//! Leftovers of nodes that died: locks, committed intents for which nobody asks any more, directories without a name.
//!
//! A check runs alone: it begins an epoch of its own, in which requests that nodes sent before do nothing, however late
//! they arrive.

use std::collections::BTreeSet;

use halocline_model::namespace::{Answer, Completion, Entry, InodeNumber, Intent, ROOT, Script};

use super::{NameStore, NamesError, PAGE_ENTRIES_MAX, Result, State};

/// The findings of a check.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CheckFindings {
    /// Directories that have a name, and the root.
    pub directories: usize,
    /// Names.
    pub names: usize,
    /// Intents with locks left; they were completed.
    pub intents: usize,
    /// Committed intents for which nobody asks any more; they were removed.
    pub committed: usize,
    /// Shards without a name; they were removed if they were empty.
    pub leftovers: usize,
    /// Names that lead nowhere, directories that have entries but no name, and other contradictions: they were left as
    /// they are.
    pub contradictions: usize,
}

/// Examines all names, and removes what dead nodes left. Nodes that use the names meanwhile wait for the check, and
/// then start their operations again.
///
/// # Errors
/// If the store may have forgotten something, or does not answer.
pub fn clean(store: &dyn NameStore) -> Result<CheckFindings> {
    match store.refresh()? {
        State::Confirmed | State::Held => {}
        state => return Err(state.refusal()),
    }
    store.begin_epoch(true)?;
    let found = look(store)?;
    store.begin_epoch(false)?;
    Ok(found)
}

fn look(store: &dyn NameStore) -> Result<CheckFindings> {
    let mut found = CheckFindings::default();
    let shards = store.shards()?;
    for shard in &shards {
        let Some(inspected) = store.inspect(*shard)? else { continue };
        for intent in inspected.locks {
            found.intents += 1;
            complete(store, intent)?;
        }
    }
    for shard in &shards {
        let Some(inspected) = store.inspect(*shard)? else { continue };
        // All locks are gone, so nobody asks for these any more.
        for intent in inspected.committed {
            found.committed += 1;
            store.run(*shard, &Script::Forget(intent.id))?;
        }
    }
    let reached = reach(store, &mut found)?;
    for shard in shards.iter().filter(|shard| !reached.contains(shard)) {
        let Some(inspected) = store.inspect(*shard)? else { continue };
        let is_empty = match store.run(*shard, &Script::List(0, 1))? {
            Answer::Entries { entries, .. } => entries.is_empty(),
            _ => !inspected.is_directory,
        };
        if is_empty {
            found.leftovers += 1;
            store.remove(*shard)?;
        } else {
            found.contradictions += 1;
        }
    }
    Ok(found)
}

fn complete(store: &dyn NameStore, intent: Intent) -> Result<()> {
    let mut completion = Completion::new(intent);
    while let Some((shard, script)) = completion.step() {
        completion.answer(Some(store.run(shard, &script)?));
    }
    Ok(())
}

/// All shards that can be reached by names.
fn reach(store: &dyn NameStore, found: &mut CheckFindings) -> Result<BTreeSet<InodeNumber>> {
    let mut reached = BTreeSet::from([ROOT]);
    let mut todo = vec![ROOT];
    while let Some(directory) = todo.pop() {
        let mut cursor = 0;
        loop {
            let answer = store.run(directory, &Script::List(cursor, PAGE_ENTRIES_MAX))?;
            let Answer::Entries { entries, is_last, .. } = answer else {
                found.contradictions += 1;
                break;
            };
            let page = (entries, is_last);
            if page.0.last().map_or(!page.1, |(last, ..)| *last <= cursor) {
                return Err(NamesError::Unsound("a page that leads nowhere".to_owned()));
            }
            for (place, _, entry) in page.0 {
                cursor = place;
                found.names += 1;
                match entry {
                    Entry::Directory(inode) if reached.insert(inode) => todo.push(inode),
                    // A directory has only one name.
                    Entry::Directory(_) => found.contradictions += 1,
                    Entry::Linked(_, shard) => drop(reached.insert(shard)),
                    Entry::Single(..) => {}
                }
            }
            if page.1 {
                found.directories += 1;
                break;
            }
        }
    }
    Ok(reached)
}
