//! Units on servers of their own: each file, or what each process has of a shared one, on one server or on some servers
//! of a class, so that those who use different units do not share a disk's head.
//!
//! Widths for each class cannot say that: all servers of a class have the same. Units are distributed by how long they keep
//! a server busy while others are used, longest first, or the hottest first to the fastest servers as far as these
//! have room.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

use halocline_trace::Request;

use super::units::{Unit, busy};
use crate::judge::{Judge, Layouts};
use crate::layout::{
    DEFAULT_STRIPE, Layout, PARTS_MAX, Part, Placer, STRIPE_BYTES_MIN, WIDTH_BYTES_MAX, join_rounds,
};
use crate::servers::Servers;
use crate::shared::SharedLayouts;

/// How many ways to distribute the units are tried.
const TRIED: (usize, usize) = (4, 48);
/// Limit of the widths of all that are tried, as for everything on one class.
const WIDTHS: usize = 1 << 22;
/// Limit of the times that the work of a stretch is compared with a server's, in all ways.
pub(super) const COMPARED: usize = 1 << 25;
/// Limit of the units, for which there is one way at least.
pub(super) const UNITS_MAX: usize = 4096;
/// Limit of the requests in the replays of units that change their places.
const MOVED_WORK: usize = 300_000;
/// How many units change their places: those with the most to do.
const MOVED: usize = 16;
/// Limit of the places for each of them.
const PLACES: usize = 32;

/// Which servers of a class a unit gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Share {
    /// One.
    One,
    /// As many as there are for each of the units that are used at once.
    Even,
    /// All.
    All,
}

/// Which class of servers units are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Order {
    /// Any, by what its servers have to do already.
    Any,
    /// This one as far as it has room, then the others, the fastest first.
    From(usize),
}

/// A way to distribute the units.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Way {
    order: Order,
    /// Servers for each unit, class by class.
    counts: Vec<usize>,
    /// Whether stripes are whole requests, not even parts of them.
    is_whole: bool,
}

/// Servers of a class that a unit can get.
#[derive(Debug, Clone)]
struct Spot {
    class: usize,
    members: Vec<usize>,
}

/// Units in the order in which they get space, each with its spots: what has no room on the first goes to the next.
#[derive(Debug, Clone)]
struct Distribution {
    way: Way,
    spots: Vec<Spot>,
    order: Vec<usize>,
    chosen: Vec<Vec<usize>>,
}

/// Distributes units over servers.
pub(super) struct Apart<'a> {
    servers: &'a Servers,
    units: Vec<Unit>,
    requests: &'a [Request],
    pub(super) replays: usize,
}

impl<'a> Apart<'a> {
    /// For these units; `requests` judge.
    pub(super) const fn new(
        servers: &'a Servers,
        units: Vec<Unit>,
        requests: &'a [Request],
    ) -> Self {
        Self { servers, units, requests, replays: 0 }
    }

    /// The fastest way and its seconds, if there are several units and servers.
    pub(super) fn best(&mut self, judge: &mut dyn Judge) -> Option<(f64, Layouts)> {
        if !(2..=UNITS_MAX).contains(&self.units.len()) || self.servers.count() < 2 {
            return None;
        }
        let mut best: Option<(f64, Distribution)> = None;
        for way in self.ways() {
            let Some(distribution) = self.distribute(way) else { continue };
            let seconds = self.replay(judge, &distribution);
            if best.as_ref().is_none_or(|(least, _)| seconds < *least) {
                best = Some((seconds, distribution));
            }
        }
        let (mut seconds, mut best) = best?;
        self.move_units(judge, &mut seconds, &mut best);
        Some((seconds, self.realise(&best)?))
    }

