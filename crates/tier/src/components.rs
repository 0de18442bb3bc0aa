//! The components of a file tier, wired together from the bottom up.
//!
//! Each knows only those that are made before it: calls go one way.

use std::sync::Arc;

use super::archive::Archiver;
use super::archive_queue::ArchiveQueue;
use super::batch::Batches;
use super::clean_copies::CleanCopies;
use super::copy_verifier::CopyVerifier;
use super::cutover::Cutover;
use super::decorations::Decorations;
use super::executor::Executor;
use super::explain::Explainer;
use super::files::Files;
use super::foundation::Foundation;
use super::hard_links::HardLinks;
use super::inodes::Inodes;
use super::liveness::Liveness;
use super::migrate::Migrator;
use super::name_changes::NameChanges;
use super::options::{TierOptions, TierSet};
use super::permissions::Permissions;
use super::place_repair::PlaceRepair;
use super::reporter::Reporter;
use super::scan::Scan;
use super::staging::Staging;
use super::tier_dir::TierDir;
use super::tree_walk::TreeWalk;
use halocline_os::error::Result;

/// What the front end, the background threads and the control interface call.
#[derive(Debug)]
pub(crate) struct Components {
    pub(super) archive_queue: Arc<ArchiveQueue>,
    pub(super) permissions: Arc<Permissions>,
    pub(super) inodes: Arc<Inodes>,
    pub(super) hard_links: Arc<HardLinks>,
    pub(super) migrator: Arc<Migrator>,
    pub(super) batches: Arc<Batches>,
    pub(super) executor: Arc<Executor>,
    pub(super) archiver: Arc<Archiver>,
    pub(super) name_changes: Arc<NameChanges>,
    pub(super) files: Arc<Files>,
    pub(super) tree_walk: Arc<TreeWalk>,
    pub(super) scan: Arc<Scan>,
    pub(super) liveness: Arc<Liveness>,
    pub(super) reporter: Arc<Reporter>,
    pub(super) explainer: Arc<Explainer>,
    /// The foundation of all others. Dropped last, because it holds the lock of the set.
    pub(super) base: Foundation,
}

impl Components {
    /// Opens the tiers of `set`, which makes the directories tiers, with the decorations `around`.
    pub(super) fn open(set: &TierSet, options: TierOptions, around: &Decorations) -> Result<Self> {
        let base =
            Foundation::new(set, options, around, |owner| set.write_labels(owner.identity()))?;
        base.tiers.dirs().iter().try_for_each(TierDir::check_renames)?;
        Ok(Self::new(base))
    }

    /// The same, without making the directories tiers.
    pub(super) fn look(set: &TierSet, options: TierOptions) -> Result<Self> {
        Ok(Self::new(Foundation::new(set, options, &Decorations::NONE, |_| set.former())?))
    }

    fn new(base: Foundation) -> Self {
        let archive_queue = Arc::new(ArchiveQueue::new(&base));
        let clean = Arc::new(CleanCopies::new(&base, &archive_queue));
        let permissions = Arc::new(Permissions::new(&base, &archive_queue, &clean));
        let inodes = Arc::new(Inodes::new(&base));
        let hard_links = Arc::new(HardLinks::new(&base, &inodes));
        let repair = Arc::new(PlaceRepair::new(&base, &inodes));
        let staging = Arc::new(Staging::new(&base, &clean, &hard_links));
        let cutover = Arc::new(Cutover::new(&base, &archive_queue, &clean, &hard_links));
        let migrator = Arc::new(Migrator::new(&base, &clean, &repair, &staging, &cutover));
        let batches = Arc::new(Batches::new(&base, &staging, &cutover));
        let executor = Arc::new(Executor::new(&base, &inodes, &migrator, &batches));
        let archiver =
            Arc::new(Archiver::new(&base, &archive_queue, &clean, &permissions, &inodes, &staging));
        let name_changes = Arc::new(NameChanges::new(
            &base,
            &archive_queue,
            &clean,
            &permissions,
            &inodes,
            &hard_links,
            &repair,
        ));
        let files = Arc::new(Files::new(
            &base,
            &archive_queue,
            &clean,
            &permissions,
            &inodes,
            &migrator,
            &executor,
        ));
        let tree_walk = Arc::new(TreeWalk::new(&base, &inodes));
        let copy_verifier = Arc::new(CopyVerifier::new(&base, &archive_queue));
        let scan = Arc::new(Scan::new(&base, &archive_queue, &hard_links, &copy_verifier));
        let liveness = Arc::new(Liveness::new(&base));
        let reporter = Arc::new(Reporter::new(&base, &archive_queue, &liveness));
        let explainer =
            Arc::new(Explainer::new(&base, &inodes, &hard_links, &tree_walk, &reporter));
        Self {
            archive_queue,
            permissions,
            inodes,
            hard_links,
            migrator,
            batches,
            executor,
            archiver,
            name_changes,
            files,
            tree_walk,
            scan,
            liveness,
            reporter,
            explainer,
            base,
        }
    }
}
