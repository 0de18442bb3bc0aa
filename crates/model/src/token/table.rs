//! The tokens of one file: who holds which bytes, and who waits for which.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::unreadable::{Unreadable, UnreadableBytes};
use super::{Demand, Epoch, Heat, Held, Life, Members, Mode, REGION, Session, border};
use crate::request::{ByteRange, Direction};

/// With more tokens and waiters than this, a file is treated as contended, whatever their ranges.
pub(crate) const CROWD: usize = 1024;

/// Limit of the tokens and waiters of one file: ten of each of 10,000 nodes.
const TOKENS_MAX: usize = 100_000;

/// The tokens of one file. A change is computed with the members in the store; the store accepts it if its version and
/// epoch are still those from which it was computed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Tokens {
    /// Number of changes.
    pub version: u64,
    epoch: Epoch,
    held: Vec<Held>,
    /// In order of arrival.
    waiting: Vec<QueuedRequest>,
    heat: Heat,
    #[serde(default, skip_serializing_if = "UnreadableBytes::is_empty")]
    unreadable: UnreadableBytes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct QueuedRequest {
    session: Session,
    direction: Direction,
    range: ByteRange,
    /// The mode to be granted: in a contended range even a reader needs all cached bytes to be given up.
    mode: Mode,
}

impl QueuedRequest {
    fn is(&self, session: Session, direction: Direction, range: ByteRange) -> bool {
        (self.session, self.direction, self.range) == (session, direction, range)
    }

    fn is_in_vain(&self, session: Session, active: &[(Direction, ByteRange)]) -> bool {
        self.session == session && !active.contains(&(self.direction, self.range))
    }
}

/// The answer to a demand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The session holds what it requires; this is everything that it holds in the file.
    Granted(Vec<Held>),
    /// The session is in the queue. These holders must give up these ranges; the list is empty if only earlier
    /// sessions in the queue are in the way.
    Waits(Vec<Held>),
    /// A dead session may have dirty bytes there: an error until it is recovered.
    Lost(Held),
    /// A live session has dirty bytes there, which it could not read from its cache: an error, until it can, or until
    /// it was ended and given up.
    Unreadable(Held),
}

impl Tokens {
    /// For a file that no one uses.
    #[must_use]
    pub const fn new(epoch: Epoch) -> Self {
        Self {
            version: 0,
            epoch,
            held: Vec::new(),
            waiting: Vec::new(),
            heat: Heat::NONE,
            unreadable: UnreadableBytes::NONE,
        }
    }

    /// A session requests a token at `now_ms` of the store's clock. Repeating a request is harmless: a waiting session
    /// keeps its place, and a holder gets a confirmation.
    pub fn ask(
        &mut self,
        session: Session,
        demand: Demand,
        (epoch, members): (Epoch, &Members),
        now_ms: u64,
    ) -> Answer {
        self.begin(epoch);
        self.drop_void(members);
        let Demand { required, mut desired, alone, .. } = demand;
        let direction = if alone { Direction::Write } else { demand.direction };
        let enough = |mode: Mode| mode.allows(direction) && !(alone && mode == Mode::Direct);
        let gaps = self.missing(session, enough, required);
        if gaps.is_empty() {
            self.leave_queue(session, direction, required);
            return Answer::Granted(self.of(session));
        }
        let mut mode = match direction {
            Direction::Read => Mode::Shared,
            Direction::Write => Mode::Exclusive,
        };
        if self.heat.is_contended(required, now_ms) || self.is_crowded() {
            if alone {
                // The other sessions will want it back at once.
                desired = required;
            } else {
                mode = Mode::Direct;
                desired = required.widen_to(REGION);
            }
        }
        let in_the_way: Vec<Held> = self
            .conflicting(session, mode)
            .flat_map(|held| {
                let cut = move |gap: &ByteRange| {
                    held.range.intersect(*gap).map(|range| Held { range, ..held })
                };
                gaps.iter().filter_map(cut)
            })
            .collect();
        let is_gone = |held: &&Held| members.life(held.session) == Some(Life::Gone);
        if let Some(lost) = in_the_way.iter().find(is_gone) {
            self.leave_queue(session, direction, required);
            return Answer::Lost(*lost);
        }
        if let Some(unreadable) = self.unreadable.first_of(&in_the_way, now_ms) {
            self.leave_queue(session, direction, required);
            return Answer::Unreadable(unreadable);
        }
        if !in_the_way.is_empty() || self.others_come_first(session, mode, direction, required) {
            let is_new = self.queue(QueuedRequest { session, direction, range: required, mode });
            if is_new && !in_the_way.is_empty() {
                self.heat.note_handover(required, now_ms);
            }
            return Answer::Waits(in_the_way);
        }
        self.leave_queue(session, direction, required);
        let granted = self.widened(session, mode, required, desired);
        let least = if mode == Mode::Shared { Direction::Read } else { Direction::Write };
        let parts = self.missing(session, |mode| enough(mode) && mode.allows(least), granted);
        // Where the session has a token that is enough, others may have one of that mode, too: it stays. A reader of what
        // became contended beside such bytes may not write to them past the others' caches.
        let taken: Vec<Held> = self.conflicting(session, mode).collect();
        let parts = taken.iter().fold(parts, |parts, held| {
            parts.into_iter().flat_map(|part| part.without(held.range)).collect()
        });
        self.set(session, mode, &parts);
        assert!(self.missing(session, enough, required).is_empty(), "all that was asked for");
        Answer::Granted(self.of(session))
    }

