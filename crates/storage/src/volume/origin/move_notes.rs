//! Notes about moves that have not ended: of each, the numbers of both objects, so that the superfluous one is found.
//!
//! A file that is moved again before its former object could be removed has all of them in one note: whichever it refers to, the
//! others are superfluous.
//!
//! What must hold: a note is durable before anything of its new object is made, and stays until the superfluous object is
//! removed, durably: one that came back after a power loss would be known to nobody. So that not each file costs a sync of each
//! server, notes of many moves go at once. A server without room, or one that cannot be changed, is what moves are for: the notes are on the first server
//! that takes them. Where several have some, all count: a note about objects that are gone does no harm.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;

use super::Origin;
use super::identity::ObjectNumber;
use crate::volume::Server;
use halocline_os::error::{Error, Result};

/// The file with the notes, a line for each move: the numbers of its objects. Empty if there are none.
pub(super) const MOVING: &str = "halocline-moving";

/// Limit of the notes: each of them may stand for a copy of a file.
const NOTES_MAX: usize = 1000;

/// Removed objects that are made durable at once: as many notes are written for each move meanwhile.
const REMOVALS_MAX: usize = 64;

/// The numbers of the objects of one file, in the order in which it got them: the former ones, and the new one.
pub(super) type MoveNote = Vec<ObjectNumber>;

/// All notes of a volume that is used exclusively.
#[derive(Debug, Default)]
pub(super) struct MoveNotes {
    notes: Vec<MoveNote>,
    /// Objects that are gone, which may be known in memory only, or whose moves have ended otherwise: what is noted of them can go
    /// when the servers are synced.
    gone: BTreeSet<ObjectNumber>,
    /// The servers that have some.
    places: BTreeSet<usize>,
}

impl MoveNotes {
    /// Reads those of a volume with these servers.
    pub(super) fn read(servers: &[Arc<Server>]) -> Result<Self> {
        let mut found = Self::default();
        for (place, server) in servers.iter().enumerate() {
            let text = server.directory().label(MOVING)?.unwrap_or_default();
            if text.is_empty() {
                continue;
            }
            found.places.insert(place);
            for line in String::from_utf8_lossy(&text).lines() {
                let note: MoveNote = line.split(' ').filter_map(ObjectNumber::parse).collect();
                if !note.is_empty() {
                    found.join(note);
                }
            }
        }
        Ok(found)
    }

    /// Adds a note to that of the same file.
    fn join(&mut self, mut note: MoveNote) {
        let is_other = |other: &MoveNote| !other.iter().any(|number| note.contains(number));
        let (others, mut same): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.notes).into_iter().partition(is_other);
        let known: BTreeSet<_> = same.iter().flatten().copied().collect();
        note.retain(|number| !known.contains(number));
        same.push(note);
        self.notes = others;
        self.notes.push(same.concat());
    }

    /// What a note has without the objects that are gone; nothing if its move has ended.
    fn rest(&self, note: &MoveNote) -> MoveNote {
        let rest: Vec<_> =
            note.iter().filter(|number| !self.gone.contains(number)).copied().collect();
        if rest.len() < note.len() && rest.len() == 1 { Vec::new() } else { rest }
    }

    /// How many of the moves have not ended.
    pub(super) fn outstanding(&self) -> usize {
        self.notes.iter().filter(|note| !self.rest(note).is_empty()).count()
    }

    /// The moves that they are about.
    pub(super) fn all(&self) -> &[MoveNote] {
        &self.notes
    }

    /// Notes a move from the object `old`, if there is one, to `new`, durably.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there are too many; else if no server takes the note.
    pub(super) fn add(
        &mut self,
        origin: &Origin,
        old: Option<ObjectNumber>,
        new: ObjectNumber,
    ) -> Result<()> {
        if self.notes.len() >= NOTES_MAX {
            self.settle_removals(origin)?;
        }
        if self.notes.len() >= NOTES_MAX {
            return Err(Error::invalid(
                format!("{NOTES_MAX} moves left objects that could not be removed"),
                "see that all servers can be written and that all files are in the tree, apply the plan again, and have `halocline fsck CACHE` list what files that are gone have left",
            ));
        }
        // Where a file had no object its move has ended, and this is the object that it has.
        old.map(|old| self.gone.remove(&old));
        self.join(old.into_iter().chain([new]).collect());
        self.store(origin)
    }

    /// Forgets, with others, an object that was removed just now, and the move if one at most is left of it.
    pub(super) fn forget_object(&mut self, origin: &Origin, gone: ObjectNumber) -> Result<()> {
        self.gone.insert(gone);
        if self.gone.len() < REMOVALS_MAX { Ok(()) } else { self.settle_removals(origin) }
    }

    /// Makes durable what was removed, and forgets it.
    pub(super) fn settle_removals(&mut self, origin: &Origin) -> Result<()> {
        if self.gone.is_empty() {
            return Ok(());
        }
        origin.sync_servers()?;
        self.notes = self.notes.iter().map(|note| self.rest(note)).collect();
        self.gone.clear();
        self.forget(origin, Vec::is_empty)
    }

    /// Forgets the moves for which `is_ended` holds.
    pub(super) fn forget(
        &mut self,
        origin: &Origin,
        is_ended: impl Fn(&MoveNote) -> bool,
    ) -> Result<()> {
        self.notes.retain(|note| !is_ended(note));
        self.store(origin)
    }

    fn store(&mut self, origin: &Origin) -> Result<()> {
        let mut text = String::new();
        for note in &self.notes {
            let numbers: Vec<_> = note.iter().map(ToString::to_string).collect();
            writeln!(text, "{}", numbers.join(" ")).expect("a string grows");
        }
        let mut has_all = None;
        if !text.is_empty() {
            let mut refused = None;
            for (place, server) in origin.servers().iter().enumerate() {
                match server.directory().set_label(MOVING, text.as_bytes()) {
                    Ok(()) => {
                        has_all = Some(place);
                        break;
                    }
                    Err(error) if takes_no_more(error.errno()) => {
                        refused.get_or_insert(error);
                    }
                    Err(error) => return Err(error),
                }
            }
            if let (None, Some(error)) = (has_all, refused) {
                return Err(error);
            }
        }
        for place in self.places.iter().copied().filter(|place| has_all != Some(*place)) {
            match origin.servers()[place].directory().set_label(MOVING, b"") {
                Err(error) if !takes_no_more(error.errno()) => return Err(error),
                _ => {}
            }
        }
        self.places.extend(has_all);
        Ok(())
    }
}

/// Whether a server said that it is full, or cannot be changed: then another one may take it.
pub(super) fn takes_no_more(errno: i32) -> bool {
    [libc::ENOSPC, libc::EDQUOT, libc::EROFS].contains(&errno)
}
