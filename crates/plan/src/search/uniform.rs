//! The same stripes for all files, as anybody could type them: for each class of servers none, parts and multiples of a
//! request, or so many bytes.
//!
//! There are hundreds of these. They are judged by a small part of the sample first, and the best of them by more of it.

use std::collections::BTreeSet;

use super::candidates::{every_combination, thresholds};
use crate::layout::{STRIPE_BYTES_MIN, WIDTH_BYTES_MAX};
use crate::servers::Servers;

/// Limit of the combinations of stripes of all classes.
const COMBINED_MAX: usize = 330;
/// Up to this many classes, all stripes of one are combined with all of the others.
const CLASSES_COMBINED: usize = 4;
/// Limit of the widths of all that are tried: with thousands of servers, a replay takes as long as many of few.
const WIDTHS: usize = 1 << 23;
/// Limit of all that are tried, however few servers there are.
const TRIED_MAX: usize = 1000;
/// Limit of those on one class: there may be thousands of classes.
const ON_ONE_CLASS_MAX: usize = 512;
/// Every multiple of this is tried on each class alone, in bytes,
const STEP: u64 = 4096;
/// up to this.
const STEPPED_MAX: u64 = 256 << 10;
/// Even parts of a request that are tried.
const PARTS: u64 = 8;

/// The stripe of the servers of one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stripe {
    /// They have nothing.
    None,
    /// So many requests.
    Times(u64),
    /// The first of so many even parts of a request as the second says.
    Part(u64, u64),
    /// So many bytes, whatever the requests.
    Fixed(u64),
    /// As many bytes as fill the servers' space, beside the stripes of the slowest class; of these bytes, one of so many
    /// parts.
    Filling(u64),
}

impl Stripe {
    const fn is_none(self) -> bool {
        matches!(self, Self::None | Self::Part(0, _))
    }
}

/// Stripes for each class.
#[derive(Debug, Clone)]
pub(super) struct Uniform(Vec<Stripe>);

/// How the stripes of the slowest class and of all others are related where these are full with the files' ends.
#[derive(Debug, Clone, Copy)]
pub(super) struct Filling {
    slow: u128,
    fast: u128,
}

impl Filling {
    /// For so many bytes; `None` if they all fit on the servers of the faster classes, or none of them.
    pub(super) fn new(servers: &Servers, bytes: u64) -> Option<Self> {
        let room = servers.room();
        let count = servers.fast().count() as u128;
        let each = servers.fast().map(|server| room[server]).min()?;
        let there = u128::from(each) * count;
        let elsewhere = u128::from(bytes).checked_sub(there).filter(|bytes| *bytes > 0)?;
        let slow = servers.classes()[0].members.len() as u128;
        (there > 0).then_some(Self { slow: slow * there, fast: count * elsewhere })
    }

    /// The faster servers filled beside stripes of the slowest class that are similar to those of `widths`.
    pub(super) fn near(self, servers: &Servers, widths: &[u64]) -> Vec<Vec<u64>> {
        let classes = servers.classes();
        let now = widths[classes[0].members[0]].min(WIDTH_BYTES_MAX / 2);
        let slow = [now, now * 2, now / 2, now / 2 * 3, now / 4 * 3, now + STEP];
        let filled = slow.into_iter().chain([now.saturating_sub(STEP)]).filter_map(|slow| {
            let beside = self.beside(slow);
            let mut by_class = vec![beside; classes.len()];
            by_class[0] = slow;
            let is_narrow = slow < STRIPE_BYTES_MIN || beside < STRIPE_BYTES_MIN;
            (!is_narrow).then(|| servers.widths(&by_class))
        });
        filled.collect()
    }

    /// The width of the others beside `width` on the slowest class; 0 if there is no room for a stripe.
    pub(super) fn beside(self, width: u64) -> u64 {
        let exact = u128::from(width).saturating_mul(self.slow) / self.fast;
        let exact = u64::try_from(exact).unwrap_or(u64::MAX).min(WIDTH_BYTES_MAX);
        let unit = if exact >= STEP { STEP } else { STRIPE_BYTES_MIN };
        exact / unit * unit
    }
}

