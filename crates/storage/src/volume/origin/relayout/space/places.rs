//! Files that change places on full servers: each must leave before the other can come. One of them moves to wherever there
//! is room, in pieces if no server has enough, and to its layout when the other has made room.
//!
//! What must hold: each file makes way once at most, so that this ends.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::path::PathBuf;

use halocline_model::file_layout::FileLayout;
use halocline_os::error::Result;

use super::{LayoutChange, Move, Origin, Room, TRIED};

/// For so many of the waiting files it is tried to make room; for the one for which the fewest bytes move, it is made.
const TARGETS: usize = 64;
/// Limit of the pieces in which a file makes way.
const PIECES_MAX: usize = 64;

/// Which files have made way.
#[derive(Debug)]
pub(super) struct Places {
    gone: BTreeSet<PathBuf>,
    /// How many files and servers may still be looked at.
    left: usize,
}

impl Default for Places {
    fn default() -> Self {
        Self { gone: BTreeSet::new(), left: TRIED }
    }
}

/// How room is made for a file.
struct Plan {
    room: Room,
    bytes: u64,
    target: usize,
    /// Who makes way, how, and what it has on each server then.
    ways: Vec<(usize, LayoutChange, Vec<u64>)>,
    /// The way of the file itself.
    detour: Option<LayoutChange>,
}

impl Places {
    /// Moves one of the `waiting` files, none of which can move beside what lies there, after others that are in its way have
    /// gone elsewhere; these wait for their layouts there. False if there is no room elsewhere.
    pub(super) fn make_room(
        &mut self,
        room: &mut Room,
        origin: &Origin,
        waiting: &mut Vec<Cow<'_, LayoutChange>>,
        moves: &mut Vec<Move>,
    ) -> Result<bool> {
        let mut best: Option<Plan> = None;
        for target in 0..waiting.len().min(TARGETS) {
            let most = best.as_ref().map_or(u64::MAX, |best| best.bytes);
            if let Some(plan) = self.plan(room, origin, waiting, (target, most))? {
                best = Some(plan);
            }
        }
        let Some(Plan { room: after, target, ways, detour, .. }) = best else { return Ok(false) };
        *room = after;
        let file = waiting[target].clone().into_owned();
        for (at, way, used) in ways {
            let now = waiting[at].to_mut();
            (now.now, now.used) = (way.wished.clone(), used);
            self.gone.insert(now.path.clone());
            let makes_room_for = Some(file.path.clone());
            moves.push(Move { change: way, is_detour: true, makes_room_for });
        }
        moves.extend(detour.map(|change| Move { is_detour: true, ..Move::to_its_layout(change) }));
        waiting.remove(target);
        moves.push(Move::to_its_layout(file));
        Ok(true)
    }

    /// How room can be made for a file, if so that fewer bytes than `most` move.
    fn plan(
        &mut self,
        room: &Room,
        origin: &Origin,
        waiting: &[Cow<'_, LayoutChange>],
        (target, most): (usize, u64),
    ) -> Result<Option<Plan>> {
        let file = &waiting[target];
        let mut plan =
            Plan { room: room.clone(), bytes: 0, target, ways: Vec::new(), detour: None };
        loop {
            let lack = match plan.room.move_by_way(origin, file)? {
                Ok(detour) => {
                    plan.detour = detour;
                    return Ok(Some(plan));
                }
                Err(lack) => lack,
            };
            let cost = waiting.len() * file.planned.len().max(1);
            let Some(left) = self.left.checked_sub(cost) else { return Ok(None) };
            self.left = left;
            let missing = lack.taken - i128::from(lack.available);
            let system = room.of_server[lack.server];
            // The smallest that leaves enough room, or else the largest.
            let mut candidates: Vec<_> = (0..waiting.len())
                .filter(|at| *at != target && plan.ways.iter().all(|(gone, ..)| gone != at))
                .filter(|at| !self.gone.contains(&waiting[*at].path))
                .map(|at| (room.used_on(system, &waiting[at].used), at))
                .filter(|(used, _)| *used > 0)
                .collect();
            candidates.sort_by_key(|(used, at)| {
                let is_enough = i128::from(*used) >= missing;
                (Reverse(is_enough), if is_enough { *used } else { u64::MAX - *used }, *at)
            });
            let mut found = None;
            for (_, at) in candidates {
                let bytes = plan.bytes.saturating_add(waiting[at].data_bytes());
                if bytes >= most {
                    continue;
                }
                if let Some(way) = plan.room.make_way(origin, &waiting[at], file)? {
                    found = Some((at, way, bytes));
                    break;
                }
            }
            let Some((at, (way, used), bytes)) = found else { return Ok(None) };
            plan.bytes = bytes;
            plan.ways.push((at, way, used));
        }
    }
}

/// Layouts in which a file of `size` bytes may lie for a while on file systems with so much `room`: in stripes over the first
/// server of each, and one piece after the other, those with the most room first. `servers` says which file system each has, and
/// whether it is read-only.
pub(super) fn ways(
    size: u64,
    stripe: u64,
    room: &[u64],
    (of_server, read_only): (&[usize], &[bool]),
) -> Vec<FileLayout> {
    let first = |system: usize| {
        let mut servers = of_server.iter().zip(read_only);
        servers.position(|(of, read_only)| *of == system && !read_only)
    };
    let with_room = room.iter().enumerate().filter(|(_, room)| **room >= stripe);
    let mut places: Vec<(u64, usize)> =
        with_room.filter_map(|(system, room)| Some((*room, first(system)?))).collect();
    places.sort_by_key(|(room, server)| (Reverse(*room), *server));
    let on = |servers: &[(u64, usize)]| {
        let mut widths = vec![0; of_server.len()];
        for (_, server) in servers {
            widths[*server] = stripe;
        }
        widths
    };
    let mut pieces = Vec::new();
    let mut begin = 0;
    for place in places.iter().take(PIECES_MAX) {
        if begin < size || pieces.is_empty() {
            pieces.push((begin, on(&[*place])));
        }
        begin = begin.saturating_add(place.0 / stripe * stripe);
    }
    let even = (!places.is_empty()).then(|| vec![(0, on(&places))]);
    let pieces = (!pieces.is_empty() && begin >= size).then_some(pieces);
    let layouts = even.into_iter().chain(pieces);
    layouts.filter_map(|parts| FileLayout::from_parts(parts).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_makes_way_in_stripes_or_in_pieces_where_there_is_room() {
        let ways = |size, room: &[u64], read_only: &[bool]| {
            let systems: Vec<usize> = (0..room.len()).collect();
            let layouts = ways(size, 4096, room, (&systems, read_only));
            let parts = layouts.iter().map(|layout| {
                let parts = layout.parts().iter();
                parts.map(|part| (part.start, part.striping.widths().to_vec())).collect()
            });
            parts.collect::<Vec<Vec<_>>>()
        };
        let writable = [false; 3];
        let even = vec![(0, vec![4096, 0, 4096])];
        let pieces = vec![(0, vec![0, 0, 4096]), (40_960, vec![4096, 0, 0])];
        assert_eq!(ways(49_000, &[10_000, 100, 42_000], &writable), [even.clone(), pieces]);
        // What all of it does not hold may still hold its data: the stripes are tried.
        assert_eq!(ways(90_000, &[10_000, 100, 42_000], &writable), [even]);
        let one = vec![(0, vec![0, 0, 4096])];
        assert_eq!(ways(40_000, &[10_000, 0, 42_000], &[true, false, false]), [one.clone(), one]);
        assert!(ways(1, &[0, 0, 4095], &writable).is_empty());
    }
}
