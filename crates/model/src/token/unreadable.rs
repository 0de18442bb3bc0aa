//! Dirty bytes that a live session cannot read from its cache any more, and so cannot bring to the origin.
//!
//! A mark only refuses: it never makes a token void, so that nobody reads the older bytes of the origin in place of
//! those that may yet be saved (I13). It spares others the wait for a session that has tried and failed. It holds for
//! [`RETRY_MS`]; the next demand after that is queued as if there were no mark, and makes the holder try again.

use serde::{Deserialize, Serialize};

use super::{Held, Mode, Session};
use crate::request::ByteRange;

/// How long a mark answers demands before the holder is asked again, in milliseconds.
const RETRY_MS: u64 = 10_000;
/// The most that a mark can seem to hold. Nodes differ in what they take for the store's time; and whoever can write to
/// the store, or sets its clock back, must not make a mark hold for ever.
const BELIEVED_MS: u64 = 2 * RETRY_MS;
/// The most marks of one file. Beyond that demands wait, as they do without marks.
const MARKS_MAX: usize = 256;

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

/// The marks of one file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Marks(Vec<Unreadable>);

impl Marks {
    pub(super) const NONE: Self = Self(Vec::new());

    /// Replaces the marks of a session within `tried` by `ranges`.
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
        self.0.truncate(MARKS_MAX);
    }

    /// The first of these tokens that has a mark, and the bytes of both.
    pub(super) fn first_of(&self, tokens: &[Held], now_ms: u64) -> Option<Held> {
        let holds = |mark: &&Unreadable| {
            mark.retry_ms.checked_sub(now_ms).is_some_and(|left| (1..=BELIEVED_MS).contains(&left))
        };
        tokens.iter().find_map(|token| {
            let own = |mark: &&Unreadable| mark.session == token.session;
            let mut ranges = self.0.iter().filter(holds).filter(own);
            let range = ranges.find_map(|mark| mark.range.intersect(token.range))?;
            Some(Held { range, ..*token })
        })
    }

    /// A session has given up a range.
    pub(super) fn cut(&mut self, session: Session, range: ByteRange) {
        let parts = |mark: Unreadable| {
            let rest = if mark.session == session {
                mark.range.without(range).collect()
            } else {
                vec![mark.range]
            };
            rest.into_iter().map(move |range| Unreadable { range, ..mark })
        };
        self.0 = std::mem::take(&mut self.0).into_iter().flat_map(parts).collect();
    }

    /// A session reports anew what it holds.
    pub(super) fn forget(&mut self, session: Session) {
        self.0.retain(|mark| mark.session != session);
    }

    /// Drops the marks of bytes that their session does not hold exclusively.
    pub(super) fn tidy(&mut self, held: &[Held]) {
        self.0.retain(|mark| {
            held.iter().any(|held| {
                held.session == mark.session
                    && held.mode == Mode::Exclusive
                    && held.range.overlaps(mark.range)
            })
        });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn is_sound(&self) -> bool {
        self.0.len() <= MARKS_MAX && self.0.iter().all(|mark| !mark.range.is_empty())
    }

    pub(super) fn all(&self) -> &[Unreadable] {
        &self.0
    }
}
