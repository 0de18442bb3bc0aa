//! Which directories are known to be durable with all above them, so that each is synced once and not for each file.

use std::os::fd::OwnedFd;

use halocline_os::error::Result;
use halocline_vfs::namespace::stat_descriptor;
use parking_lot::Mutex;
use rustc_hash::FxHashSet;
use rustix::fs::{Mode, OFlags, fsync, openat, syncfs};

use super::Tree;
use crate::places::own_xattrs;

/// The most directories that are remembered.
const KNOWN_MAX: usize = 1 << 16;
/// The most directories that are synced one by one; beyond that, everything on the disk at once takes less time.
const ONE_BY_ONE: usize = 16;

/// The directories of one tree, by their own numbers and those of their inodes. What is removed and made again has another
/// number; one that was renamed is at its old or new name after a power failure, as is what is below it.
#[derive(Debug, Default)]
pub(super) struct DurableDirectories {
    known: Mutex<FxHashSet<(u64, u64)>>,
}

impl DurableDirectories {
    /// Makes a directory durable, and those above it up to one that is known to be.
    pub(super) fn sync(&self, tree: &Tree, directory: &OwnedFd) -> Result<()> {
        let root = stat_descriptor(tree.look(None)?)?.key();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut dir = openat(directory, ".", flags, Mode::empty())?;
        tree.step("syncing a directory", || fsync(&dir))?;
        let (mut passed, mut below) = (Vec::new(), None);
        loop {
            let stat = stat_descriptor(&dir)?;
            let number = own_xattrs::number(&dir, own_xattrs::DIRECTORY);
            let it = number.map(|number| (number, stat.raw.st_ino));
            let is_known = it.is_some_and(|it| self.known.lock().contains(&it));
            // Whatever was moved out of the tree meanwhile ends at the root of all.
            if is_known || stat.key() == root || below == Some(stat.key()) {
                break;
            }
            below = Some(stat.key());
            passed.push(it);
            dir = openat(&dir, "..", flags, Mode::empty())?;
            if passed.len() < ONE_BY_ONE {
                tree.step("syncing a directory", || fsync(&dir))?;
            } else if passed.len() == ONE_BY_ONE {
                tree.step("syncing a directory", || syncfs(&dir))?;
            }
        }
        let mut known = self.known.lock();
        if known.len() + passed.len() > KNOWN_MAX {
            known.clear();
        }
        known.extend(passed.into_iter().flatten());
        Ok(())
    }
}
