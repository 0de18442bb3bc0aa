//! That a tier is being adopted.
//!
//! What must hold: from before the first change until the SSD is that of a node, both disks say so, and nobody mounts the tier as that
//! of one node. There names are missing, or closed to their owners, that have their place on the shared disk by then.

use std::path::Path;

use halocline_api::control::tier::PRIVATE;
use halocline_os::error::Result;

use super::tree::Tree;

/// On the SSD: all names are on the shared disk, and directories are now being closed. On the shared disk, the directory of files
/// that wait for their names.
pub(crate) const ADOPTING: &str = "adopting";
/// On both disks: the name of the node whose SSD it becomes.
const MARK: &str = "being-adopted";

/// Marks both disks, durably.
pub(crate) fn set([ssd, shared]: [&Tree; 2], node: &str) -> Result<()> {
    for disk in [shared, ssd] {
        disk.step("noting that the tier is being adopted", || {
            disk.private.replace(MARK, node.as_bytes())
        })?;
    }
    Ok(())
}

/// Takes the marks away: the SSD is that of a node.
pub(crate) fn clear([ssd, shared]: [&Tree; 2]) -> Result<()> {
    ssd.step("noting that the tier is adopted", || ssd.private.remove(ADOPTING))?;
    for disk in [ssd, shared] {
        disk.step("noting that the tier is adopted", || disk.private.remove(MARK))?;
    }
    Ok(())
}

/// Whether a disk of a tier says that it is being adopted. Earlier versions say it with what they need for that.
pub(crate) fn is_on(disk: &Path) -> bool {
    let has = |name: &str| disk.join(PRIVATE).join(name).symlink_metadata().is_ok();
    has(MARK) || has(ADOPTING)
}
