//! Finds or creates the store of a cache.

use std::io;
use std::sync::Arc;

use halocline_model::layout::Placement;
use halocline_model::request::ByteRange;

use super::{Access, STORE_DIR};
use crate::FileId;
use crate::block_accounting::Space;
use crate::checksums::{Checksums, Setting};
use crate::files::Files;
use crate::load::Shutdown;
use crate::log::{self, Log, Pace};
use crate::migrate;
use crate::owner::Owner;
use crate::records::RecordStore;
use halocline_os::error::{Error, Result};
use halocline_os::private::PrivateDir;

/// Opens the records of an owned cache, or creates them in one that is still empty.
pub(super) fn open_records(
    owner: &mut Owner,
    boot_id: &str,
    pace: Pace,
) -> Result<Arc<dyn RecordStore>> {
    let path = owner.dir().join(STORE_DIR);
    owner.announce_format()?;
    // This does not follow a link.
    let is_there = path.symlink_metadata().map(|_| true).or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => Ok(false),
        _ => Err(Error::at(&path, "look for")(error)),
    });
    if !is_there? {
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
        Log::create(&path)?;
    }
    let dir = PrivateDir::open(&path)?;
    dir.check_below()?;
    let torn = owner.last_boot() != Some(boot_id);
    if migrate::is_in(&dir)? {
        migrate::migrate(&dir, torn)?;
    }
    let log = Log::open(dir, torn, pace)?;
    owner.opened_on(boot_id)?;
    Ok(Arc::new(log))
}

/// The readable records of an owned cache, and why they are incomplete, if they are.
pub(super) fn salvage_records(
    owner: &Owner,
    boot_id: &str,
    damage: &mut Option<String>,
) -> Result<Arc<dyn RecordStore>> {
    let dir = PrivateDir::open(&owner.dir().join(STORE_DIR))?;
    let mut salvaged = log::salvage(&dir, boot_id)?;
    *damage = salvaged.damage.take();
    Ok(Arc::new(salvaged))
}

/// Opens the checksums of a cache whose last session ended as `last_shutdown` says, on a machine booted as `boot_id`. Checksums of bytes that are in
/// no extent of `files` are forgotten.
pub(super) fn open_checksums(
    owner: &Owner,
    (are_kept, access): (bool, Access),
    (boot_id, last_shutdown): (&str, Shutdown),
    space: &Space,
    files: &Files,
) -> Result<Checksums> {
    let dir = &PrivateDir::open(&owner.dir().join(STORE_DIR))?;
    let is_mapped = |file: FileId, placement: Placement, range: ByteRange| {
        files.get(file).is_some_and(|state| {
            let mapped = state.mapped.read();
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
