//! Whole files between tiers under one tree: the file tier (`HyCache`;
//! docs/ALGORITHMS.md, section 8).
//!
//! `docs/decisions/0001-file-tier.md` says how it works. What must hold, besides I1 to I8:
//! - I10 A file is in one place. Its name on the SSD says where: a regular file there is the
//!   file, a link that [`links`] recognises names the place of the file on a lower tier. Any other
//!   copy is a leftover that an intent ([`intents`]) names, or was put there by somebody and is
//!   never touched.
//! - The place changes by one `rename` on the SSD ([`cutover`]), made after the copy is durable and
//!   while nobody reads or writes the file.
//! - A file that the kernel serves by itself (passthrough) is not moved.
//! - All names of a file stand for the same one, also after a power loss ([`many_names`]).
//!
//! Files, from the bottom; each takes what it needs of those before it, and none knows those after it:
//! - On disk: [`tiers`] are the tree and each tier's directory ([`side`], whose changes are [`steps`]), [`links`] the form of links between them,
//!   [`link_owner`] whose one is, [`intents`] what may be left over, [`mirror`] directories below, and [`totals`] what `df` shows.
//! - In memory: [`inode`] is what is known of a live file and [`numbers`] its number; [`residents`] are the SSD's account, [`watermarks`] how full it may
//!   be, [`marks`] the clean copies, [`owed`] moves that are not durable; [`dir_times`] hides moves from directories; [`counters`], [`uses`] and [`under_way`]
//!   are for people; [`lost`] is what has a name and no place; [`leftovers`] go when [`signal`] says so; [`adopt`] is for what is no file.
//! - Policy: [`placement`] plans which files are kept on the SSD, from a [`view`] in memory, with what [`jobs`] announce (each a [`job`] from a [`job_file`],
//!   followed by who is its [`opener`]); [`eviction_order`] says who leaves first. [`pass`] tells what the kernel may serve, [`mapped`] which mappings stay.
//!
//! What follows shares the [`Core`] and is not in layers yet: [`copy`], [`migrate`], [`cutover`], [`names`] and [`many_names`] change places and names;
//! [`clean`] keeps copies below, which [`judge`] believes or not, [`archive`] makes and [`permissions`] closes with their files; the [`executor`] carries plans out, several files at once
//! ([`in_flight`]) or in a [`batch`]; [`files`] are files in use. On top, [`scan`] reads the tiers at mount and tells of each [`problem`]; [`background`] demotes before
//! the SSD is full and [`moving`] for a command; [`serve`] answers the front end and [`operate`] the control socket, with [`tree`] and [`why`].

mod adopt;
mod answering;
mod archive;
mod background;
mod batch;
mod clean;
mod copy;
mod counters;
mod cutover;
mod dir_times;
mod eviction_order;
mod executor;
mod files;
mod in_flight;
mod inode;
mod intents;
mod job;
mod job_file;
mod jobs;
mod judge;
mod leftovers;
mod link_owner;
mod links;
mod lost;
mod many_names;
mod mapped;
mod marks;
mod migrate;
mod mirror;
mod moving;
mod names;
mod numbers;
mod opener;
mod operate;
mod options;
mod owed;
mod pass;
mod permissions;
mod placement;
mod problem;
mod residents;
mod scan;
mod serve;
mod side;
mod signal;
mod steps;
#[cfg(test)]
mod tests;
mod tiers;
mod totals;
mod tree;
mod under_way;
mod uses;
mod view;
mod watermarks;
mod why;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use parking_lot::{Mutex, RwLock};

use crate::error::{Error, Result};
use crate::looks::Looks;
use crate::meta::owner::Owner;
use crate::unpanicked::Panicked;

pub use inode::Node;
pub use opener::JOB_VARIABLE;
pub use options::{TierOptions, TierSet};
pub use problem::Problem;
pub use scan::Found;
pub use serve::Handle;

use archive::Archive;
use background::Background;
use counters::Counters;
use dir_times::DirTimes;
use inode::Table;
use intents::Intents;
use leftovers::Leftovers;
use links::Links;
use lost::Lost;
use many_names::ManyNames;
use marks::Marks;
use numbers::Numbers;
use owed::Owed;
use pass::Passing;
use permissions::Unmarked;
use placement::Placement;
use residents::Residents;
use side::Side;
use signal::Signal;
use tiers::Tiers;
use under_way::UnderWay;
use uses::AllUses;
use view::View;
use watermarks::Watermarks;

/// Directory of the engine's own in each tier; programs do not see it.
pub const PRIVATE: &str = ".halocline";

/// Notes of defects are added to fewer notes than these.
const NOTES_MAX: usize = 100;

/// The extended attribute of a migrated copy that keeps the number programs know the file by.
const NUMBER_XATTR: &str = "user.halocline.inode";

/// Whole files on an ordered list of tiers, the first of which holds the tree.
#[derive(Debug)]
pub struct FileTier {
    core: Arc<Core>,
    background: Background,
}

/// What the front end, the movers and the control interface share.
#[derive(Debug)]
pub(crate) struct Core {
    tiers: Tiers,
    table: Arc<Table>,
    numbers: Numbers,
    residents: Residents,
    intents: Intents,
    marks: Marks,
    archive: Archive,
    unmarked: Unmarked,
    placement: Placement,
    counters: Counters,
    under_way: UnderWay,
    uses: AllUses,
    begun: Instant,
    /// What a person should know.
    notes: Mutex<Vec<String>>,
    /// The first panic of background work.
    defect: OnceLock<String>,
    passing: Passing,
    watermarks: Watermarks,
    lost: Lost,
    many_names: ManyNames,
    /// No mount has seen these tiers before.
    is_new: bool,
    leftovers: Leftovers,
    owed: Owed,
    dir_times: DirTimes,
    /// Work for the background threads.
    signal: Arc<Signal>,
    options: TierOptions,
    looks: Looks,
    /// Shared by whoever reads or changes names, exclusive for a switch (taken last).
    names: RwLock<()>,
    /// The lock of the set, while it is mounted (I8).
    _owner: Owner,
}

