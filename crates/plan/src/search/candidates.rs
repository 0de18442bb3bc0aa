//! Candidate widths for requests of one length.

use std::collections::BTreeSet;

use crate::layout::{STRIPE_BYTES_MIN, WIDTH_BYTES_MAX};
use crate::servers::Servers;

/// Limit of the combinations of widths.
const COMBINATIONS: usize = 1200;
/// Up to this many classes, all widths of one are combined with all of the others.
const COMBINED: usize = 4;
/// The widest stripe, bytes.
const WIDTH_MAX: u64 = 1 << 32;
/// The narrowest, in bytes, unless requests are shorter: each change of server has a cost that replays do not include.
const WIDTH_MIN: u64 = 4096;

/// Limit of the similar widths: with hundreds of classes, there are millions of pairs that could change.
const NEIGHBOURS: usize = 1024;
/// Limit of the splits of a request.
const SPLITS: u64 = 64;

/// The narrowest for requests of `size` bytes.
fn width_min(size: u64) -> u64 {
    WIDTH_MIN.min(size).max(STRIPE_BYTES_MIN)
}

/// The unit by which requests of `size` bytes may be cut.
fn unit(size: u64) -> u64 {
    [4096, 512].into_iter().find(|unit| size.is_multiple_of(*unit)).unwrap_or(1)
}

/// Candidate widths of one class, the most promising first: whole requests, even parts of them, several of them, and
/// powers of two.
fn widths_of_one(servers: &Servers, size: u64) -> Vec<u64> {
    let mut widths = vec![0, size, 64 << 10];
    let mut parts: Vec<u64> = vec![servers.count() as u64];
    parts.extend(servers.classes().iter().map(|class| class.members.len() as u64));
    parts.extend([2, 4, 8, 3, 6, 16, 12, 32]);
    let even = |parts: &u64| *parts > 0 && size.is_multiple_of(*parts);
    widths.extend(parts.iter().filter(|parts| even(parts)).map(|parts| size / parts));
    widths.extend(
        [2, 4, 8, 3, 6, 16, 12, 32, 24, 5, 7, 10].iter().filter_map(|n| size.checked_mul(*n)),
    );
    widths.extend([1 << 20, 256 << 10, 16 << 10, 4 << 20, 4096]);
    let mut seen = BTreeSet::new();
    widths.retain(|width| *width <= WIDTH_MAX && (*width == 0 || *width >= width_min(size)));
    widths.retain(|width| seen.insert(*width));
    widths
}

/// Candidates for requests of `size` bytes: widths for each server.
pub(super) fn widths(servers: &Servers, size: u64) -> Vec<Vec<u64>> {
    let size = size.max(1);
    let choices = widths_of_one(servers, size);
    let by_class = if servers.classes().len() <= COMBINED {
        combinations(choices, servers.classes().len())
    } else {
        thresholds(choices, servers.classes().len(), COMBINATIONS)
    };
    let mut all: BTreeSet<Vec<u64>> =
        by_class.iter().map(|widths| servers.widths(widths)).collect();
    let possible =
        |width: &u64| *width == 0 || (STRIPE_BYTES_MIN..=WIDTH_BYTES_MAX).contains(width);
    all.extend(splits(servers, size).into_iter().filter(|widths| widths.iter().all(possible)));
    all.retain(|widths| widths.iter().any(|width| *width > 0));
    all.into_iter().collect()
}

/// Every combination of widths by class, of as many `choices` as [`COMBINATIONS`] allows.
fn combinations(mut choices: Vec<u64>, classes: usize) -> Vec<Vec<u64>> {
    let exponent = u32::try_from(classes).unwrap_or(u32::MAX);
    while choices.len() > 3 && choices.len().saturating_pow(exponent) > COMBINATIONS {
        choices.pop();
    }
    every_combination(&choices, classes)
}

