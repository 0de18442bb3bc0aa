//! Ours: the next announced use decides, the writes of a move count, and unannounced files are judged by whichever of
//! several rules would recently have moved least.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::shadows::{Rank, Shadows, Uses};
use super::{FileId, Keep, Outlook};

/// Limit of the files remembered that are not on the SSD; the oldest are forgotten.
const REMEMBERED_MAX: usize = 1 << 16;

/// With announced references: files leave by next use, farthest first, and a file comes only if the reads that it saves
/// until the first of them is needed again exceed the writes of their leaving and the reads of their return. Without:
/// follows the best of the [shadows](Shadows); at first every file comes and the least recently used leaves.
#[derive(Debug, Default)]
pub(super) struct Foresight {
    seen: HashMap<FileId, KnownFile>,
    clock: u64,
    shadows: Shadows,
    reordered: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct KnownFile {
    uses: Uses,
    on_ssd: bool,
}

impl Foresight {
    /// Forgets files that left long ago, half of them at a time, so that this is seldom needed.
    fn shrink(&mut self) {
        let away = self.seen.values().filter(|seen| !seen.on_ssd).count();
        if away <= REMEMBERED_MAX {
            return;
        }
        let mut times: Vec<u64> =
            self.seen.values().filter(|seen| !seen.on_ssd).map(|seen| seen.uses.last).collect();
        let middle = times.len() / 2;
        let (_, oldest_kept, _) = times.select_nth_unstable(middle);
        let oldest_kept = *oldest_kept;
        self.seen.retain(|_, seen| seen.on_ssd || seen.uses.last >= oldest_kept);
    }

    fn uses(&self, file: FileId) -> Uses {
        self.seen.get(&file).map(|seen| seen.uses).unwrap_or_default()
    }

    fn rank(&self, file: FileId) -> Rank {
        self.shadows.followed().rank(&self.uses(file))
    }

    fn announced(
        file: FileId,
        free: u64,
        order: Vec<FileId>,
        outlook: &dyn Outlook,
    ) -> Option<Vec<FileId>> {
        let size = outlook.size(file);
        let mut leaving = super::first_that_free(order, size.saturating_sub(free), outlook)?;
        drop_needless(&mut leaving, size.saturating_sub(free), outlook);
        let horizon = leaving.iter().filter_map(|gone| outlook.next(*gone)).min();
        let saved = outlook.later(file, horizon.unwrap_or(u64::MAX)) * size;
        let lost: u64 = leaving
            .iter()
            .map(|gone| outlook.size(*gone) * (1 + u64::from(outlook.next(*gone).is_some())))
            .sum();
        (saved > lost).then_some(leaving)
    }
}

/// The file needed last leaves first; of those no longer needed, the largest.
fn by_next_use(mut files: Vec<FileId>, outlook: &dyn Outlook) -> Vec<FileId> {
    let key = |file: FileId| {
        (Reverse(outlook.next(file).unwrap_or(u64::MAX)), Reverse(outlook.size(file)))
    };
    files.sort_by(|one, other| {
        key(*one).cmp(&key(*other)).then_with(|| outlook.by_name(*one, *other))
    });
    files
}

/// Keeps those on the SSD that need not leave for enough room, the soonest needed first.
fn drop_needless(leaving: &mut Vec<FileId>, bytes: u64, outlook: &dyn Outlook) {
    let mut spare: u64 = leaving.iter().map(|file| outlook.size(*file)).sum::<u64>() - bytes;
    for at in (0..leaving.len()).rev() {
        let size = outlook.size(leaving[at]);
        if size <= spare {
            spare -= size;
            leaving.remove(at);
        }
    }
}

impl Keep for Foresight {
    fn referenced(&mut self, file: FileId, bytes: u64) {
        self.clock += 1;
        let clock = self.clock;
        let uses = &mut self.seen.entry(file).or_default().uses;
        (uses.again, uses.count, uses.last) = (uses.count > 0, uses.count + 1, clock);
        if clock.is_multiple_of(1024) {
            self.shrink();
        }
        self.reordered |= self.shadows.used(file, bytes);
    }

    fn holds(&mut self, bytes: u64) {
        self.shadows.set_limit(bytes);
    }

    fn is_reordered(&mut self) -> bool {
        std::mem::take(&mut self.reordered)
    }

    fn moved(&mut self, file: FileId, to_ssd: bool) {
        let seen = self.seen.entry(file).or_default();
        // A file that left starts anew: one more use brings it back, which does not keep it forever.
        (seen.on_ssd, seen.uses.again) = (to_ssd, seen.uses.again && to_ssd);
    }

    fn removed(&mut self, file: FileId) {
        self.seen.remove(&file);
        self.shadows.removed(file);
    }

    fn leaving(&mut self, mut cached: Vec<FileId>, outlook: &dyn Outlook) -> Vec<FileId> {
        if outlook.is_known() {
            return by_next_use(cached, outlook);
        }
        cached.sort_by_cached_key(|file| {
            let next = outlook.next(*file).unwrap_or(u64::MAX);
            (Reverse(next), self.rank(*file), *file)
        });
        cached
    }

    fn make_room(
        &mut self,
        file: FileId,
        free: u64,
        cached: &dyn Fn() -> Vec<FileId>,
        outlook: &dyn Outlook,
    ) -> Option<Vec<FileId>> {
        let size = outlook.size(file);
        if outlook.is_known() {
            // Not needed again: reading it in place costs the same and writes nothing.
            outlook.next(file)?;
            if free < size {
                return Self::announced(file, free, self.leaving(cached(), outlook), outlook);
            }
        }
        if free >= size {
            return Some(Vec::new());
        }
        let order = self.leaving(cached(), outlook);
        let leaving = super::first_that_free(order, size - free, outlook)?;
        let worth =
            |gone: &FileId| u128::from(self.uses(*gone).count) * u128::from(outlook.size(*gone));
        let worth = leaving.iter().map(worth).sum();
        self.shadows.followed().admits(&self.uses(file), size, worth).then_some(leaving)
    }
}
