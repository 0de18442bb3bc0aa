//! The session among the members: its lease, whether it is one of them still, and why requests wait. It knows of no
//! files: what lapses and is asserted with the lease is in [`super::upkeep`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use halocline_model::token::{Epoch, Session};
use halocline_os::clock::Clock;
use halocline_os::error::Error;
use parking_lot::{Condvar, Mutex};

use super::Options;
use super::lease::{OwnLease, Where};
use super::roll::LatestRoll;
use crate::counters::Counters;
use crate::registry::{Presence, Registry};
use crate::store::{Lease, Result, Roll, Store, StoreError};

/// Lost races after which a change of the members is postponed.
const RACES: u32 = 64;
/// The most sessions that a message names.
const NAMED: usize = 3;

/// This session as one of the members.
pub(super) struct OwnSession {
    session: Session,
    /// The node's name.
    node: String,
    store: Arc<dyn Store>,
    registry: Arc<Registry>,
    counters: Arc<Counters>,
    clock: Clock,
    /// The duration of a lease.
    duration: Duration,
    /// How long the session may be missing in a place before it counts as ended.
    missing_max: Duration,
    /// The session's lease.
    pub(super) lease: OwnLease,
    /// The members.
    pub(super) roll: LatestRoll,
    /// The last epoch in which this session asserted what it holds.
    asserted: Mutex<Epoch>,
    /// Why nothing is granted, if nothing is.
    obstacle: Mutex<Option<String>>,
    /// Whether something is to be done at once.
    woken: Mutex<bool>,
    changed: Condvar,
}

/// What the threads that keep the session wait for.
impl OwnSession {
    /// A session that holds nothing yet and is no member yet; `roll` was just read.
    pub(super) fn new(
        options: &Options,
        session: Session,
        (store, registry): (&Arc<dyn Store>, &Arc<Registry>),
        counters: &Arc<Counters>,
        roll: Roll,
    ) -> Self {
        Self {
            session,
            node: options.node.clone(),
            registry: Arc::clone(registry),
            counters: Arc::clone(counters),
            clock: options.clock.clone(),
            duration: options.lease,
            missing_max: options.poll,
            lease: OwnLease::new(options),
            asserted: Mutex::new(roll.epoch),
            roll: LatestRoll::new(store, &options.clock, roll),
            store: Arc::clone(store),
            obstacle: Mutex::default(),
            woken: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// The node's name.
    pub(super) fn node(&self) -> &str {
        &self.node
    }

    /// Wakes the thread that keeps the session, because the lease is needed or the store's epoch has changed.
    pub(super) fn wake(&self) {
        *self.woken.lock() = true;
        self.changed.notify_all();
    }

    /// Waits until `wake` is called, or has been since the last wait, or until `until`.
    pub(super) fn wait_woken(&self, clock: &Clock, until: Instant) {
        let mut woken = self.woken.lock();
        clock.wait_while(&self.changed, &mut woken, |woken| !*woken, until);
        *woken = false;
    }

    /// Waits until `until`, or until `is_over` when `wake` is called.
    pub(super) fn wait_until(&self, clock: &Clock, until: Instant, is_over: impl Fn() -> bool) {
        clock.wait_while(&self.changed, &mut self.woken.lock(), |_| !is_over(), until);
    }

    /// Notes why requests do not proceed.
    pub(super) fn note_obstacle(&self, why: String) {
        *self.obstacle.lock() = Some(why);
    }

    /// Why requests do not proceed.
    pub(super) fn why(&self) -> String {
        self.obstacle.lock().clone().unwrap_or_else(|| "it could not be renewed in time".to_owned())
    }

    /// Whether the node may continue what it does under its lease; says why it may not.
    pub(super) fn check_lease(&self) -> halocline_os::error::Result<()> {
        if self.lease.has_ended() {
            return Err(Error::Cluster {
                what: format!("node {} was recovered or given up by others", self.node),
                remedy: "unmount it and mount again".to_owned(),
            });
        }
        if self.lease.runs() {
            return Ok(());
        }
        if self.lease.is_unlisted() {
            return Err(Error::Cluster {
                what: format!(
                    "node {} has stopped: {}",
                    self.node,
                    self.registry.what_is_elsewhere()
                ),
                remedy: "it goes on by itself when the list is back; until then other nodes may not see this one"
                    .to_owned(),
            });
        }
        if let Some(place) = self.lease.missed_in() {
            return Err(Error::Cluster {
                what: format!("node {} was not found {place}, and looks again", self.node),
                remedy: "it goes on by itself if it is there; else others have recovered it or given it up"
                    .to_owned(),
            });
        }
        Err(Error::Cluster {
            what: format!("the lease of node {} is over: {}", self.node, self.why()),
            remedy: "it goes on by itself when the store answers again".to_owned(),
        })
    }
}

/// Renewals.
impl OwnSession {
    /// Renews the lease; `false` if it is over, or if the store may have forgotten it.
    pub(super) fn renew(&self) -> Result<bool> {
        if self.lease.is_unlisted() {
            return Err(StoreError::Unusable(self.registry.what_is_elsewhere()));
        }
        if let Some(place) = self.lease.missed_in() {
            return Err(not_found(place));
        }
        let sent = self.clock.boot_instant();
        let renewed = self.store.renew(self.session, self.asserted(), self.lease_ms())?;
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
            let sent = self.clock.boot_instant();
            if self.store.swap_members(&roll, &members, self.new_lease())? {
                *self.asserted.lock() = roll.epoch;
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

    /// The last epoch in which this session asserted what it holds.
    pub(super) fn asserted(&self) -> Epoch {
        *self.asserted.lock()
    }

    /// Whether the members may have changed since they were read last. They may where a server does not answer.
    pub(super) fn may_have_changed(&self) -> bool {
        self.store.note_changes().unwrap_or_else(|error| {
            tracing::debug!("node {}: {error}", self.node);
            true
        })
    }

    /// Whether the session can hold a lease still; `false` if it has ended. The list and the store may have missed it.
    pub(super) fn is_there_still(&self) -> Result<bool> {
        if self.lease.has_ended() {
            return Ok(false);
        }
        if self.lease.is_unlisted() || self.lease.is_missed() {
            self.check_list()?;
        }
        let is_missed = self.lease.missed_in() == Some(Where::Store);
        Ok(!is_missed || self.is_member(&*self.roll.refresh()?)?)
    }

    /// Checks that the list of sessions is where it was, and contains this session. If somebody renames or removes that
    /// directory, the next node begins another list, without this session. And whoever ends a session removes it from
    /// the list before the store forgets it, so an ended session may just have regained its lease.
    pub(super) fn check_list(&self) -> Result<()> {
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
                    tracing::error!("node {} stops: {what}", self.node);
                }
                Err(StoreError::Unusable(what))
            }
        }
    }

    /// As [`OwnSession::is_listed`], but the answer must not be put off.
    pub(super) fn is_found(&self) -> Result<bool> {
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
            tracing::warn!("node {} does not find itself {place}", self.node);
        }
        if missed < self.missing_max {
            return Err(not_found(place));
        }
        self.end();
        Ok(false)
    }

