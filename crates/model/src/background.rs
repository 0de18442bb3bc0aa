//! What low-priority work on an origin (flushes that nobody waits for, fetches) may use of it, where several nodes
//! have some: together as much as one node alone would.
//!
//! A node alone works without rest while no program uses the origin, and otherwise rests `COURTESY` times as long as
//! one of its workers works. Of several nodes with such work each takes an equal part of the time, and programs of any
//! of them count as programs.

use std::time::Duration;

/// While programs use the origin, low-priority work rests this many times as long as it worked.
const COURTESY: u32 = 3;

/// The longest rest of a node that has the origin to itself.
const REST_MAX: Duration = Duration::from_secs(2);

/// The most parts that are counted.
const PARTS_MAX: u64 = 100_000;

/// What a node does with the origin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Use {
    /// It has low-priority work.
    pub works: bool,
    /// Its programs use the origin, or did lately.
    pub serves: bool,
}

/// How many nodes do what with the origin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Users {
    /// Those that have low-priority work.
    pub working: u64,
    /// Those whose programs use it.
    pub serving: u64,
    /// All that there are.
    pub nodes: u64,
}

impl Users {
    /// All but one that counts as `own`.
    #[must_use]
    pub const fn without(self, own: Use) -> Self {
        Self {
            working: self.working.saturating_sub(own.works as u64),
            serving: self.serving.saturating_sub(own.serves as u64),
            ..self
        }
    }
}

/// A node's share of what one node alone would use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// One of so many equal parts; at least 1.
    pub parts: u32,
    /// Programs of other nodes use the origin.
    pub others_serve: bool,
}

impl Share {
    /// All of it.
    pub const WHOLE: Self = Self { parts: 1, others_serve: false };

    /// The share of a node beside which the `others` do this with the origin.
    #[must_use]
    pub fn beside(others: Users) -> Self {
        // A node rests for no more nodes than there are, and not forever, whatever the store says.
        let most = others.nodes.saturating_sub(1).min(PARTS_MAX);
        let parts = others.working.min(most) + 1;
        Self {
            parts: u32::try_from(parts).unwrap_or(u32::MAX),
            others_serve: others.serving.min(most) > 0,
        }
    }

    /// The share of one of `nodes` if it is not known what the others do: what is left if all have work and programs, and
    /// there is at least one.
    #[must_use]
    pub fn unknown(nodes: u64) -> Self {
        let nodes = nodes.max(2);
        Self::beside(Users { working: nodes, serving: nodes, nodes })
    }

    /// How long each of `workers` rests after having `worked` so long; `busy` if programs of this node use the origin.
    #[must_use]
    pub fn rest(self, worked: Duration, workers: u32, busy: bool) -> Duration {
        let one =
            if busy || self.others_serve { (COURTESY + 1).saturating_mul(workers) } else { 1 };
        let times = one.saturating_mul(self.parts) - 1;
        worked.saturating_mul(times).min(REST_MAX.saturating_mul(self.parts))
    }

    /// After how long low-priority work that gets one part in `of_time` of the origin's time goes on, after having
    /// `worked` so long.
    #[must_use]
    pub fn pause(self, worked: Duration, of_time: u32) -> Duration {
        worked.saturating_mul(of_time.saturating_mul(self.parts).saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKED: Duration = Duration::from_millis(10);

    /// How many workers of all nodes work at a time, on average.
    fn working(nodes: u64, workers: u32, busy: bool) -> f64 {
        let others = Users { working: nodes - 1, serving: 0, nodes };
        let rest = Share::beside(others).rest(WORKED, workers, busy);
        let part = WORKED.as_secs_f64() / (WORKED + rest).as_secs_f64();
        f64::from(workers) * part * f64::from(u32::try_from(nodes).unwrap())
    }

    #[test]
    fn all_nodes_together_use_what_one_alone_would() {
        for workers in [1, 4] {
            for busy in [false, true] {
                let alone = working(1, workers, busy);
                let expected = if busy { 0.25 } else { f64::from(workers) };
                assert!((alone - expected).abs() < 1e-9, "{alone}");
                for nodes in [2, 4, 10] {
                    let together = working(nodes, workers, busy);
                    assert!((together - alone).abs() < 1e-9, "{nodes} nodes: {together}");
                }
            }
        }
    }

    #[test]
    fn programs_of_other_nodes_count_as_programs() {
        let others = |working, serving| Share::beside(Users { working, serving, nodes: 4 });
        assert_eq!(others(0, 0), Share::WHOLE);
        assert_eq!(others(0, 1).rest(WORKED, 1, false), 3 * WORKED);
        assert_eq!(others(0, 1).rest(WORKED, 1, true), 3 * WORKED, "once");
        assert_eq!(others(2, 0).rest(WORKED, 1, false), 2 * WORKED);
        assert_eq!(others(1, 0).pause(WORKED, 20), 39 * WORKED);
        assert_eq!(Share::WHOLE.pause(WORKED, 1), Duration::ZERO);
    }

    #[test]
    fn what_is_not_known_or_cannot_be_is_bounded_by_the_nodes_there_are() {
        assert_eq!(Share::unknown(0), Share { parts: 2, others_serve: true });
        assert_eq!(Share::unknown(4), Share { parts: 4, others_serve: true });
        let said = |nodes| Users { working: u64::MAX, serving: u64::MAX, nodes };
        assert_eq!(Share::beside(said(4)), Share { parts: 4, others_serve: true });
        assert_eq!(Share::beside(said(1)), Share::WHOLE);
        let all = Share::beside(said(u64::MAX));
        assert_eq!(u64::from(all.parts), PARTS_MAX + 1);
        assert!(all.rest(Duration::MAX, u32::MAX, true) <= REST_MAX * all.parts);
    }

    #[test]
    fn a_node_is_none_of_the_others() {
        let all = Users { working: 3, serving: 0, nodes: 4 };
        let own = Use { works: true, serves: true };
        assert_eq!(all.without(own), Users { working: 2, ..all });
        assert_eq!(all.without(Use::default()), all);
    }
}