    /// The ways that are tried, the most promising first.
    fn ways(&self) -> Vec<Way> {
        let classes = self.servers.classes();
        let at_once = at_once(&self.units);
        let count = |class: usize, share: Share| {
            let members = classes[class].members.len();
            match share {
                Share::One => 1,
                Share::Even => (members / at_once.max(1)).max(1),
                Share::All => members,
            }
        };
        let shares = [Share::One, Share::Even, Share::All];
        let fastest = classes.len() - 1;
        let others = (1..fastest).rev().map(Order::From);
        let orders = [Order::Any, Order::From(fastest), Order::From(0)].into_iter().chain(others);
        let (mut seen, mut ways) = (BTreeSet::new(), Vec::new());
        for order in orders.take(8) {
            for (slow, fast) in shares.iter().flat_map(|slow| shares.map(|fast| (*slow, fast))) {
                let of = |class| count(class, if class == 0 { slow } else { fast });
                let counts: Vec<usize> = (0..classes.len()).map(of).collect();
                for is_whole in [false, true] {
                    let way = Way { order, counts: counts.clone(), is_whole };
                    // On one server alone all stripes are the same.
                    let is_same = is_whole && counts.iter().all(|count| *count == 1);
                    if !is_same && seen.insert(way.clone()) {
                        ways.push(way);
                    }
                }
            }
        }
        let (units, servers) = (self.units.len(), self.servers.count());
        let work: usize = self.units.iter().map(|unit| unit.work.len()).sum();
        let compared = COMPARED / work.saturating_mul(units.min(servers)).max(1);
        let tried = (WIDTHS / (units * servers)).clamp(TRIED.0, TRIED.1);
        ways.truncate(tried.min(compared.max(1)));
        ways
    }

    /// Each class's servers in groups of as many as a unit gets.
    fn spots(&self, way: &Way) -> Vec<Spot> {
        let classes = self.servers.classes().iter().zip(&way.counts).enumerate();
        let of = |(class, (it, count)): (usize, (&crate::servers::Class, &usize))| {
            let groups: Vec<Spot> = it
                .members
                .chunks_exact(*count)
                .map(|members| Spot { class, members: members.to_vec() })
                .collect();
            groups
        };
        classes.flat_map(of).collect()
    }

    /// The units on the servers that they keep busy the shortest, given those before them.
    fn distribute(&self, way: Way) -> Option<Distribution> {
        let spots = self.spots(&way);
        let classes = self.servers.classes();
        let mut room = self.servers.room();
        let stretches =
            self.units.iter().filter_map(|unit| unit.work.last()).map(|(last, _)| last + 1);
        let mut busy_for = vec![vec![0.0; stretches.max().unwrap_or(0)]; spots.len()];
        let order = match way.order {
            Order::Any => most_first(&self.units, |unit| {
                let of = |(_, both)| busy(both, &classes[0].profile, 1, true);
                unit.work.iter().map(|(stretch, both)| of((stretch, both))).sum()
            }),
            Order::From(_) => most_first(&self.units, Unit::heat),
        };
        let stages: Vec<Vec<usize>> = match way.order {
            Order::Any => vec![(0..classes.len()).collect()],
            Order::From(first) => {
                let others = (0..classes.len()).rev().filter(|class| *class != first);
                [first].into_iter().chain(others).map(|class| vec![class]).collect()
            }
        };
        let mut chosen = vec![Vec::new(); self.units.len()];
        for &index in &order {
            let unit = &self.units[index];
            let mut left = unit.bytes();
            for stage in &stages {
                let fitting =
                    self.least_busy((unit, &way), stage, &spots, (&room, &busy_for, left));
                let some = || roomiest(&spots, stage, &room);
                let Some(spot) = fitting.or_else(some) else { continue };
                let members = spots[spot].members.len() as u64;
                let width = width(&way, unit, &spots[spot]);
                let each = room_of(&spots[spot], &room);
                let taken = left.min((each / width).saturating_mul(width).saturating_mul(members));
                let taken = if fitting.is_some() { left } else { taken };
                if taken == 0 {
                    continue;
                }
                note(&mut busy_for[spot], unit, &classes[spots[spot].class], members);
                for &member in &spots[spot].members {
                    room[member] = room[member].saturating_sub(rounds(taken, width, members));
                }
                chosen[index].push(spot);
                left -= taken;
                if left == 0 {
                    break;
                }
            }
            if left > 0 {
                return None;
            }
        }
        Some(Distribution { way, spots, order, chosen })
    }