impl Uniform {
    /// All that are tried, for requests of the usual `sizes`, and so many regions.
    pub(super) fn all(
        servers: &Servers,
        items: usize,
        sizes: &[u64],
        filling: Option<Filling>,
    ) -> Vec<Self> {
        let classes = servers.classes().len();
        let mut all = combined(servers);
        if filling.is_some() {
            for slow in stripes(servers) {
                for parts in [1, 2] {
                    let mut stripes = vec![Stripe::Filling(parts); classes];
                    stripes[0] = slow;
                    all.push(stripes);
                }
            }
        }
        let parts: Vec<Stripe> = (0..=PARTS).map(|part| Stripe::Part(part, PARTS)).collect();
        if parts.len().saturating_pow(u32::try_from(classes).unwrap_or(u32::MAX)) <= COMBINED_MAX {
            all.extend(every_combination(&parts, classes));
        }
        all.extend(on_one_class(classes));
        let most = (WIDTHS / items.saturating_mul(servers.count()).max(1)).min(TRIED_MAX);
        let (mut seen, mut kept) = (BTreeSet::new(), Vec::new());
        for uniform in all.into_iter().map(Self) {
            let of = |size: &u64| uniform.widths(servers, filling, *size);
            let widths: Option<Vec<Vec<u64>>> = sizes.iter().map(of).collect();
            if widths.is_some_and(|widths| seen.insert(widths)) && kept.len() < most {
                kept.push(uniform);
            }
        }
        kept
    }

    /// The class that has everything, if one has.
    pub(super) fn class(&self) -> Option<usize> {
        let mut used = (0..self.0.len()).filter(|class| !self.0[*class].is_none());
        used.next().filter(|_| used.next().is_none())
    }

    /// A width for each server, for requests of `size` bytes; `None` if there is none above 0.
    pub(super) fn widths(
        &self,
        servers: &Servers,
        filling: Option<Filling>,
        size: u64,
    ) -> Option<Vec<u64>> {
        let bounded = |width: u64| {
            if width == 0 { 0 } else { width.clamp(STRIPE_BYTES_MIN, WIDTH_BYTES_MAX) }
        };
        let mut by_class = Vec::with_capacity(self.0.len());
        for stripe in &self.0 {
            by_class.push(bounded(match *stripe {
                Stripe::None => 0,
                Stripe::Times(times) => size.saturating_mul(times),
                Stripe::Part(number, of) => {
                    u64::try_from((u128::from(size) * u128::from(number)).div_ceil(u128::from(of)))
                        .unwrap_or(u64::MAX)
                }
                Stripe::Fixed(width) => width,
                Stripe::Filling(parts) => {
                    let slowest = by_class.first().copied().unwrap_or(0);
                    filling.map_or(0, |filling| filling.beside(slowest)) / parts
                }
            }));
        }
        by_class.iter().any(|width| *width > 0).then(|| servers.widths(&by_class))
    }
}

/// Stripes of one class, the most promising first.
fn stripes(servers: &Servers) -> Vec<Stripe> {
    let mut all = vec![Stripe::None, Stripe::Times(1), Stripe::Fixed(64 << 10)];
    let slow = servers.classes()[0].members.len() as u64;
    let count = servers.count() as u64;
    for parts in [slow, count - slow, count, 2, 4] {
        if parts > 1 && !all.contains(&Stripe::Part(1, parts)) {
            all.push(Stripe::Part(1, parts));
        }
    }
    all.extend([Stripe::Fixed(256 << 10), Stripe::Times(2), Stripe::Fixed(1 << 20)]);
    all.extend([Stripe::Times(4), Stripe::Fixed(16 << 10), Stripe::Fixed(128 << 10)]);
    all.extend([Stripe::Times(8), Stripe::Fixed(512 << 10), Stripe::Fixed(2 << 20)]);
    all.extend([Stripe::Fixed(4 << 20), Stripe::Fixed(8 << 20)]);
    all
}

/// Multiples of a page on each class alone; fewer of them where there are many classes.
fn on_one_class(classes: usize) -> impl Iterator<Item = Vec<Stripe>> {
    let steps = (1..=STEPPED_MAX / STEP).take((ON_ONE_CLASS_MAX / classes).max(1));
    let fastest_first = move |step| (0..classes).rev().map(move |class| (step, class));
    steps.flat_map(fastest_first).take(ON_ONE_CLASS_MAX).map(move |(step, class)| {
        let mut alone = vec![Stripe::None; classes];
        alone[class] = Stripe::Fixed(step * STEP);
        alone
    })
}

