//! Renewal of the lease: what keeps the session alive, and what it asserts to a store that may have forgotten it.
//!
//! What must hold: a lease that the store would renew is renewed, however long anything else takes. To keep a session
//! may wait for the origin, for requests in progress, for flushes and for servers of the store that do not answer; a
//! thread of its own renews the lease meanwhile, and waits for one answer of the store at a time.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use halocline_model::token::Session;
use halocline_os::catch_panic::caught;
use parking_lot::MutexGuard;

use super::Shared;
use super::peer_queries::PeerQueries;
use crate::counters::add;
use crate::registry::Place;
use crate::store::{Lease, Result, StoreError};

/// Number of threads that give up what others want.
const WORKERS: usize = 4;
/// Lost races after which a change of the members is postponed.
const RACES: u32 = 64;
/// The most sessions that a message names.
const NAMED: usize = 3;

impl Shared {
    /// Starts the agent's threads.
    pub(super) fn spawn(self: &Arc<Self>) -> io::Result<Vec<JoinHandle<()>>> {
        let start = |name: &str, run: fn(&Arc<Self>)| {
            let shared = Arc::clone(self);
            thread::Builder::new().name(name.to_owned()).spawn(move || shared.live(run))
        };
        let mut threads = vec![start("lease", |shared| shared.renew_in_time())?];
        threads.push(start("session", |shared| shared.run())?);
        threads.push(start("tokens heard", Self::listen)?);
        if self.options.peers.is_some() {
            threads.push(start("peer queries", PeerQueries::run)?);
        }
        for _ in 0..WORKERS {
            threads.push(start("tokens given", Self::work)?);
        }
        Ok(threads)
    }

    /// Does a thread's work until the agent stops. A panic, which is logged, ends only the round in which it occurs: if
    /// a thread were missing, others would wait for this node for ever, and nobody would know why.
    fn live(self: &Arc<Self>, run: fn(&Arc<Self>)) {
        while !self.is_stopped() {
            if caught(|| run(self)).is_ok() {
                return;
            }
            thread::sleep(self.options.poll);
        }
    }

    /// Keeps the session until the agent stops.
    fn run(&self) {
        let third = self.own_lease() / 3;
        while !self.is_stopped() {
            let kept = self.keep();
            let pause = if kept.is_ok() { third } else { third.min(self.options.poll) };
            if let Err(error) = kept {
                tracing::debug!("node {}: {error}", self.options.node);
                *self.obstacle.lock() = Some(error.to_string());
            }
            let mut woken = self.woken.0.lock();
            if !*woken {
                let _ = self.woken.1.wait_for(&mut woken, pause);
            }
            *woken = false;
        }
    }

    /// Renews the lease whenever the thread that keeps the session is late with that, until the agent stops.
    fn renew_in_time(&self) {
        let third = self.own_lease() / 3;
        let late = self.own_lease().saturating_sub(third + third / 4);
        while !self.is_stopped() {
            let is_late = self.lease.left(self.options.clock.boot_instant()) < late;
            if is_late
                && !self.lease.ended.load(Ordering::Acquire)
                && !self.lease.unlisted.load(Ordering::Acquire)
                && let Some(regaining) = self.regaining.try_lock()
                && let Err(error) = self.renew(&regaining)
            {
                tracing::debug!("node {}: its lease is not renewed: {error}", self.options.node);
            }
            let mut woken = self.woken.0.lock();
            if !self.is_stopped() {
                let _ = self.woken.1.wait_for(&mut woken, (third / 4).min(self.options.poll));
            }
        }
    }

    /// Renews the lease; `false` if it is over, or if the store may have forgotten it.
    fn renew(&self, _regaining: &MutexGuard<'_, ()>) -> Result<bool> {
        if self.lease.unlisted.load(Ordering::Acquire) {
            return Err(StoreError::Unusable(self.registry.what_is_elsewhere()));
        }
        let sent = self.options.clock.boot_instant();
        let asserted = *self.asserted.lock();
        let renewed = self.store.renew(self.session, asserted, self.lease_ms())?;
        if renewed {
            // The lease had not expired by the store's clock, so nobody took anything away, whatever the clock here
            // says.
            self.holds_since(sent);
        }
        Ok(renewed)
    }

    /// Wakes the thread that renews the lease, because the lease is needed or the store's epoch has changed.
    pub(super) fn wake(&self) {
        *self.woken.0.lock() = true;
        self.woken.1.notify_all();
    }