impl FileTier {
    /// Opens the tiers of `set`, recovers what a killed mount left and adopts what it does not
    /// know.
    ///
    /// # Errors
    /// [`Error::Invalid`] where a tier is missing or the tiers do not belong together.
    pub fn open(set: &TierSet, options: TierOptions) -> Result<Self> {
        let core = Arc::new(Core::open(set, options)?);
        let found = core.recover()?;
        for problem in &found.problems {
            tracing::warn!("{problem}");
            core.notes.lock().push(problem.to_string());
        }
        let background = Background::start(&core, background::WORK)?;
        Ok(Self { core, background })
    }

    /// Says in the status what a person should know of the tiers.
    pub fn note_of_tiers(&self, note: &str) {
        self.core.notes.lock().push(note.to_owned());
    }

    /// Looks at the tiers of `set`, which must not be mounted; with `repair` brings them in order
    /// as a mount would. Without, directories that never were tiers do not become ones.
    pub fn check(set: &TierSet, repair: bool) -> Result<Found> {
        let options = TierOptions::default();
        let core = if repair { Core::open(set, options) } else { Core::look(set, options) };
        core?.survey(repair)
    }

    /// Ends background work and finishes what is under way. Nothing is called after it.
    pub fn close(&self) -> Result<()> {
        self.background.stop();
        self.core.placement.jobs().note_places();
        self.core.mark_anew(&|| false);
        if let Err(error) = self.core.finish_removals() {
            tracing::warn!(%error, "data of removed files is removed at the next mount");
        }
        if let Err(error) = self.core.marks.end_era() {
            tracing::warn!(%error, "clean copies are compared before they are used again");
        }
        Ok(())
    }
}

impl Core {
    fn open(set: &TierSet, options: TierOptions) -> Result<Self> {
        Self::with(set, options, |owner| set.record(owner.identity()))
    }

    /// The same, without making the directories tiers.
    fn look(set: &TierSet, options: TierOptions) -> Result<Self> {
        Self::with(set, options, |_| set.former())
    }

    /// Opens what `former` says had these roots earlier.
    fn with(
        set: &TierSet,
        options: TierOptions,
        former: impl FnOnce(&Owner) -> Result<Vec<(PathBuf, usize)>>,
    ) -> Result<Self> {
        let ssd = set.roots.first().ok_or_else(|| {
            Error::invalid("a file tier without directories", "name at least two")
        })?;
        set.check()?;
        let private = ssd.join(PRIVATE);
        let owner = Owner::take(&private)?;
        let is_new = set.is_new()?;
        let former = former(&owner)?;
        let sides = set.roots.iter().enumerate().map(|(tier, root)| Side::open(root, tier));
        let sides = sides.collect::<Result<Vec<_>>>()?;
        // Of the directory that is locked, not of one that came to its path meanwhile.
        sides[0].check_private(&owner)?;
        let total = sides[0].totals()?;
        let limit = options.limit.bytes(total.f_blocks.saturating_mul(total.f_frsize));
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (table, signal) = (Arc::<Table>::default(), Arc::<Signal>::default());
        let first_name = u64::try_from(started.as_nanos()).unwrap_or_default();
        let (private_dir, steps, count) = (sides[0].private(), sides[0].steps.clone(), sides.len());
        let intents = Intents::open(private_dir, steps.clone())?;
        let marks = Marks::open(private_dir, steps, count)?;
        Ok(Self {
            tiers: Tiers::new(sides, Links::new(&set.roots, &former), first_name)?,
            numbers: Numbers::new(table.clone(), started),
            table,
            residents: Residents::new(limit),
            intents,
            marks,
            archive: Archive::default(),
            unmarked: Unmarked::default(),
            placement: Placement::new(&private, &options, limit)?,
            counters: Counters::default(),
            under_way: UnderWay::default(),
            uses: AllUses::default(),
            begun: Instant::now(),
            notes: Mutex::default(),
            defect: OnceLock::new(),
            passing: Passing::new(&options),
            watermarks: Watermarks::new(limit, &options),
            lost: Lost::default(),
            many_names: ManyNames::default(),
            is_new,
            leftovers: Leftovers::new(signal.clone()),
            owed: Owed::default(),
            dir_times: DirTimes::default(),
            signal,
            options,
            looks: Looks::default(),
            names: RwLock::default(),
            _owner: owner,
        })
    }

    /// Removes the data of files whose names are gone; see [`Leftovers::finish`].
    fn finish_removals(&self) -> Result<()> {
        self.leftovers.finish(&self.tiers, &self.intents)
    }

    /// Tells of background work that panicked.
    fn defect(&self, whose: &str, panicked: &Panicked) {
        let what = format!("{whose}: {panicked}");
        let mut notes = self.notes.lock();
        if !notes.contains(&what) && notes.len() < NOTES_MAX {
            notes.push(what.clone());
        }
        self.defect.get_or_init(|| what);
    }

    /// What is known in memory of the files on the SSD.
    const fn view(&self) -> View<'_> {
        View::new(&self.residents, self.tiers.tree(), &self.many_names)
    }
}

/// Whether `path` lies in a tier's private directory.
fn is_private_path(path: &Path) -> bool {
    path.starts_with(PRIVATE)
}
