//! Leftovers of nodes that died: locks, committed intents for which nobody asks any more, directories without a name.
//!
//! A check runs alone: it begins an epoch of its own, in which requests that nodes sent before do nothing, however late
//! they arrive.

use std::collections::BTreeSet;

use halocline_model::namespace::{Answer, Completion, Entry, InodeNumber, Intent, ROOT, Script};

use super::directory_entries::{FoundDirectory, each_entry};
use super::{NameStore, Result, State};

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
    let mut reached = reach(store, &mut found)?;
    // The buckets of a directory without a name stay with it.
    for shard in &shards {
        if !reached.contains(shard)
            && let Answer::Split(buckets) = store.run(*shard, &Script::List(0, 1))?
        {
            reached.extend(buckets.numbers());
        }
    }
    for shard in shards.iter().filter(|shard| !reached.contains(shard)) {
        let Some(inspected) = store.inspect(*shard)? else { continue };
        // Only a split that was not finished leaves a bucket to which nothing leads; its directory has the entries.
        let is_leftover = inspected.is_bucket
            || match store.run(*shard, &Script::List(0, 1))? {
                Answer::Entries { entries, .. } => entries.is_empty(),
                _ => !inspected.is_directory,
            };
        if is_leftover {
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
        let listed = each_entry(store, directory, &mut |_, entry| {
            found.names += 1;
            match entry {
                Entry::Directory(inode) if reached.insert(inode) => todo.push(inode),
                // A directory has only one name.
                Entry::Directory(_) => found.contradictions += 1,
                Entry::Linked(_, shard) => drop(reached.insert(shard)),
                Entry::Single(..) => {}
            }
            Ok(())
        })?;
        match listed {
            FoundDirectory::Listed(buckets) => {
                found.directories += 1;
                reached.extend(buckets.numbers());
            }
            FoundDirectory::Broken(buckets) => {
                found.contradictions += 1;
                reached.extend(buckets.numbers());
            }
        }
    }
    Ok(reached)
}
