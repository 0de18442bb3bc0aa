//! Opens the tables of a cache: finds or creates its store, and loads what is recorded.

use std::io;
use std::path::Path;
use std::sync::Arc;

use halocline_model::layout::Placement;
use halocline_model::request::ByteRange;

use super::blocks::UnmappedBlocks;
use super::change::ExtentChanges;
use super::critical::CriticalRanges;
use super::epochs::Epochs;
use super::evict::Evictor;
use super::extent_index::ExtentIndex;
use super::registry::FileRegistry;
use super::sums::Sums;
use super::untrusted::Untrusted;
use super::{Access, ExtentTable, Options, STORE_DIR};
use crate::FileId;
use crate::block_accounting::Space;
use crate::cdt::Cdt;
use crate::checksums::{Checksums, Setting};
use crate::eviction_queue::EvictionQueue;
use crate::files::Files;
use crate::invalidations::Invalidation;
use crate::load::{self, Recovery, Shutdown, Source};
use crate::owner::Owner;
use crate::record_stores::{DEFAULT, by_name};
use crate::records::unrecorded::Unrecorded;
use crate::records::{Opening, RecordStore, StoreKind};
use halocline_os::error::{Error, Result};
use halocline_os::private::PrivateDir;

impl ExtentTable {
    /// Takes the cache directory `dir` and opens its tables, or creates them if it is empty.
    pub fn open(dir: &Path, options: Options) -> Result<(Self, Recovery)> {
        Self::open_on_boot(dir, options, &halocline_os::boot_id::boot_id()?)
    }

    /// The same on a machine with the boot id `boot_id`, which distinguishes a power loss from a crash.
    pub fn open_on_boot(dir: &Path, options: Options, boot_id: &str) -> Result<(Self, Recovery)> {
        Self::open_rewriting(dir, options, boot_id, None)
    }

    /// For tests: the same with a log that is replaced by a snapshot whenever it takes `log_bytes` bytes, so that a few
    /// records lead to snapshots.
    pub fn open_tuned(
        dir: &Path,
        options: Options,
        boot_id: &str,
        log_bytes: u64,
    ) -> Result<(Self, Recovery)> {
        Self::open_rewriting(dir, options, boot_id, Some(log_bytes))
    }

    fn open_rewriting(
        dir: &Path,
        options: Options,
        boot_id: &str,
        rewrite_bytes: Option<u64>,
    ) -> Result<(Self, Recovery)> {
        halocline_os::private::check_above(dir)?;
        let (mut owner, invalidated) = Owner::take_with_witness(dir, options.witness.as_deref())?;
        let path = owner.dir().join(STORE_DIR);
        let is_there = is_there(&path)?;
        let kind = store_kind(&owner, options.record_store, is_there)?;
        let (records, damage) = if options.access == Access::Salvage {
            (kind.salvage)(&PrivateDir::open(&path)?, boot_id)?
        } else {
            let torn = owner.last_boot() != Some(boot_id);
            let set_aside_bytes = options.records_bytes;
            let opening = Opening { torn, set_aside_bytes, rewrite_bytes };
            let records = open_records(&mut owner, kind, is_there, opening)?;
            owner.opened_on(boot_id)?;
            (records, None)
        };
        let (dmt, mut recovery) = Self::over((owner, &invalidated), records, options, boot_id)?;
        recovery.damage = damage;
        Ok((dmt, recovery))
    }

