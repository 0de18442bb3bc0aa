//! The roll of members, as last read.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use halocline_model::token::{Life, Session, Tokens};
use halocline_os::clock::Clock;
use parking_lot::Mutex;

use crate::registry::Registry;
use crate::store::{Lease, Result, Roll, Store};

/// The roll as last read, and when; the store may have a newer one.
pub(super) struct LatestRoll {
    store: Arc<dyn Store>,
    clock: Clock,
    known: Mutex<(Arc<Roll>, Instant)>,
}

impl LatestRoll {
    /// `roll` was just read.
    pub(super) fn new(store: &Arc<dyn Store>, clock: &Clock, roll: Roll) -> Self {
        let known = Mutex::new((Arc::new(roll), clock.boot_instant()));
        Self { store: Arc::clone(store), clock: clock.clone(), known }
    }

    /// Reads a roll that is at least as new as this call.
    pub(super) fn refresh(&self) -> Result<Arc<Roll>> {
        // The lock is held during the read, so that an older roll never replaces a newer one.
        let mut known = self.known.lock();
        let at = self.clock.boot_instant();
        let roll = Arc::new(self.store.roll()?);
        *known = (Arc::clone(&roll), at);
        Ok(roll)
    }

    /// The roll that was read last.
    pub(super) fn known(&self) -> Arc<Roll> {
        Arc::clone(&self.known.lock().0)
    }

    /// The number of nodes in it.
    pub(super) fn nodes(&self) -> u64 {
        self.known().members.sessions().count() as u64
    }

    /// `roll`, or a fresh one if `roll` may be older than the tokens, that is, if they name a session that `roll` does
    /// not know as alive.
    pub(super) fn knowing(&self, roll: Arc<Roll>, tokens: &Tokens) -> Result<Arc<Roll>> {
        let mut others = tokens.all().iter().map(|held| held.session).chain(tokens.waiters());
        let is_live = |session: Session| roll.members.life(session) == Some(Life::Live);
        if others.all(is_live) { Ok(roll) } else { self.refresh() }
    }

    /// Declares sessions gone that have or want these tokens and whose lease is over, except `own`; `registry` names
    /// them in the log.
    pub(super) fn declare_gone(
        &self,
        tokens: &Tokens,
        own: Session,
        registry: &Registry,
    ) -> Result<Arc<Roll>> {
        let mut roll = self.refresh()?;
        let held = tokens.all().iter().map(|held| held.session);
        let sessions: BTreeSet<Session> = held.chain(tokens.waiters()).collect();
        for session in sessions {
            let is_live = roll.members.life(session) == Some(Life::Live);
            if session == own || !is_live || !roll.is_over(session) {
                continue;
            }
            let mut members = roll.members.clone();
            members.lease_is_over(session);
            if self.store.swap_members(&roll, &members, Lease::IsOver(session))? {
                tracing::warn!("{} is gone: its lease is over", registry.name(session));
            }
            roll = self.refresh()?;
        }
        Ok(roll)
    }

    /// The store's clock, approximately.
    pub(super) fn now_ms(&self) -> u64 {
        let (now_ms, at) = {
            let known = self.known.lock();
            (known.0.now_ms, known.1)
        };
        let since = self.clock.boot_instant().saturating_duration_since(at).as_millis();
        now_ms.saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
    }
}
