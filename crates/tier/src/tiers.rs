//! The tiers on disk: the tree on the SSD, each tier's directory, and the links from one tier to others.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::symlinkat;

use super::steps::Steps;
use super::tier_dir::TierDir;
use super::tier_links::{TARGET_BYTES_MAX, TierLinks, number_link};
use halocline_api::control::SOCKET_NAME;
use halocline_api::control::tier::PRIVATE;
use halocline_os::error::Result;
use halocline_os::process_user::own_uid;
use halocline_vfs::namespace::{Namespace, Vnode};

/// Device and inode number of a name's inode on the SSD: a file's own, or its link's.
pub(super) type Entry = (u64, u64);

/// What is on disk, and in which form. This does not know files in use, and takes none of their locks.
#[derive(Debug)]
pub(super) struct Tiers {
    /// The tree of the SSD, which has all names.
    tree: Namespace,
    /// All tiers; the first is the SSD.
    dirs: Vec<TierDir>,
    links: TierLinks,
    /// The user who mounts, and who makes our links.
    uid: u32,
    next_name: AtomicU64,
}

impl Tiers {
    /// The tiers of `dirs`, of which the first is the SSD; temporary names begin with `first_name`.
    pub(super) fn new(dirs: Vec<TierDir>, links: TierLinks, first_name: u64) -> Result<Self> {
        let (tree, next_name) = (dirs[0].tree()?, AtomicU64::new(first_name));
        Ok(Self { tree, dirs, links, uid: own_uid(), next_name })
    }

    /// The tree of the SSD, which has all names.
    pub(super) const fn tree(&self) -> &Namespace {
        &self.tree
    }

    /// All tiers; the first is the SSD.
    pub(super) fn dirs(&self) -> &[TierDir] {
        &self.dirs
    }

    /// The SSD.
    pub(super) fn ssd(&self) -> &TierDir {
        &self.dirs[0]
    }

    /// Steps of a tier.
    pub(super) fn steps(&self, tier: usize) -> &Steps {
        &self.dirs[tier].steps
    }

    /// Whether several files must be moved one after the other because a watcher wants their steps in order.
    pub(super) fn one_by_one(&self) -> bool {
        self.ssd().steps.one_by_one()
    }

    /// The form of links that name places.
    pub(super) const fn links(&self) -> &TierLinks {
        &self.links
    }

    /// The user who mounts, and who makes our links.
    pub(super) const fn uid(&self) -> u32 {
        self.uid
    }

    /// A name that no other temporary file has.
    pub(super) fn fresh_name(&self) -> String {
        format!("{:x}", self.next_name.fetch_add(1, Ordering::Relaxed))
    }

    /// The number in the next such name.
    pub(super) fn next_name(&self) -> u64 {
        self.next_name.load(Ordering::Relaxed)
    }

    /// The set's own directory on the SSD.
    pub(super) fn private_dir(&self) -> PathBuf {
        self.ssd().path.join(PRIVATE)
    }

    /// Where the control socket is.
    pub(super) fn socket(&self) -> PathBuf {
        self.private_dir().join(SOCKET_NAME)
    }

    /// Whether `name` in `parent` is the engine's own directory.
    pub(super) fn is_private(&self, parent: &Vnode, name: &OsStr) -> bool {
        name == PRIVATE && *parent == self.tree.root()
    }

    /// The tree's vnode at a path.
    pub(super) fn walk(&self, path: &Path) -> Option<Vnode> {
        path.iter().try_fold(self.tree.root(), |vnode, name| {
            self.tree.lookup(&vnode, name).ok().map(|(vnode, _)| vnode)
        })
    }

    /// Whether a link can name a place; the place of a file that has just lost its name is empty.
    pub(super) fn can_be_named(&self, tier: usize, place: &Path) -> bool {
        let is_empty = place.as_os_str().is_empty();
        !is_empty && self.links.to(tier, place).len() <= TARGET_BYTES_MAX
    }

    /// Makes a link with the temporary name `name`, which keeps the number of its file.
    pub(super) fn make_link(&self, name: &str, target: &OsStr, number: Option<u64>) -> Result<()> {
        let ssd = self.ssd();
        ssd.steps.step("making a link", || Ok(symlinkat(target, ssd.tmp(), name)?))?;
        if let Some(number) = number {
            number_link(ssd, name, number);
        }
        Ok(())
    }

    /// Makes changes of names in a directory of the tree durable.
    pub(super) fn sync_directory(&self, dir: &Vnode) -> Result<()> {
        self.ssd().steps.sync("syncing a cutover", &self.tree.open_dir(dir)?)
    }

    /// Called when the directory at `dir` was removed: removes its mirrors on lower tiers. A mirror that still has data
    /// of removed files is removed with the last of them.
    pub(super) fn directory_gone(&self, dir: &Path) {
        for tier in 1..self.dirs.len() {
            self.drop_empty_directories(tier, dir);
        }
    }

    /// Removes `dir` and the directories above it from a lower tier, as far as they are empty and not in the tree.
    pub(super) fn drop_empty_directories(&self, tier: usize, dir: &Path) {
        for dir in dir.ancestors().take_while(|dir| *dir != Path::new("")) {
            if dir.starts_with(PRIVATE) || self.walk(dir).is_some() {
                return;
            }
            if self.dirs[tier].remove_dir(dir).is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that has just lost its name has no path: the root of a tier is not a place for it.
    #[test]
    fn a_place_without_a_path_cannot_be_named() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let roots: Vec<_> = dirs.iter().map(|dir| dir.path().to_owned()).collect();
        let tier_dir = |(tier, root): (usize, &PathBuf)| TierDir::open(root, tier, None).unwrap();
        let dirs = roots.iter().enumerate().map(tier_dir).collect();
        let tiers = Tiers::new(dirs, TierLinks::new(&roots, &[]), 0).unwrap();
        assert!(!tiers.can_be_named(1, Path::new("")));
        assert!(tiers.can_be_named(1, Path::new("file")));
        assert!(!tiers.can_be_named(1, Path::new(&"n".repeat(TARGET_BYTES_MAX))));
    }
}
