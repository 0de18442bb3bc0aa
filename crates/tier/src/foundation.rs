//! What all components of a file tier are based on: the tiers, what is known of their files, and where counts and notes
//! are kept.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::RwLock;

use super::active_moves::ActiveMoves;
use super::catalog::Catalog;
use super::copy_records::CopyRecords;
use super::decorations::{BatchBounds, Decorations};
use super::dir_times::DirTimes;
use super::inode::Table;
use super::inode_numbers::InodeNumbers;
use super::leftover_intents::LeftoverIntents;
use super::leftovers::Leftovers;
use super::linked_vnodes::LinkedVnodes;
use super::lost_files::LostFiles;
use super::notes::Notes;
use super::options::{TierOptions, TierSet};
use super::passthrough::Passthrough;
use super::pending_syncs::PendingSyncs;
use super::planner::Planner;
use super::residents::Residents;
use super::tier_dir::TierDir;
use super::tier_links::TierLinks;
use super::tiers::Tiers;
use super::wakeups::Wakeups;
use super::watermarks::Watermarks;
use halocline_api::control::tier::PRIVATE;
use halocline_api::file_tier::{Counters, History};
use halocline_meta::owner::Owner;
use halocline_os::clock::Clock;
use halocline_os::error::{Error, Result};

/// The lowest components. Each other component is given this once, when it is made, and keeps what it needs of it.
#[derive(Debug)]
pub(crate) struct Foundation {
    pub(super) tiers: Arc<Tiers>,
    pub(super) table: Arc<Table>,
    pub(super) inode_numbers: Arc<InodeNumbers>,
    pub(super) residents: Arc<Residents>,
    pub(super) linked_vnodes: Arc<LinkedVnodes>,
    pub(super) catalog: Arc<Catalog>,
    pub(super) intents: Arc<LeftoverIntents>,
    pub(super) copy_records: Arc<CopyRecords>,
    pub(super) leftovers: Arc<Leftovers>,
    pub(super) pending_syncs: Arc<PendingSyncs>,
    pub(super) dir_times: Arc<DirTimes>,
    pub(super) lost_files: Arc<LostFiles>,
    /// Held shared to read or change names, exclusively for a cutover (taken last).
    pub(super) names: Arc<RwLock<()>>,
    pub(super) planner: Arc<Planner>,
    pub(super) watermarks: Watermarks,
    pub(super) passthrough: Arc<Passthrough>,
    pub(super) counters: Arc<Counters>,
    pub(super) active_moves: Arc<ActiveMoves>,
    pub(super) history: Arc<History>,
    pub(super) notes: Arc<Notes>,
    /// Work for the background threads.
    pub(super) wakeups: Arc<Wakeups>,
    pub(super) options: Arc<TierOptions>,
    pub(super) batch_bounds: BatchBounds,
    /// No mount has used these tiers before.
    pub(super) is_new: bool,
    pub(super) clock: Clock,
    pub(super) begun: Instant,
    /// The lock of the set, while it is mounted (I8).
    _owner: Owner,
}

impl Foundation {
    /// Opens the tiers of `set` with the decorations `around`; `former` returns the tiers' roots at earlier mounts.
    pub(super) fn new(
        set: &TierSet,
        options: TierOptions,
        around: &Decorations,
        former: impl FnOnce(&Owner) -> Result<Vec<(PathBuf, usize)>>,
    ) -> Result<Self> {
        let ssd = set.roots.first().ok_or_else(|| {
            Error::invalid("a file tier without directories", "name at least two")
        })?;
        set.check()?;
        let clock = around.clock.clone();
        let private = ssd.join(PRIVATE);
        let owner = Owner::take(&private)?;
        let is_new = set.is_new()?;
        let former = former(&owner)?;
        let tier_dir =
            |(tier, root): (usize, &PathBuf)| TierDir::open(root, tier, around.watcher.clone());
        let dirs = set.roots.iter().enumerate().map(tier_dir).collect::<Result<Vec<_>>>()?;
        // The private directory must be the one that is locked, not one that has since been put at its path.
        dirs[0].check_private(&owner)?;
        let total = dirs[0].totals()?;
        let limit = options.limit.bytes(total.f_blocks.saturating_mul(total.f_frsize));
        let started = Duration::from_nanos(clock.now_ns().unsigned_abs());
        let first_name = u64::try_from(started.as_nanos()).unwrap_or_default();
        let (private_dir, steps, count) = (dirs[0].private(), dirs[0].steps.clone(), dirs.len());
        let intents = Arc::new(LeftoverIntents::open(private_dir, steps.clone())?);
        let copy_records = Arc::new(CopyRecords::open(private_dir, steps, count)?);
        let tiers = Tiers::new(dirs, TierLinks::new(&set.roots, &former), first_name)?;
        let (tiers, residents) = (Arc::new(tiers), Arc::new(Residents::new(limit)));
        let (table, wakeups) = (Arc::<Table>::default(), Arc::new(Wakeups::new(&clock)));
        let linked_vnodes = Arc::<LinkedVnodes>::default();
        Ok(Self {
            inode_numbers: Arc::new(InodeNumbers::new(table.clone(), started)),
            table,
            catalog: Arc::new(Catalog::new(&tiers, &residents, &linked_vnodes)),
            leftovers: Arc::new(Leftovers::new(&tiers, &intents, &wakeups)),
            tiers,
            residents,
            linked_vnodes,
            intents,
            copy_records,
            pending_syncs: Arc::default(),
            dir_times: Arc::default(),
            lost_files: Arc::default(),
            names: Arc::default(),
            planner: Arc::new(Planner::new(&private, &options, limit, &clock)?),
            watermarks: Watermarks::new(limit, &options),
            passthrough: Arc::new(Passthrough::new(&options, &clock)),
            counters: Arc::default(),
            active_moves: Arc::new(ActiveMoves::new(&clock)),
            history: Arc::new(History::new(&clock)),
            notes: Arc::default(),
            wakeups,
            options: Arc::new(options),
            batch_bounds: around.batches,
            is_new,
            begun: clock.instant(),
            clock,
            _owner: owner,
        })
    }
}
