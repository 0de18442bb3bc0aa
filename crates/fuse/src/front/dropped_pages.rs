//! The kernel drops the pages that an engine asks it to drop.

use std::sync::{Arc, Weak};

use halocline_vfs::Engine;
use halocline_vfs::engine::DropPages;

use super::inodes::Inodes;
use super::stale_pages::StalePages;

/// Drops pages for an engine.
pub(super) struct DroppedPages<E: Engine> {
    /// The inodes have the engine, which has this.
    pub(super) inodes: Weak<Inodes<E>>,
    pub(super) stale_pages: Arc<StalePages>,
}

impl<E: Engine> DropPages for DroppedPages<E> {
    fn drop_pages(&self, key: (u64, u64), range: (u64, u64)) {
        let Some(inode) = self.inodes.upgrade().and_then(|inodes| inodes.find(key)) else { return };
        self.stale_pages.drop_part((inode.number, &inode.pages), range);
    }
}