    /// A session gives up `range`, whose dirty bytes are on the origin and of which nothing is cached, or keeps
    /// `Shared` where it held `Exclusive`. Tokens that it only seemed to hold are removed, too.
    pub fn give_up(
        &mut self,
        session: Session,
        range: ByteRange,
        keep: Option<Mode>,
        epoch: Epoch,
    ) {
        self.begin(epoch);
        let (mine, others): (Vec<Held>, Vec<Held>) =
            self.held.drain(..).partition(|held| held.session == session);
        self.held = others;
        for held in mine {
            for outside in held.range.without(range) {
                self.held.push(Held { range: outside, ..held });
            }
            if let (Some(inside), Some(mode)) = (held.range.intersect(range), keep) {
                // Giving up never extends a token.
                let mode = if held.mode == Mode::Exclusive { mode } else { held.mode };
                self.held.push(Held { mode, range: inside, ..held });
            }
        }
        self.unreadable.cut(session, range);
        self.tidy();
    }

    /// A session tried to give up `tried` and could not read `ranges` of it from its cache, at `now_ms` of the store's
    /// clock. It keeps its token.
    pub fn note_unreadable(
        &mut self,
        session: Session,
        (tried, ranges): (ByteRange, &[ByteRange]),
        epoch: Epoch,
        now_ms: u64,
    ) {
        self.begin(epoch);
        self.unreadable.note(session, tried, ranges, now_ms);
        self.tidy();
    }

    /// What sessions could not read when they were last asked for it.
    #[must_use]
    pub fn unreadable(&self) -> &[Unreadable] {
        self.unreadable.all()
    }

    /// Replaces a session's tokens by those that it reports: at the beginning of an epoch, or after its lease lapsed.
    pub fn assert(&mut self, session: Session, holds: &[Held], epoch: Epoch) {
        self.begin(epoch);
        self.held.retain(|held| held.session != session);
        self.waiting.retain(|waiting| waiting.session != session);
        // Asked again, it tries again.
        self.unreadable.forget(session);
        self.held.extend(holds.iter().map(|held| Held { session, ..*held }));
        self.tidy();
    }

    /// What `session` must give up now because others wait for it, and the mode that it may keep.
    #[must_use]
    pub fn wanted_from(&self, session: Session) -> Option<(ByteRange, Option<Mode>)> {
        // In queue order, and only what no one else must give up first: if a session gave up something that is of no
        // use to anyone yet, it would only have to fetch it again.
        self.waiting.iter().find_map(|waiting| {
            if waiting.session == session {
                return None;
            }
            let in_the_way = |held: &&Held| {
                held.session == session
                    && held.range.overlaps(waiting.range)
                    && held.mode.conflicts(waiting.mode)
            };
            let held = self.held.iter().find(in_the_way)?;
            let keep = match waiting.mode {
                Mode::Shared if held.mode == Mode::Exclusive => Some(Mode::Shared),
                _ => None,
            };
            Some((held.range.intersect(waiting.range)?, keep))
        })
    }

    /// Whether a session is in the queue for something other than what it waits for now (`active`). It stays in the
    /// queue if it got what it waited for through another demand, or stopped waiting while the store did not answer.
    #[must_use]
    pub fn waits_in_vain(&self, session: Session, active: &[(Direction, ByteRange)]) -> bool {
        self.waiting.iter().any(|waiting| waiting.is_in_vain(session, active))
    }