    /// The spot of some classes with room for all of a unit, to which it adds the least work while others are used.
    fn least_busy(
        &self,
        (unit, way): (&Unit, &Way),
        classes: &[usize],
        spots: &[Spot],
        (room, busy_for, bytes): (&[u64], &[Vec<f64>], u64),
    ) -> Option<usize> {
        let mut best: Option<(f64, usize)> = None;
        // Servers of a class that have nothing yet are all the same.
        let mut idle = BTreeSet::new();
        for (index, spot) in spots.iter().enumerate().filter(|(_, it)| classes.contains(&it.class))
        {
            let members = spot.members.len() as u64;
            let width = width(way, unit, spot);
            if room_of(spot, room) < rounds(bytes, width, members) {
                continue;
            }
            let is_idle = busy_for[index].iter().all(|busy| *busy == 0.0);
            if is_idle && !idle.insert(spot.class) {
                continue;
            }
            let added = added(&busy_for[index], unit, &self.servers.classes()[spot.class], members);
            if best.is_none_or(|(least, _)| added < least) {
                best = Some((added, index));
            }
        }
        best.map(|(_, index)| index)
    }

    /// Moves the units with the most to do to other servers, and exchanges two of them, for as long as that is faster.
    fn move_units(&mut self, judge: &mut dyn Judge, seconds: &mut f64, best: &mut Distribution) {
        let mut busiest = most_first(&self.units, |unit| unit.heat() * u64_to_f64(unit.bytes()));
        busiest.truncate(MOVED);
        let most = self.replays + MOVED_WORK / self.requests.len().max(1);
        loop {
            let before = *seconds;
            for (rank, &index) in busiest.iter().enumerate() {
                let moved = (0..best.spots.len().min(PLACES)).map(|spot| {
                    let mut chosen = best.chosen.clone();
                    chosen[index] = vec![spot];
                    chosen
                });
                let exchanged = busiest[..rank].iter().map(|other| {
                    let mut chosen = best.chosen.clone();
                    chosen.swap(index, *other);
                    chosen
                });
                let all: Vec<Vec<Vec<usize>>> = moved.chain(exchanged).collect();
                for chosen in all {
                    if self.replays >= most {
                        return;
                    }
                    if chosen == best.chosen {
                        continue;
                    }
                    let other = Distribution { chosen, ..best.clone() };
                    let found = self.replay(judge, &other);
                    if found < *seconds {
                        (*seconds, *best) = (found, other);
                    }
                }
            }
            if *seconds >= before * 0.9999 {
                return;
            }
        }
    }

    fn replay(&mut self, judge: &mut dyn Judge, distribution: &Distribution) -> f64 {
        let Some(layouts) = self.realise(distribution) else { return f64::INFINITY };
        self.replays += 1;
        judge.seconds(self.requests, &layouts)
    }

    /// The layouts; `None` if not all of a unit fits on its spots, or a file has too many parts.
    fn realise(&self, distribution: &Distribution) -> Option<Layouts> {
        let Distribution { way, spots, order, chosen } = distribution;
        let servers = self.servers.count();
        let mut placer = Placer::new(self.servers.room());
        let mut parts: FxHashMap<u32, Vec<Part>> = FxHashMap::default();
        for &index in order {
            let unit = &self.units[index];
            let wish = |spot: &usize| {
                let mut widths = vec![0; servers];
                let width = width(way, unit, &spots[*spot]);
                spots[*spot].members.iter().for_each(|member| widths[*member] = width);
                widths
            };
            let wishes: Vec<Vec<u64>> = chosen[index].iter().map(wish).collect();
            let wishes: Vec<&[u64]> = wishes.iter().map(Vec::as_slice).collect();
            let made = placer.place(unit.begin, unit.end, &wishes).ok()?;
            if made.iter().any(|part| !wishes.contains(&part.widths.as_slice())) {
                return None;
            }
            parts.entry(unit.file).or_default().extend(made);
        }
        assembled(parts, servers)
    }
}