/// Combinations of these for all classes.
fn combined(servers: &Servers) -> Vec<Vec<Stripe>> {
    let classes = servers.classes().len();
    let mut choices = stripes(servers);
    // The slowest class, and the same for all others.
    let of_two = every_combination(&choices, 2.min(classes));
    let all_others = |two: Vec<Stripe>| {
        let slowest = two.iter().copied().take(1);
        let others = two.iter().copied().skip(1).cycle();
        slowest.chain(others).take(classes).collect()
    };
    let mut all: Vec<Vec<Stripe>> = of_two.into_iter().map(all_others).collect();
    let exponent = u32::try_from(classes).unwrap_or(u32::MAX);
    if classes > CLASSES_COMBINED {
        all.extend(thresholds(choices, classes, COMBINED_MAX));
        return all;
    }
    while choices.len() > 3 && choices.len().saturating_pow(exponent) > COMBINED_MAX {
        choices.pop();
    }
    all.extend(every_combination(&choices, classes));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::candidates::tests::unequal;
    use crate::servers::{Server, disk_and_ssd};

    const K: u64 = 1024;

    fn all(servers: &Servers, items: usize, sizes: &[u64], bytes: u64) -> Vec<Vec<u64>> {
        let filling = Filling::new(servers, bytes);
        let all = Uniform::all(servers, items, sizes, filling);
        all.iter().filter_map(|it| it.widths(servers, filling, sizes[0])).collect()
    }

    /// Two disks, and an SSD with so many bytes.
    fn with_room(bytes: u64) -> Servers {
        let pair = disk_and_ssd();
        let [disk, ssd] = pair.all() else { panic!("two servers") };
        let ssd = Server { capacity: Some(bytes), ..ssd.clone() };
        Servers::new(vec![disk.clone(), disk.clone(), ssd]).expect("servers")
    }

    #[test]
    fn what_fills_the_ssds_is_among_them() {
        // A third of 3 MiB: as much on the SSD as on each disk.
        let servers = with_room(1 << 20);
        let filling = Filling::new(&servers, 3 << 20).expect("too little room");
        assert_eq!((filling.beside(64 * K), filling.beside(300)), (64 * K, 0));
        let found = all(&servers, 1, &[48 * K], 3 << 20);
        for widths in [[48 * K, 48 * K, 48 * K], [48 * K, 48 * K, 24 * K], [0, 0, 100 * K]] {
            assert!(found.contains(&widths.to_vec()), "{widths:?}");
        }
        // Nearly everything: beside 64 KiB on each of two disks, 99 times as much.
        let nearly = Filling::new(&with_room(99 << 20), 100 << 20).expect("too little room");
        assert_eq!(nearly.beside(64 * K), 2 * 64 * K * 99 / 4096 * 4096);
        assert!(nearly.near(&servers, &[64 * K, 64 * K, 0]).contains(&vec![
            128 * K,
            128 * K,
            128 * K * 2 * 99
        ]));
        assert!(Filling::new(&servers, 1 << 20).is_none(), "everything fits");
        assert!(Filling::new(&with_room(0), 1 << 20).is_none(), "nothing does");
    }

    #[test]
    fn each_is_there_once_and_never_without_any_server() {
        for (servers, sizes) in [
            (disk_and_ssd(), vec![64 * K]),
            (with_room(1 << 20), vec![4 * K, 1 << 20]),
            (unequal(3), vec![1]),
            (unequal(20), vec![u64::MAX]),
            (unequal(600), vec![48 * K]),
        ] {
            let mut found = all(&servers, 1, &sizes, 3 << 20);
            let used = |widths: &Vec<u64>| widths.iter().any(|width| *width > 0);
            let possible = |width: &u64| *width == 0 || (512..=WIDTH_BYTES_MAX).contains(width);
            assert!(found.iter().all(|w| used(w) && w.iter().all(possible)), "{sizes:?}");
            let count = found.len();
            assert!((64..2000).contains(&count), "{count}");
            if sizes.len() == 1 {
                found.sort();
                found.dedup();
                assert_eq!(found.len(), count, "{sizes:?}");
            }
        }
        assert_eq!(all(&unequal(1000), 256, &[64 * K], 1).len(), WIDTHS / 256_000);
    }
}