    /// Removes entries from the queue for which [`waits_in_vain`](Self::waits_in_vain) is true.
    pub fn forget_vain(
        &mut self,
        session: Session,
        active: &[(Direction, ByteRange)],
        epoch: Epoch,
    ) {
        self.begin(epoch);
        self.waiting.retain(|waiting| !waiting.is_in_vain(session, active));
    }

    /// Ends all contention: the next session that asks may cache again.
    pub fn calm(&mut self) {
        self.heat = Heat::NONE;
    }

    /// Whether `range` changes hands so often that no one caches there.
    #[must_use]
    pub fn is_contended(&self, range: ByteRange, now_ms: u64) -> bool {
        self.heat.is_contended(range, now_ms) || self.is_crowded()
    }

    /// Whether the same sessions wait for the same tokens in both values.
    #[must_use]
    pub fn has_same_queue(&self, other: &Self) -> bool {
        self.waiting == other.waiting
    }

    /// The sessions that wait, in the order of their arrival.
    pub fn waiters(&self) -> impl Iterator<Item = Session> {
        self.waiting.iter().map(|waiting| waiting.session)
    }

    /// The sessions that have what `session` waits for, or wait for the same and came earlier.
    #[must_use]
    pub fn in_the_way_of(&self, session: Session) -> BTreeSet<Session> {
        let mine = self.waiting.iter().enumerate().filter(|(_, own)| own.session == session);
        mine.flat_map(|(at, own)| {
            let holds = self
                .conflicting(session, own.mode)
                .filter(|held| held.range.overlaps(own.range))
                .map(|held| held.session);
            let ahead = self.waiting[..at].iter().filter(|other| {
                other.session != session
                    && other.range.overlaps(own.range)
                    && other.mode.conflicts(own.mode)
            });
            holds.chain(ahead.map(|other| other.session))
        })
        .collect()
    }

