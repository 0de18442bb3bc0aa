//! Keeps the session: renews its lease, drops what is unsure where that has lapsed, and asserts what the node holds to a
//! store that may have forgotten it.
//!
//! What must hold: a lease that the store would renew is renewed, however long anything else takes. Keeping a session
//! may wait for the origin, for requests in progress, for flushes and for servers of the store that do not answer.
//! Meanwhile a separate thread renews the lease, and waits for only one answer of the store at a time.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use super::known_files::KnownFiles;
use super::own_session::OwnSession;
use crate::counters::{Counters, add};
use crate::store::Result;

/// The session, with the files whose tokens it holds.
pub(super) struct Upkeep {
    own_session: Arc<OwnSession>,
    files: Arc<KnownFiles>,
    counters: Arc<Counters>,
    /// Held during a renewal of the lease, and for the whole time in which a lost lease is regained: the new one must
    /// not begin before everything uncertain is dropped.
    regaining: Mutex<()>,
}

impl Upkeep {
    pub(super) fn new(
        own_session: &Arc<OwnSession>,
        files: &Arc<KnownFiles>,
        counters: &Arc<Counters>,
    ) -> Self {
        Self {
            own_session: Arc::clone(own_session),
            files: Arc::clone(files),
            counters: Arc::clone(counters),
            regaining: Mutex::default(),
        }
    }

    /// Renews the lease if the thread that keeps the session is late with it.
    pub(super) fn renew_if_late(&self, late: Duration) {
        let lease = &self.own_session.lease;
        let is_late = lease.left() < late;
        if is_late
            && !lease.has_ended()
            && !lease.is_unlisted()
            && !lease.is_missed()
            && let Some(regaining) = self.regaining.try_lock()
            && let Err(error) = self.renew(&regaining)
        {
            tracing::debug!("node {}: its lease is not renewed: {error}", self.own_session.node());
        }
    }

    /// Renews the lease; `false` if it is over, or if the store may have forgotten it.
    fn renew(&self, _regaining: &MutexGuard<'_, ()>) -> Result<bool> {
        self.own_session.renew()
    }

    /// Renews the lease, and does whatever else is due.
    pub(super) fn keep(&self) -> Result<()> {
        let own_session = &*self.own_session;
        if !own_session.is_there_still()? {
            return Ok(());
        }
        let asserted = own_session.asserted();
        let renewed = self.renew(&self.regaining.lock())?;
        // After the renewal, because this may wait for the origin.
        own_session.check_list()?;
        if own_session.lease.has_ended() {
            return Ok(());
        }
        if renewed {
            let roll = own_session.roll.known();
            // After the renewal, because this may wait for a server that does not answer. In that case, too, the known
            // members may be stale, or wait to be confirmed.
            let changed = own_session.may_have_changed();
            if !changed && roll.members.grants(roll.epoch) && roll.epoch == asserted {
                return Ok(());
            }
        }
        let roll = own_session.roll.refresh()?;
        if !own_session.is_member(&roll)? {
            return Ok(());
        }
        if roll.epoch != asserted {
            add(&self.counters.epochs);
            self.assert()?;
        } else if !own_session.lease.runs() {
            self.rejoin()?;
        }
        own_session.confirm()
    }

    /// The lease has expired by the store's clock, or may have.
    fn rejoin(&self) -> Result<()> {
        let _regaining = self.regaining.lock();
        self.drop_what_is_unsure()?;
        self.own_session.rejoin()
    }

    /// The lease lapsed, so others may have changed whatever was not held exclusively.
    fn drop_what_is_unsure(&self) -> Result<()> {
        // No permit begins meanwhile, and answers to earlier requests are ignored.
        self.own_session.lease.lapse();
        add(&self.counters.lapses);
        self.files.drop_what_is_unsure()?;
        let has_lease = self.own_session.lease.runs();
        assert!(!has_lease, "I12: a lease began before all that is unsure was dropped");
        Ok(())
    }

    /// Asserts file by file what the node holds, because the store may have forgotten it.
    fn assert(&self) -> Result<()> {
        tracing::warn!("node {}: the store may have forgotten tokens", self.own_session.node());
        // In the new epoch there is no lease until the registry is read, at the end.
        let _regaining = self.regaining.lock();
        // If the lease was still valid when the new epoch was seen, nobody can have taken anything away.
        if !self.own_session.lease.runs() {
            self.drop_what_is_unsure()?;
        }
        let _no_changes = self.files.stop_changes();
        self.own_session.assert(|roll| self.files.assert(roll))
    }
}
