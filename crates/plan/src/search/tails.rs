//! The ends of the files on the SSDs, and what is before them on the disks.
//!
//! Regions get the space of the SSDs from their beginnings on. Where processes run into each other's way on the disks, the
//! same stripes with the other end on the SSDs may take half as long, or twice.

use halocline_trace::Request;

use super::groups::Item;
use crate::judge::{Judge, Layouts};
use crate::servers::Servers;

/// Limit of the requests in the replays.
const WORK: usize = 300_000;
/// Limit of the widths of all that are tried.
const WIDTHS: usize = 1 << 21;
/// Up to so many pages are tried as a stripe of the disks.
const PAGES: u64 = 32;
/// A page, in bytes.
const PAGE: u64 = 4096;

/// The fastest of the layouts whose files begin with the stripes of one of `heads` and end on the SSDs, with its seconds,
/// and the number of replays. Only where not everything has room on the SSDs, which each file shares by its length.
pub(super) fn best(
    (servers, items): (&Servers, &[Item<'_>]),
    heads: &[Vec<u64>],
    requests: &[Request],
    judge: &mut dyn Judge,
) -> (Option<(f64, Layouts)>, usize) {
    let most = (WORK / requests.len().max(1)).min(WIDTHS / (items.len() * servers.count()).max(1));
    let (mut best, mut replays): (Option<(f64, Layouts)>, usize) = (None, 0);
    for head in heads.iter().take(most.max(1)) {
        let Some(layouts) = with_tails(servers, items, head) else { continue };
        replays += 1;
        let seconds = judge.seconds(requests, &layouts);
        if best.as_ref().is_none_or(|(least, _)| seconds < *least) {
            best = Some((seconds, layouts));
        }
    }
    (best, replays)
}

/// What of these stripes is on the slowest servers, and multiples of a page there, each once.
pub(super) fn heads(servers: &Servers, stripes: impl Iterator<Item = Vec<u64>>) -> Vec<Vec<u64>> {
    let slow = |mut head: Vec<u64>| {
        servers.fast().for_each(|server| head[server] = 0);
        head
    };
    let pages = (1..=PAGES).map(|pages| servers.widths(&[pages * PAGE]));
    let mut heads: Vec<Vec<u64>> = Vec::new();
    for head in stripes.map(slow).chain(pages) {
        if head.iter().any(|width| *width > 0) && !heads.contains(&head) {
            heads.push(head);
        }
    }
    heads
}

/// The files that begin with the stripes of `head`, with their ends on the SSDs.
fn with_tails(servers: &Servers, items: &[Item<'_>], head: &[u64]) -> Option<Layouts> {
    let of = |regions: &[Item<'_>]| regions.last().map(|last| (last.file, last.region.end));
    let files: Vec<(u32, u64)> = items.chunk_by(|a, b| a.file == b.file).filter_map(of).collect();
    crate::tails::on_ssds(servers, &files, |_| head)
}