/// One of `choices` for each of so many classes, in every way.
pub(super) fn every_combination<T: Copy>(choices: &[T], classes: usize) -> Vec<Vec<T>> {
    let mut all = vec![Vec::new()];
    for _ in 0..classes {
        let longer = |widths: &Vec<T>| {
            let with = |choice: &T| [widths.as_slice(), &[*choice]].concat();
            choices.iter().map(with).collect::<Vec<_>>()
        };
        all = all.iter().flat_map(longer).collect();
    }
    all
}

/// With many classes, even three widths give too many combinations: then one width for the slower and another one for the
/// faster classes, wherever these may meet.
pub(super) fn thresholds<T: Copy>(mut choices: Vec<T>, classes: usize, most: usize) -> Vec<Vec<T>> {
    let pairs = |choices: &[T]| choices.len() * choices.len();
    while choices.len() > 3 && pairs(&choices) * (classes + 1) > most {
        choices.pop();
    }
    let every = (pairs(&choices) * (classes + 1)).div_ceil(most);
    let mut all = Vec::new();
    for slower in (0..=classes).step_by(every) {
        for one in &choices {
            for other in &choices {
                all.push((0..classes).map(|at| if at < slower { *one } else { *other }).collect());
            }
        }
    }
    all
}

/// One request per round: a part on each server of the slowest class, the rest evenly on the others, as far as units
/// allow.
fn splits(servers: &Servers, size: u64) -> Vec<Vec<u64>> {
    let unit = unit(size);
    let slow = &servers.classes()[0].members;
    let fast: Vec<usize> = servers.fast().collect();
    let (m, units) = (slow.len() as u64, size / unit);
    let every = (units / m).div_ceil(SPLITS).max(1);
    let mut all = Vec::new();
    let mut h = 0;
    while h * m <= units {
        let mut widths = vec![0; servers.count()];
        for &server in slow {
            widths[server] = h * unit;
        }
        even(&mut widths, &fast, units - h * m, unit);
        if widths.iter().sum::<u64>() == size {
            all.push(widths);
        }
        h += every;
    }
    let mut widths = vec![0; servers.count()];
    even(&mut widths, slow, units, unit);
    all.push(widths.clone());
    let everywhere: Vec<usize> = (0..servers.count()).collect();
    even(&mut widths, &everywhere, units, unit);
    all.push(widths);
    all
}

/// Distributes `units` among `members`; if they do not divide evenly, the first ones get one more.
fn even(widths: &mut [u64], members: &[usize], units: u64, unit: u64) {
    let count = members.len() as u64;
    for (index, &server) in members.iter().enumerate() {
        let more = u64::from((index as u64) < units % count);
        widths[server] = (units / count + more) * unit;
    }
}