    /// The tables of an owned cache whose records are open, and the invalidations that were found for it.
    pub(super) fn over(
        (owner, invalidated): (Owner, &[Invalidation]),
        records: Arc<dyn RecordStore>,
        options: Options,
        boot_id: &str,
    ) -> Result<(Self, Recovery)> {
        let set_aside = options.records_bytes;
        let access = options.access;
        let looks = access != Access::Change;
        let records = if looks { Arc::new(Unrecorded(records)) } else { records };
        let space = Space::new(options.limit_bytes, Arc::clone(&records), set_aside);
        let eviction_queue = EvictionQueue::new(options.eviction);
        let cdt = Cdt::new(options.cdt_entries);
        let path = &owner.dir().join(STORE_DIR);
        let source = Source { records: &*records, path, space: &space };
        let loaded = load::load(source, eviction_queue, cdt, boot_id)?;
        if loaded.recovery.last_shutdown == Shutdown::PowerLost {
            tracing::warn!(
                files = loaded.recovery.dropped.len(),
                "the machine went down: extents that no fsync covered were dropped"
            );
        }
        let of_boot = (boot_id, loaded.recovery.last_shutdown);
        let are_kept = options.checksums;
        let checksums = open_checksums(&owner, (are_kept, access), of_boot, &space, &loaded.files)?;
        let critical = Arc::new(CriticalRanges::new(&records, loaded.cdt));
        let files = FileRegistry::new(&records, &critical, loaded.files);
        let (sums, last) = (Sums::of(loaded.counts), (loaded.generation, options.clock));
        let index = ExtentIndex::new(files, (space, sums), loaded.eviction_queue, last);
        let (index, owner) = (Arc::new(index), Arc::new(owner));
        let epochs = Arc::new(Epochs::after(loaded.epoch, loaded.completed));
        let changes =
            Arc::new(ExtentChanges::new(&records, &index, &epochs, &owner, options.intent_bytes));
        let dmt = Self {
            evictor: Evictor::new(&records, &index, &epochs),
            blocks: UnmappedBlocks::new(&index, &epochs, loaded.recovery.trim),
            untrusted: Untrusted::new(&changes, &index, &owner),
            records,
            critical,
            index,
            epochs,
            changes,
            boot_id: boot_id.to_owned(),
            checksums,
            owner,
        };
        dmt.untrusted.honour(invalidated, access)?;
        match access {
            Access::Change if dmt.index.usage().dirty > 0 => dmt.owner.mark().set(),
            Access::Change if options.marks_witness => {}
            _ => dmt.owner.mark().leave_off(),
        }
        Ok((dmt, loaded.recovery))
    }
}

/// Whether the cache has a store at `path`. This does not follow a link.
fn is_there(path: &Path) -> Result<bool> {
    path.symlink_metadata().map(|_| true).or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => Ok(false),
        _ => Err(Error::at(path, "look for")(error)),
    })
}

/// The kind of the store of an owned cache: of one that is there the kind that it has, else the one that is wanted.
fn store_kind(
    owner: &Owner,
    wanted: Option<&'static StoreKind>,
    is_there: bool,
) -> Result<&'static StoreKind> {
    let has = owner.identity().record_store.as_deref().unwrap_or(DEFAULT.name);
    match wanted {
        Some(wanted) if wanted.name == has || !is_there => Ok(wanted),
        Some(wanted) => Err(Error::invalid(
            format!(
                "the cache {} has the record store {has:?}, and {:?} is wanted",
                owner.dir().display(),
                wanted.name
            ),
            format!("mount it with --record-store {has}, or name an empty directory as the cache"),
        )),
        None => by_name(has, &[]),
    }
}

/// Opens the records of an owned cache, or creates them in one that is still empty.
fn open_records(
    owner: &mut Owner,
    kind: &StoreKind,
    is_there: bool,
    opening: Opening,
) -> Result<Arc<dyn RecordStore>> {
    let path = owner.dir().join(STORE_DIR);
    owner.announce_format(kind)?;
    if !is_there {
        let half_made = format!("{STORE_DIR}.new");
        if owner.holds_data(&[&half_made])? {
            return Err(Error::Store {
                path,
                what: "it is missing, but the cache holds data".to_owned(),
                remedy: "restore it from a copy, or move the cache directory away and start with \
                         an empty one (dirty data in it is then lost)"
                    .to_owned(),
            });
        }
        kind.create(&path)?;
    }
    let dir = PrivateDir::open(&path)?;
    dir.check_below()?;
    (kind.open)(dir, opening)
}

/// Opens the checksums of a cache whose last session ended as `last_shutdown` says, on a machine booted as `boot_id`. Checksums of bytes that are in
/// no extent of `files` are forgotten.
fn open_checksums(
    owner: &Owner,
    (are_kept, access): (bool, Access),
    (boot_id, last_shutdown): (&str, Shutdown),
    space: &Space,
    files: &Files,
) -> Result<Checksums> {
    let dir = &PrivateDir::open(&owner.dir().join(STORE_DIR))?;
    let is_mapped = |file: FileId, placement: Placement, range: ByteRange| {
        files.get(file).is_some_and(|state| {
            let mapped = state.mapped();
            mapped.extents.overlapping(range).any(|(_, extent)| extent.placement == placement)
        })
    };
    let (limit_bytes, bytes) = (space.limit(), space.sums());
    let setting = Setting { dir, boot_id, last_shutdown, limit_bytes, bytes };
    match access {
        // Checksums of extents other than those that were read are forgotten, but only in a copy.
        Access::Salvage => Checksums::open_copy(&setting, &is_mapped),
        // After a power loss, an opening forgets them all; a read-only opening leaves that to the next one.
        Access::ReadOnly if last_shutdown == Shutdown::PowerLost => Ok(Checksums::none()),
        _ if are_kept => Checksums::open(&setting, &is_mapped),
        _ => Checksums::off(dir),
    }
}
