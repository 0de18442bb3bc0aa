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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Regression: after the origin had lost its last changes, what a move to another layout did was taken for a change by others.
    #[test]
    fn i9_what_was_lost_before_a_command_of_ours_is_no_change_by_others() {
        use Verdict::{Ours, Theirs};
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "bytes").unwrap();
        let namespace = Namespace::open(dir.path()).unwrap();
        let (vnode, _) = namespace.lookup(&namespace.root(), OsStr::new("file")).unwrap();
        let closed = |mtime_ns, ctime_ns| Stamp::Closed { size: 5, mtime_ns, ctime_ns };
        let judged = |evidence, left, found| judge(evidence, (left, found), (&namespace, &vnode));
        let (left, ended) = (closed(100, 100), Evidence::Ended(120));
        assert_eq!(judged(ended, left, closed(50, 50)), Ours);
        assert_eq!(judged(ended, left, closed(50, 300)), Theirs, "a change of times by others");
        let note = |times: &str| {
            namespace.set_xattr(&vnode, OsStr::new(ATTRIBUTE), times.as_bytes(), 0).unwrap();
        };
        // Lost at 50, moved at 200 and 210.
        note("5 50;50 200;205 210");
        let rows = [
            (ended, left, closed(50, 300), Ours),
            (ended, left, closed(51, 300), Theirs),
            (ended, closed(250, 250), closed(50, 300), Theirs),
            (ended, closed(202, 202), closed(50, 300), Theirs),
            (ended, Stamp::Writing, closed(50, 300), Ours),
            (Evidence::Ended(205), Stamp::Writing, closed(50, 300), Ours),
            (Evidence::Ended(220), Stamp::Writing, closed(50, 300), Theirs),
            (Evidence::Durable(120), left, closed(50, 300), Theirs),
            (Evidence::Durable(120), Stamp::Writing, closed(50, 300), Ours),
            (Evidence::Behind(120), left, closed(50, 300), Ours),
            (Evidence::Behind(220), left, closed(50, 300), Theirs),
            (Evidence::Copy, left, closed(50, 300), Theirs),
            (Evidence::Copy, Stamp::Writing, closed(50, 300), Theirs),
            (ended, Stamp::Unjudged { until_ns: 120 }, closed(50, 300), Ours),
            (ended, Stamp::Unjudged { until_ns: i64::MIN }, closed(50, 300), Theirs),
        ];
        for (evidence, left, found, want) in rows {
            assert_eq!(judged(evidence, left, found), want, "{evidence:?} {left:?} {found:?}");
        }
        // Others changed its attributes, or its bytes with its times, before the command.
        note("5 50;150 200");
        assert_eq!(judged(ended, left, closed(50, 300)), Theirs);
        note("what");
        assert_eq!(judged(ended, left, closed(50, 300)), Theirs);
    }
}
