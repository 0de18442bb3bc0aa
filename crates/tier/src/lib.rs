//! Whole files between tiers under one tree: the file tier (`HyCache`; docs/ALGORITHMS.md, section 8).
//!
//! `docs/decisions/0001-file-tier.md` says how it works. What must hold, besides I1 to I8:
//! - I10 A file is in one place. Its name on the SSD says where: a regular file there is the
//!   file, a link that [`tier_links`] recognises names the place of the file on a lower tier. Any other
//!   copy is a leftover that an intent ([`leftover_intents`]) names, or was put there by somebody and is
//!   never touched.
//! - The place changes by one `rename` on the SSD ([`cutover`]), made after the copy is durable and
//!   while nobody reads or writes the file.
//! - A file that the kernel serves by itself (passthrough) is not moved.
//! - All names of a file stand for the same one, also after a power loss ([`hard_links`]).
//!
//! Files, from the bottom; each uses only those before it:
//! - Around all: the [`decorations`] that stand between a tier and the machine.
//! - On disk: [`tiers`] are the tree and each tier's directory ([`tier_dir`], whose changes are [`steps`], reported to
//!   a [`watcher`]), [`tier_links`] the form of links between them, [`link_owner`] tells our links from others,
//!   [`leftover_intents`] name possible leftovers, [`mirror`] keeps directories below, and [`statfs`] has the totals
//!   that `df` shows.
//! - In memory: [`inode`] is what is known of a live file and [`inode_numbers`] its number; [`residents`] are the SSD's
//!   account, [`watermarks`] how full it may be, [`copy_records`] the clean copies (by a [`stamp`] of each),
//!   [`pending_syncs`] moves that are not durable; [`dir_times`] hides moves from directories;
//!   [counters and history](halocline_api::file_tier) and [`active_moves`] are for people; [`lost_files`] have a name
//!   and no place; [`leftovers`] are removed when [`wakeups`] says so; [`adopt`] brings what is not a file to the SSD;
//!   [`not_moved`] says why a file stays, [`staged_copy`] is its copy before it moves, and [`notes`] are for people.
//! - Policy: [`planner`] plans which files are kept on the SSD, from a [`policy_view`] of the [`catalog`] in memory,
//!   with what [jobs](halocline_api::jobs) announce; [`eviction_queue`] says which files leave first. [`passthrough`]
//!   decides which files the kernel may serve, [`mmap`] whether one is still mapped.
//! - Copies: [`archive_queue`] has the files that wait for a clean copy, [`clean_copies`] keeps copies below and gives
//!   them up, and [`permissions`] closes them with their files.
//! - One file: [`inodes`] finds the inodes that names stand for, [`hard_links`] moves all names of a file
//!   ([`linked_vnodes`] knows them) at once, [`place_repair`] gives a file the place of its name, [`staging`] makes its
//!   [`copy`](mod@copy) and [`cutover`] makes that the file.
//! - Moves: [`migrate`] moves one file, a [`batch`] many small ones, several of either at once ([`parallel`]); the
//!   [`executor`] carries the policy's plans out by them.
//! - Programs and background: [`archive`] makes clean copies, [`name_changes`] links, renames and removes names,
//!   [`files`] are files in use.
//! - Commands and mounts: [`tree_walk`] walks the tree, [`copy_verifier`] decides which records of copies are valid,
//!   [`scan`] reads the tiers at mount for a [`survey`], which tells of each
//!   [`Problem`](halocline_api::control::tier::Problem); [`bulk`] is a move for a command.
//! - [`liveness`] waits for no tier that hangs, [`reporter`] reports on the tiers, and [`explain`] explains a file.
//! - On top, the [`components`] are all of these, wired together; [`background`] demotes before the SSD is full;
//!   [`engine`] answers the front end and [`control`] the control socket.

