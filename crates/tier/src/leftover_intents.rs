//! Data on lower tiers that no link names yet, or that no link names any more: it is left over once nothing claims it.
//!
//! An intent is a symbolic link on the SSD, `.halocline/intents/ID -> TIER/PLACE`, or the link of a removed file, which
//! was renamed there. Creating one is a single atomic metadata operation: file systems with a journal commit it before
//! what follows, so it needs no fsync of its own if what follows is on the SSD too. What must hold: from before a file
//! on a lower tier loses its link, or gets its place without one, until it has a link or is durably gone, an intent
//! names it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{AtFlags, RawDir, symlinkat, unlinkat};

use super::listed_names;
use super::stamp::Stamp;
use super::steps::Steps;
use super::tier_links::{Target, TierLinks};
use halocline_os::error::Result;
use halocline_os::private::PrivateDir;

const NAME: &str = "intents";

/// A place on a lower tier that may hold a leftover.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LeftoverIntent {
    /// Its name in the directory of intents.
    pub(super) name: String,
    pub(super) tier: usize,
    pub(super) place: PathBuf,
}

/// A leftover to remove, or whose removal is to be made durable before its intent is cleared.
#[derive(Debug)]
pub(super) enum Removal {
    /// A removed file's data, to be removed once the removal of its name from this directory on
    /// the SSD is durable. Until then the place stays taken.
    Wanted(LeftoverIntent, halocline_vfs::namespace::Vnode),
    /// The same, with the name durably gone.
    Nameless(LeftoverIntent),
    /// A copy that is no longer clean, if it still has this stamp: one that somebody changed is
    /// theirs. Its file has its bytes elsewhere, or is being removed.
    Copy(LeftoverIntent, Stamp),
    /// What was here is removed; the place may belong to another file by now.
    Done(LeftoverIntent),
}

impl Removal {
    /// The names are durably gone.
    pub(super) fn without_name(self) -> Self {
        match self {
            Self::Wanted(intent, _) => Self::Nameless(intent),
            other => other,
        }
    }

    /// What was there is removed.
    pub(super) fn into_done(self) -> Self {
        match self {
            Self::Wanted(intent, _)
            | Self::Nameless(intent)
            | Self::Copy(intent, _)
            | Self::Done(intent) => Self::Done(intent),
        }
    }

    /// The intent.
    pub(super) const fn intent(&self) -> &LeftoverIntent {
        match self {
            Self::Wanted(intent, _)
            | Self::Nameless(intent)
            | Self::Copy(intent, _)
            | Self::Done(intent) => intent,
        }
    }
}

/// The intents of one set.
#[derive(Debug)]
pub(super) struct LeftoverIntents {
    dir: PrivateDir,
    /// Changes of the SSD.
    steps: Arc<Steps>,
    /// Data whose name is gone.
    removals: Mutex<Vec<Removal>>,
}

impl LeftoverIntents {
    /// Opens the directory of intents below `private`.
    pub(super) fn open(private: &PrivateDir, steps: Arc<Steps>) -> Result<Self> {
        Ok(Self { dir: private.sub(NAME)?, steps, removals: Mutex::default() })
    }

    /// Notes that `place` may hold a file that no link names, from a later change on the SSD on.
    pub(super) fn note(&self, name: String, tier: usize, place: &Path) -> Result<LeftoverIntent> {
        let target = target(tier, place);
        self.steps.step("noting an intent", || Ok(symlinkat(target, &self.dir, &name)?))?;
        Ok(LeftoverIntent { name, tier, place: place.to_owned() })
    }

    /// The same, from a later change on the lower tier on: that tier's file system does not wait for the SSD's journal.
    pub(super) fn note_durably(
        &self,
        name: String,
        tier: usize,
        place: &Path,
    ) -> Result<LeftoverIntent> {
        let intent = self.note(name, tier, place)?;
        self.sync().inspect_err(|_| self.clear(&intent))?;
        Ok(intent)
    }

    /// Called when the place has a link again or is durably gone.
    pub(super) fn clear(&self, intent: &LeftoverIntent) {
        let clear = || Ok(unlinkat(&self.dir, &intent.name, AtFlags::empty())?);
        if let Err(error) = self.steps.step("clearing an intent", clear) {
            tracing::debug!(%error, intent = intent.name, "an intent stays until the next mount");
        }
    }

    /// The directory of intents, for links that become intents.
    pub(super) fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// All intents; `links` reads those that were links in the tree.
    pub(super) fn list(&self, links: &TierLinks) -> Result<Vec<LeftoverIntent>> {
        rustix::fs::seek(&self.dir, rustix::fs::SeekFrom::Start(0))?;
        let mut found = Vec::new();
        let mut buffer = Vec::with_capacity(16 << 10);
        let mut raw = RawDir::new(&self.dir, buffer.spare_capacity_mut());
        while let Some(entry) = raw.next() {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            let Some(target) = listed_names::target_of(&self.dir, name)? else { continue };
            let (tier, place) = match links.read(&target) {
                Target::Away(tier, place) => (tier, place),
                Target::Users(_) => match parse(&target) {
                    Some(told) if told.0 < links.tiers() => told,
                    _ => continue,
                },
            };
            found.push(LeftoverIntent { name: name.to_owned(), tier, place });
        }
        Ok(found)
    }

    /// The names of everything in the directory.
    pub(super) fn names(&self) -> Result<Vec<OsString>> {
        self.dir.names()
    }

    /// Makes the intents durable.
    pub(super) fn sync(&self) -> Result<()> {
        self.steps.sync("syncing the intents", &self.dir)
    }

    /// Makes durable that a record became an intent.
    pub(super) fn sync_retired(&self) -> Result<()> {
        self.steps.sync("syncing the end of a clean copy", &self.dir)
    }

    /// Queues the data of a file whose name is gone.
    pub(super) fn later(&self, removal: Removal) {
        self.removals.lock().push(removal);
    }

    /// Whether copies that are no longer clean are queued.
    pub(super) fn has_copies(&self) -> bool {
        self.removals.lock().iter().any(|removal| matches!(removal, Removal::Copy(..)))
    }

    /// How many leftovers are queued, by tier.
    pub(super) fn waiting(&self) -> BTreeMap<usize, usize> {
        let mut counts = BTreeMap::new();
        for removal in &*self.removals.lock() {
            *counts.entry(removal.intent().tier).or_default() += 1;
        }
        counts
    }

    /// Takes what is queued.
    pub(super) fn take_removals(&self) -> Vec<Removal> {
        std::mem::take(&mut self.removals.lock())
    }
}

/// The target of a link that names a place.
pub(super) fn target(tier: usize, place: &Path) -> OsString {
    let target = [tier.to_string().as_bytes(), b"/", place.as_os_str().as_bytes()].concat();
    OsString::from_vec(target)
}

/// The place that a target names.
pub(super) fn parse(target: &[u8]) -> Option<(usize, PathBuf)> {
    let slash = target.iter().position(|byte| *byte == b'/')?;
    let tier = std::str::from_utf8(&target[..slash]).ok()?.parse().ok()?;
    let place = OsString::from_vec(target[slash + 1..].to_vec());
    (!place.is_empty()).then(|| (tier, place.into()))
}
