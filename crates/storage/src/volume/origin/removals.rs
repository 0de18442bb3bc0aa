//! Objects of files whose last names are gone, until no power loss brings these names back.
//!
//! The tree and the servers may be on file systems of their own, each of which commits changes when it likes. What must hold: no local
//! file of an object is removed before it is durable that its file has no name; or the file, there again after a power loss of the tree, would
//! have lost bytes that had been fsynced. So removals are queued, and worked off in batches: one sync of the tree's file
//! system, then the removal of all that were queued before it.
//!
//! The queue is in memory. What a kill leaves of it are objects that no file names, as after a kill between an unlink and the removal of its
//! object: `fsck` finds them.

use std::fs::File;
use std::io;
use std::mem;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::fs::{fstat, syncfs};

use super::identity::ObjectId;
use super::layouts;
use crate::volume::{Volume, object_paths};
use halocline_os::error::{Error, Result};
use halocline_os::private::PrivateDir;

/// Objects of a batch that is worked off at once, by who queues the last one: so the queue does not grow for ever, and a kill leaves no more
/// than about as many.
const BATCH_MAX: usize = 4096;

/// The objects of an origin that are to be removed.
#[derive(Debug, Default)]
pub struct Removals {
    /// `None` for a plain origin, of which nothing is ever queued.
    below: Option<Below>,
    queued: Mutex<Queued>,
    /// One batch at a time: who needs room waits for the one under way.
    working: Mutex<()>,
    /// Objects removed so far.
    removed: AtomicU64,
}

/// What the removals of a striped volume are about.
#[derive(Debug)]
struct Below {
    volume: Volume,
    /// The root of the tree, open, because something else may be mounted at its path.
    tree: File,
    /// The device numbers of the file systems of the tree, and of each server.
    tree_device: u64,
    devices: Vec<u64>,
}

#[derive(Debug, Default)]
struct Queued {
    ids: Vec<ObjectId>,
    /// Whether some are of files on other file systems than the tree's, which are mounted in it.
    has_others: bool,
}

impl Removals {
    /// Those of a striped volume with this tree, and its servers in these directories.
    pub(super) fn of(volume: Volume, tree: &File, servers: &[PrivateDir]) -> io::Result<Self> {
        let device = |dir: &PrivateDir| -> io::Result<u64> { Ok(fstat(dir)?.st_dev) };
        let devices = servers.iter().map(device).collect::<io::Result<_>>()?;
        let tree_device = tree.metadata()?.dev();
        let below = Below { volume, tree: tree.try_clone()?, tree_device, devices };
        let mut removals = Self::default();
        removals.below = Some(below);
        Ok(removals)
    }

    /// Queues an object whose file, on the file system `device`, has lost its last name.
    pub(super) fn add(&self, id: ObjectId, device: u64) {
        let Some(below) = &self.below else { return };
        let count = {
            let mut queued = self.queued.lock();
            queued.ids.push(id);
            queued.has_others |= device != below.tree_device;
            queued.ids.len()
        };
        if count >= BATCH_MAX {
            self.work_off_if(BATCH_MAX, |has_others| below.sync(has_others));
        }
    }

    /// Removes all objects that were queued before, once it is durable that their files have no names; after this the caller finds
    /// what room that gives. If the tree does not sync they stay queued.
    pub fn work_off(&self) {
        if let Some(below) = &self.below {
            self.work_off_if(1, |has_others| below.sync(has_others));
        }
    }

    /// The same if at least `least` are queued; `sync` makes it durable that files have no names, if it is told also on all
    /// other file systems than that of the tree.
    fn work_off_if(&self, least: usize, sync: impl FnOnce(bool) -> io::Result<()>) {
        let Some(below) = &self.below else { return };
        let _one_at_a_time = self.working.lock();
        let (batch, has_others) = {
            let mut queued = self.queued.lock();
            if queued.ids.len() < least {
                return;
            }
            (queued.ids.clone(), mem::take(&mut queued.has_others))
        };
        if let Err(error) = sync(has_others) {
            self.not_synced((batch.len(), has_others), &error);
            return;
        }
        for id in &batch {
            // What cannot be removed, as on a server that became read-only, takes space until a repair finds it.
            if let Err(error) = remove(*id, &below.volume) {
                told_to_stay(1, &error);
            }
        }
        // Those that were queued meanwhile are behind them.
        self.queued.lock().ids.drain(..batch.len());
        self.removed.fetch_add(batch.len() as u64, Ordering::Release);
    }

    /// Keeps a batch whose names may be there after a power loss; more than two of them are left as after a kill.
    fn not_synced(&self, (count, has_others): (usize, bool), error: &io::Error) {
        let mut queued = self.queued.lock();
        queued.has_others |= has_others;
        if queued.ids.len() < 2 * BATCH_MAX {
            tracing::debug!("the tree of a striped origin does not sync: {error}");
        } else {
            queued.ids.drain(..count);
            told_to_stay(count, error);
        }
    }

    /// Does `work`, and does it again if there was no room and objects that were queued by then are removed since. `errno`
    /// is the error number of its error.
    pub fn with_room<T, E>(
        &self,
        errno: impl Fn(&E) -> Option<i32>,
        work: impl Fn() -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let before = self.removed.load(Ordering::Acquire);
        let done = work();
        let errno = done.as_ref().err().and_then(errno);
        if !matches!(errno, Some(libc::ENOSPC | libc::EDQUOT)) {
            return done;
        }
        self.work_off();
        if self.removed.load(Ordering::Acquire) == before { done } else { work() }
    }

