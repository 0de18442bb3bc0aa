//! Asks other nodes what their caches have of a file, under tokens that both sides hold.

use std::collections::BTreeMap;
use std::sync::Arc;

use halocline_cache::coherence::{BLOCK, Blocks, Copies, Grant};
use halocline_model::request::ByteRange;
use halocline_model::token::{Mode, Session};

use super::File;

/// The most nodes that are asked for one range.
const ASKED_MAX: usize = 8;

/// The blocks that other nodes have cached of a range, where both they and this node hold it shared.
pub(super) fn ask_for_copies(file: &File, range: ByteRange) -> Copies {
    let shared = &file.shared;
    if !shared.own_session.lease.runs() {
        return Copies::default();
    }
    let (own, others) = {
        let state = file.state.lock();
        let held = state.pieces.all().filter(|(_, mode)| *mode == Mode::Shared);
        let open = held.filter(|(held, _)| !state.pieces.is_closed(*held));
        let own: Vec<_> = open.filter_map(|(held, _)| held.intersect(range)).collect();
        (own, file.stored.last().map(|last| last.all().to_vec()).unwrap_or_default())
    };
    let mut asked: BTreeMap<Session, ByteRange> = BTreeMap::new();
    for held in others.iter().filter(|held| held.mode == Mode::Shared) {
        if held.session == shared.session {
            continue;
        }
        for common in own.iter().filter_map(|own| own.intersect(held.range)) {
            let so_far = asked.entry(held.session).or_insert(common);
            let (start, end) = (so_far.start.min(common.start), so_far.end.max(common.end));
            *so_far = ByteRange::new(start, end);
        }
    }
    let reached = asked.into_iter().filter_map(|(session, range)| {
        shared.peer_queries.cache_of(shared, session).map(|cache| (session, (cache, range)))
    });
    let reached: BTreeMap<_, _> = reached.take(ASKED_MAX).collect();
    let asked: Vec<_> = reached.iter().map(|(session, (_, range))| (*session, *range)).collect();
    if asked.is_empty() {
        return Copies::default();
    }
    let answers = shared
        .peer_queries
        .wait_for_answers(shared, shared.peer_queries.ask_all(shared, file.id, &asked));
    let mut copies = Copies { are_all: answers.are_all, ..Copies::default() };
    for (session, mut cached) in answers.cached {
        let Some((cache, _)) = reached.get(&session) else { continue };
        cached.blocks = within(cached.blocks, &own);
        copies.all.push((Arc::clone(cache), cached));
    }
    copies
}

/// Ends a permit under which nothing was brought up to date: new tokens remain marked as new.
pub(in crate::agent) fn end_unseen(file: &File, grant: Grant) {
    if file.state.lock().pieces.end(Grant { renewed: false, ..grant }) {
        file.changed.notify_all();
    }
}

/// The blocks that lie entirely in one of the given ranges.
fn within(all: Vec<Blocks>, ranges: &[ByteRange]) -> Vec<Blocks> {
    let mut kept = Vec::new();
    for blocks in all {
        for range in ranges {
            let (from, to) = (range.start.div_ceil(BLOCK), range.end / BLOCK);
            let end = blocks.first + blocks.sums.len() as u64;
            let (from, to) = (from.max(blocks.first), to.min(end));
            if from >= to {
                continue;
            }
            let at =
                |block: u64| usize::try_from(block - blocks.first).expect("it indexes the sums");
            let sums = blocks.sums[at(from)..at(to)].to_vec();
            kept.push(Blocks { first: from, sums, ..blocks.clone() });
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use halocline_model::layout::{Layout, Placement};

    use super::*;

    #[test]
    fn blocks_that_lie_partly_outside_are_left_out() {
        let placement = Placement { layout: Layout::OneDv, group: 1 };
        let blocks =
            |first, sums: &[u32]| Blocks { file: 3, placement, first, sums: sums.to_vec() };
        let ranges = [ByteRange::new(0, 2 * BLOCK), ByteRange::new(3 * BLOCK + 1, 6 * BLOCK - 1)];
        let kept = within(vec![blocks(1, &[11, 12, 13, 14, 15, 16])], &ranges);
        assert_eq!(kept, [blocks(1, &[11]), blocks(4, &[14])]);
        assert_eq!(within(vec![blocks(8, &[1])], &ranges), []);
    }
}
