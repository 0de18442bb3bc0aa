//! How long writers have left a file alone, also where the times of its disk are ahead of this node's clock.
//!
//! A time of the disk that is over by this clock says how long ago the last change was. One that is yet to come says nothing: then
//! the file is old once it has looked the same for as long as is asked for.

use std::time::{Duration, Instant};

use halocline_os::clock::Clock;
use rustc_hash::FxHashMap;

use super::scan::Stamp;

/// Files whose times are ahead, as they looked first, and when.
#[derive(Debug, Default)]
pub(super) struct LeftAlone {
    before: FxHashMap<u64, (Stamp, Instant)>,
    now: FxHashMap<u64, (Stamp, Instant)>,
}

impl LeftAlone {
    /// Begins a look at all files: those that are not seen in it are forgotten with the next.
    pub(super) fn begin(&mut self) {
        self.before = std::mem::take(&mut self.now);
    }

    /// Whether a file was left alone for at least `after`; `now_ns` is the time of `clock`.
    pub(super) fn is_old(
        &mut self,
        (number, stamp): (u64, Stamp),
        after: Duration,
        (clock, now_ns): (&Clock, i64),
    ) -> bool {
        let changed_ns = stamp.mtime_ns.max(stamp.ctime_ns);
        if changed_ns <= now_ns {
            let after_ns = i64::try_from(after.as_nanos()).unwrap_or(i64::MAX);
            return changed_ns <= now_ns.saturating_sub(after_ns);
        }
        let known = self.before.get(&number).filter(|(before, _)| *before == stamp);
        let since = known.map_or_else(|| clock.instant(), |(_, since)| *since);
        self.now.insert(number, (stamp, since));
        clock.elapsed(since) >= after
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AFTER: Duration = Duration::from_secs(10);
    const HOUR_NS: i64 = 3600 * 1_000_000_000;

    /// Regression: a node whose clock was behind made no copies.
    #[test]
    fn a_file_of_a_time_that_is_to_come_is_old_once_it_has_looked_the_same_for_long_enough() {
        let clock = Clock::simulated();
        let mut alone = LeftAlone::default();
        let mut is_old = |stamp: Stamp, passes: u64| {
            clock.sleep(Duration::from_secs(passes));
            alone.begin();
            alone.is_old((2, stamp), AFTER, (&clock, HOUR_NS))
        };
        let at = |changed_ns: i64| Stamp { size: 1, mtime_ns: 0, ctime_ns: changed_ns };
        assert!(is_old(at(0), 0) && !is_old(at(HOUR_NS), 0));
        let ahead = at(2 * HOUR_NS);
        assert!(!is_old(ahead, 0) && !is_old(ahead, 9) && is_old(ahead, 1));
        let written = at(2 * HOUR_NS + 1);
        assert!(!is_old(written, 0) && !is_old(written, 9) && is_old(written, 2));
    }
}