#[expect(clippy::cast_precision_loss, reason = "compared only")]
const fn u64_to_f64(bytes: u64) -> f64 {
    bytes as f64
}

/// Layouts of these parts of files; `None` if a file has too many.
pub(super) fn assembled(parts: FxHashMap<u32, Vec<Part>>, servers: usize) -> Option<Layouts> {
    let (mut files, mut shared) = (FxHashMap::default(), SharedLayouts::default());
    for (file, parts) in parts {
        let parts = join_rounds(parts);
        if parts.len() > PARTS_MAX {
            return None;
        }
        files.insert(file, shared.of(parts, servers).ok()?);
    }
    Some(Layouts { files, default: Layout::simple(vec![DEFAULT_STRIPE; servers]) })
}

/// A stripe of each server of `spot`.
fn width(way: &Way, unit: &Unit, spot: &Spot) -> u64 {
    let members = spot.members.len() as u64;
    if members == 1 {
        return DEFAULT_STRIPE;
    }
    let width = match unit.size {
        size if way.is_whole => size,
        size if size.is_multiple_of(members) => size / members,
        _ => DEFAULT_STRIPE,
    };
    width.clamp(STRIPE_BYTES_MIN, WIDTH_BYTES_MAX)
}

/// Places of the units, those with the most of `what` first.
pub(super) fn most_first(units: &[Unit], what: impl Fn(&Unit) -> f64) -> Vec<usize> {
    let of: Vec<f64> = units.iter().map(what).collect();
    let mut order: Vec<usize> = (0..units.len()).collect();
    order.sort_by(|a, b| of[*b].total_cmp(&of[*a]).then(a.cmp(b)));
    order
}

/// How many units are used in one stretch at most.
fn at_once(units: &[Unit]) -> usize {
    let mut counts: FxHashMap<usize, usize> = FxHashMap::default();
    for (stretch, _) in units.iter().flat_map(|unit| &unit.work) {
        *counts.entry(*stretch).or_default() += 1;
    }
    counts.into_values().max().unwrap_or(1)
}

/// Bytes that each server of a spot has room for.
fn room_of(spot: &Spot, room: &[u64]) -> u64 {
    spot.members.iter().map(|member| room[*member]).min().unwrap_or(0)
}

/// Bytes on each of so many servers at most, of which each has a stripe of a round.
const fn rounds(bytes: u64, width: u64, members: u64) -> u64 {
    if members == 1 {
        return bytes;
    }
    bytes.div_ceil(width.saturating_mul(members)).saturating_mul(width)
}

/// The spot of these classes with the most room.
fn roomiest(spots: &[Spot], classes: &[usize], room: &[u64]) -> Option<usize> {
    let of = spots.iter().enumerate().filter(|(_, spot)| classes.contains(&spot.class));
    of.max_by_key(|(index, spot)| (room_of(spot, room), usize::MAX - index)).map(|(index, _)| index)
}

/// What each server of a class has to do in a stretch, with so many of them.
fn work_of(
    unit: &(usize, [super::units::Work; 2]),
    class: &crate::servers::Class,
    members: u64,
    is_alone: bool,
) -> f64 {
    busy(&unit.1, &class.profile, members, is_alone) / f64::from(class.channels.max(1))
}

/// By how much the squares of what servers have to do in each stretch grow with this unit: the less, the more evenly it is
/// distributed.
pub(super) fn added(
    busy_for: &[f64],
    unit: &Unit,
    class: &crate::servers::Class,
    members: u64,
) -> f64 {
    let of = |work: &(usize, [super::units::Work; 2])| {
        let there = busy_for[work.0];
        let more = work_of(work, class, members, there == 0.0);
        more * (2.0 * there + more) * u64_to_f64(members)
    };
    unit.work.iter().map(of).sum()
}

pub(super) fn note(busy_for: &mut [f64], unit: &Unit, class: &crate::servers::Class, members: u64) {
    for work in &unit.work {
        let there = &mut busy_for[work.0];
        *there += work_of(work, class, members, *there == 0.0);
    }
}
