//! Commands that messages name, whole: what is in capitals is to be filled in by whoever reads them, what is in
//! brackets where the mounts have it, too.

/// Compares the names with the disks, and changes nothing.
pub(crate) const CHECK: &str = "halocline cluster fsck --tier ROOT --cluster URL [--peers PATTERN]";
/// Puts them in order, or builds the names again; all nodes must be unmounted.
pub(crate) const REPAIR: &str =
    "halocline cluster fsck --tier ROOT --cluster URL [--peers PATTERN] --repair";
/// What to do with a tier of one node.
pub(crate) const ADOPT: &str = "make it the SSD of a node of this tier: halocline cluster fsck --tier ROOT --cluster URL [--peers PATTERN] \
                                --adopt NODE --repair";
/// What to do with one whose adoption was begun and not finished.
pub(crate) const FINISH_ADOPTION: &str = "finish it by the same command: halocline cluster fsck --tier ROOT --cluster URL [--peers PATTERN] --adopt NODE --repair";
/// What to do if the shared disk is gone for good.
pub(crate) const DISK_LOST: &str = "if it is lost for good, have the names built again from what is there now and from all SSDs that are reached: halocline \
                                    cluster fsck --tier ROOT --cluster URL --peers PATTERN --repair --shared-disk-lost";
