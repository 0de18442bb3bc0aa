//! The SSDs of nodes that a repair changes: each mount has the lock of its own.
//!
//! The locks on the shared disk do not tell of nodes that were mounted with another disk there: one that is lost, or only
//! not mounted here.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};

use halocline_api::control::tier::PRIVATE;
use halocline_api::file_tier::shared_disk::NODES;
use halocline_os::clock::Clock;
use halocline_os::error::{Error, Result};
use halocline_os::locked_file::LockedFile;
use halocline_os::private::{PrivateDir, Use, check_above};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::{CHECK, ENDS_WITHIN, LOOK_AGAIN, lock, repaired_by_another, sign, signed};
use crate::places::peers::{self, Whose};

/// The file on an SSD that its mount keeps locked.
const LOCK: &str = "in-use";

/// That no mount has the SSDs of a tier, and none can have them meanwhile.
#[derive(Debug)]
pub struct SsdLocks {
    pub(super) _kept: Vec<LockedFile>,
}

impl SsdLocks {
    /// Locks the SSDs of the tier below `root`, as far as they are reached: `ROOT/ssd`, and those to which `peers` leads.
    ///
    /// # Errors
    /// If a mount has one of them.
    pub fn take(root: &Path, peers: Option<&str>) -> Result<Self> {
        Self::take_by(root, peers, &Clock::MACHINE)
    }

    pub(super) fn take_by(root: &Path, peers: Option<&str>, clock: &Clock) -> Result<Self> {
        let mut kept = Vec::new();
        let mut seen = BTreeSet::new();
        for (path, whose) in of_tier(root, peers) {
            let Some((private, file)) = lock_file(&path)? else { continue };
            // The own SSD is also that to which the pattern leads, whatever path it has there.
            let identity = rustix::fs::fstat(&file)
                .map_err(|errno| Error::at(private.path().join(LOCK), "look at")(errno.into()))?;
            if !seen.insert((identity.st_dev, identity.st_ino)) {
                continue;
            }
            let is_used = |file: &File| is_used((&whose.node, &private.path().join(LOCK)), file);
            let locked = lock(file, FlockOperation::NonBlockingLockExclusive, clock, is_used)?;
            // A mount that is refused meanwhile says who has it.
            if let Some(file) = &locked {
                sign(file);
            }
            kept.extend(locked);
        }
        Ok(Self { _kept: kept })
    }
}

/// The SSDs that are reached and that are those of nodes of the tier below a root, with the nodes.
pub(crate) fn of_tier(root: &Path, peers: Option<&str>) -> Vec<(PathBuf, Whose)> {
    let [ssd, shared] = ["ssd", "hdd"].map(|disk| root.join(disk));
    let own = peers::of_ssd(&ssd);
    let tiers: BTreeSet<String> =
        own.iter().map(|own| own.tier.clone()).chain(peers::id_of_disk(&shared)).collect();
    let mut all = Vec::from_iter(own.map(|own| (ssd, own)));
    let Some(peers) = peers else { return all };
    let mut nodes: BTreeSet<String> =
        peers::reached(peers).into_iter().map(|found| found.node).collect();
    // What is above the SSDs may show only those that somebody has used.
    let noted = std::fs::read_dir(shared.join(PRIVATE).join(NODES));
    let noted = noted.into_iter().flatten().flatten();
    let noted = noted.filter_map(|entry| entry.file_name().into_string().ok());
    nodes.extend(noted.filter(|node| peers::check_node(node).is_ok()));
    let found = nodes.into_iter().filter_map(|node| {
        let path = peers::of_node(peers, &node);
        // A repair does not read what others could replace.
        check_above(&path).ok()?;
        let whose = peers::of_ssd(&path)?;
        (whose.node == node && tiers.contains(&whose.tier)).then_some((path, whose))
    });
    all.extend(found);
    all
}

