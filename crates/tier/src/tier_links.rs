//! Links that stand for files on lower tiers, and users' links that look like them.
//!
//! Ours is a tier's root, a slash and a plain relative path, byte for byte. A user's link whose target begins with a
//! tier's root is stored with [`ESCAPE`] after the root: the kernel resolves it to the same file, and no place has that
//! form. The link of a file with several names, which itself has as many names, has [`SHARED`] there.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use halocline_api::file_tier::link_targets::{ESCAPE, NUMBERS_BEFORE_S, SHARED};
use rustix::fs::{AtFlags, Timespec, Timestamps, utimensat};

use super::tier_dir::TierDir;
use halocline_vfs::Stat;

const NANOS: u64 = 1_000_000_000;
/// Longest target of a link: `xfs`, and `ext4` with small blocks, accept 1023 bytes.
pub(super) const TARGET_BYTES_MAX: usize = 1000;

/// What a symbolic link on the SSD means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    /// The file is on this tier, at this path below the tier's root.
    Away(usize, PathBuf),
    /// A user's link with this target.
    Users(OsString),
}

/// The roots by which links are recognised.
#[derive(Debug, Default)]
pub(super) struct TierLinks {
    /// Root with its slash, and the tier; present roots and those of earlier mounts.
    roots: Vec<(Vec<u8>, usize)>,
    /// The present root of each tier, with its slash.
    present: Vec<Vec<u8>>,
}

impl TierLinks {
    /// `roots` are the tiers' absolute roots, `former` those they had at earlier mounts.
    pub(super) fn new(roots: &[PathBuf], former: &[(PathBuf, usize)]) -> Self {
        let slashed = |root: &Path| {
            let mut bytes = root.as_os_str().as_bytes().to_vec();
            bytes.push(b'/');
            bytes
        };
        let present: Vec<Vec<u8>> = roots.iter().map(|root| slashed(root)).collect();
        let now = present.iter().cloned().enumerate().skip(1).map(|(tier, root)| (root, tier));
        // A label was written by an earlier mount or by somebody else: roots that belong to no tier are ignored.
        let former = former.iter().filter(|(_, tier)| (1..present.len()).contains(tier));
        let before = former.map(|(root, tier)| (slashed(root), *tier));
        let mut roots: Vec<_> = now.chain(before).collect();
        // If one root is inside another, the inner one is meant.
        roots.sort_by_key(|(root, _)| std::cmp::Reverse(root.len()));
        Self { roots, present }
    }

    /// What a stored target means.
    pub(super) fn read(&self, stored: &[u8]) -> Target {
        let users = |bytes: Vec<u8>| Target::Users(OsString::from_vec(bytes));
        let Some((root, tier, rest)) = self.split(stored) else { return users(stored.to_vec()) };
        if let Some(users_rest) = rest.strip_prefix(ESCAPE) {
            return users([root, users_rest].concat());
        }
        let rest = rest.strip_prefix(SHARED).unwrap_or(rest);
        if is_plain(rest) {
            return Target::Away(tier, PathBuf::from(OsStr::from_bytes(rest)));
        }
        users(stored.to_vec())
    }

    /// Whether a stored target of ours is that of a link that may have several names.
    pub(super) fn is_shared(&self, stored: &[u8]) -> bool {
        let rest = self.split(stored).map(|(_, _, rest)| rest);
        rest.is_some_and(|rest| rest.starts_with(SHARED) && !rest.starts_with(ESCAPE))
    }

    /// Number of tiers.
    pub(super) const fn tiers(&self) -> usize {
        self.present.len()
    }

    /// How a user's target is stored.
    pub(super) fn stored(&self, target: &OsStr) -> OsString {
        match self.split(target.as_bytes()) {
            Some((root, _, rest)) => OsString::from_vec([root, ESCAPE, rest].concat()),
            None => target.to_owned(),
        }
    }

    /// The target of the link of a file at `path` on `tier`.
    pub(super) fn to(&self, tier: usize, path: &Path) -> OsString {
        let target = [&self.present[tier], path.as_os_str().as_bytes()].concat();
        debug_assert_eq!(self.read(&target), Target::Away(tier, path.to_owned()));
        OsString::from_vec(target)
    }

    /// The same for a link that may have several names.
    pub(super) fn to_shared(&self, tier: usize, path: &Path) -> OsString {
        let target = [&self.present[tier], SHARED, path.as_os_str().as_bytes()].concat();
        debug_assert_eq!(self.read(&target), Target::Away(tier, path.to_owned()));
        OsString::from_vec(target)
    }

