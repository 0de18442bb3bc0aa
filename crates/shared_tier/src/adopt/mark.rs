//! That a tier is being adopted.
//!
//! What must hold: from before the first change until the SSD is that of a node, both disks say so, and nobody mounts the tier as that
//! of one node. There names are missing, or closed to their owners, that have their place on the shared disk by then.

use std::path::Path;

use halocline_api::control::tier::PRIVATE;
use halocline_os::error::{Error, Result};

use super::CLOSING;
use crate::places::peers;
use crate::places::tree::Tree;
use crate::remedies::{FINISH_ADOPTION, REPAIR};

/// On both disks: the name of the node whose SSD it becomes.
const MARK: &str = "being-adopted";

/// Marks both disks, durably.
pub(super) fn set([ssd, shared]: [&Tree; 2], node: &str) -> Result<()> {
    for disk in [shared, ssd] {
        disk.step("noting that the tier is being adopted", || {
            disk.private.replace(MARK, node.as_bytes())
        })?;
    }
    Ok(())
}

/// Takes the marks away: the SSD is that of a node.
pub(super) fn clear([ssd, shared]: [&Tree; 2]) -> Result<()> {
    ssd.step("noting that the tier is adopted", || ssd.private.remove(CLOSING))?;
    for disk in [ssd, shared] {
        disk.step("noting that the tier is adopted", || disk.private.remove(MARK))?;
    }
    Ok(())
}

/// Whether a disk of a tier says that it is being adopted. Earlier versions say it with what they need for that.
pub(crate) fn is_on(disk: &Path) -> bool {
    let has = |name: &str| disk.join(PRIVATE).join(name).symlink_metadata().is_ok();
    has(MARK) || has(CLOSING)
}

/// Refuses to use the tier below a root as that of one node if its adoption has begun.
///
/// # Errors
/// [`Error::Invalid`] with the way to finish the adoption.
pub fn refuse_if_begun(root: &Path) -> Result<()> {
    let [ssd, shared] = ["ssd", "hdd"].map(|disk| root.join(disk));
    if peers::is_of_a_node(&ssd) {
        return Err(Error::invalid(
            format!("{}: the SSD is that of a node, and nodes share this tier", root.display()),
            format!(
                "mount it with --cluster and the store's URL; if that has no names yet: {REPAIR}"
            ),
        ));
    }
    if is_on(&ssd) || is_on(&shared) {
        return Err(Error::invalid(
            format!("{}: this tier is being made one that nodes share", root.display()),
            FINISH_ADOPTION,
        ));
    }
    Ok(())
}
