//! Renewal of the lease: what keeps the session alive, and what it asserts to a store that may have forgotten it.
//!
//! What must hold: a lease that the store would renew is renewed, however long anything else takes. Keeping a session
//! may wait for the origin, for requests in progress, for flushes and for servers of the store that do not answer.
//! Meanwhile a separate thread renews the lease, and waits for only one answer of the store at a time.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use halocline_model::token::{Epoch, Session};
use halocline_os::catch_panic::caught;
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::lease::Where;
use super::peer_queries::PeerQueries;
use super::{Shared, idle_tokens, yielding};
use crate::counters::add;
use crate::registry::Presence;
use crate::store::{Lease, Result, Roll, StoreError};

/// Number of threads that give up what others want.
const WORKERS: usize = 4;
/// Lost races after which a change of the members is postponed.
const RACES: u32 = 64;
/// The most sessions that a message names.
const NAMED: usize = 3;

/// The state of the threads that keep the session.
#[derive(Debug)]
pub(super) struct Upkeep {
    /// The last epoch in which this session asserted what it holds.
    pub(super) asserted: Mutex<Epoch>,
    /// Held during a renewal of the lease, and for the whole time in which a lost lease is regained: the new one must
    /// not begin before everything uncertain is dropped.
    regaining: Mutex<()>,
    /// Why nothing is granted, if nothing is.
    obstacle: Mutex<Option<String>>,
    /// Whether something is to be done at once.
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Upkeep {
    /// The state for a session that holds nothing yet.
    pub(super) fn new(epoch: Epoch) -> Self {
        Self {
            asserted: Mutex::new(epoch),
            regaining: Mutex::default(),
            obstacle: Mutex::default(),
            woken: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Wakes the thread that renews the lease, because the lease is needed or the store's epoch has changed.
    pub(super) fn wake(&self) {
        *self.woken.lock() = true;
        self.changed.notify_all();
    }

    /// Why requests do not proceed.
    pub(super) fn why(&self) -> String {
        self.obstacle.lock().clone().unwrap_or_else(|| "it could not be renewed in time".to_owned())
    }
}

impl Shared {
    /// Starts the agent's threads.
    pub(super) fn spawn(self: &Arc<Self>) -> io::Result<Vec<JoinHandle<()>>> {
        let start = |name: &str, run: fn(&Arc<Self>)| {
            let shared = Arc::clone(self);
            thread::Builder::new().name(name.to_owned()).spawn(move || shared.live(run))
        };
        let mut threads = vec![start("lease", |shared| shared.renew_in_time())?];
        threads.push(start("session", |shared| shared.run())?);
        threads.push(start("tokens heard", yielding::listen)?);
        threads.push(start("tokens back", idle_tokens::give_back)?);
        if self.options.peers.is_some() {
            threads.push(start("peer queries", PeerQueries::run)?);
        }
        for _ in 0..WORKERS {
            threads.push(start("tokens given", yielding::give_up)?);
        }
        Ok(threads)
    }

    /// Does a thread's work until the agent stops. A panic is logged and ends only the current round: without the
    /// thread, others would wait for this node for ever, and nobody would know why.
    fn live(self: &Arc<Self>, run: fn(&Arc<Self>)) {
        while !self.is_stopped() {
            if caught(|| run(self)).is_ok() {
                return;
            }
            self.options.wait_clock.sleep(self.options.poll);
        }
    }

    /// Keeps the session until the agent stops.
    fn run(&self) {
        let third = self.lease.lasts() / 3;
        while !self.is_stopped() {
            let kept = self.keep();
            if kept.is_ok() {
                self.background.tell(self.roll.nodes());
            }
            let pause = if kept.is_ok() { third } else { third.min(self.options.poll) };
            if let Err(error) = kept {
                tracing::debug!("node {}: {error}", self.options.node);
                *self.upkeep.obstacle.lock() = Some(error.to_string());
            }
            let clock = &self.options.wait_clock;
            let until = clock.instant() + pause;
            let mut woken = self.upkeep.woken.lock();
            clock.wait_while(&self.upkeep.changed, &mut woken, |woken| !*woken, until);
            *woken = false;
        }
    }

    /// Renews the lease whenever the thread that keeps the session is late with it, until the agent stops.
    fn renew_in_time(&self) {
        let third = self.lease.lasts() / 3;
        let late = self.lease.lasts().saturating_sub(third + third / 4);
        while !self.is_stopped() {
            let is_late = self.lease.left() < late;
            if is_late
                && !self.lease.has_ended()
                && !self.lease.is_unlisted()
                && !self.lease.is_missed()
                && let Some(regaining) = self.upkeep.regaining.try_lock()
                && let Err(error) = self.renew(&regaining)
            {
                tracing::debug!("node {}: its lease is not renewed: {error}", self.options.node);
            }
            let clock = &self.options.wait_clock;
            let until = clock.instant() + (third / 4).min(self.options.poll);
            let goes_on = |_: &mut bool| !self.is_stopped();
            clock.wait_while(&self.upkeep.changed, &mut self.upkeep.woken.lock(), goes_on, until);
        }
    }

    /// Renews the lease; `false` if it is over, or if the store may have forgotten it.
    fn renew(&self, _regaining: &MutexGuard<'_, ()>) -> Result<bool> {
        if self.lease.is_unlisted() {
            return Err(StoreError::Unusable(self.registry.what_is_elsewhere()));
        }
        if let Some(place) = self.lease.missed_in() {
            return Err(not_found(place));
        }
        let sent = self.options.clock.boot_instant();
        let asserted = *self.upkeep.asserted.lock();
        let renewed = self.store.renew(self.session, asserted, self.lease_ms())?;
        if renewed {
            // The lease had not expired by the store's clock, so nobody took anything away, whatever this node's clock
            // says.
            self.holds_since(sent);
        }
        Ok(renewed)
    }

    /// Joins the members.
    pub(super) fn join(&self) -> Result<()> {
        for _ in 0..RACES {
            let roll = self.roll.refresh()?;
            let mut members = roll.members.clone();
            members.join(self.session, roll.epoch);
            let sent = self.options.clock.boot_instant();
            if self.store.swap_members(&roll, &members, self.new_lease())? {
                *self.upkeep.asserted.lock() = roll.epoch;
                self.holds_since(sent);
                return self.confirm();
            }
        }
        Err(busy())
    }

    /// Ends the session, which no longer holds anything.
    pub(super) fn end_session(&self) -> Result<()> {
        remove(&*self.store, self.session, Lease::Ends(self.session))
    }

    /// Renews the lease, and does whatever else is due.
    pub(super) fn keep(&self) -> Result<()> {
        if self.lease.has_ended() {
            return Ok(());
        }
        if self.lease.is_unlisted() || self.lease.is_missed() {
            self.check_list()?;
        }
        if self.lease.missed_in() == Some(Where::Store)
            && !self.is_member(&*self.roll.refresh()?)?
        {
            return Ok(());
        }
        let asserted = *self.upkeep.asserted.lock();
        let renewed = self.renew(&self.upkeep.regaining.lock())?;
        // After the renewal, because this may wait for the origin.
        self.check_list()?;
        if self.lease.has_ended() {
            return Ok(());
        }
        if renewed {
            let roll = self.roll.known();
            // After the renewal, because this may wait for a server that does not answer. In that case, too, the known
            // members may be stale, or wait to be confirmed.
            let changed = self.store.note_changes().unwrap_or_else(|error| {
                tracing::debug!("node {}: {error}", self.options.node);
                true
            });
            if !changed && roll.members.grants(roll.epoch) && roll.epoch == asserted {
                return Ok(());
            }
        }
        let roll = self.roll.refresh()?;
        if !self.is_member(&roll)? {
            return Ok(());
        }
        if roll.epoch != asserted {
            add(&self.counters.epochs);
            self.assert()?;
        } else if !self.lease.runs() {
            self.rejoin()?;
        }
        self.confirm()
    }

    /// Checks that the list of sessions is where it was, and contains this session. If somebody renames or removes that
    /// directory, the next node begins another list, without this session. And whoever ends a session removes it from
    /// the list before the store forgets it, so an ended session may just have regained its lease.
    fn check_list(&self) -> Result<()> {
        match self.registry.presence_of(self.session) {
            Ok(presence) => self.is_listed(presence).map(drop),
            // The origin does not answer, so nobody can begin another list there either.
            Err(error) => {
                tracing::debug!("the list of sessions cannot be looked at: {error}");
                Ok(())
            }
        }
    }

    /// Whether the list contains this session, given where it was just found; `false` if the session has ended. A file
    /// system of several servers may miss a name for a moment, and an end cannot be undone: a missed session begins
    /// nothing, and a second look some time later decides.
    fn is_listed(&self, presence: Presence) -> Result<bool> {
        match presence {
            Presence::Here => {
                self.lease.note_found(Where::List);
                Ok(true)
            }
            Presence::Unlisted => self.miss(Where::List),
            Presence::Elsewhere => {
                let what = self.registry.what_is_elsewhere();
                if !self.lease.set_unlisted(true) {
                    tracing::error!("node {} stops: {what}", self.options.node);
                }
                Err(StoreError::Unusable(what))
            }
        }
    }

    /// As [`Shared::is_listed`], but the answer must not be put off.
    fn is_found(&self) -> Result<bool> {
        let presence = self.registry.presence_of(self.session).map_err(|error| {
            StoreError::NoAnswer(format!("the list of sessions cannot be looked at: {error}"))
        })?;
        self.is_listed(presence)
    }

    /// The session was not found in a place: an error at first, and the end of the session if it is still missing some
    /// time later.
    fn miss(&self, place: Where) -> Result<bool> {
        let missed = self.lease.note_missed(place);
        if missed.is_zero() {
            tracing::warn!("node {} does not find itself {place}", self.options.node);
        }
        if missed < self.options.poll {
            return Err(not_found(place));
        }
        self.end();
        Ok(false)
    }

    /// Whether the session is a member, or must first assert what it holds in a new epoch; `false` if the session has
    /// ended. As with the list, one look alone does not decide.
    fn is_member(&self, roll: &Roll) -> Result<bool> {
        let is_old = roll.epoch != *self.upkeep.asserted.lock();
        if is_old || roll.members.life(self.session).is_some() {
            self.lease.note_found(Where::Store);
            return Ok(true);
        }
        self.miss(Where::Store)
    }

    /// Others have ended the session.
    fn end(&self) {
        tracing::error!("node {} was recovered or given up by others", self.options.node);
        self.lease.end();
    }

    /// The lease has expired by the store's clock, or may have.
    fn rejoin(&self) -> Result<()> {
        let _regaining = self.upkeep.regaining.lock();
        self.drop_what_is_unsure()?;
        for _ in 0..RACES {
            let roll = self.roll.refresh()?;
            let mut members = roll.members.clone();
            if roll.epoch != *self.upkeep.asserted.lock() {
                self.upkeep.wake();
                return Ok(());
            }
            if !members.renew(self.session, roll.epoch) {
                if self.is_member(&roll)? {
                    self.end();
                }
                return Ok(());
            }
            let sent = self.options.clock.boot_instant();
            if self.store.swap_members(&roll, &members, self.new_lease())? {
                self.roll.refresh()?;
                self.holds_since(sent);
                return Ok(());
            }
        }
        Err(busy())
    }

    /// The lease lapsed, so others may have changed whatever was not held exclusively.
    fn drop_what_is_unsure(&self) -> Result<()> {
        // No permit begins meanwhile, and answers to earlier requests are ignored.
        self.lease.lapse();
        add(&self.counters.lapses);
        let files: Vec<_> = self.files.lock().values().cloned().collect();
        // A file that cannot be dropped yet must not hold up the others.
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
        // In the new epoch there is no lease until the registry is read, at the end.
        let _regaining = self.upkeep.regaining.lock();
        // If the lease was still valid when the new epoch was seen, nobody can have taken anything away.
        if !self.lease.runs() {
            self.drop_what_is_unsure()?;
        }
        let _changes = self.changes.write();
        for _ in 0..RACES {
            let roll = self.roll.refresh()?;
            if !self.is_found()? {
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
                *self.upkeep.asserted.lock() = roll.epoch;
                self.roll.refresh()?;
                // A node that gives up a session removes it from the registry first.
                if !self.is_found()? {
                    return Ok(());
                }
                self.holds_since(sent);
                return Ok(());
            }
        }
        Err(busy())
    }

    /// Allows tokens to be granted if all sessions of the registry have asserted what they hold.
    pub(super) fn confirm(&self) -> Result<()> {
        self.check_list()?;
        for _ in 0..RACES {
            let roll = self.roll.refresh()?;
            if roll.members.grants(roll.epoch) {
                *self.upkeep.obstacle.lock() = None;
                return Ok(());
            }
            // Read after the members: every member is in the registry, or was.
            let registry = self.registry.sessions().map_err(unregistered)?;
            let mut members = roll.members.clone();
            if let Err(missing) = members.confirm(roll.epoch, &registry) {
                *self.upkeep.obstacle.lock() = Some(self.waits_for(&missing));
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

    /// Notes the lease that was obtained by a request sent at `sent`.
    fn holds_since(&self, sent: Instant) {
        if let Some(left) = self.lease.hold_since(sent) {
            self.counters.note_left(left);
        }
    }

    fn new_lease(&self) -> Lease {
        Lease::Runs(self.session, self.lease_ms())
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

fn not_found(place: Where) -> StoreError {
    StoreError::NoAnswer(format!("this node was not found {place}, and looks again"))
}

fn busy() -> StoreError {
    StoreError::NoAnswer("others change the members all the time".to_owned())
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn unregistered(error: halocline_os::error::Error) -> StoreError {
    StoreError::NoAnswer(format!("the list of sessions on the origin cannot be read: {error}"))
}
