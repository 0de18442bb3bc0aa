//! Opens what the tables of a cache are made of: finds or creates its store of records, and its checksums.

use std::io;
use std::path::Path;
use std::sync::Arc;

use halocline_model::layout::Placement;
use halocline_model::request::ByteRange;

use super::{Access, Options, STORE_DIR};
use crate::FileId;
use crate::block_accounting::Space;
use crate::checksums::{Checksums, Setting};
use crate::files::Files;
use crate::invalidations::Invalidation;
use crate::load::Shutdown;
use crate::owner::Owner;
use crate::record_stores::{DEFAULT, by_name};
use crate::records::{Opening, RecordStore, StoreKind};
use halocline_os::error::{Error, Result};
use halocline_os::private::PrivateDir;

/// A cache directory that belongs to this process, with its records open.
pub(super) struct OpenedStore {
    pub(super) owner: Owner,
    /// What invalidated extents of it while it was not mounted.
    pub(super) invalidated: Vec<Invalidation>,
    pub(super) records: Arc<dyn RecordStore>,
    /// What is damaged, if the intact part of damaged records is read.
    pub(super) damage: Option<String>,
}

/// Takes the cache directory `dir`, and opens its records on the boot `boot_id`, or creates them if it is empty.
/// `rewrite_bytes` are those of a log that is replaced by a snapshot, if it is not to choose them itself.
pub(super) fn store(
    dir: &Path,
    options: &Options,
    boot_id: &str,
    rewrite_bytes: Option<u64>,
) -> Result<OpenedStore> {
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
    Ok(OpenedStore { owner, invalidated, records, damage })
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
pub(super) fn checksums(
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
