//! What can lie on servers of its own: whole files, or of a shared file what each process has of it.

use rustc_hash::FxHashMap;

use halocline_trace::Request;

use super::groups::Item;
use crate::servers::{direction, service_ps};
use halocline_model::profile::DeviceProfile;
use halocline_model::request::Direction;

/// Limit of the units of a file: each may become several parts of its layout, of which a volume has 256 at most.
const UNITS_OF_A_FILE: usize = 64;
/// Into how many stretches the requests are divided, to see which units are used at once.
const STRETCHES: usize = 64;
/// The shortest of these.
const STRETCH_MIN: usize = 32;

/// A stretch of a file, and when it is used.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Unit {
    /// The number of the file in the trace.
    pub(super) file: u32,
    /// Its first byte.
    pub(super) begin: u64,
    /// One past its last byte.
    pub(super) end: u64,
    /// The usual length of its requests.
    pub(super) size: u64,
    /// What is read and written, by stretch of the sample.
    pub(super) work: Vec<(usize, [Work; 2])>,
}

/// Requests of one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Work {
    requests: u64,
    /// How many of them begin where the one before in the unit ended.
    sequential: u64,
    bytes: u64,
}

impl Unit {
    /// Its length in bytes.
    pub(super) const fn bytes(&self) -> u64 {
        self.end - self.begin
    }

    /// Bytes read and written for each byte of it.
    #[expect(clippy::cast_precision_loss, reason = "compared only")]
    pub(super) fn heat(&self) -> f64 {
        let both = self.work.iter().flat_map(|(_, both)| both);
        both.map(|work| work.bytes as f64).sum::<f64>() / self.bytes().max(1) as f64
    }
}

/// Seconds that a server is busy with its part of the requests of a stretch, if it has one of so many parts of each. Beside
/// other units each request begins with a seek.
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
pub(super) fn busy(both: &[Work; 2], profile: &DeviceProfile, parts: u64, is_alone: bool) -> f64 {
    let of = |work: &Work, direction| {
        let service = profile.of(direction);
        let sequential = if is_alone { work.sequential } else { 0 };
        let startup = |is_sequential| service_ps(service, is_sequential, 0) as f64;
        let startups = startup(true) * sequential as f64
            + startup(false) * (work.requests - sequential) as f64;
        startups + service.per_byte_ps as f64 * work.bytes as f64 / parts.max(1) as f64
    };
    (of(&both[0], Direction::Read) + of(&both[1], Direction::Write)) * 1e-12
}

