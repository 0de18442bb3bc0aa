//! Files that nobody may change, not even root, because of their attributes (chattr(1)).

use std::path::Path;

use rustix::fs::{AtFlags, CWD, Statx, StatxAttributes, StatxFlags, statx};

/// Whether something has an attribute by which nobody may change it.
pub fn is_fixed(found: &Statx) -> bool {
    found.stx_attributes.intersects(StatxAttributes::IMMUTABLE.union(StatxAttributes::APPEND))
}

/// What to do about `EPERM` of `path`, which may be about to be made, where an attribute of it, or of the directory above what
/// there is of it, is the reason.
pub fn remedy(path: &Path) -> Option<String> {
    let found = |at| Some((at, statx(CWD, at, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::TYPE).ok()?));
    let mut there = path.ancestors().filter_map(found).take(2);
    let (at, _) = there.find(|(_, found)| is_fixed(found))?;
    let at = at.display();
    Some(format!(
        "{at} is immutable, or may only grow, by its attributes (lsattr), for root, too: take these off (chattr -i -a {at})"
    ))
}
