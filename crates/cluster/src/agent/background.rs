//! This node's share of the low-priority work of all nodes on the origin.
//!
//! Each node that has such work, or whose programs use the origin, says so in the store whenever it renews its lease,
//! valid for the duration of a lease: the share of a node that dies or leaves comes back by itself. A node that has
//! neither makes no request. The known state is at most as old as a lease; without it, each node takes the share that
//! is left if all others have work.

use std::sync::Arc;
use std::time::{Duration, Instant};

use halocline_model::background::{Share, Use, Users};
use halocline_model::token::Session;
use halocline_os::clock::Clock;
use parking_lot::Mutex;

use super::Options;
use crate::store::Store;

/// A change between renewals is announced at most this often.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(1);

/// How the engine uses the origin, and how the other nodes do.
#[derive(Debug)]
pub(super) struct Background {
    store: Arc<dyn Store>,
    session: Session,
    /// The node's name.
    node: String,
    lease: Duration,
    clock: Clock,
    state: Mutex<State>,
    /// Held while the others are told: the lease renewal thread and `Agent::keep` may both do so, and the store must
    /// end up with the latest state.
    telling: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    /// The engine's latest use of the origin.
    now: Use,
    /// All its uses since the last announcement.
    since: Use,
    /// The last announcement, and its time.
    announced: Option<(Use, Instant)>,
    /// The others' uses, and since when these are known.
    others: Option<(Users, Instant)>,
    /// The number of nodes, as far as known.
    nodes: u64,
    /// Whether the store refuses to count, which is logged once.
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

    /// Notes what this node does with the origin. Returns whether to tell the others now instead of at the next
    /// renewal of the lease.
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
            // Work begins with fresh knowledge of the others.
            state.others = None;
        }
        let is_due = is_news && may_tell;
        if is_due {
            // Announce this news once; the renewal thread notes the actual time.
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
            // This node did not need to ask, or could not.
            _ => Share::unknown(state.nodes),
        }
    }

    /// Tells the other nodes (`nodes`, as far as known) what this node does with the origin, and learns what they do.
    /// Called after a renewal of the lease.
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

    /// Withdraws the announcement when the session ends; otherwise it expires after a lease.
    pub(super) fn end(&self) {
        let _in_order = self.telling.lock();
        let was_told = self.state.lock().was_told();
        if was_told {
            let _ = self.store.users(Some((self.session, Use::default(), 0)));
        }
    }
}
