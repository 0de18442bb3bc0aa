//! Names that the store has taken away, or given to something else, while the shared disk could not follow, because it
//! could only be read or was full, or another node's file was still at the name: the node's background thread tries again.
//! Also names of a file on an SSD that was not reached, if the shared disk had no room to note that.
//!
//! What must hold: whatever is tried again is compared with the store first, or is known by a number that the store never
//! gives again. So nothing that has got the name since is touched.

use halocline_cluster::names::attributes::Location;
use halocline_model::namespace::{EntryName, InodeNumber};
use halocline_os::error::{Error, Result};
use parking_lot::Mutex;

use crate::disk_names::DiskNames;
use crate::places::{DirectoryStep, missed};
use crate::told_names::tell_names;

/// The most changes that are remembered; the others are left to `cluster fsck --repair`.
const CHANGES_MAX: usize = 1 << 16;

/// What the disk must still do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Late {
    /// Have under the name what the store has there; the link or device with this number lost it.
    Other(EntryName, InodeNumber),
    /// Remove a file that has lost its last name.
    File(Location, InodeNumber),
    /// Remove a directory that the store no longer has.
    Directory(Vec<DirectoryStep>),
    /// Record these names, which it has got or lost, with a file that was at a place, or note that its SSD has missed them.
    Told(InodeNumber, Location, [Vec<EntryName>; 2]),
    /// Put a renamed directory where the store has it.
    Renamed(InodeNumber),
}

/// What the disk must still do, in the order of the changes in the store.
#[derive(Debug, Default)]
pub(crate) struct LateNames(Mutex<Vec<Late>>);

impl LateNames {
    /// Remembers what the disk could not do, if it may do it later.
    pub(crate) fn add(&self, done: Result<()>, late: impl FnOnce() -> Vec<Late>) -> Result<()> {
        if done.as_ref().is_err_and(may_pass) {
            self.remember(late());
        }
        done
    }

    /// Remembers what the disk must do once others have done with a name.
    pub(crate) fn remember(&self, late: Vec<Late>) {
        let mut all = self.0.lock();
        all.extend(late);
        all.truncate(CHANGES_MAX);
    }

    /// Tries all again; what still cannot be done stays. Also puts what lies beside its name where it belongs.
    pub(crate) fn follow(&self, disk: &DiskNames<'_>) {
        self.follow_remembered(disk);
        if let Err(error) = disk.put_at_names() {
            tracing::warn!(%error, "what lies beside its name on the shared disk stays there for now");
        }
    }

    fn follow_remembered(&self, disk: &DiskNames<'_>) {
        let all = std::mem::take(&mut *self.0.lock());
        if all.is_empty() {
            return;
        }
        let count = all.len();
        let is_left = |late: &Late| match follow(disk, late) {
            Ok(is_done) => !is_done,
            Err(error) if may_pass(&error) => true,
            Err(error) => {
                tracing::warn!(%error, ?late, "a name stays on the shared disk until the names are checked");
                false
            }
        };
        let left: Vec<Late> = all.into_iter().filter(is_left).collect();
        let followed = count - left.len();
        tracing::debug!(followed, left = left.len(), "names that the shared disk could not follow");
        let mut now = self.0.lock();
        let since = std::mem::replace(&mut *now, left);
        now.extend(since);
    }
}

/// Whether a disk that refuses something may do it later: it can only be read, or is full, or something else still has a
/// name, and the one beside it; or the store did not answer.
fn may_pass(error: &Error) -> bool {
    let errno = error.errno();
    let is_disks = matches!(errno, libc::EROFS | libc::ENOSPC | libc::EDQUOT | libc::EEXIST);
    is_disks || matches!(error, Error::Cluster { .. })
}

/// Whether the disk has followed.
fn follow(disk: &DiskNames<'_>, late: &Late) -> Result<bool> {
    let done = match late {
        Late::Other(name, number) => return disk.follow_later(name, *number),
        Late::File(place, number) => {
            let removed = disk.places.remove_all(place, number.0);
            missed::or_gone(disk.places, (place, number.0), removed)
        }
        Late::Told(number, place, [is, was]) => {
            let [is, was] = [is, was].map(|names| names.iter().collect::<Vec<_>>());
            tell_names((disk.names, disk.places), *number, Ok(place), (&is, &was))
        }
        Late::Directory(steps) => disk.places.remove_directory(steps),
        Late::Renamed(number) => disk.places.settle_directory(number.0),
    };
    done.map(|()| true)
}

#[cfg(test)]
mod tests {
    use halocline_cluster::names::attributes::{Attributes, Kind};

    use super::*;
    use crate::repair::tests::{Node, World};

    /// Regression: a link that was tried once more while another node's file was still at its name stayed beside that for good.
    #[test]
    fn a_link_gets_its_name_however_late_the_file_that_had_it_goes() {
        let world = World::new();
        let node = world.node("n1");
        let disk =
            DiskNames { names: &node.names, places: &node.places, directories: &node.directories };
        node.create_on_shared(1, "l", "to be moved").unwrap();
        let name = Node::entry(1, "l");
        node.names.unlink(&name).unwrap();
        let mut attributes = Attributes::new(Kind::Symlink, 0o777, 0);
        attributes.target = b"nowhere".to_vec();
        (attributes.uid, attributes.gid) =
            (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let made = node.names.create(&name, &attributes).unwrap();
        disk.made(&name, made.inode, &attributes).unwrap();
        let late = LateNames::default();
        late.remember(vec![Late::Other(name, made.inode)]);
        let path = world.at("shared/l");
        for _ in 0..2 {
            late.follow(&disk);
            assert!(path.is_file() && !path.is_symlink());
        }
        std::fs::remove_file(&path).unwrap();
        late.follow(&disk);
        assert!(path.is_symlink() && late.0.lock().is_empty());
        assert!(!world.at("shared").join(format!("l~{}", made.inode.0)).is_symlink());
    }
}
