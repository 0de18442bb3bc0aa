//! How often a node has begun or ended a session, as its SSD and the shared disk count it: where the two differ, an earlier state of
//! one of them was put back (`docs/decisions/0106-shared-disks-that-were-put-back.md`).
//!
//! What must hold: whoever dies while both are counted leaves two that agree. Two that differ stay so until a repair has compared the
//! disks.

use halocline_os::error::Result;
use halocline_os::private::PrivateDir;

use crate::remedies::{CHECK, REPAIR};

/// The file on an SSD: its count; while that changes, that which follows, too.
const COUNT: &str = "count";
/// In the private directory of the shared disk: the directory with a file for each node, by its name.
const COUNTS: &str = "counts";
/// The most bytes of each.
const BYTES_MAX: u64 = 64;

/// Which of both disks is an earlier state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Older {
    /// The node's SSD.
    Ssd,
    /// The shared disk.
    Shared,
}

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Counts {
    /// On the SSD, and what it may become.
    ssd: Option<[u64; 2]>,
    shared: Option<u64>,
}

/// The numbers in a file, one or two. What nobody of us wrote counts nothing.
fn numbers(dir: &PrivateDir, name: &str) -> Result<Option<[u64; 2]>> {
    let Some(bytes) = dir.read(name, BYTES_MAX)? else { return Ok(None) };
    let text = String::from_utf8_lossy(&bytes);
    let mut numbers = text.split_whitespace().map(str::parse::<u64>);
    let first = numbers.next().and_then(std::result::Result::ok);
    let next = numbers.next().map_or(Ok(None), |next| next.map(Some)).ok().flatten();
    Ok(first.map(|first| [first, next.unwrap_or(first)]))
}

impl Counts {
    fn read(own: &PrivateDir, counts: &PrivateDir, node: &str) -> Result<Self> {
        let shared = numbers(counts, node)?.map(|[count, _]| count);
        Ok(Self { ssd: numbers(own, COUNT)?, shared })
    }

    /// Which one is older. One that counts nothing is new, or an earlier version has used it.
    fn older(self) -> Option<Older> {
        let ([count, next], shared) = (self.ssd?, self.shared?);
        match shared {
            shared if shared == count || shared == next => None,
            shared if shared < count => Some(Older::Shared),
            _ => Some(Older::Ssd),
        }
    }

    /// The highest one.
    fn highest(self) -> u64 {
        let [count, next] = self.ssd.unwrap_or_default();
        count.max(next).max(self.shared.unwrap_or_default())
    }
}

/// Counts once more on both, unless one of them is older, which is returned.
///
/// # Errors
/// If a disk refuses it; both agree then, too.
pub(crate) fn count(own: &PrivateDir, common: &PrivateDir, node: &str) -> Result<Option<Older>> {
    let counts = common.sub(COUNTS)?;
    let found = Counts::read(own, &counts, node)?;
    if let Some(older) = found.older() {
        return Ok(Some(older));
    }
    let count = found.shared.unwrap_or_else(|| found.highest());
    let next = count.saturating_add(1);
    own.replace(COUNT, format!("{count} {next}\n").as_bytes())?;
    counts.replace(node, format!("{next}\n").as_bytes())?;
    own.replace(COUNT, format!("{next}\n").as_bytes())?;
    Ok(None)
}

/// Which one is older; nothing is made.
///
/// # Errors
/// If that cannot be read.
pub(crate) fn older(own: &PrivateDir, common: &PrivateDir, node: &str) -> Result<Option<Older>> {
    match PrivateDir::look(&common.path().join(COUNTS)) {
        Err(error) if error.errno() == libc::ENOENT => Ok(None),
        counts => Ok(Counts::read(own, &counts?, node)?.older()),
    }
}

/// Has the SSD counted as older: it is another directory than that of its last session, which has not ended.
///
/// # Errors
/// If the shared disk refuses it.
pub(crate) fn count_as_older(own: &PrivateDir, common: &PrivateDir, node: &str) -> Result<()> {
    let counts = common.sub(COUNTS)?;
    let found = Counts::read(own, &counts, node)?;
    if found.ssd.is_none() || found.older().is_some() {
        return Ok(());
    }
    let next = found.highest().saturating_add(1);
    counts.replace(node, format!("{next}\n").as_bytes())
}

