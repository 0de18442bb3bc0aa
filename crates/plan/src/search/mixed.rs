//! Some units on servers of their own, and the others in stripes over all servers of a class: where there are more files than
//! disks, as many files as there are disks on one each, and the rest on all of them, take fewer seeks than any stripes that
//! are the same for all, and keep the disks busy for as long as each other.
//!
//! Which are alone, and where, is distributed by how long they keep a server busy, as in [`super::apart`].

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use halocline_trace::Request;

use super::apart::{COMPARED, UNITS_MAX, added, assembled, most_first, note};
use super::units::{Unit, busy};
use crate::judge::{Judge, Layouts};
use crate::layout::{DEFAULT_STRIPE, Part, Placer};
use crate::placed::{in_each, mean};
use crate::servers::Servers;

/// Limit of the requests in the replays, in all placements.
const WORK: usize = 2_000_000;
/// Minimum and maximum number of replays.
const REPLAYS: (usize, usize) = (4, 400);
/// Limit of the widths of all that are tried.
const WIDTHS: usize = 1 << 22;
/// Up to so many units alone, each number is tried; of larger ones, multiples of the servers, and nearly all units.
const EACH: usize = 8;
/// Limit of the numbers of units alone.
const COUNTS: usize = 16;
/// The stripe of the others with which the rest of a kind is found.
const STRIPE: u64 = 256 << 10;
/// Their other stripes.
const STRIPES: [u64; 6] = [64 << 10, 1 << 20, 128 << 10, 512 << 10, 32 << 10, 16 << 10];
/// How many of the fastest kinds are found.
const FOUND: usize = 3;

/// Units in the order in which they get a server of their own, and which that is; those after the last have none.
#[derive(Debug)]
struct Row {
    order: Vec<usize>,
    own: Vec<usize>,
}

/// What differs more than stripes do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    row: usize,
    /// How many units are alone.
    alone: usize,
    /// The class over which the others are; `None` for all servers.
    class: Option<usize>,
}

/// Distributes units over servers.
#[derive(Debug)]
pub(super) struct Mixed<'a> {
    servers: &'a Servers,
    units: &'a [Unit],
    requests: &'a [Request],
    /// In so many placements of the files, of which the mean counts: which layout is the fastest differs more among these
    /// than among other kinds, because a file alone on a disk lies at one place of it.
    placements: usize,
    pub(super) replays: usize,
}

impl<'a> Mixed<'a> {
    /// For these units; `requests` judge, in so many placements.
    pub(super) const fn new(
        servers: &'a Servers,
        units: &'a [Unit],
        requests: &'a [Request],
        placements: usize,
    ) -> Self {
        Self { servers, units, requests, placements, replays: 0 }
    }

    /// The fastest of the fastest kinds with their seconds, if there are several units and servers.
    pub(super) fn best(&mut self, judge: &mut dyn Judge) -> Vec<(f64, Layouts)> {
        let (units, servers) = (self.units.len(), self.servers.count());
        if !(2..=UNITS_MAX).contains(&units) || servers < 2 {
            return Vec::new();
        }
        let (least, most) = REPLAYS;
        let work = self.requests.len().max(1) * self.placements.max(1);
        let most = most.min(WIDTHS / (units * servers)).min(WORK / work);
        let most = most.max(least);
        let rows = self.rows();
        let mut found: BTreeMap<Kind, (f64, u64)> = BTreeMap::new();
        let kinds = self.kinds(&rows);
        // A third of the replays is for other stripes of the fastest.
        for kind in kinds.into_iter().take((most - most / 3).max(1)) {
            self.try_one(judge, &rows, (kind, STRIPE), &mut found);
        }
        for kind in ranked(&found) {
            for stripe in self.stripes() {
                if self.replays < most {
                    self.try_one(judge, &rows, (kind, stripe), &mut found);
                }
            }
        }
        let fastest = ranked(&found).into_iter().take(FOUND).filter_map(|kind| {
            let (seconds, stripe) = found[&kind];
            Some((seconds, self.realise(&rows, kind, stripe)?))
        });
        fastest.collect()
    }

    /// Replays a layout, and notes it if it is the fastest of its kind.
    fn try_one(
        &mut self,
        judge: &mut dyn Judge,
        rows: &[Row],
        (kind, stripe): (Kind, u64),
        found: &mut BTreeMap<Kind, (f64, u64)>,
    ) {
        let Some(layouts) = self.realise(rows, kind, stripe) else { return };
        self.replays += 1;
        let seconds =
            mean(&in_each(self.placements, judge, |judge| judge.seconds(self.requests, &layouts)));
        if found.get(&kind).is_none_or(|(least, _)| seconds < *least) {
            found.insert(kind, (seconds, stripe));
        }
    }

    /// Stripes of units that are not alone: also whole requests.
    fn stripes(&self) -> Vec<u64> {
        let size = self.units[0].size;
        let all = STRIPES.into_iter();
        if size.is_multiple_of(4096) && size != STRIPE && !STRIPES.contains(&size) {
            return all.chain([size]).collect();
        }
        all.collect()
    }

