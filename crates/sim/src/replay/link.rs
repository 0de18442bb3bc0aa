//! One direction of the network path to a server: it transfers one piece at a time.

use std::collections::VecDeque;

/// Limit of the stretches that are remembered; where there are more, the earliest one is long over.
const STRETCHES_MAX: usize = 256;

/// When a link is busy.
///
/// Pieces that are given in the order in which they are ready pass in this order. A cache and a tier know when a piece will
/// be ready before others, which will be ready earlier, exist: such a later one takes the first gap that is long enough, so
/// that it does not wait for a transfer that has not begun.
#[derive(Debug, Default)]
pub(super) struct Link {
    /// Stretches of time, ascending and apart.
    busy: VecDeque<(u64, u64)>,
    /// Nothing begins before that: what was there is forgotten.
    floor_ns: u64,
}

impl Link {
    /// When a transfer of `took_ns` ends that is ready at `ready_ns`.
    pub(super) fn pass(&mut self, ready_ns: u64, took_ns: u64) -> u64 {
        let mut begin_ns = ready_ns.max(self.floor_ns);
        // The last one is nearly always before.
        let mut at = self.busy.len();
        while at > 0 && self.busy[at - 1].1 > begin_ns {
            at -= 1;
        }
        while let Some((busy_ns, until_ns)) = self.busy.get(at) {
            // What takes no time does not come before what came at the same time.
            if begin_ns.saturating_add(took_ns.max(1)) <= *busy_ns {
                break;
            }
            begin_ns = *until_ns;
            at += 1;
        }
        let end_ns = begin_ns.saturating_add(took_ns);
        if took_ns > 0 {
            self.note(at, (begin_ns, end_ns));
        }
        end_ns
    }

    /// Notes a stretch in which it is busy, before the one with the index `at`.
    fn note(&mut self, at: usize, (mut begin_ns, end_ns): (u64, u64)) {
        let joins_next = self.busy.get(at).is_some_and(|next| next.0 == end_ns);
        let joins_last = at > 0 && self.busy[at - 1].1 == begin_ns;
        if joins_last && joins_next {
            begin_ns = self.busy[at - 1].0;
            self.busy.remove(at - 1);
            self.busy[at - 1].0 = begin_ns;
        } else if joins_last {
            self.busy[at - 1].1 = end_ns;
        } else if joins_next {
            self.busy[at].0 = begin_ns;
        } else {
            self.busy.insert(at, (begin_ns, end_ns));
        }
        if self.busy.len() > STRETCHES_MAX {
            self.floor_ns = self.busy.pop_front().map_or(0, |(_, end_ns)| end_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_order_it_is_a_queue() {
        let mut link = Link::default();
        let mut until = 0;
        for (ready, took) in [(0, 5), (0, 0), (1, 2), (1, 0), (9, 4), (9, 1), (14, 3), (30, 1)] {
            until = ready.max(until) + took;
            assert_eq!(link.pass(ready, took), until, "{ready} {took}");
        }
    }

    #[test]
    fn what_is_ready_earlier_takes_a_gap_and_the_link_is_never_used_twice() {
        let mut link = Link::default();
        assert_eq!(link.pass(100, 50), 150);
        assert_eq!(link.pass(10, 20), 30, "long before the first one");
        assert_eq!(link.pass(20, 10), 40, "behind the second one");
        assert_eq!(link.pass(60, 40), 100, "just in time");
        assert_eq!(link.pass(55, 10), 160, "there are 5 left");
        assert_eq!(link.pass(55, 5), 60);
        assert_eq!(link.busy, [(10, 40), (55, 160)]);
        // What was forgotten stays taken.
        (0..STRETCHES_MAX as u64)
            .for_each(|at| assert_eq!(link.pass(200 + 2 * at, 1), 201 + 2 * at));
        assert_eq!(link.busy.len(), STRETCHES_MAX);
        assert_eq!(link.pass(5, 1), 161);
    }
}