/// Each file as one unit.
pub(super) fn files(items: &[Item<'_>], sample: &[Vec<Request>]) -> Vec<Unit> {
    with_work(whole(items), sample)
}

/// Of each file that processes share, what each of them has, if these are a few stretches; of others all.
pub(super) fn shares(items: &[Item<'_>], sample: &[Vec<Request>]) -> Vec<Unit> {
    let shared: Vec<u32> =
        items.iter().filter(|item| item.processes > 1).map(|item| item.file).collect();
    let mut first: FxHashMap<u32, Vec<(u64, u64, u32)>> =
        shared.into_iter().map(|file| (file, Vec::new())).collect();
    for request in sample.iter().flatten() {
        if let Some(all) = first.get_mut(&request.file) {
            all.push((request.offset, request.end(), request.process));
        }
    }
    let divided = |unit: Unit| match first.get_mut(&unit.file).map(|all| borders(all)) {
        Some(borders) if (1..UNITS_OF_A_FILE).contains(&borders.len()) => split(&unit, &borders),
        _ => vec![unit],
    };
    with_work(whole(items).into_iter().flat_map(divided).collect(), sample)
}

fn whole(items: &[Item<'_>]) -> Vec<Unit> {
    let of = |regions: &[Item<'_>]| Unit {
        file: regions[0].file,
        begin: 0,
        end: regions.last().map_or(1, |last| last.region.end),
        size: regions[0].region.size,
        work: Vec::new(),
    };
    items.chunk_by(|one, next| one.file == next.file).map(of).collect()
}

fn split(unit: &Unit, borders: &[u64]) -> Vec<Unit> {
    let mut all = Vec::new();
    let mut begin = unit.begin;
    for &border in borders.iter().filter(|border| **border < unit.end) {
        if border > begin {
            all.push(Unit { begin, end: border, ..unit.clone() });
            begin = border;
        }
    }
    all.push(Unit { begin, ..unit.clone() });
    all
}

/// Where the bytes of another process begin. Who reads what others have written has no part in that: the first process
/// at a place has it. A sample has gaps: in one between two processes, the border is at the roundest place.
fn borders(requests: &mut Vec<(u64, u64, u32)>) -> Vec<u64> {
    // Stable: of requests to the same place, the first of the trace stays first.
    requests.sort_by_key(|(offset, _, _)| *offset);
    requests.dedup_by_key(|(offset, _, _)| *offset);
    let of_two = |pair: &[(u64, u64, u32)]| {
        let [(_, end, one), (begin, _, other)] = [pair[0], pair[1]];
        (one != other).then(|| roundest(end.min(begin), begin))
    };
    requests.windows(2).filter_map(of_two).collect()
}

/// The multiple of the largest power of two from `low` to `high`, which is not below it.
fn roundest(low: u64, high: u64) -> u64 {
    let multiple = |bit: u32| low.checked_next_multiple_of(1 << bit);
    let round =
        (0..u64::BITS).rev().filter_map(multiple).find(|place| (low..=high).contains(place));
    round.unwrap_or(high)
}

/// Notes which unit each request of the sample is to.
fn with_work(mut units: Vec<Unit>, sample: &[Vec<Request>]) -> Vec<Unit> {
    let mut of_file: FxHashMap<u32, (usize, usize)> = FxHashMap::default();
    for (index, unit) in units.iter().enumerate() {
        of_file.entry(unit.file).or_insert((index, index)).1 = index + 1;
    }
    let sampled: usize = sample.iter().map(Vec::len).sum();
    let length = (sampled / STRETCHES).max(STRETCH_MIN);
    let mut ends = vec![None; units.len()];
    for (number, request) in sample.iter().flatten().enumerate() {
        let Some(&(from, to)) = of_file.get(&request.file) else { continue };
        let within = units[from..to].partition_point(|unit| unit.begin <= request.offset);
        let index = from + within.max(1) - 1;
        let (unit, stretch) = (&mut units[index], number / length);
        if unit.work.last().is_none_or(|(last, _)| *last != stretch) {
            unit.work.push((stretch, [Work::default(); 2]));
        }
        let Some((_, both)) = unit.work.last_mut() else { continue };
        let work = match direction(request.op) {
            Direction::Read => &mut both[0],
            Direction::Write => &mut both[1],
        };
        work.requests += 1;
        work.sequential += u64::from(ends[index].is_none_or(|end| end == request.offset));
        work.bytes = work.bytes.saturating_add(request.length);
        ends[index] = Some(request.end());
    }
    units
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn borders_are_where_other_processes_begin() {
        let mut all = vec![(0, 10, 0), (20, 30, 1), (10, 20, 0), (0, 10, 1), (40, 50, 2)];
        assert_eq!(borders(&mut all), [20, 32]);
        assert_eq!(roundest(1000, 1100), 1024);
        assert_eq!(roundest(25, 25), 25);
        assert_eq!(roundest(u64::MAX - 1, u64::MAX), u64::MAX - 1);
    }

    #[test]
    fn a_disk_seeks_where_units_share_it() {
        let both = [Work { requests: 4, sequential: 4, bytes: 400 }, Work::default()];
        let profile = DeviceProfile::hdd_7200();
        let alone = busy(&both, &profile, 1, true);
        let beside = busy(&both, &profile, 1, false);
        assert!(alone * 100.0 < beside, "{alone} {beside}");
        assert!(busy(&both, &profile, 2, true) < alone);
    }
}
