//! Many small files moved together, with few syncs.
//!
//! Moving a small file alone consists mostly of waiting for four syncs, each of which commits a journal. A batch takes
//! each step for all of its files before the next step, with one sync in between: all are copied, one sync makes their
//! intents durable, all get their places, one sync of the file system makes copies and places durable, all names are
//! cut over, and each directory of names is synced once (`docs/decisions/0023-batches-of-small-files.md`).
//!
//! What must hold (I10): each file goes through the steps of [`migrate`](super::migrate) in their order, so that a kill
//! or a power loss finds it at one of them. Until the last sync, nothing is reported durable at the new place
//! (`pending_syncs`), and both copies stay. Nobody waits for a file that a program keeps busy: it leaves the batch and
//! is moved alone. Memory, descriptors and bytes that are not durable yet are bounded ([`BATCH_MAX`], [`BATCH_BYTES`]).

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use parking_lot::Mutex;
use rustix::fs::{Advice, fadvise};

use super::active_moves::{ActiveMove, ActiveMoves};
use super::copy::Expected;
use super::cutover::{Cutover, CutoverResult, WAIT_LIMIT};
use super::decorations::BatchBounds;
use super::foundation::Foundation;
use super::inode::Inode;
use super::is_private_path;
use super::leftover_intents::LeftoverIntents;
use super::leftovers::{Leftovers, OldCopy};
use super::mirror;
use super::not_moved::NotMoved;
use super::options::TierOptions;
use super::parallel::{ALONE_BYTES, parallel_count};
use super::pending_syncs::PendingSyncs;
use super::residents::Residents;
use super::staged_copy::{Source, StagedCopy};
use super::staging::Staging;
use super::tiers::Tiers;
use halocline_api::config::Copies;
use halocline_api::file_tier::{Counters, History};
use halocline_os::memory::MemoryInfo;
use halocline_vfs::namespace::Vnode;

/// The most files of a batch: each has two open descriptors until it has moved.
pub(super) const BATCH_MAX: usize = 256;
/// The approximate number of bytes of a batch.
const BATCH_BYTES: u64 = 32 << 20;
/// The most threads that copy the files of a batch; never more than there are processors. All of them create names in
/// one directory, and waiting for that takes long on a busy machine.
const WORKERS: usize = 4;

/// Called with the index of a file and how many more of its bytes were copied; `false` stops the
/// batch.
pub(super) type OnFileProgress<'a> = &'a (dyn Fn(usize, u64) -> bool + Sync);

/// The result for each file; `None` for a file that is to be moved alone.
pub(super) type Outcomes = Vec<Option<Result<u64, NotMoved>>>;

/// A file of a batch that has been copied.
struct Member<'a> {
    /// Its index among the files of the batch.
    at: usize,
    inode: &'a Arc<Inode>,
    source: Source,
    copied: StagedCopy,
    bytes: u64,
    _active_move: ActiveMove<'a>,
}

/// How many of the first of the given files form a batch, according to their sizes.
pub(super) fn batch_of(sizes: impl IntoIterator<Item = u64>, bytes: u64) -> usize {
    parallel_count(sizes, bytes.min(BATCH_BYTES), BATCH_MAX)
}

/// Moves many small files together.
#[derive(Debug)]
pub(super) struct Batches {
    tiers: Arc<Tiers>,
    residents: Arc<Residents>,
    intents: Arc<LeftoverIntents>,
    leftovers: Arc<Leftovers>,
    pending_syncs: Arc<PendingSyncs>,
    counters: Arc<Counters>,
    active_moves: Arc<ActiveMoves>,
    history: Arc<History>,
    options: Arc<TierOptions>,
    bounds: BatchBounds,
    staging: Arc<Staging>,
    cutover: Arc<Cutover>,
}

impl Batches {
    /// Built over the components that it uses.
    pub(super) fn new(base: &Foundation, staging: &Arc<Staging>, cutover: &Arc<Cutover>) -> Self {
        Self {
            tiers: base.tiers.clone(),
            residents: base.residents.clone(),
            intents: base.intents.clone(),
            leftovers: base.leftovers.clone(),
            pending_syncs: base.pending_syncs.clone(),
            counters: base.counters.clone(),
            active_moves: base.active_moves.clone(),
            history: base.history.clone(),
            options: base.options.clone(),
            bounds: base.batch_bounds,
            staging: staging.clone(),
            cutover: cutover.clone(),
        }
    }

