//! Dirty bytes that a live session cannot read from its cache any more, and so cannot bring to the origin.
//!
//! An entry only refuses: it never makes a token void, so that nobody reads the older bytes of the origin in place of
//! those that may yet be saved (I13). It spares others the wait for a session that has tried and failed. It holds for
//! [`RETRY_MS`]; the next demand after that is queued as if there were no entry, and makes the holder try again.

use serde::{Deserialize, Serialize};

use super::{Held, Mode, Session};
use crate::request::ByteRange;

/// How long an entry answers demands before the holder is asked again, in milliseconds.
const RETRY_MS: u64 = 10_000;
/// The longest that an entry can seem to hold. Nodes differ in what they take for the store's time; and whoever can write to
/// the store, or sets its clock back, must not make one hold for ever.
const BELIEVED_MS: u64 = 2 * RETRY_MS;
/// The most entries of one file. Beyond that demands wait, as they do without an entry.
const ENTRIES_MAX: usize = 256;

/// Bytes that only the cache of a session has, and that it could not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Unreadable {
    /// The session, which holds them exclusively.
    pub session: Session,
    /// The bytes of the file.
    pub range: ByteRange,
    /// When the session is asked for them again, by the store's clock.
    retry_ms: u64,
}

/// The unreadable bytes of one file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct UnreadableBytes(Vec<Unreadable>);

impl UnreadableBytes {
    pub(super) const NONE: Self = Self(Vec::new());

    /// Replaces the entries of a session within `tried` by `ranges`.
    pub(super) fn note(
        &mut self,
        session: Session,
        tried: ByteRange,
        ranges: &[ByteRange],
        now_ms: u64,
    ) {
        self.cut(session, tried);
        let retry_ms = now_ms.saturating_add(RETRY_MS);
        let within = ranges.iter().filter_map(|range| range.intersect(tried));
        self.0.extend(within.map(|range| Unreadable { session, range, retry_ms }));
        self.0.truncate(ENTRIES_MAX);
    }

    /// The first of these tokens of which bytes are unreadable, and the bytes of both.
    pub(super) fn first_of(&self, tokens: &[Held], now_ms: u64) -> Option<Held> {
        let holds = |entry: &&Unreadable| {
            entry.retry_ms.checked_sub(now_ms).is_some_and(|left| (1..=BELIEVED_MS).contains(&left))
        };
        tokens.iter().find_map(|token| {
            let own = |entry: &&Unreadable| entry.session == token.session;
            let mut ranges = self.0.iter().filter(holds).filter(own);
            let range = ranges.find_map(|entry| entry.range.intersect(token.range))?;
            Some(Held { range, ..*token })
        })
    }

    /// A session has given up a range.
    pub(super) fn cut(&mut self, session: Session, range: ByteRange) {
        let parts = |entry: Unreadable| {
            let rest = if entry.session == session {
                entry.range.without(range).collect()
            } else {
                vec![entry.range]
            };
            rest.into_iter().map(move |range| Unreadable { range, ..entry })
        };
        self.0 = std::mem::take(&mut self.0).into_iter().flat_map(parts).collect();
    }

    /// A session reports anew what it holds.
    pub(super) fn forget(&mut self, session: Session) {
        self.0.retain(|entry| entry.session != session);
    }

    /// Drops the entries of bytes that their session does not hold exclusively.
    pub(super) fn tidy(&mut self, held: &[Held]) {
        self.0.retain(|entry| {
            held.iter().any(|held| {
                held.session == entry.session
                    && held.mode == Mode::Exclusive
                    && held.range.overlaps(entry.range)
            })
        });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn is_sound(&self) -> bool {
        self.0.len() <= ENTRIES_MAX && self.0.iter().all(|entry| !entry.range.is_empty())
    }

    pub(super) fn all(&self) -> &[Unreadable] {
        &self.0
    }
}
