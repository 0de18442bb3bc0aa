//! Making a copy that can become the file.
//!
//! What must hold (I10): a copy is durable, and is durably at its place, before it can become the file; one that does
//! not become it is taken back ([`StagedCopy::undo`](super::staged_copy::StagedCopy::undo)).

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{Access, AtFlags, accessat};
use rustix::io::Errno;

use super::clean_copies::CleanCopies;
use super::copy;
use super::copy::{End, Expected, OnProgress};
use super::foundation::Foundation;
use super::hard_links::HardLinks;
use super::inode::{Inode, Place};
use super::inode_numbers::keep_number;
use super::is_private_path;
use super::leftover_intents::LeftoverIntents;
use super::mirror;
use super::not_moved::{COPY_SLACK, NotMoved};
use super::residents::Residents;
use super::staged_copy::{Source, StagedCopy};
use super::tiers::Tiers;
use halocline_api::control::tier::PRIVATE;
use halocline_vfs::namespace::{Vnode, reopen, stat_descriptor};

/// Copies files, and gives the copies places.
#[derive(Debug)]
pub(super) struct Staging {
    tiers: Arc<Tiers>,
    residents: Arc<Residents>,
    intents: Arc<LeftoverIntents>,
    clean: Arc<CleanCopies>,
    hard_links: Arc<HardLinks>,
}

impl Staging {
    /// Built over the components that it uses.
    pub(super) fn new(
        base: &Foundation,
        clean: &Arc<CleanCopies>,
        hard_links: &Arc<HardLinks>,
    ) -> Self {
        Self {
            tiers: base.tiers.clone(),
            residents: base.residents.clone(),
            intents: base.intents.clone(),
            clean: clean.clone(),
            hard_links: hard_links.clone(),
        }
    }

    pub(super) fn source(&self, inode: &Arc<Inode>, place: &Place) -> Result<Source, NotMoved> {
        if inode.passed.load(Ordering::Acquire) > 0 {
            return Err(NotMoved::PassedThrough);
        }
        self.source_in_place(inode, place)
    }

    /// The same for a file that stays where it is.
    pub(super) fn source_in_place(
        &self,
        inode: &Arc<Inode>,
        place: &Place,
    ) -> Result<Source, NotMoved> {
        let changes = inode.changes.load(Ordering::Acquire);
        let fd = inode.physical(&self.tiers, place)?;
        let stat = stat_descriptor(&fd)?;
        if stat.kind() != libc::S_IFREG {
            return Err(NotMoved::NotAFile);
        }
        let from = place.tier();
        let name = place.entry.known_as();
        let count = inode.count_names(&self.tiers, place)?;
        let names = match &name {
            Some(name) if count <= 1 => vec![name.clone()],
            Some(_) => self.hard_links.all_names(&place.entry, count)?,
            None => Vec::new(),
        };
        if from > 0 && stat.raw.st_nlink > 1 {
            // Somebody has made hard links there.
            return Err(NotMoved::HardLinked { names: stat.raw.st_nlink, known: 1 });
        }
        for (at, (parent, _)) in names.iter().enumerate() {
            if names[..at].iter().all(|(other, _)| other != parent) {
                self.check_open(parent)?;
            }
        }
        if inode.is_torn() {
            return Err(NotMoved::Failed(Errno::IO.into()));
        }
        let names = names.len();
        let file = match reopen(&fd, libc::O_RDONLY | libc::O_NOATIME) {
            Err(error) if error.errno() == libc::EPERM => reopen(&fd, libc::O_RDONLY)?,
            other => other?,
        };
        let (file, entry) = (Arc::new(file), place.entry.clone());
        Ok(Source { from, file, stat, entry, name, names, changes })
    }

    /// Whether names in a directory may be replaced; only an ordinary user's mount may be refused this. Checked before
    /// a file is copied, each time that room is wanted.
    fn check_open(&self, dir: &Vnode) -> Result<(), NotMoved> {
        let dir = self.tiers.tree().descriptor(dir)?;
        match accessat(&*dir, ".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS) {
            Err(Errno::ACCESS) => Err(NotMoved::Closed),
            other => Ok(other?),
        }
    }

    /// Copies the file to a temporary name on `tier`, durably.
    pub(super) fn copy(
        &self,
        inode: &Inode,
        source: &Source,
        to: (usize, Expected),
        on_progress: OnProgress<'_>,
    ) -> Result<StagedCopy, NotMoved> {
        let copied = self.copy_for_now(inode, source, to, on_progress)?;
        match self.tiers.dirs()[copied.tier].steps.sync("syncing a copy", &copied.file) {
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
        on_progress: OnProgress<'_>,
    ) -> Result<StagedCopy, NotMoved> {
        let need = source.stat.disk_bytes() + COPY_SLACK;
        let reserved = match tier {
            0 => Some(self.residents.reserve(need).ok_or(NotMoved::NoRoom)?),
            _ => None,
        };
        if !self.clean.has_room_on(tier, need)? {
            return Err(NotMoved::NoRoom);
        }
        let temporary = self.tiers.fresh_name();
        let file = self.tiers.dirs()[tier].temporary(&temporary)?;
        let copied =
            StagedCopy { tier, temporary, file, placed: None, keep: false, _reserved: reserved };
        match self.fill(inode, source, (&copied, expected), on_progress) {
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
        (copied, expected): (&StagedCopy, Expected),
        on_progress: OnProgress<'_>,
    ) -> halocline_os::error::Result<()> {
        let steps = &self.tiers.dirs()[copied.tier].steps;
        let from = End { file: &source.file, steps: &self.tiers.dirs()[source.from].steps };
        let to = End { file: &copied.file, steps };
        let size = source.stat.raw.st_size.unsigned_abs();
        copy::contents(from, to, size, expected, on_progress)?;
        steps.step("giving a copy its attributes", || {
            copy::attributes(&source.file, &source.stat, &copied.file)
        })?;
        steps.step("numbering a copy", || keep_number(&copied.file, inode.number))?;
        steps.step("giving a copy its mode and times", || {
            copy::mode_and_times(&source.stat, &copied.file)
        })
    }

    /// Gives the copy its place on a lower tier, where a link can name it.
    pub(super) fn settle(&self, source: &Source, copied: &mut StagedCopy) -> Result<(), NotMoved> {
        if copied.tier == 0 || source.name.is_none() {
            return Ok(());
        }
        let tier_dir = &self.tiers.dirs()[copied.tier];
        let own = self.tiers.tree().path_of(&source.entry);
        let other = Path::new(PRIVATE).join("files").join(&copied.temporary);
        let fits = self.tiers.can_be_named(copied.tier, &own) && !is_private_path(&own);
        for place in [fits.then_some(own), Some(other)].into_iter().flatten() {
            let made = tier_dir
                .make_parents(&place, &mut |dir, made| mirror::directory(&self.tiers, dir, made));
            if made.is_err() && place.starts_with(PRIVATE) {
                return Ok(made?);
            }
            let name = format!("{}-{}", copied.temporary, copied.tier);
            let intent = self.intents.note_durably(name, copied.tier, &place)?;
            match tier_dir.settle(&copied.temporary, &place) {
                Ok(()) => {
                    let placed = copied.placed.insert((place, intent));
                    return Ok(tier_dir.sync_parent("syncing a place", &placed.0)?);
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
        Err(NotMoved::Gone)
    }
}