    fn split<'t>(&self, target: &'t [u8]) -> Option<(&[u8], usize, &'t [u8])> {
        self.roots.iter().find_map(|(root, tier)| {
            target.strip_prefix(root.as_slice()).map(|rest| (root.as_slice(), *tier, rest))
        })
    }
}

fn is_plain(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').all(|name| !name.is_empty() && name != b"." && name != b"..")
}

/// The number that one of our links keeps.
pub(super) fn number_in(link: &Stat) -> Option<u64> {
    let (seconds, nanos) = (link.raw.st_mtime, link.raw.st_mtime_nsec);
    if !(0..NUMBERS_BEFORE_S).contains(&seconds) {
        return None;
    }
    let number = seconds.unsigned_abs() * NANOS + nanos.unsigned_abs();
    (number > 0).then_some(number)
}

/// Whether a link can keep the number.
pub(super) fn can_keep(number: u64) -> bool {
    i64::try_from(number / NANOS).is_ok_and(|seconds| seconds < NUMBERS_BEFORE_S)
}

/// Makes a new link, in the directory of temporary names, keep its file's number.
pub(super) fn number_link(ssd: &TierDir, name: &str, number: u64) {
    let now = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
    if !can_keep(number) {
        return;
    }
    let seconds = i64::try_from(number / NANOS).unwrap_or(i64::MAX);
    let nanos = i64::try_from(number % NANOS).expect("below 10^9");
    let kept = Timespec { tv_sec: seconds, tv_nsec: nanos };
    let times = Timestamps { last_access: now, last_modification: kept };
    let tmp = ssd.tmp();
    let keep = || Ok(utimensat(tmp, name, &times, AtFlags::SYMLINK_NOFOLLOW)?);
    if let Err(error) = ssd.steps.step("numbering a link", keep) {
        tracing::debug!(%error, "a link does not keep its file's number");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn links() -> TierLinks {
        TierLinks::new(
            &["/data/ssd".into(), "/data/hdd".into(), "/data/hdd/deep".into()],
            &[("/old/hdd".into(), 1)],
        )
    }

    #[test]
    fn a_users_link_is_never_taken_for_a_place() {
        let read = |target: &str| links().read(target.as_bytes());
        assert_eq!(read("/data/hdd/a/b"), Target::Away(1, "a/b".into()));
        assert_eq!(read("/data/hdd/deep/b"), Target::Away(2, "b".into()));
        assert_eq!(read("/old/hdd/a"), Target::Away(1, "a".into()));
        assert_eq!(read("/data/hdd/./a/b"), Target::Away(1, "a/b".into()));
        assert!(links().is_shared(b"/data/hdd/./a/b") && !links().is_shared(b"/data/hdd/a/b"));
        for users in [
            "/data/hdd",
            "/data/hdd/../x",
            "/data/hdd//x",
            "/data/hdd/",
            "data/hdd/x",
            "",
            "/data/hdd/./",
            "/data/hdd/././x",
        ] {
            assert_eq!(read(users), Target::Users(users.into()));
        }
    }

    #[test]
    fn a_root_of_a_tier_that_is_not_there_means_no_place() {
        let links =
            TierLinks::new(&["/ssd".into(), "/hdd".into()], &[("/x".into(), 7), ("/y".into(), 0)]);
        for target in ["/x/a", "/y/a"] {
            assert_eq!(links.read(target.as_bytes()), Target::Users(target.into()));
        }
    }

    proptest! {
        #[test]
        fn any_target_is_a_place_of_a_tier_or_a_users(target: Vec<u8>, root in 0..4usize) {
            let roots = ["", "/data/hdd/", "/old/hdd/", "/data/ssd/"];
            let target = [roots[root].as_bytes(), &target].concat();
            if let Target::Away(tier, path) = links().read(&target) {
                prop_assert!((1..3).contains(&tier) && is_plain(path.as_os_str().as_bytes()));
            }
        }

        #[test]
        fn users_targets_come_back_and_never_mean_a_place(
            parts in prop::collection::vec(
                prop::sample::select(vec!["/data/hdd", "/old/hdd", "/", ".", "..", "a", ".//", "deep"]), 0..7),
        ) {
            let target = OsString::from(parts.concat());
            let stored = links().stored(&target);
            prop_assert!(!links().is_shared(stored.as_bytes()));
            prop_assert_eq!(links().read(stored.as_bytes()), Target::Users(target));
        }
    }
}
