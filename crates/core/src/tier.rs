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
//! Files: [`links`] and [`side`] are the form on disk, [`link_owner`] tells whether a link is ours, [`steps`] its changes, [`scan`] reads it at
//! mount and tells of each [`problem`], [`adopt`] what is no file; [`inode`] is what is known of a live file and [`residents`] the SSD's account; [`copy`],
//! [`migrate`], [`cutover`], [`names`], [`many_names`] and [`leftovers`] change places and names, [`mirror`] directories below; [`dir_times`] hides that from directories, [`lost`] is what has a name and no place; [`files`] are
//! files in use; [`clean`] keeps copies of them below, which [`marks`] name, [`judge`] believes or not and [`archive`] makes; [`placement`] plans which are kept on the SSD, by their [`numbers`] and a [`view`] of them, which the [`executor`] carries out, with what
//! [`jobs`] announce (each a [`job`] from a [`job_file`], followed by who is its [`opener`]), and [`eviction_order`] leave first; [`background`] demotes them, [`in_flight`] several at once or in a [`batch`], and [`moving`] for a command; [`pass`] hands them to the kernel, and [`mapped`]
//! sees mappings that stay; [`totals`] is what `df` shows, and [`under_way`] what moves now; [`serve`] answers the front end and [`operate`] the control socket, with [`tree`] and [`why`], which tells of [`uses`].

mod adopt;
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
mod pass;
mod placement;
mod problem;
mod residents;
mod scan;
mod serve;
mod side;
mod steps;
#[cfg(test)]
mod tests;
mod totals;
mod tree;
mod under_way;
mod uses;
mod view;
mod why;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use parking_lot::{Mutex, RwLock};

use crate::control::SOCKET_NAME;
use crate::error::{Error, Result};
use crate::meta::owner::Owner;
use crate::namespace::Namespace;
use crate::private::own_uid;

pub use inode::Node;
pub use opener::JOB_VARIABLE;
pub use options::{TierOptions, TierSet};
pub use problem::Problem;
pub use scan::Found;
pub use serve::Handle;

use archive::Archive;
use background::{Background, Signal};
use counters::Counters;
use dir_times::DirTimes;
use inode::Table;
use intents::Intents;
use leftovers::OldCopy;
use links::Links;
use lost::Lost;
use many_names::ManyNames;
use marks::Marks;
use pass::Passing;
use placement::Placement;
use residents::Residents;
use side::Side;
use under_way::UnderWay;
use uses::AllUses;
use view::View;

/// Directory of the engine's own in each tier; programs do not see it.
pub const PRIVATE: &str = ".halocline";

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
    namespace: Namespace,
    /// All tiers; the first is the SSD.
    sides: Vec<Side>,
    links: Links,
    table: Arc<Table>,
    residents: Residents,
    intents: Intents,
    marks: Marks,
    archive: Archive,
    placement: Placement,
    counters: Counters,
    under_way: UnderWay,
    uses: AllUses,
    begun: Instant,
    /// What a person should know.
    notes: Mutex<Vec<String>>,
    passing: Mutex<Passing>,
    lost: Lost,
    many_names: ManyNames,
    /// No mount has seen these tiers before.
    is_new: bool,
    old_copies: Mutex<Vec<OldCopy>>,
    /// By the number of a file: a directory that must be synced before anything of the file is
    /// durable, because its last move is not. Nobody need have the file open meanwhile.
    owed: Mutex<HashMap<u64, crate::namespace::Node>>,
    dir_times: DirTimes,
    /// Work for the background threads.
    signal: Arc<Signal>,
    options: TierOptions,
    /// Who mounts, and makes our links.
    uid: u32,
    /// Shared by whoever reads or changes names, exclusive for a switch (taken last).
    names: RwLock<()>,
    next_name: AtomicU64,
    /// For a file whose own number another is known by.
    next_number: AtomicU64,
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
        let background = Background::start(&core)?;
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
        Ok(Self {
            namespace: sides[0].tree()?,
            links: Links::new(&set.roots, &former),
            table: Arc::default(),
            residents: Residents::new(limit),
            intents: Intents::open(sides[0].private(), sides[0].steps.clone())?,
            marks: Marks::open(sides[0].private(), sides[0].steps.clone(), sides.len())?,
            archive: Archive::default(),
            uid: own_uid(),
            placement: Placement::new(&private, &options, limit)?,
            counters: Counters::default(),
            under_way: UnderWay::default(),
            uses: AllUses::default(),
            begun: Instant::now(),
            notes: Mutex::default(),
            passing: Mutex::default(),
            lost: Lost::default(),
            many_names: ManyNames::default(),
            is_new,
            old_copies: Mutex::default(),
            owed: Mutex::default(),
            dir_times: DirTimes::default(),
            signal: Arc::default(),
            options,
            names: RwLock::default(),
            next_number: AtomicU64::new(
                numbers::MADE_UP + u64::try_from(started.as_micros()).unwrap_or_default(),
            ),
            next_name: AtomicU64::new(u64::try_from(started.as_nanos()).unwrap_or_default()),
            sides,
            _owner: owner,
        })
    }

    /// What is known in memory of the files on the SSD.
    const fn view(&self) -> View<'_> {
        View::new(&self.residents, &self.namespace, &self.many_names)
    }

    /// A name that no other temporary file has.
    fn fresh_name(&self) -> String {
        format!("{:x}", self.next_name.fetch_add(1, Ordering::Relaxed))
    }

    /// Where the control socket is.
    fn socket(&self) -> PathBuf {
        self.sides[0].path.join(PRIVATE).join(SOCKET_NAME)
    }

    /// Whether `name` in `parent` is the engine's own directory.
    fn is_private(&self, parent: &crate::namespace::Node, name: &OsStr) -> bool {
        name == PRIVATE && *parent == self.namespace.root()
    }
}

/// Whether `path` lies in a tier's private directory.
fn is_private_path(path: &Path) -> bool {
    path.starts_with(PRIVATE)
}