    /// Moves files to `tier`, as [`migrate`](super::migrate) does each, yielding to programs.
    pub(super) fn migrate_batch(
        &self,
        inodes: &[&Arc<Inode>],
        tier: usize,
        on_progress: OnFileProgress<'_>,
    ) -> Outcomes {
        let mut outcomes: Outcomes = inodes.iter().map(|_| None).collect();
        if inodes.len() < self.bounds.files_min
            || (tier == 0 && self.options.copies != Copies::None)
        {
            return outcomes;
        }
        if ![0, tier].iter().all(|tier| self.tiers.dirs()[*tier].syncs_whole())
            || dirty_bytes().is_none_or(|bytes| bytes > self.bounds.dirty_bytes_max)
        {
            return outcomes;
        }
        // Opened before anything is written: a sync through it reports everything that failed since.
        let Ok(whole) = self.tiers.dirs()[tier].whole() else { return outcomes };
        // Does not wait for files that others are already moving.
        let guards: Vec<_> = inodes.iter().map(|inode| inode.moving.try_lock()).collect();
        let free = (0..inodes.len()).filter(|at| guards[*at].is_some());
        let sources: Vec<_> = free
            .filter_map(|at| Some((at, inodes[at], self.source_of_member(inodes[at], tier)?)))
            .collect();
        let copied = spread(sources, self.tiers.one_by_one(), |(at, inode, source)| {
            self.copy_member((at, inode), source, tier, on_progress)
        });
        let mut members: Vec<_> = copied.into_iter().flatten().collect();
        if tier > 0 {
            members = self.place_members(members, tier);
        }
        if members.is_empty() {
            return outcomes;
        }
        if let Err(error) = self.tiers.dirs()[tier].steps.sync_all("syncing copies", &whole) {
            tracing::debug!(%error, "the files of a batch are moved alone");
            for member in &members {
                member.copied.undo(&self.tiers, &self.intents);
            }
            return outcomes;
        }
        // One after the other, because each locks all names.
        let cut_over: Vec<_> =
            members.into_iter().filter_map(|member| self.cut_over_member(member)).collect();
        for (at, bytes) in self.finish_members(cut_over, tier) {
            outcomes[at] = Some(Ok(bytes));
        }
        outcomes
    }

    /// A file that is ready to be copied and is being read ahead; `None` if it is to be moved alone, which reports why
    /// if it stays.
    fn source_of_member(&self, inode: &Arc<Inode>, tier: usize) -> Option<Source> {
        if inode.was_passed.load(Ordering::Acquire) {
            return None;
        }
        let source = {
            let place = inode.place.try_read_for(WAIT_LIMIT)?;
            self.staging.source(inode, &place).ok()?
        };
        let bytes = source.stat.raw.st_size.unsigned_abs().min(source.stat.disk_bytes());
        let is_ordinary = source.from != tier && source.names == 1 && source.name.is_some();
        let resident = self.residents.get(source.entry.key());
        let has_copy = resident.is_some_and(|resident| resident.clean.has_copy());
        if !is_ordinary || has_copy || bytes >= ALONE_BYTES {
            return None;
        }
        // The reads of all files are in progress while the first one is copied.
        let _ = fadvise(&*source.file, 0, None, Advice::WillNeed);
        Some(source)
    }

