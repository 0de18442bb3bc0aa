//! Who changed a file of the origin since it was left (I9), where commands of ours may have changed its attributes past a mount.
//!
//! What must hold: a change of bytes by others is never taken for ours. A file whose times are noted
//! ([`halocline_storage::volume::origin::earlier_times`]) has the size and modification time that it had when they were, so
//! its bytes are those of then, as far as times tell; then it is judged by the change time of then.

use std::ffi::OsStr;

use halocline_meta::Stamp;
use halocline_meta::lease::{Evidence, Verdict};
use halocline_storage::volume::origin::earlier_times::{ATTRIBUTE, EarlierTimes};
use halocline_vfs::namespace::{Namespace, Vnode};

/// Compares how the file at `vnode` was left with how it is found, as [`Evidence::judge`].
pub fn judge(
    evidence: Evidence,
    (left, found): (Stamp, Stamp),
    (namespace, vnode): (&Namespace, &Vnode),
) -> Verdict {
    let verdict = evidence.judge(left, found);
    if verdict != Verdict::Theirs {
        return verdict;
    }
    let before = evidence.known_until(left).and_then(|since_ns| {
        let Stamp::Closed { size, mtime_ns, .. } = found else { return None };
        let noted = namespace.get_xattr(vnode, OsStr::new(ATTRIBUTE)).ok()?;
        let ctime_ns = EarlierTimes::parse(&noted)?.changed_ns((size, mtime_ns), since_ns)?;
        Some(Stamp::Closed { size, mtime_ns, ctime_ns })
    });
    before.map_or(verdict, |before| evidence.judge(left, before))
}
