//! Requests a token from the store, once.

use std::collections::BTreeSet;
use std::time::Instant;

use halocline_cache::coherence::{Grant, Want};
use halocline_model::request::ByteRange;
use halocline_model::token::{Answer, Demand, Held, Mode, Session, Tokens};
use halocline_os::error::{Error, Result};

use super::super::cluster_error;
use super::explaining::bytes;
use super::stored_tokens::begin_versions;
use super::{Attempt, File};
use crate::counters::add;
use crate::store::{Reading, StoreError, Swap};

/// Lost races after which a request takes a pause.
const RACES: u32 = 16;
/// At every nth poll of the store: checks whether the holders in the way are still alive, and reminds them.
const CHECK_EVERY: u32 = 4;
/// The whole file: desired beyond what is required, as far as it is free.
const ALL: ByteRange = ByteRange::new(0, u64::MAX);

/// One attempt of a request to get its token.
pub(super) struct Asking<'f> {
    pub(super) file: &'f File,
    pub(super) want: Want,
    /// The request's attempts before this one.
    pub(super) attempts: u32,
}

impl Asking<'_> {
    /// Tries to get a permit, with the store's help.
    pub(super) fn attempt(&self, deadline: Instant) -> Result<Attempt> {
        let (file, want) = (self.file, self.want);
        let shared = &file.shared;
        if let Some(grant) = file.permit(want) {
            return Ok(Attempt::Granted(grant));
        }
        let waits = |what: &str| Ok(Attempt::Waits(what.to_owned()));
        let now = shared.options.clock.boot_instant();
        if !shared.own_session.lease.runs_at(now) {
            if shared.own_session.lease.has_ended() || shared.own_session.lease.is_unlisted() {
                shared.own_session.check_lease()?;
            }
            shared.own_session.wake();
            return Ok(Attempt::Waits(format!("a lease: {}", shared.own_session.why())));
        }
        let (closed, expired) = {
            let pieces = &file.state.lock().pieces;
            (pieces.is_closed(want.range), pieces.expired(want.range, now))
        };
        if closed {
            return waits("bytes that are being brought to the origin for another node");
        }
        if let Some(range) = expired {
            // Perhaps no one else writes there any more.
            file.give(range, None);
        }
        let change = match file.stored.try_begin_change(deadline) {
            Ok(change) => change,
            Err(what) => return waits(what),
        };
        if let Some(grant) = file.permit(want) {
            return Ok(Attempt::Granted(grant));
        }
        match self.ask() {
            Ok(AskOutcome::Granted(Some(grant))) => Ok(Attempt::Granted(grant)),
            Ok(AskOutcome::Granted(None)) => {
                waits("bytes that are being brought to the origin for another node")
            }
            Ok(AskOutcome::GiveFirst(range)) => {
                drop(change);
                // If another thread is already giving it up, or it cannot be given up now, asking again at once would
                // find the same.
                if file.give(range, None) {
                    Ok(Attempt::Again)
                } else {
                    waits("bytes that this node has to bring to the origin first")
                }
            }
            Ok(AskOutcome::Waits(on)) => Ok(Attempt::Waits(on)),
            Ok(AskOutcome::Lost(held)) => Err(self.lost(held)),
            Ok(AskOutcome::Unreadable(held)) => Err(self.unreadable(held)),
            Err(error @ StoreError::NoAnswer(_)) => {
                // The request may have been executed.
                file.state.lock().polls.failure = Some(error.to_string());
                file.stored.forget();
                Ok(Attempt::Waits(error.to_string()))
            }
            Err(error) => Err(cluster_error(error)),
        }
    }

    fn lost(&self, held: Held) -> Error {
        let node = self.file.shared.registry.name(held.session);
        Error::Cluster {
            what: format!(
                "{} of inode {}: {node} is gone and may have newer ones",
                bytes(held.range),
                self.file.id.inode
            ),
            remedy: "recover it: halocline cluster recover ORIGIN NODE --cluster URL".to_owned(),
        }
    }

    fn unreadable(&self, held: Held) -> Error {
        let node = self.file.shared.registry.name(held.session);
        Error::Cluster {
            what: format!(
                "{} of inode {}: {node} has newer ones and cannot read them from its cache",
                bytes(held.range),
                self.file.id.inode
            ),
            remedy: "see `halocline status` there; if that cache is lost, end its mount (halocline umount --force), and \
                     give up what only it had: halocline cluster forget ORIGIN NODE --cluster URL"
                .to_owned(),
        }
    }

    fn ask(&self) -> Result<AskOutcome, StoreError> {
        let Self { file, want, attempts } = *self;
        let (shared, session) = (&file.shared, file.shared.session);
        let lapses = shared.own_session.lease.lapses();
        let partition = shared.store.partition(file.id);
        let Want { direction, range: required, alone, .. } = want;
        let demand = Demand { direction, required, desired: ALL, alone };
        let mut roll = shared.own_session.confirmed()?;
        // A waiting request polls the store, unless another one of this node has just done so.
        let (messages, poll) = {
            let now = shared.options.wait_clock.instant();
            let is_known = file.stored.is_known();
            let mut state = file.state.lock();
            let messages = state.messages;
            if attempts > 0 && !state.polls.is_due(messages, now) && !is_known {
                let failure = state.polls.failure.clone();
                return Ok(AskOutcome::Waits(failure.unwrap_or_else(|| "the store".to_owned())));
            }
            let is_due = attempts > 0 && state.polls.is_due(messages, now);
            (messages, is_due.then(|| state.polls.begin_poll(messages, now, shared.options.poll)))
        };
        // The value last seen is a guess, which the store accepts if it is right.
        let mut value = match file.stored.guess(roll.partitions[partition]) {
            _ if poll.is_some() => shared.store.read(file.id)?.tokens,
            Some(tokens) => tokens,
            None => Tokens::new(roll.partitions[partition]),
        };
        if poll.is_some_and(|count| count % CHECK_EVERY == 0) {
            roll = if shared.own_session.lease.is_settled() {
                shared.own_session.roll.declare_gone(&value, session, &shared.registry)?
            } else {
                shared.own_session.roll.refresh()?
            };
        }
        for _ in 0..RACES {
            roll = shared.own_session.roll.knowing(roll, &value)?;
            if !roll.members.grants(roll.epoch) {
                return Ok(AskOutcome::Waits(shared.own_session.why()));
            }
            let mut new = value.clone();
            let active = file.state.lock().active.clone();
            new.forget_vain(session, &active, roll.partitions[partition]);
            let epoch = (roll.partitions[partition], &roll.members);
            let answer = new.ask(session, demand, epoch, shared.own_session.roll.now_ms());
            if let (Answer::Waits(on), true) = (&answer, value.has_same_queue(&new)) {
                if let Some(count) = poll {
                    self.tell_again(value.in_the_way_of(session), count);
                }
                file.note_value(value);
                return Ok(self.waits(on));
            }
            begin_versions(shared.session, &value, &mut new);
            if let Answer::Granted(held) = &answer
                && let Some(range) = file.state.lock().pieces.to_give_first(held)
            {
                return Ok(AskOutcome::GiveFirst(range));
            }
            add(&shared.counters.asked);
            match shared.store.swap(file.id, value.version, &new)? {
                Swap::Taken => return Ok(self.answered(&answer, new, (lapses, messages))),
                Swap::Other(Reading { epoch, .. }) if epoch != roll.partitions[partition] => {
                    shared.own_session.wake();
                    return Ok(AskOutcome::Waits("the nodes to say what they hold".to_owned()));
                }
                Swap::Other(reading) => value = reading.tokens,
            }
        }
        file.note_value(value);
        Ok(AskOutcome::Waits("the store, which others change at the same time".to_owned()))
    }

    /// Acts on the answer to a change that the store accepted.
    fn answered(&self, answer: &Answer, new: Tokens, (lapses, messages): (u64, u64)) -> AskOutcome {
        let (file, want) = (self.file, self.want);
        let shared = &file.shared;
        let asked = match answer {
            Answer::Waits(on) => {
                file.state.lock().polls.begin(messages, shared.options.wait_clock.instant());
                file.stored.tell(new.in_the_way_of(shared.session));
                self.waits(on)
            }
            Answer::Lost(held) => AskOutcome::Lost(*held),
            Answer::Unreadable(held) => AskOutcome::Unreadable(*held),
            Answer::Granted(held) => {
                let now = shared.options.clock.boot_instant();
                let mut state = file.state.lock();
                // If the lease lapsed since the request, only the store knows of the token: this node gives it up when
                // others want it, or gets it granted again.
                let is_sure = shared.own_session.lease.runs_at(now)
                    && shared.own_session.lease.lapses() == lapses;
                if is_sure {
                    state.pieces.install(held, now);
                }
                if held.iter().any(|held| held.mode == Mode::Direct) {
                    add(&shared.counters.direct);
                }
                // Under the same lock, so that a waiting request uses its token before others take it away.
                let permit = if is_sure { state.pieces.permit(want, now) } else { None };
                AskOutcome::Granted(permit)
            }
        };
        let mut state = file.state.lock();
        state.wanted = new.wanted_from(shared.session).is_some();
        if state.wanted {
            shared.queue.push(file.id);
        }
        drop(state);
        file.note_value(new);
        asked
    }

    /// Notifies sessions again on behalf of all requests of this node: earlier messages may be lost, or not be heard.
    fn tell_again(&self, sessions: BTreeSet<Session>, polls: u32) {
        if polls.is_multiple_of(CHECK_EVERY) {
            self.file.stored.remind(sessions);
        } else {
            self.file.stored.tell(sessions);
        }
    }

    fn waits(&self, on: &[Held]) -> AskOutcome {
        let first = on.iter().map(|held| held.session).min();
        AskOutcome::Waits(first.map_or_else(
            || "others that came earlier".to_owned(),
            |first| self.file.shared.registry.name(first),
        ))
    }
}

enum AskOutcome {
    /// The token is held; no permit if it is being given up right now.
    Granted(Option<Grant>),
    Waits(String),
    /// This node must first give up what it holds there: cached bytes became contended, or contended ones cacheable.
    GiveFirst(ByteRange),
    Lost(Held),
    Unreadable(Held),
}