    /// Joins the members.
    pub(super) fn join(&self) -> Result<()> {
        for _ in 0..RACES {
            let roll = self.refresh()?;
            let mut members = roll.members.clone();
            members.join(self.session, roll.epoch);
            let sent = self.options.clock.boot_instant();
            if self.store.swap_members(&roll, &members, self.new_lease())? {
                *self.asserted.lock() = roll.epoch;
                self.holds_since(sent);
                return self.confirm();
            }
        }
        Err(busy())
    }

    /// Ends the session, which holds nothing any more.
    pub(super) fn end_session(&self) -> Result<()> {
        remove(&*self.store, self.session, Lease::Ends(self.session))
    }

    /// Renews the lease, and does whatever else is due.
    pub(super) fn keep(&self) -> Result<()> {
        if self.lease.ended.load(Ordering::Acquire) {
            return Ok(());
        }
        if self.lease.unlisted.load(Ordering::Acquire) {
            self.check_list()?;
        }
        let asserted = *self.asserted.lock();
        let renewed = self.renew(&self.regaining.lock())?;
        // After the renewal, because it may wait for the origin.
        self.check_list()?;
        if self.lease.ended.load(Ordering::Acquire) {
            return Ok(());
        }
        if renewed {
            let roll = self.known();
            // The lease comes first, because this may wait for a server that does not answer. Whether it does or not,
            // what is known of the members may be out of date, and they may wait to be confirmed.
            let changed = self.store.note_changes().unwrap_or_else(|error| {
                tracing::debug!("node {}: {error}", self.options.node);
                true
            });
            if !changed && roll.members.grants(roll.epoch) && roll.epoch == asserted {
                return Ok(());
            }
        }
        let roll = self.refresh()?;
        if roll.epoch == asserted && roll.members.life(self.session).is_none() {
            self.end();
            return Ok(());
        }
        if roll.epoch != asserted {
            add(&self.counters.epochs);
            self.assert()?;
        } else if !self.lease.runs_at(self.options.clock.boot_instant()) {
            self.rejoin()?;
        }
        self.confirm()
    }

    /// Checks that the list of sessions is where it was, and has this session. Whoever renames or removes that directory
    /// lets the next node begin another list, which does not have this one's tokens; whoever ends a session removes it
    /// from the list before the store forgets it, and so may find that it has just regained its lease.
    fn check_list(&self) -> Result<()> {
        match self.registry.place_of(self.session) {
            Ok(Place::Here) => {
                self.lease.unlisted.store(false, Ordering::Release);
                Ok(())
            }
            Ok(Place::Unlisted) => {
                self.end();
                Ok(())
            }
            Ok(Place::Elsewhere) => {
                let what = self.registry.what_is_elsewhere();
                if !self.lease.unlisted.swap(true, Ordering::AcqRel) {
                    tracing::error!("node {} stops: {what}", self.options.node);
                }
                Err(StoreError::Unusable(what))
            }
            // The origin does not answer just now, so nobody can have begun another list there either.
            Err(error) => {
                tracing::debug!("the list of sessions cannot be looked at: {error}");
                Ok(())
            }
        }
    }

    /// Others have ended the session.
    fn end(&self) {
        tracing::error!("node {} was recovered or given up by others", self.options.node);
        self.lease.ended.store(true, Ordering::Release);
    }

    /// The lease has expired by the store's clock, or may have.
    fn rejoin(&self) -> Result<()> {
        let _regaining = self.regaining.lock();
        self.drop_what_is_unsure()?;
        for _ in 0..RACES {
            let roll = self.refresh()?;
            let mut members = roll.members.clone();
            if roll.epoch != *self.asserted.lock() {
                self.wake();
                return Ok(());
            }
            if !members.renew(self.session, roll.epoch) {
                self.end();
                return Ok(());
            }
            let sent = self.options.clock.boot_instant();
            if self.store.swap_members(&roll, &members, self.new_lease())? {
                self.refresh()?;
                self.holds_since(sent);
                return Ok(());
            }
        }
        Err(busy())
    }

    /// The lease lapsed, so others may have changed whatever was not held exclusively.
    fn drop_what_is_unsure(&self) -> Result<()> {
        // No permit begins meanwhile, and answers to earlier requests are not believed.
        self.lease.until_ns.store(0, Ordering::Release);
        self.lease.lapses.fetch_add(1, Ordering::AcqRel);
        add(&self.counters.lapses);
        let files: Vec<_> = self.files.lock().values().cloned().collect();
        // One file that cannot be dropped yet holds up none of the others.
        let kept: Vec<u64> = files
            .iter()
            .filter(|file| !file.drop_what_is_unsure())
            .map(|file| file.id.inode)
            .collect();
        match kept.first() {
            None => Ok(()),
            Some(inode) => {
                let more = match kept.len() {
                    1 => String::new(),
                    files => format!(" and {} more", files - 1),
                };
                let what = format!("inode {inode}{more} cannot be dropped from the cache yet");
                Err(StoreError::NoAnswer(what))
            }
        }
    }