mod active_moves;
mod adopt;
mod archive;
mod archive_queue;
mod background;
mod batch;
mod bulk;
mod catalog;
mod clean_copies;
mod components;
mod control;
mod copy;
mod copy_records;
mod copy_verifier;
mod cutover;
mod decorations;
mod dir_times;
mod engine;
mod eviction_queue;
mod executor;
mod explain;
mod files;
mod foundation;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod hard_links;
mod inode;
mod inode_numbers;
mod inodes;
mod leftover_intents;
mod leftovers;
mod link_owner;
mod linked_vnodes;
mod listed_names;
mod liveness;
mod lost_files;
mod migrate;
mod mirror;
mod mmap;
mod name_changes;
mod not_moved;
mod notes;
mod of_shared_tiers;
mod options;
mod parallel;
mod passthrough;
mod pending_syncs;
mod permissions;
mod place_repair;
mod planner;
mod policy_view;
mod reporter;
mod residents;
mod scan;
mod staged_copy;
mod staging;
mod stamp;
mod statfs;
mod steps;
mod survey;
mod tier_dir;
mod tier_links;
mod tiers;
mod tree_walk;
mod wakeups;
mod watcher;
mod watermarks;

use std::path::Path;
use std::sync::Arc;

use halocline_api::control::tier::{PRIVATE, ScanFindings};
use halocline_os::error::Result;

pub use background::Chore;
pub use decorations::{BatchBounds, Decorations};
pub use files::Handle;
pub use inode::Vnode;
pub use options::{TierOptions, TierSet};
pub use watcher::Watcher;

use background::Background;
use components::Components;

/// The extended attribute of a migrated copy that keeps the number programs know the file by.
const NUMBER_XATTR: &str = "user.halocline.inode";

/// Whole files on an ordered list of tiers, the first of which holds the tree.
#[derive(Debug)]
pub struct FileTier {
    components: Arc<Components>,
    background: Background,
}

impl FileTier {
    /// Opens the tiers of `set`, recovers from a killed mount and adopts files that it does not know.
    ///
    /// # Errors
    /// [`Error::Invalid`](halocline_os::error::Error::Invalid) where a tier is missing or the tiers do not belong
    /// together.
    pub fn open(set: &TierSet, options: TierOptions) -> Result<Self> {
        Self::open_decorated(set, options, &Decorations::NONE).map(|(tier, _)| tier)
    }

    /// The same with the decorations `around`; also returns what was found.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn open_decorated(
        set: &TierSet,
        options: TierOptions,
        around: &Decorations,
    ) -> Result<(Self, ScanFindings)> {
        let components = Arc::new(Components::open(set, options, around)?);
        let found = components.scan.recover()?;
        for problem in &found.problems {
            tracing::warn!("{problem}");
            components.base.notes.add(problem.to_string());
        }
        let background = if around.own_threads {
            Background::start(&components)?
        } else {
            Background::by_others(&components)
        };
        Ok((Self { components, background }, found))
    }

    /// Does a chore in this thread, as the tier's own threads do if it has them
    /// ([`Decorations::own_threads`]); `false` if none of the due work could be done.
    ///
    /// # Errors
    /// If leftovers cannot be removed: that is tried again with the next such chore.
    pub fn work(&self, chore: Chore) -> Result<bool> {
        chore.round(&self.components)
    }

    /// Adds to the status what a person should know of the tiers.
    pub fn note_of_tiers(&self, note: &str) {
        self.components.base.notes.add(note.to_owned());
    }

    /// Examines the tiers of `set`, which must not be mounted; with `repair`, puts them in order
    /// as a mount would. Without it, directories that never were tiers do not become tiers.
    pub fn check(set: &TierSet, repair: bool) -> Result<ScanFindings> {
        let options = TierOptions::default();
        let components = if repair {
            Components::open(set, options, &Decorations::NONE)
        } else {
            Components::look(set, options)
        };
        components?.scan.survey(repair)
    }

    /// Ends background work and finishes what is in progress. Nothing is called afterwards.
    pub fn close(&self) -> Result<()> {
        self.background.stop();
        self.components.base.planner.jobs().note_places();
        self.components.permissions.record_again(&|| false);
        if let Err(error) = self.components.base.leftovers.finish() {
            tracing::warn!(%error, "data of removed files is removed at the next mount");
        }
        if let Err(error) = self.components.base.copy_records.end_era() {
            tracing::warn!(%error, "clean copies are compared before they are used again");
        }
        Ok(())
    }
}

/// Whether `path` lies in a tier's private directory.
fn is_private_path(path: &Path) -> bool {
    path.starts_with(PRIVATE)
}