    /// Copies a file, not durably yet; `None` as above.
    fn copy_member<'a>(
        &'a self,
        (at, inode): (usize, &'a Arc<Inode>),
        source: Source,
        tier: usize,
        on_progress: OnFileProgress<'_>,
    ) -> Option<Member<'a>> {
        let bytes = source.stat.raw.st_size.unsigned_abs().min(source.stat.disk_bytes());
        let active_move = self.active_moves.begin(source.entry.clone(), (source.from, tier), bytes);
        let expected = if tier == 0 { Expected::Soon } else { Expected::NotSoon };
        let copied = self.staging.copy_for_now(inode, &source, (tier, expected), &mut |more| {
            active_move.copied(more);
            on_progress(at, more)
        });
        let copied = copied.ok()?;
        Some(Member { at, inode, source, copied, bytes, _active_move: active_move })
    }

    /// Gives copies their places on a lower tier, which intents name durably; the places are not
    /// durable yet.
    fn place_members<'a>(&self, mut members: Vec<Member<'a>>, tier: usize) -> Vec<Member<'a>> {
        let tier_dir = &self.tiers.dirs()[tier];
        let mut made: HashSet<PathBuf> = HashSet::new();
        members.retain_mut(|member| {
            let own = self.tiers.tree().path_of(&member.source.entry);
            let noted = if !self.tiers.can_be_named(tier, &own) || is_private_path(&own) {
                None
            } else {
                let parent = own.parent().unwrap_or(&own);
                let is_there = made.contains(parent)
                    || tier_dir
                        .make_parents(&own, &mut |dir, made| {
                            mirror::directory(&self.tiers, dir, made)
                        })
                        .is_ok();
                if is_there && !made.contains(parent) {
                    made.insert(parent.to_owned());
                }
                let name = format!("{}-{tier}", member.copied.temporary);
                is_there.then(|| self.intents.note(name, tier, &own).ok()).flatten()
            };
            match noted {
                Some(intent) => member.copied.placed = Some((own, intent)),
                None => member.copied.undo(&self.tiers, &self.intents),
            }
            member.copied.placed.is_some()
        });
        let durable = members.is_empty() || self.intents.sync().is_ok();
        members.retain_mut(|member| {
            let placed = member.copied.placed.as_ref().expect("it was noted");
            if durable && tier_dir.settle(&member.copied.temporary, &placed.0).is_ok() {
                return true;
            }
            // Something else is there.
            self.intents.clear(&placed.1);
            member.copied.placed = None;
            member.copied.undo(&self.tiers, &self.intents);
            false
        });
        members
    }

    /// Makes a durable copy the file, which is not durable yet; otherwise takes the copy back.
    fn cut_over_member<'a>(&self, member: Member<'a>) -> Option<(Member<'a>, CutoverResult)> {
        if let Ok(result) =
            self.cutover.cut_over_for_now(member.inode, &member.source, &member.copied)
        {
            Some((member, result))
        } else {
            member.copied.undo(&self.tiers, &self.intents);
            None
        }
    }

    /// Makes cutovers durable and releases what they left behind; returns the index and bytes of each file.
    fn finish_members(
        &self,
        cut_over: Vec<(Member<'_>, CutoverResult)>,
        tier: usize,
    ) -> Vec<(usize, u64)> {
        let dirs = self.sync_cutovers(&cut_over);
        let mut done = Vec::new();
        let mut old_copies = Vec::new();
        for (member, result) in cut_over {
            let Member { at, inode, source, copied, bytes, _active_move } = member;
            let dir = &result.parents[0];
            if dirs.contains(&dir.key()) {
                self.pending_syncs.synced(inode.number, dir);
                self.cutover.clean_up(&copied, result.old, (dir, false));
            }
            self.counters.moved(tier == 0, bytes);
            self.history.moved(inode.number);
            old_copies.push(OldCopy { file: source.file, resident: result.resident });
            done.push((at, bytes));
        }
        self.leftovers.free_all_later(old_copies);
        done
    }

    /// Syncs each directory in which names were cut over, once; returns the keys of those that are durable.
    fn sync_cutovers(&self, cut_over: &[(Member<'_>, CutoverResult)]) -> HashSet<(u64, u64)> {
        let mut dirs: Vec<&Vnode> = Vec::new();
        let mut keys = HashSet::new();
        for (_, result) in cut_over {
            if keys.insert(result.parents[0].key()) {
                dirs.push(&result.parents[0]);
            }
        }
        let whole = (dirs.len() > self.bounds.directories_max)
            .then(|| self.tiers.ssd().whole().ok())
            .flatten();
        let synced = whole.map(|whole| self.tiers.ssd().steps.sync_all("syncing cutovers", &whole));
        if matches!(synced, Some(Ok(()))) {
            return keys;
        }
        for dir in dirs {
            if let Err(error) = self.tiers.sync_directory(dir) {
                tracing::warn!(%error, "moves are not durable yet: both copies are kept");
                keys.remove(&dir.key());
            }
        }
        keys
    }
}

/// Bytes of the machine's memory that must be written back or are being written back; `None` if unknown.
fn dirty_bytes() -> Option<u64> {
    let memory = MemoryInfo::now()?;
    memory.bytes("Dirty")?.checked_add(memory.bytes("Writeback")?)
}

/// Calls `act` for all items, in a few threads or, if they must come `one_by_one`, in this thread; returns the results
/// in the order of the items.
fn spread<T: Send, R: Send>(
    items: Vec<T>,
    one_by_one: bool,
    act: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    if one_by_one || items.len() < 2 {
        return items.into_iter().map(act).collect();
    }
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let others = items.len().min(WORKERS).min(processors) - 1;
    let queue = Mutex::new(items.into_iter().enumerate());
    let work = || {
        let mut done = Vec::new();
        loop {
            let next = queue.lock().next();
            let Some((at, item)) = next else { return done };
            done.push((at, act(item)));
        }
    };
    let mut results = thread::scope(|scope| {
        let spawn = |_| thread::Builder::new().name("tier-batch".into()).spawn_scoped(scope, work);
        // The threads that could be started do all of the work.
        let running: Vec<_> = (0..others).map_while(|at| spawn(at).ok()).collect();
        let mut results = work();
        for thread in running {
            results.extend(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        results
    });
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_items() {
        let items: Vec<usize> = (0..BATCH_MAX).collect();
        for one_by_one in [false, true] {
            assert_eq!(spread(items.clone(), one_by_one, |item| item), items);
            assert_eq!(spread(vec![7], one_by_one, |item| item), [7]);
        }
    }

    #[test]
    fn the_machine_tells_its_dirty_bytes() {
        assert!(dirty_bytes().is_some());
    }
}
