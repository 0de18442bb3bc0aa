//! This node's session, and whether those of other nodes are over.

use std::sync::Arc;
use std::time::{Duration, Instant};

use halocline_cluster::agent::Agent;
use halocline_cluster::store::{Roll, Store};
use halocline_model::token::Session;
use halocline_os::clock::Clock;
use halocline_os::error::Result;
use parking_lot::Mutex;

/// How stale our knowledge of other sessions may be.
const KNOWN_FOR: Duration = Duration::from_secs(1);

/// The sessions of all nodes, as this one sees them.
#[derive(Debug)]
pub(crate) struct Sessions {
    agent: Agent,
    store: Arc<dyn Store>,
    clock: Clock,
    known: Mutex<Option<(Instant, Arc<Roll>)>>,
}

impl Sessions {
    pub(crate) fn new(agent: Agent, store: Arc<dyn Store>, clock: Clock) -> Self {
        Self { agent, store, clock, known: Mutex::default() }
    }

    /// This node's session.
    pub(crate) fn own(&self) -> Session {
        self.agent.session()
    }

    /// # Errors
    /// If this node's lease has lapsed: others may have moved what it has open.
    pub(crate) fn check(&self) -> Result<()> {
        self.agent.check_lease()
    }

    /// How often the lease has lapsed.
    pub(crate) fn lapses(&self) -> u64 {
        self.agent.lapses()
    }

    /// Whether another session is over, so that its opens count as closed. An unknown session counts as alive.
    pub(crate) fn is_over(&self, session: Session) -> bool {
        if session == self.own() {
            return false;
        }
        let mut known = self.known.lock();
        let is_fresh = |at: &Instant| self.clock.elapsed(*at) < KNOWN_FOR;
        if !known.as_ref().is_some_and(|(at, _)| is_fresh(at)) {
            let at = self.clock.instant();
            let Ok(roll) = self.store.roll() else { return false };
            *known = Some((at, Arc::new(roll)));
        }
        known.as_ref().is_some_and(|(_, roll)| roll.is_over(session))
    }

    /// Ends this node's session.
    ///
    /// # Errors
    /// If the store does not answer: the session then ends with its lease.
    pub(crate) fn leave(&self) -> Result<()> {
        self.agent.leave()
    }
}