/// The file that the mount of an SSD locks; `None` if the SSD cannot be changed here, or no more be reached.
fn lock_file(ssd: &Path) -> Result<Option<(PrivateDir, File)>> {
    let Ok(private) = PrivateDir::open(&ssd.join(PRIVATE)) else { return Ok(None) };
    let file = match private.file(LOCK, Use::Write) {
        // One that can only be read shows who has it, too.
        Err(error) if error.is_full() || error.errno() == libc::EROFS => {
            match private.file(LOCK, Use::Read) {
                Err(error) if error.errno() == libc::ENOENT => return Ok(None),
                file => file?,
            }
        }
        file => file?,
    };
    Ok(Some((private, file)))
}

fn is_used((node, path): (&str, &Path), file: &File) -> Error {
    Error::Cluster {
        what: format!(
            "node {node} is mounted, or a process of it stands still: {} has its SSD, and may change its files and names \
             ({} is locked)",
            signed(file),
            path.display()
        ),
        remedy: format!(
            "unmount it first, also where its shared disk is another one, or none; kill -9, on its machine, ends a process that is \
             left. If that machine is switched off for good, and the file system of the SSD does not let go of its lock: rm {}",
            path.display()
        ),
    }
}

/// Locks an SSD for the mount that this process begins: any earlier holder has ended. `common` is the private directory of the
/// shared disk.
///
/// # Errors
/// If another process has it.
pub(crate) fn lock_own(own: &PrivateDir, common: &PrivateDir, clock: &Clock) -> Result<LockedFile> {
    let begun = clock.instant();
    let file = own.file(LOCK, Use::Write)?;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                sign(&file);
                return Ok(LockedFile::new(file));
            }
            Err(Errno::WOULDBLOCK) => match repaired_by_another(&common.sub(CHECK)?)? {
                Some(repaired) if clock.elapsed(begun) >= ENDS_WITHIN => return Err(repaired),
                Some(_) => clock.sleep(LOOK_AGAIN),
                None => {
                    return Err(Error::invalid(
                        format!(
                            "{} is in use by another mount, or a repair ({})",
                            own.path().display(),
                            signed(&file)
                        ),
                        "end that first, or give this node an SSD of its own",
                    ));
                }
            },
            Err(errno) => return Err(Error::at(own.path().join(LOCK), "lock")(errno.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: only the locks on the shared disk counted, and that may be another one than the mount has.
    #[test]
    fn i15_an_ssd_that_a_mount_has_is_not_repaired_whatever_is_at_its_shared_disk() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |path: &str| scratch.path().join(path);
        for node in ["a", "b", "other"] {
            let private = PrivateDir::make(&at(node).join("ssd").join(PRIVATE)).unwrap();
            let tier = if node == "other" { "another" } else { "tier" };
            private.replace("node", format!("{node}\n{tier}\n").as_bytes()).unwrap();
        }
        std::fs::create_dir(at("b/hdd")).unwrap();
        let private = |node: &str| PrivateDir::open(&at(node).join("ssd").join(PRIVATE)).unwrap();
        let common = PrivateDir::make(&at("disk")).unwrap();
        let pattern = at("{node}/ssd").display().to_string();
        let clock = Clock::simulated();
        let take = || SsdLocks::take_by(&at("b"), Some(&pattern), &clock);
        let _of_another_tier = lock_own(&private("other"), &common, &clock).unwrap();
        for node in ["a", "b"] {
            let mounted = lock_own(&private(node), &common, &clock).unwrap();
            let refused = take().unwrap_err().to_string();
            let own = format!("process {} on ", std::process::id());
            assert!(refused.contains(&format!("node {node} ")), "{refused}");
            assert!(refused.contains(&own), "{refused}");
            drop(mounted);
            let repairing = take().unwrap();
            let refused = lock_own(&private(node), &common, &clock).unwrap_err().to_string();
            assert!(refused.contains(&own), "{refused}");
            drop(repairing);
        }
    }
}