    /// Whether nothing is queued.
    pub fn is_empty(&self) -> bool {
        self.queued.lock().ids.is_empty()
    }

    /// Bytes of blocks of the file system `device` that are free once the queue is worked off.
    ///
    /// # Errors
    /// If a server cannot be looked at.
    pub fn bytes_on(&self, device: u64) -> Result<u64> {
        let Some(below) = &self.below else { return Ok(0) };
        let ids = self.queued.lock().ids.clone();
        let mut bytes = 0_u64;
        let servers = below.volume.servers().iter().zip(&below.devices);
        for (server, _) in servers.filter(|(_, its)| **its == device) {
            for id in &ids {
                let used = server.directory().allocated_of(&id.path());
                bytes = bytes.saturating_add(used.map_err(Error::at(server.dir(), "look at"))?);
            }
        }
        Ok(bytes)
    }
}

impl Drop for Removals {
    fn drop(&mut self) {
        self.work_off();
    }
}

impl Below {
    /// Makes the names of the tree durable, and of all other file systems if some are elsewhere.
    fn sync(&self, has_others: bool) -> io::Result<()> {
        if has_others {
            rustix::fs::sync();
        }
        Ok(syncfs(&self.tree)?)
    }
}

/// Removes an object, with its layout, from all servers that can be changed, and returns the error of the first other one.
pub(super) fn remove(id: ObjectId, volume: &Volume) -> Result<()> {
    // Before the object: with a layout and no data the file would have holes alone.
    let layout = layouts::remove(id, volume).map_err(|(server, error)| {
        let path = server.dir().join(id.path_in(object_paths::LAYOUTS));
        Error::at(path, "remove the layout")(error)
    });
    let path = id.path();
    let mut removed = Ok(());
    for server in volume.servers() {
        let failed = Error::at(server.dir().join(&path), "remove the object");
        removed = removed.and(server.directory().remove(&path).map_err(failed));
    }
    removed.and(layout)
}

fn told_to_stay(count: usize, error: &dyn std::error::Error) {
    tracing::warn!(
        %error,
        "the data of {count} removed file(s) stays on the origin's servers; `halocline fsck` of the cache, unmounted, tells \
         how to remove it"
    );
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use halocline_api::config::{VolumeKind, VolumeShape};

    use super::super::Origin;
    use super::*;

    const SHAPE: VolumeShape = VolumeShape { kind: VolumeKind::Striped, servers: 2, stripe: 4096 };

    /// Makes a file, removes its name, and has its object queued.
    fn removed(origin: &Origin, name: &str) {
        let path = origin.namespace_dir().join(name);
        let made = File::create_new(&path).unwrap();
        let file = origin.open_data(std::os::fd::AsFd::as_fd(&made), libc::O_RDWR).unwrap();
        file.write_at(0, &vec![1; 20_000]).unwrap();
        fs::remove_file(path).unwrap();
        origin.remove_data(made).unwrap();
    }

    fn mounted(dir: &Path) -> Origin {
        Origin::open_or_create(dir, SHAPE, &|_, device| device).unwrap()
    }

    #[test]
    fn i4_no_object_goes_before_the_tree_is_synced_nor_if_it_does_not_sync() {
        let dir = tempfile::tempdir().unwrap();
        let origin = mounted(dir.path());
        let objects = || origin.object_count().unwrap();
        for name in ["one", "two"] {
            removed(&origin, name);
        }
        origin.removals().work_off_if(1, |_| Err(io::Error::from_raw_os_error(libc::EIO)));
        assert_eq!(objects(), 2, "the names may be back");
        origin.removals().work_off_if(1, |has_others| {
            assert_eq!((objects(), has_others), (2, false));
            // Of this one nothing is known to be durable.
            removed(&origin, "late");
            Ok(())
        });
        assert_eq!(objects(), 1);
        origin.removals().work_off_if(2, |_| unreachable!("there are not so many"));
        drop(origin);
        assert_eq!(mounted(dir.path()).object_count().unwrap(), 0, "the end works the rest off");
    }

    #[test]
    fn a_full_queue_is_worked_off_by_who_fills_it_and_does_not_grow_without_end() {
        let dir = tempfile::tempdir().unwrap();
        let origin = mounted(dir.path());
        removed(&origin, "one");
        let id = origin.removals().queued.lock().ids[0];
        let (device, others) = (fs::metadata(dir.path()).unwrap().dev(), u64::MAX);
        for _ in 2..BATCH_MAX {
            origin.removals().add(id, device);
        }
        assert_eq!(origin.object_count().unwrap(), 1);
        origin.removals().add(id, device);
        assert_eq!((origin.object_count().unwrap(), origin.removals().is_empty()), (0, true));
        origin.removals().add(id, others);
        let failed = |has_others: bool| {
            assert!(has_others, "file systems in the tree are synced, too");
            Err(io::Error::from_raw_os_error(libc::EIO))
        };
        origin.removals().work_off_if(1, failed);
        origin.removals().queued.lock().ids.extend(std::iter::repeat_n(id, 2 * BATCH_MAX));
        origin.removals().work_off_if(1, failed);
        assert!(origin.removals().is_empty(), "left to a repair");
    }
}