    /// Asserts file by file what the node holds, because the store may have forgotten it.
    fn assert(&self) -> Result<()> {
        tracing::warn!("node {}: the store may have forgotten tokens", self.options.node);
        // In the new epoch there is no lease before the registry was read at the end.
        let _regaining = self.regaining.lock();
        // If the lease was still valid when the new epoch was seen, nobody can have taken anything away.
        if !self.lease.runs_at(self.options.clock.boot_instant()) {
            self.drop_what_is_unsure()?;
        }
        let _changes = self.changes.write();
        for _ in 0..RACES {
            let roll = self.refresh()?;
            let registered = self.registry.sessions().map_err(unregistered)?;
            if !registered.contains(&self.session) {
                self.end();
                return Ok(());
            }
            let files: Vec<_> = self.files.lock().values().cloned().collect();
            if !files.iter().try_fold(true, |told, file| Ok(told && file.assert(&roll)?))? {
                continue;
            }
            let mut members = roll.members.clone();
            members.assert(self.session, roll.epoch);
            let sent = self.options.clock.boot_instant();
            if self.store.swap_members(&roll, &members, self.new_lease())? {
                *self.asserted.lock() = roll.epoch;
                self.refresh()?;
                // A node that gives up a session removes it from the registry first.
                if !self.registry.sessions().map_err(unregistered)?.contains(&self.session) {
                    self.end();
                    return Ok(());
                }
                self.holds_since(sent);
                return Ok(());
            }
        }
        Err(busy())
    }

    /// Lets tokens be granted if all sessions of the registry have asserted what they hold.
    pub(super) fn confirm(&self) -> Result<()> {
        self.check_list()?;
        for _ in 0..RACES {
            let roll = self.refresh()?;
            if roll.members.grants(roll.epoch) {
                *self.obstacle.lock() = None;
                return Ok(());
            }
            // Read after the members: every member is in the registry, or was.
            let registry = self.registry.sessions().map_err(unregistered)?;
            let mut members = roll.members.clone();
            if let Err(missing) = members.confirm(roll.epoch, &registry) {
                *self.obstacle.lock() = Some(self.waits_for(&missing));
                return Ok(());
            }
            self.store.swap_members(&roll, &members, Lease::Stays)?;
        }
        Err(busy())
    }

    fn waits_for(&self, missing: &[Session]) -> String {
        let names: Vec<_> =
            missing.iter().take(NAMED).map(|one| self.registry.name(*one)).collect();
        let more = missing.len() - names.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!(
            "{}{more} to say what they hold, which the store may have forgotten; recover those that are gone: \
             halocline cluster recover ORIGIN NODE --cluster URL",
            names.join(", ")
        )
    }

    /// Notes the lease obtained by a request that was sent at that time.
    fn holds_since(&self, sent: Instant) {
        let since = sent.saturating_duration_since(self.lease.begun);
        let until = since + self.own_lease();
        let until_ns = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
        if !self.lease.until_is_unknown() {
            self.counters.note_left(self.lease.left(self.options.clock.boot_instant()));
        }
        self.lease.until_ns.fetch_max(until_ns, Ordering::AcqRel);
    }

    fn new_lease(&self) -> Lease {
        Lease::Runs(self.session, self.lease_ms())
    }

    /// The duration of a lease by the node's own clock.
    fn own_lease(&self) -> Duration {
        self.options.lease.saturating_sub(self.options.margin)
    }

    fn lease_ms(&self) -> u64 {
        u64::try_from(self.options.lease.as_millis()).unwrap_or(u64::MAX)
    }
}

/// Removes a session from the members.
pub(crate) fn remove(
    store: &dyn crate::store::Store,
    session: Session,
    lease: Lease,
) -> Result<()> {
    for _ in 0..RACES {
        let roll = store.roll()?;
        if roll.members.life(session).is_none() {
            return Ok(());
        }
        if matches!(lease, Lease::IsOver(_)) && !roll.is_over(session) {
            return Err(StoreError::Unusable(format!(
                "session {:016x} is there, and its lease runs",
                session.0
            )));
        }
        let mut members = roll.members.clone();
        members.remove(session);
        if store.swap_members(&roll, &members, lease)? {
            return Ok(());
        }
    }
    Err(busy())
}

fn busy() -> StoreError {
    StoreError::NoAnswer("others change the members all the time".to_owned())
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn unregistered(error: halocline_os::error::Error) -> StoreError {
    StoreError::NoAnswer(format!("the list of sessions on the origin cannot be read: {error}"))
}
