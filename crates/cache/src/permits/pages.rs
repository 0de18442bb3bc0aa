//! Pages that the kernel keeps of the origin's files, where these may be older than what other nodes wrote.

use std::sync::Arc;
use std::time::Duration;

use bon::Builder;
use halocline_model::request::ByteRange;
use halocline_os::clock::Clock;
use halocline_os::error::{Error, Result};
use halocline_os::served_program;
use halocline_storage::volume::origin::OriginFile;
use parking_lot::{RwLockReadGuard, RwLockWriteGuard};

use crate::extent::file::CachedFile;
use crate::origin_access::{Forgotten, OriginAccess};

/// How long a request waits for pages that are in use: as long as for a token.
const PAGES_LIMIT: Duration = Duration::from_mins(2);
/// How long it pauses in between.
const PAGES_PAUSE: Duration = Duration::from_micros(200);
/// After so many pauses it looks whether its program was killed.
const PAGES_LOOKS: u32 = 1000;

/// The kernel's pages of the origin's files.
#[derive(Debug, Builder)]
pub(crate) struct OriginPages {
    origin: Arc<OriginAccess>,
    clock: Clock,
}

impl OriginPages {
    /// Keeps the pages of a file from being dropped, where they may be old.
    pub(super) fn in_use<'f>(&self, file: &'f CachedFile) -> Option<RwLockReadGuard<'f, ()>> {
        self.origin.keeps_pages(&file.vnode.read()).then(|| file.pages.read())
    }

    /// Makes sure that nothing of a range is read from pages of before this call, where that can be done. A page that a
    /// request is using, or that is being read ahead of one, cannot be dropped: then no further request begins before
    /// it is.
    pub(super) fn forget<'f>(
        &self,
        file: &'f CachedFile,
        open: Option<&OriginFile>,
        range: ByteRange,
        pages: RwLockReadGuard<'f, ()>,
    ) -> Result<(RwLockReadGuard<'f, ()>, Forgotten)> {
        let vnode = file.vnode.read().clone();
        let forget = || self.origin.forget_pages(&vnode, open, range);
        let forgotten = forget()?;
        if forgotten != Forgotten::NotThoseInUse {
            return Ok((pages, forgotten));
        }
        drop(pages);
        let alone = file.pages.write();
        let begun = self.clock.instant();
        let mut looks = 0_u32;
        loop {
            let forgotten = forget()?;
            if forgotten != Forgotten::NotThoseInUse {
                return Ok((RwLockWriteGuard::downgrade(alone), forgotten));
            }
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(PAGES_LOOKS) && served_program::is_killed() {
                return Err(rustix::io::Errno::INTR.into());
            }
            if self.clock.elapsed(begun) >= PAGES_LIMIT {
                return Err(Error::Cluster {
                    what: format!(
                        "pages of the file of inode {} cannot be dropped, and may be older than what other nodes wrote",
                        file.key.inode
                    ),
                    remedy: "see that no program has it open or mapped past the mount".to_owned(),
                });
            }
            self.clock.sleep(PAGES_PAUSE);
        }
    }
}