    /// The busiest units alone, or the least busy ones, on servers of any class or the slowest one alone.
    fn rows(&self) -> Vec<Row> {
        let classes = self.servers.classes();
        let work: usize = self.units.iter().map(|unit| unit.work.len()).sum();
        let each = work.saturating_mul(self.servers.count()).max(1);
        let busiest = most_first(self.units, |unit| {
            let of = |both| busy(both, &classes[0].profile, 1, true);
            unit.work.iter().map(|(_, both)| of(both)).sum()
        });
        let is_even = self.units.windows(2).all(|two| two[0].work == two[1].work);
        let least = busiest.iter().rev().copied().collect();
        let orders = if is_even { vec![busiest] } else { vec![busiest, least] };
        let mut rows = Vec::new();
        for order in orders {
            rows.push(self.row(order.clone(), classes.len()));
            if classes.len() > 1 {
                rows.push(self.row(order, 1));
            }
        }
        rows.truncate((COMPARED / each).max(1));
        rows
    }

    /// The units of `order` on one server each of so many of the slowest classes, the one that each keeps busy the shortest
    /// given those before it, until one has room on none.
    fn row(&self, order: Vec<usize>, classes: usize) -> Row {
        let classes = &self.servers.classes()[..classes];
        let stretches =
            self.units.iter().filter_map(|unit| unit.work.last()).map(|(last, _)| last + 1);
        let stretches = stretches.max().unwrap_or(0);
        let mut room = self.servers.room();
        let mut busy_for: Vec<Vec<f64>> = vec![Vec::new(); room.len()];
        let mut own = Vec::new();
        for unit in order.iter().map(|index| &self.units[*index]) {
            let mut best: Option<(f64, usize, usize)> = None;
            for (number, class) in classes.iter().enumerate() {
                let has_room = |member: &&usize| room[**member] >= unit.bytes();
                // Of those that have nothing yet, the first stands for all.
                let mut is_idle_seen = false;
                for &member in class.members.iter().filter(has_room) {
                    let is_idle = busy_for[member].is_empty();
                    if is_idle && std::mem::replace(&mut is_idle_seen, true) {
                        continue;
                    }
                    busy_for[member].resize(stretches, 0.0);
                    let more = added(&busy_for[member], unit, class, 1);
                    if is_idle {
                        busy_for[member].clear();
                    }
                    if best.is_none_or(|(least, ..)| more < least) {
                        best = Some((more, number, member));
                    }
                }
            }
            let Some((_, class, member)) = best else { break };
            busy_for[member].resize(stretches, 0.0);
            note(&mut busy_for[member], unit, &classes[class], 1);
            room[member] -= unit.bytes();
            own.push(member);
        }
        Row { order, own }
    }

    /// The kinds that are tried: for each number of units alone, in each row, the others over each class and everywhere.
    fn kinds(&self, rows: &[Row]) -> Vec<Kind> {
        let (units, servers) = (self.units.len(), self.servers.count());
        let classes = self.servers.classes();
        let slowest = classes[0].members.len();
        let multiples = [slowest, servers, 2 * slowest, 2 * servers, 4 * slowest, 3 * slowest];
        let nearly_all = [1, 2, slowest, servers].map(|rest| units.saturating_sub(rest));
        let counts = [slowest, servers].into_iter().chain(1..=EACH).chain(multiples);
        let (mut seen, mut kinds) = (BTreeSet::new(), Vec::new());
        let is_new = |count: &usize| (1..units).contains(count) && seen.insert(*count);
        let counts: Vec<usize> = counts.chain(nearly_all).filter(is_new).take(COUNTS).collect();
        // A stripe on one server alone is a unit on it.
        let some = (0..classes.len()).filter(|class| classes[*class].members.len() > 1).map(Some);
        let mut others: Vec<Option<usize>> = some.take(3).collect();
        if classes.len() > 1 {
            others.push(None);
        }
        for class in others {
            for alone in &counts {
                let of = |(row, it): (usize, &Row)| {
                    (it.own.len() >= *alone).then_some(Kind { row, alone: *alone, class })
                };
                kinds.extend(rows.iter().enumerate().filter_map(of));
            }
        }
        kinds
    }

    /// The layouts; `None` if not all has room as it should lie, or a file has too many parts.
    fn realise(&self, rows: &[Row], kind: Kind, stripe: u64) -> Option<Layouts> {
        let count = self.servers.count();
        let Kind { row, alone, class } = kind;
        let on = |members: &[usize], stripe: u64| {
            let mut widths = vec![0; count];
            for member in members {
                widths[*member] = stripe;
            }
            widths
        };
        let classes = self.servers.classes();
        let shared = match class {
            Some(class) => on(&classes[class].members, stripe),
            None => vec![stripe; count],
        };
        let slowest = on(&classes[0].members, stripe);
        let mut placer = Placer::new(self.servers.room());
        let mut parts: FxHashMap<u32, Vec<Part>> = FxHashMap::default();
        for (rank, index) in rows[row].order.iter().enumerate() {
            let unit = &self.units[*index];
            let own = (rank < alone).then(|| on(&rows[row].own[rank..=rank], DEFAULT_STRIPE));
            let wishes: Vec<&[u64]> =
                own.iter().chain([&shared, &slowest]).map(Vec::as_slice).collect();
            let made = placer.place(unit.begin, unit.end, &wishes).ok()?;
            if made.iter().any(|part| !wishes.contains(&part.widths.as_slice())) {
                return None;
            }
            parts.entry(unit.file).or_default().extend(made);
        }
        assembled(parts, count)
    }
}

/// The kinds, the fastest first.
fn ranked(found: &BTreeMap<Kind, (f64, u64)>) -> Vec<Kind> {
    let mut all: Vec<(&Kind, &(f64, u64))> = found.iter().collect();
    all.sort_by(|a, b| a.1.0.total_cmp(&b.1.0));
    all.into_iter().map(|(kind, _)| *kind).collect()
}