/// Similar widths: those of one or two classes are changed slightly.
pub(super) fn neighbours(servers: &Servers, widths: &[u64]) -> Vec<Vec<u64>> {
    let classes = servers.classes();
    let now: Vec<u64> = classes.iter().map(|class| widths[class.members[0]]).collect();
    // Requests of odd lengths may have made them narrower.
    let least = now.iter().copied().filter(|width| *width > 0).min().unwrap_or(WIDTH_MIN);
    let least = width_min(least);
    let step = |width: u64| if width >= 8192 || width == 0 { 4096 } else { 512 };
    let (more, less) = (|w: u64| w + step(w), |w: u64| w.saturating_sub(step(w)));
    let (mut all, mut seen) = (Vec::new(), BTreeSet::new());
    let mut add = |changes: &[(usize, u64)]| {
        let mut next = widths.to_vec();
        for (class, width) in changes {
            classes[*class].members.iter().for_each(|&m| next[m] = (*width).min(WIDTH_MAX));
        }
        let narrow = changes.iter().any(|(_, width)| (1..least).contains(width));
        let other = !narrow && next != widths && next.iter().any(|width| *width > 0);
        if other && all.len() < NEIGHBOURS && seen.insert(next.clone()) {
            all.push(next);
        }
        all.len() < NEIGHBOURS
    };
    for (class, &w) in now.iter().enumerate() {
        let far = [w + 4 * step(w), w.saturating_sub(4 * step(w))];
        for width in
            [0, more(w), less(w), w * 2, w / 2, w / 4 * 3, w / 2 * 3].into_iter().chain(far)
        {
            add(&[(class, width)]);
        }
    }
    'pairs: for (a, &v) in now.iter().enumerate() {
        for (b, &w) in now.iter().enumerate().skip(a + 1) {
            let both = [(v * 2, w * 2), (v / 2, w / 2), (more(v), less(w)), (less(v), more(w))];
            for (v, w) in both.into_iter().chain([(more(v), more(w)), (less(v), less(w))]) {
                if !add(&[(a, v), (b, w)]) {
                    break 'pairs;
                }
            }
        }
    }
    all
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::servers::{Network, Server, disk_and_ssd};
    use halocline_model::profile::DeviceProfile;

    /// Servers of which each is a class of its own, the slowest first.
    pub(in crate::search) fn unequal(count: u64) -> Servers {
        let server = |number: u64| {
            let mut profile = DeviceProfile::hdd_7200();
            profile.read.startup_random_ps /= number + 1;
            let name = number.to_string();
            let network = Network::default();
            Server { name, directory: None, capacity: None, channels: 1, profile, network }
        };
        Servers::new((0..count).map(server).collect()).expect("servers")
    }

    #[test]
    fn of_many_classes_none_is_left_out() {
        for count in [3, 8, 20] {
            let servers = unequal(count);
            let some = widths(&servers, 1 << 20);
            assert!(some.len() <= COMBINATIONS + 70, "{count}: {}", some.len());
            for server in 0..servers.count() {
                let of = |width: u64| some.iter().filter(|widths| widths[server] == width).count();
                let (unused, whole) = (of(0), of(1 << 20));
                assert!(unused * 20 > some.len() && whole * 20 > some.len(), "{server} of {count}");
            }
        }
    }

    /// Calibrated servers may all differ: pairs of a thousand of them took all memory.
    #[test]
    fn of_hundreds_of_classes_there_are_not_too_many_neighbours() {
        let servers = unequal(600);
        assert_eq!(neighbours(&servers, &vec![64 << 10; 600]).len(), NEIGHBOURS);
        let few = neighbours(&unequal(3), &[64 << 10; 3]);
        assert!((20..60).contains(&few.len()), "{}", few.len());
    }

    #[test]
    fn no_stripe_is_narrower_than_a_page_unless_requests_are() {
        let servers = disk_and_ssd();
        let narrow = |widths: &[u64]| widths.iter().any(|width| (1..WIDTH_MIN).contains(width));
        for size in [4096, 64 << 10, 1 << 20] {
            let some = widths(&servers, size);
            assert!(!some.iter().any(|widths| narrow(widths)), "{size}: {some:?}");
        }
        for from in [[4096, 4096], [8192, 0], [4096, 65_536]] {
            let near = neighbours(&servers, &from);
            assert!(!near.iter().any(|widths| narrow(widths)), "{from:?}: {near:?}");
        }
        assert!(widths(&servers, 1000).iter().any(|widths| narrow(widths)));
        // None that is impossible on a volume, whatever the requests.
        let none =
            |widths: &[u64]| widths.iter().any(|width| (1..STRIPE_BYTES_MIN).contains(width));
        for size in [1, 40, 120, 511, 1000] {
            let some = widths(&servers, size);
            assert!(
                !some.is_empty() && !some.iter().any(|widths| none(widths)),
                "{size}: {some:?}"
            );
        }
        for from in [[512, 512], [1024, 0], [512, 4096]] {
            let near = neighbours(&servers, &from);
            assert!(!near.iter().any(|widths| none(widths)), "{from:?}: {near:?}");
        }
        assert!(neighbours(&servers, &[1024, 0]).iter().any(|widths| narrow(widths)));
    }
}
