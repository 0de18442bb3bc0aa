//! Finding the store of a cache, or making it.

use super::STORE_DIR;
use crate::error::{Error, Result};
use crate::meta::journal::Journal;
use crate::meta::owner::Owner;

/// Opens the store of an owned cache, or makes it in one that holds nothing yet.
pub(super) fn open_store(
    owner: &mut Owner,
    boot_id: &str,
    memtable_bytes: u64,
    set_aside: u64,
) -> Result<Journal> {
    let path = owner.dir().join(STORE_DIR);
    owner.announce_ring()?;
    if !path.try_exists().map_err(Error::at(&path, "look for"))? {
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
        Journal::create(&path, memtable_bytes)?;
    }
    let torn = owner.last_boot() != Some(boot_id);
    let journal = Journal::open(&path, memtable_bytes, torn, set_aside)?;
    owner.opened_on(boot_id)?;
    Ok(journal)
}
