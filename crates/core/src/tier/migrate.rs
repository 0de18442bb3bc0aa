//! Moving a file between tiers.
//!
//! Copy, fsync, place, and then the [`cutover`](super::cutover): see
//! `docs/decisions/0001-file-tier.md`. What must hold (I10): a copy is durable, and has its place
//! durably, before it can become the file; one that does not is taken back.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::RwLockWriteGuard;
use rustix::fs::{Access, AtFlags, accessat};
use rustix::io::Errno;

use super::copied::{Copied, Source};
use super::copy::{self, End, Expected, Told};
use super::inode::{Inode, Place};
use super::leftovers::OldCopy;
use super::mapped;
use super::mirror;
use super::numbers::keep_number;
use super::stayed::{COPY_SLACK, ROOM_FOR_NAMES, Stayed};
use super::wiring::Core;
use super::{PRIVATE, is_private_path};
use crate::namespace::{Node, reopen, stat_descriptor};

/// How a migration treats programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manner {
    /// It gives up when the file changes.
    Yielding,
    /// Programs that use the file wait: it must move, or they fail.
    Forcing,
}

/// What a move has done.
struct Moved {
    /// Bytes copied: none where the name was switched to a clean copy.
    bytes: u64,
    /// The file may be at another place than that of its name.
    strayed: bool,
}

impl Core {
    /// Moves a file to `tier`, or down to the tier that has a clean copy of it, telling `told` of
    /// bytes copied. Returns how many that were.
    pub(super) fn migrate(
        &self,
        inode: &Arc<Inode>,
        tier: usize,
        manner: Manner,
        told: Told<'_>,
    ) -> Result<u64, Stayed> {
        let moved = self.try_migrate(inode, tier, manner, told);
        match &moved {
            Ok(moved) => {
                self.uses.moved(inode.number);
                if moved.strayed {
                    self.repair(inode);
                }
            }
            Err(Stayed::There | Stayed::Gone) => {}
            Err(stayed) => self.uses.stayed(inode.number, &stayed.to_string()),
        }
        moved.map(|moved| moved.bytes)
    }