/// Has both agree: a repair has compared the disks.
///
/// # Errors
/// If a disk refuses it.
pub(crate) fn agree(own: &PrivateDir, common: &PrivateDir, node: &str) -> Result<()> {
    let counts = common.sub(COUNTS)?;
    let found = Counts::read(own, &counts, node)?;
    if found.older().is_none() {
        return Ok(());
    }
    let count = format!("{}\n", found.highest());
    own.replace(COUNT, count.as_bytes())?;
    counts.replace(node, count.as_bytes())
}

/// What is said of it.
pub(crate) fn told(older: Older, node: &str) -> String {
    let (what, files) = match older {
        Older::Ssd => (format!("the SSD of node {node} is older than its last session"), "files"),
        Older::Shared => (
            format!("the shared disk is older than the last session of node {node}"),
            "files, and copies of files of SSDs,",
        ),
    };
    format!(
        "{what}, as if a backup of it was put back: {files} on it may be as they were before, or missing; if the newer disk is still \
         there, bring it back"
    )
}

/// The same at a mount.
pub(crate) fn told_at_mount(older: Older, node: &str) -> String {
    let told = told(older, node);
    format!(
        "{told}; otherwise unmount all nodes, and compare the names with the disks ({CHECK}). This is said at each mount until a repair \
         has put in order what is there: {REPAIR}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dirs() -> (tempfile::TempDir, PrivateDir, PrivateDir) {
        let scratch = tempfile::tempdir().unwrap();
        let [own, common] =
            ["own", "common"].map(|dir| PrivateDir::make(&scratch.path().join(dir)).unwrap());
        (scratch, own, common)
    }

    #[test]
    fn an_earlier_state_of_either_disk_is_noticed_until_a_repair() {
        let (_scratch, own, common) = dirs();
        let count = || count(&own, &common, "a").unwrap();
        assert_eq!((count(), count()), (None, None));
        let counts = common.sub(COUNTS).unwrap();
        let state = || (own.read(COUNT, 64).unwrap().unwrap(), counts.read("a", 64).unwrap());
        let before = state();
        assert_eq!(count(), None);
        let after = state();
        own.replace(COUNT, &before.0).unwrap();
        assert_eq!((count(), count()), (Some(Older::Ssd), Some(Older::Ssd)));
        agree(&own, &common, "a").unwrap();
        assert_eq!(state(), after);
        counts.replace("a", &before.1.unwrap()).unwrap();
        assert_eq!((count(), count()), (Some(Older::Shared), Some(Older::Shared)));
        agree(&own, &common, "a").unwrap();
        assert_eq!((state(), count()), (after, None));
        count_as_older(&own, &common, "a").unwrap();
        assert_eq!(count(), Some(Older::Ssd));
    }

    #[test]
    fn whoever_dies_while_he_counts_leaves_two_that_agree() {
        for (ssd, shared) in [("5 6", "5"), ("5 6", "6"), ("6", "6"), ("", "6"), ("x", "6")] {
            let (_scratch, own, common) = dirs();
            own.replace(COUNT, ssd.as_bytes()).unwrap();
            common.sub(COUNTS).unwrap().replace("a", shared.as_bytes()).unwrap();
            assert_eq!(count(&own, &common, "a").unwrap(), None, "{ssd} {shared}");
            assert_eq!(count(&own, &common, "a").unwrap(), None, "{ssd} {shared}");
        }
    }

    #[test]
    fn a_disk_that_counts_nothing_is_new() {
        for missing in ["ssd", "shared"] {
            let (_scratch, own, common) = dirs();
            assert_eq!(count(&own, &common, "a").unwrap(), None);
            match missing {
                "ssd" => own.remove(COUNT).unwrap(),
                _ => common.sub(COUNTS).unwrap().remove("a").unwrap(),
            }
            assert_eq!(count(&own, &common, "a").unwrap(), None, "{missing}");
            assert_eq!(count(&own, &common, "a").unwrap(), None, "{missing}");
        }
    }
}