    /// The epoch of the store to which this value belongs.
    #[must_use]
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Whether the functions here can have made this value: a store's answer may contain anything.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let is_ordered = self.held.windows(2).all(|pair| {
            pair[0].session < pair[1].session
                || (pair[0].session == pair[1].session && pair[0].range.end <= pair[1].range.start)
        });
        let is_filled = self.held.iter().all(|held| !held.range.is_empty());
        let is_counted = self.version < u64::MAX / 2;
        let is_small = self.held.len() + self.waiting.len() <= TOKENS_MAX;
        let parts_are_sound = self.heat.is_sound() && self.unreadable.is_sound();
        is_ordered && is_filled && is_counted && is_small && parts_are_sound
    }

    /// Whether this value says no more than an empty one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty() && self.waiting.is_empty()
    }

    /// What `session` holds.
    #[must_use]
    pub fn of(&self, session: Session) -> Vec<Held> {
        self.held.iter().filter(|held| held.session == session).copied().collect()
    }

    /// All tokens.
    #[must_use]
    pub fn all(&self) -> &[Held] {
        &self.held
    }

    /// Every change makes a new version. The first change of an epoch drops what was stored in earlier ones: sessions
    /// report again what is still valid.
    fn begin(&mut self, epoch: Epoch) {
        self.version += 1;
        if self.epoch != epoch {
            let version = self.version;
            *self = Self { version, ..Self::new(epoch) };
        }
    }

    /// Drops tokens of sessions that do not exist, except those that may cover dirty bytes.
    fn drop_void(&mut self, members: &Members) {
        self.held.retain(|held| match members.life(held.session) {
            Some(Life::Live) => true,
            Some(Life::Gone) => held.mode == Mode::Exclusive,
            None => false,
        });
        self.waiting.retain(|waiting| members.life(waiting.session) == Some(Life::Live));
        self.unreadable.tidy(&self.held);
    }

    fn is_crowded(&self) -> bool {
        self.held.len() + self.waiting.len() >= CROWD
    }

    /// Parts of `range` for which `session` has no token of a sufficient mode (`enough`).
    fn missing(
        &self,
        session: Session,
        enough: impl Fn(Mode) -> bool,
        range: ByteRange,
    ) -> Vec<ByteRange> {
        let mine = self.held.iter().filter(|held| held.session == session);
        mine.filter(|held| enough(held.mode)).fold(vec![range], |gaps, held| {
            gaps.into_iter().flat_map(|gap| gap.without(held.range)).collect()
        })
    }

    fn conflicting(&self, session: Session, mode: Mode) -> impl Iterator<Item = Held> {
        let others = self.held.iter().filter(move |held| held.session != session);
        others.filter(move |held| held.mode.conflicts(mode)).copied()
    }

    /// Whether someone has been waiting longer than `session` for something that conflicts with its demand.
    fn others_come_first(
        &self,
        session: Session,
        mode: Mode,
        direction: Direction,
        range: ByteRange,
    ) -> bool {
        let is_mine = |waiting: &&QueuedRequest| waiting.is(session, direction, range);
        self.waiting.iter().take_while(|waiting| !is_mine(waiting)).any(|waiting| {
            waiting.session != session
                && waiting.range.overlaps(range)
                && waiting.mode.conflicts(mode)
        })
    }

    /// Adds a demand to the queue; if the queue is too long, the session must ask again later. Returns whether it was
    /// added.
    fn queue(&mut self, new: QueuedRequest) -> bool {
        let QueuedRequest { session, direction, range, .. } = new;
        let mut known = self.waiting.iter_mut();
        if let Some(known) = known.find(|waiting| waiting.is(session, direction, range)) {
            // It keeps its place: the range became contended meanwhile, or calmed down.
            known.mode = new.mode;
            return false;
        }
        let has_room = self.waiting.len() < CROWD;
        if has_room {
            self.waiting.push(new);
        }
        has_room
    }

    fn leave_queue(&mut self, session: Session, direction: Direction, range: ByteRange) {
        self.waiting.retain(|waiting| !waiting.is(session, direction, range));
    }

    /// As much of `desired` around `required` as no one else holds or waits for. Whoever waits for bytes beyond it will
    /// probably use more around them, so only the bytes up to the border between the two are given: the rest would be
    /// taken away at once.
    fn widened(
        &self,
        session: Session,
        mode: Mode,
        required: ByteRange,
        desired: ByteRange,
    ) -> ByteRange {
        let held = self.conflicting(session, mode).map(|held| held.range);
        let others = self.waiting.iter().filter(|waiting| waiting.session != session);
        let waiting = others.map(|waiting| {
            let wanted = waiting.range;
            ByteRange {
                start: if wanted.start >= required.end {
                    border(required.end, wanted.start)
                } else {
                    wanted.start
                },
                end: if wanted.end <= required.start {
                    border(wanted.end, required.start)
                } else {
                    wanted.end
                },
            }
        });
        let limits = held.chain(waiting);
        let wide = ByteRange {
            start: desired.start.min(required.start),
            end: desired.end.max(required.end),
        };
        limits.fold(wide, |wide, limit| {
            if limit.end <= required.start {
                ByteRange { start: wide.start.max(limit.end), ..wide }
            } else if limit.start >= required.end {
                ByteRange { end: wide.end.min(limit.start), ..wide }
            } else {
                // Within the required range, the session already has what it needs.
                required
            }
        })
    }

    /// Gives `session` `mode` over these parts, in place of what it had there.
    fn set(&mut self, session: Session, mode: Mode, parts: &[ByteRange]) {
        for &gap in parts {
            // Of the dead, too, if they may have dirty bytes there.
            let is_taken = self.conflicting(session, mode).any(|held| held.range.overlaps(gap));
            assert!(!is_taken, "I11, I13: a token for bytes that another session has");
            let (mine, others): (Vec<Held>, Vec<Held>) =
                self.held.drain(..).partition(|held| held.session == session);
            self.held = others;
            for held in mine {
                let outside = held.range.without(gap);
                self.held.extend(outside.map(|range| Held { range, ..held }));
            }
            self.held.push(Held { session, mode, range: gap });
        }
        self.tidy();
    }

    /// Merges adjacent tokens of one session and mode; their order has no meaning.
    fn tidy(&mut self) {
        self.held.sort_unstable_by_key(|held| (held.session, held.range.start));
        self.held.dedup_by(|next, last| {
            let joins = (next.session, next.mode, next.range.start)
                == (last.session, last.mode, last.range.end);
            if joins {
                last.range.end = next.range.end;
            }
            joins
        });
        self.unreadable.tidy(&self.held);
        debug_assert!(
            self.held.windows(2).all(|pair| {
                pair[0].session != pair[1].session || pair[0].range.end <= pair[1].range.start
            }),
            "a session holds each byte once"
        );
    }
}

#[cfg(test)]
mod tests;