    fn try_migrate(
        &self,
        inode: &Arc<Inode>,
        tier: usize,
        manner: Manner,
        told: Told<'_>,
    ) -> Result<Moved, Stayed> {
        let _moving = inode.moving.lock();
        let early = (manner == Manner::Forcing).then(|| inode.place.write());
        let source = match &early {
            Some(place) => self.source(inode, place)?,
            None => self.source(inode, &inode.place.read())?,
        };
        if source.from == tier {
            return Err(Stayed::There);
        }
        if inode.was_passed.load(Ordering::Acquire) {
            let _place = early.is_none().then(|| inode.place.write());
            if inode.passed.load(Ordering::Acquire) > 0 {
                return Err(Stayed::PassedThrough);
            }
            if mapped::is_mapped(inode, &source.file) {
                return Err(Stayed::Mapped);
            }
        }
        // A program that is kept waiting goes on with its file wherever that is.
        let expected = match (tier, manner) {
            (0, _) | (_, Manner::Forcing) => Expected::Soon,
            (_, Manner::Yielding) => Expected::NotSoon,
        };
        let bytes = source.stat.raw.st_size.unsigned_abs().min(source.stat.disk_bytes());
        if let Some(copied) = self.clean.clean_copy(inode, &source) {
            self.finish_move(inode, source, &copied, early)?;
            self.counters.switched(bytes);
            return Ok(Moved { bytes: 0, strayed: true });
        }
        let under_way = self.under_way.begin(source.entry.clone(), (source.from, tier), bytes);
        let told: Told<'_> = &mut |more| {
            under_way.copied(more);
            told(more)
        };
        let mut copied = self.copy(inode, &source, (tier, expected), told)?;
        copied.keep = self.clean.keeps(&source, tier);
        if let Err(stayed) = self.settle(&source, &mut copied) {
            copied.undo(&self.tiers, &self.intents);
            return Err(stayed);
        }
        self.finish_move(inode, source, &copied, early)?;
        self.counters.moved(tier == 0, bytes);
        Ok(Moved { bytes, strayed: false })
    }

    /// Switches to a copy that has its place, or takes it back.
    fn finish_move<'i>(
        &self,
        inode: &'i Arc<Inode>,
        source: Source,
        copied: &Copied,
        early: Option<RwLockWriteGuard<'i, Place>>,
    ) -> Result<(), Stayed> {
        match self.switch(inode, &source, copied, early) {
            Ok(resident) => {
                self.leftovers.free_later(OldCopy { file: source.file, resident });
                Ok(())
            }
            // The copy is the file to the next mount.
            Err(stayed) if inode.is_torn() => Err(stayed),
            Err(stayed) => {
                copied.undo(&self.tiers, &self.intents);
                Err(stayed)
            }
        }
    }

    /// Moves a file that the SSD has no room for to the first lower tier that has. Its blocks on
    /// the SSD are free then.
    pub(super) fn demote(
        &self,
        inode: &Arc<Inode>,
        manner: Manner,
        told: Told<'_>,
    ) -> Result<u64, Stayed> {
        let demoted = self.move_down(inode, manner, told)?;
        self.leftovers.free_old_copies();
        Ok(demoted)
    }

    /// The same, but the blocks on the SSD are freed later.
    pub(super) fn move_down(
        &self,
        inode: &Arc<Inode>,
        manner: Manner,
        told: Told<'_>,
    ) -> Result<u64, Stayed> {
        let mut last = Stayed::NoRoom;
        for tier in 1..self.tiers.sides().len() {
            match self.migrate(inode, tier, manner, told) {
                // More than was thought: metadata needs room, too.
                Err(Stayed::NoRoom) if self.clean.give_way(tier, ROOM_FOR_NAMES) => {
                    match self.migrate(inode, tier, manner, told) {
                        Err(Stayed::NoRoom) => last = Stayed::NoRoom,
                        other => return other,
                    }
                }
                Err(Stayed::NoRoom) => last = Stayed::NoRoom,
                Err(Stayed::Failed(error)) => last = Stayed::Failed(error),
                other => return other,
            }
        }
        Err(last)
    }

    pub(super) fn source(&self, inode: &Arc<Inode>, place: &Place) -> Result<Source, Stayed> {
        if inode.passed.load(Ordering::Acquire) > 0 {
            return Err(Stayed::PassedThrough);
        }
        self.source_in_place(inode, place)
    }

    /// The same of a file that stays where it is.
    pub(super) fn source_in_place(
        &self,
        inode: &Arc<Inode>,
        place: &Place,
    ) -> Result<Source, Stayed> {
        let changes = inode.changes.load(Ordering::Acquire);
        let fd = inode.physical(&self.tiers, place)?;
        let stat = stat_descriptor(&fd)?;
        if stat.kind() != libc::S_IFREG {
            return Err(Stayed::NotAFile);
        }
        let from = place.tier();
        let name = place.entry.known_as();
        let count = inode.count_names(&self.tiers, place)?;
        let names = match &name {
            Some(name) if count <= 1 => vec![name.clone()],
            Some(_) => self.all_names(&place.entry, count)?,
            None => Vec::new(),
        };
        if from > 0 && stat.raw.st_nlink > 1 {
            // Somebody made hard links there.
            return Err(Stayed::HardLinked { names: stat.raw.st_nlink, known: 1 });
        }
        for (at, (parent, _)) in names.iter().enumerate() {
            if names[..at].iter().all(|(other, _)| other != parent) {
                self.check_open(parent)?;
            }
        }
        if inode.is_torn() {
            return Err(Stayed::Failed(Errno::IO.into()));
        }
        let names = names.len();
        let file = match reopen(&fd, libc::O_RDONLY | libc::O_NOATIME) {
            Err(error) if error.errno() == libc::EPERM => reopen(&fd, libc::O_RDONLY)?,
            other => other?,
        };
        let (file, entry) = (Arc::new(file), place.entry.clone());
        Ok(Source { from, file, stat, entry, name, names, changes })
    }

    /// Whether names in a directory may be replaced; only an ordinary user's mount may not. To be
    /// known before a file is copied, each time that room is wanted.
    fn check_open(&self, dir: &Node) -> Result<(), Stayed> {
        let dir = self.tiers.tree().descriptor(dir)?;
        match accessat(&*dir, ".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS) {
            Err(Errno::ACCESS) => Err(Stayed::Closed),
            other => Ok(other?),
        }
    }

    /// Copies the file to a temporary name on `tier`, durably.
    pub(super) fn copy(
        &self,
        inode: &Inode,
        source: &Source,
        to: (usize, Expected),
        told: Told<'_>,
    ) -> Result<Copied, Stayed> {
        let copied = self.copy_for_now(inode, source, to, told)?;
        match self.tiers.sides()[copied.tier].steps.sync("syncing a copy", &copied.file) {
            Ok(()) => Ok(copied),
            Err(error) => {
                copied.undo(&self.tiers, &self.intents);
                Err(error.into())
            }
        }
    }

    /// The same, not durably yet.
    pub(super) fn copy_for_now(
        &self,
        inode: &Inode,
        source: &Source,
        (tier, expected): (usize, Expected),
        told: Told<'_>,
    ) -> Result<Copied, Stayed> {
        let need = source.stat.disk_bytes() + COPY_SLACK;
        let reserved = match tier {
            0 => Some(self.residents.reserve(need).ok_or(Stayed::NoRoom)?),
            _ => None,
        };
        if !self.clean.has_room_on(tier, need)? {
            return Err(Stayed::NoRoom);
        }
        let temporary = self.tiers.fresh_name();
        let file = self.tiers.sides()[tier].temporary(&temporary)?;
        let copied =
            Copied { tier, temporary, file, placed: None, keep: false, _reserved: reserved };
        match self.fill(inode, source, (&copied, expected), told) {
            Ok(()) => Ok(copied),
            Err(error) => {
                copied.undo(&self.tiers, &self.intents);
                Err(error.into())
            }
        }
    }

    fn fill(
        &self,
        inode: &Inode,
        source: &Source,
        (copied, expected): (&Copied, Expected),
        told: Told<'_>,
    ) -> crate::error::Result<()> {
        let steps = &self.tiers.sides()[copied.tier].steps;
        let from = End { file: &source.file, steps: &self.tiers.sides()[source.from].steps };
        let to = End { file: &copied.file, steps };
        let size = source.stat.raw.st_size.unsigned_abs();
        copy::contents(from, to, size, expected, told)?;
        steps.step("giving a copy its attributes", || {
            copy::attributes(&source.file, &source.stat, &copied.file)
        })?;
        steps.step("numbering a copy", || keep_number(&copied.file, inode.number))?;
        steps.step("giving a copy its mode and times", || {
            copy::mode_and_times(&source.stat, &copied.file)
        })
    }

    /// Gives the copy its place on a lower tier, where a link can name it.
    fn settle(&self, source: &Source, copied: &mut Copied) -> Result<(), Stayed> {
        if copied.tier == 0 || source.name.is_none() {
            return Ok(());
        }
        let side = &self.tiers.sides()[copied.tier];
        let own = self.tiers.tree().path_of(&source.entry);
        let other = Path::new(PRIVATE).join("files").join(&copied.temporary);
        let fits = self.tiers.can_be_named(copied.tier, &own) && !is_private_path(&own);
        for place in [fits.then_some(own), Some(other)].into_iter().flatten() {
            let made = side
                .make_parents(&place, &mut |dir, made| mirror::directory(&self.tiers, dir, made));
            if made.is_err() && place.starts_with(PRIVATE) {
                return Ok(made?);
            }
            let name = format!("{}-{}", copied.temporary, copied.tier);
            let intent = self.intents.note_durably(name, copied.tier, &place)?;
            match side.settle(&copied.temporary, &place) {
                Ok(()) => {
                    let placed = copied.placed.insert((place, intent));
                    return Ok(side.sync_parent("syncing a place", &placed.0)?);
                }
                Err(error) => {
                    self.intents.clear(&intent);
                    let taken = matches!(
                        error.errno(),
                        libc::EEXIST
                            | libc::ENOTDIR
                            | libc::ELOOP
                            | libc::ENOENT
                            | libc::ENAMETOOLONG
                            | libc::EACCES
                    );
                    if !taken || place.starts_with(PRIVATE) {
                        return Err(error.into());
                    }
                }
            }
        }
        Err(Stayed::Gone)
    }
}