    /// Whether the session is a member, or must first assert what it holds in a new epoch; `false` if the session has
    /// ended. As with the list, one look alone does not decide.
    pub(super) fn is_member(&self, roll: &Roll) -> Result<bool> {
        let is_old = roll.epoch != self.asserted();
        if is_old || roll.members.life(self.session).is_some() {
            self.lease.note_found(Where::Store);
            return Ok(true);
        }
        self.miss(Where::Store)
    }

    /// Others have ended the session.
    fn end(&self) {
        tracing::error!("node {} was recovered or given up by others", self.node);
        self.lease.end();
    }

    /// Gets a new lease after one that has expired by the store's clock, or may have: everything uncertain is dropped.
    pub(super) fn rejoin(&self) -> Result<()> {
        for _ in 0..RACES {
            let roll = self.roll.refresh()?;
            let mut members = roll.members.clone();
            if roll.epoch != self.asserted() {
                self.wake();
                return Ok(());
            }
            if !members.renew(self.session, roll.epoch) {
                if self.is_member(&roll)? {
                    self.end();
                }
                return Ok(());
            }
            let sent = self.clock.boot_instant();
            if self.store.swap_members(&roll, &members, self.new_lease())? {
                self.roll.refresh()?;
                self.holds_since(sent);
                return Ok(());
            }
        }
        Err(busy())
    }

    /// Asserts what the session holds: `assert` does it file by file, in the epoch of the roll that it is given, and says
    /// whether that was the epoch still.
    pub(super) fn assert(&self, assert: impl Fn(&Roll) -> Result<bool>) -> Result<()> {
        for _ in 0..RACES {
            let roll = self.roll.refresh()?;
            if !self.is_found()? {
                return Ok(());
            }
            if !assert(&roll)? {
                continue;
            }
            let mut members = roll.members.clone();
            members.assert(self.session, roll.epoch);
            let sent = self.clock.boot_instant();
            if self.store.swap_members(&roll, &members, self.new_lease())? {
                *self.asserted.lock() = roll.epoch;
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

    /// A roll under which tokens are granted, or the latest one.
    pub(super) fn confirmed(&self) -> Result<Arc<Roll>> {
        let roll = self.roll.known();
        if roll.members.grants(roll.epoch) {
            return Ok(roll);
        }
        let roll = self.roll.refresh()?;
        if roll.epoch != self.asserted() {
            self.wake();
        } else if !roll.members.grants(roll.epoch) {
            self.confirm()?;
        }
        Ok(self.roll.known())
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
        u64::try_from(self.duration.as_millis()).unwrap_or(u64::MAX)
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
fn unregistered(error: Error) -> StoreError {
    StoreError::NoAnswer(format!("the list of sessions on the origin cannot be read: {error}"))
}
