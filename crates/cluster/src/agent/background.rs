//! This node's share of the low-priority work of all nodes on the origin.
//!
//! Each node that has such work, or whose programs use the origin, says so in the store when it renews its lease, for as
//! long as a lease runs: the share of a node that dies or leaves comes back by itself. A node that has neither makes no
//! request. What is known is at most as old as a lease; without it, each node takes the share that is left if all others
//! have work.

use std::sync::Arc;
use std::time::{Duration, Instant};

use halocline_model::background::{Share, Use, Users};
use halocline_model::token::Session;
use halocline_os::clock::Clock;
use parking_lot::Mutex;

use super::Options;
use crate::store::Store;

/// What changes meanwhile is told at most this often.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(1);

/// What the engine does with the origin, and what others do.
#[derive(Debug)]
pub(super) struct Background {
    store: Arc<dyn Store>,
    session: Session,
    /// The node's name.
    node: String,
    lease: Duration,
    clock: Clock,
    state: Mutex<State>,
    /// Held while the others are told: the thread that renews the lease and `Agent::keep` may both tell, and what
    /// the store got last must be what was noted last.
    telling: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    /// What the engine said last.
    now: Use,
    /// What it said since the others were told.
    since: Use,
    /// What the others were told last, and when.
    announced: Option<(Use, Instant)>,
    /// What the others do, and since when it is known.
    others: Option<(Users, Instant)>,
    /// How many nodes there are, as far as is known.
    nodes: u64,
    /// The store refuses to count, which was logged.
    is_refused: bool,
}

impl State {
    /// Whether the others know of anything that this node does.
    fn was_told(&self) -> bool {
        self.announced.is_some_and(|(announced, _)| any(announced))
    }
}

const fn either(one: Use, other: Use) -> Use {
    Use { works: one.works || other.works, serves: one.serves || other.serves }
}

const fn any(one: Use) -> bool {
    one.works || one.serves
}

impl Background {
    pub(super) fn new(options: &Options, store: &Arc<dyn Store>, session: Session) -> Self {
        Self {
            store: Arc::clone(store),
            session,
            node: options.node.clone(),
            lease: options.lease,
            clock: options.clock.clone(),
            state: Mutex::default(),
            telling: Mutex::default(),
        }
    }

    /// Notes what this node does with the origin; whether the others are to be told now, not when the lease is renewed
    /// next.
    pub(super) fn note(&self, own: Use) -> bool {
        let now = self.clock.instant();
        let state = &mut *self.state.lock();
        state.now = own;
        state.since = either(state.since, own);
        let announced = state.announced.map(|(announced, _)| announced).unwrap_or_default();
        let is_news = (own.works && !announced.works) || (own.serves && !announced.serves);
        let may_tell = state
            .announced
            .is_none_or(|(_, at)| now.saturating_duration_since(at) >= ANNOUNCE_EVERY);
        if own.works && !announced.works {
            // It begins with what others do now.
            state.others = None;
        }
        let is_due = is_news && may_tell;
        if is_due {
            // Once for this news; the thread that renews the lease notes when it told.
            state.announced = Some((either(announced, own), now));
        }
        is_due
    }

    /// This node's share now.
    pub(super) fn share(&self) -> Share {
        let now = self.clock.instant();
        let is_fresh = |since: Instant| now.saturating_duration_since(since) < self.lease;
        let state = self.state.lock();
        match state.others {
            Some((others, since)) if is_fresh(since) => Share::beside(others),
            // This node did not have to ask, or could not.
            _ => Share::unknown(state.nodes),
        }
    }

    /// Tells the others, so many `nodes` as far as is known, what this node does with the origin, and learns what they do.
    /// Called when the lease was renewed.
    pub(super) fn tell(&self, nodes: u64) {
        let _in_order = self.telling.lock();
        let own = {
            let state = &mut *self.state.lock();
            state.nodes = state.nodes.max(nodes);
            let own = either(state.since, state.now);
            state.since = state.now;
            if !any(own) && !state.was_told() {
                return;
            }
            own
        };
        let now = self.clock.instant();
        let lease_ms = u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX);
        let answer = self.store.users(Some((self.session, own, lease_ms)));
        let state = &mut *self.state.lock();
        state.announced = Some((own, now));
        match answer {
            Ok(users) => {
                state.others = Some((users.without(own), now));
                state.nodes = users.nodes;
                state.is_refused = false;
            }
            Err(error) => {
                state.others = None;
                if !std::mem::replace(&mut state.is_refused, true) {
                    tracing::warn!(
                        "node {}: low-priority work is shared as if all nodes had some: {error}",
                        self.node
                    );
                }
            }
        }
    }

    /// Takes back what this node told, at its end; what is not taken back ends with the lease.
    pub(super) fn end(&self) {
        let _in_order = self.telling.lock();
        let was_told = self.state.lock().was_told();
        if was_told {
            let _ = self.store.users(Some((self.session, Use::default(), 0)));
        }
    }
}
