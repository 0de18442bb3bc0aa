//! The origin's tree and data together, and whether programs use them.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use halocline_model::request::ByteRange;

use super::path_lookup;
use halocline_meta::{FileRecord, OriginKey};
use halocline_os::clock::{Clock, age_ms};
use halocline_os::error::{Error, Result};
use halocline_storage::volume::origin::{Origin, OriginFile};
use halocline_vfs::namespace::{Namespace, Node};
use rustix::fs::Advice;

/// Types of file systems (`statfs`) whose clients keep pages of what others may change: FUSE (`GlusterFS`, sshfs), NFS,
/// SMB (three numbers) and 9P.
const KEEPING_PAGES: [u64; 6] =
    [0x6573_5546, 0x6969, 0x517b, 0xff53_4d42, 0xfe53_4d42, 0x0102_1997];

/// The origin counts as idle when no program has used it for this long.
const IDLE_MS: u64 = 200;

/// The origin, as the rest of the engine uses it.
#[derive(Debug)]
pub(crate) struct OriginAccess {
    namespace: Arc<Namespace>,
    /// The servers with the files' bytes.
    pub(crate) data: Origin,
    /// Its directory as given, for messages.
    dir: PathBuf,
    clock: Clock,
    /// When a program last used it, in milliseconds since the epoch.
    used_ms: AtomicU64,
    /// Requests of programs in progress.
    busy: AtomicU64,
    /// Its file system keeps pages here that other nodes' changes do not drop.
    keeps_pages: bool,
}

impl OriginAccess {
    /// An origin that was not used yet; `namespace` is its tree.
    pub(crate) fn new(namespace: Arc<Namespace>, data: Origin, dir: &Path, clock: Clock) -> Self {
        let (used_ms, busy) = (AtomicU64::new(0), AtomicU64::new(0));
        let keeps_pages = rustix::fs::statfs(dir)
            .is_ok_and(|stat| KEEPING_PAGES.contains(&stat.f_type.cast_unsigned()));
        Self { namespace, data, dir: dir.to_owned(), clock, used_ms, busy, keeps_pages }
    }

    /// Identity of `node` on the origin.
    pub(crate) fn key_of(&self, node: &Node) -> Result<(OriginKey, libc::stat64)> {
        let stat = self.namespace.stat(node)?;
        Ok((path_lookup::origin_key(&stat), stat.raw))
    }

    /// Opens the origin's data of a node; `flags` are `open(2)`'s.
    pub(crate) fn open(&self, node: &Node, flags: i32) -> Result<OriginFile> {
        let descriptor = self.namespace.descriptor(node)?;
        Ok(self.data.open_data(descriptor.as_fd(), flags)?)
    }

    /// Drops what the kernel keeps of a file's bytes, where they may be others' old ones. Called when a token is new,
    /// or allows no caching: what is read later under the same token may be kept. A file that cannot be read has none.
    pub(crate) fn forget_pages(&self, node: &Node) -> Result<()> {
        if !self.keeps_pages {
            return Ok(());
        }
        match self.open(node, libc::O_RDONLY) {
            Ok(file) => Ok(rustix::fs::fadvise(file.node(), 0, None, Advice::DontNeed)?),
            Err(error) if error.errno() == libc::EACCES => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Runs a program's request on the origin, so that the rebuilder sees it is in use.
    pub(crate) fn serve<T>(&self, work: impl FnOnce() -> T) -> T {
        self.busy.fetch_add(1, Ordering::Relaxed);
        let done = work();
        self.busy.fetch_sub(1, Ordering::Relaxed);
        self.used_ms.store(self.clock.now_ms(), Ordering::Relaxed);
        done
    }

    /// Whether no program is using it or has used it lately.
    pub(crate) fn is_idle(&self) -> bool {
        self.busy.load(Ordering::Relaxed) == 0
            && age_ms(self.clock.now_ms(), self.used_ms.load(Ordering::Relaxed)) >= IDLE_MS
    }

    /// The node at a path below the origin, if there is one. An error means that this is unknown, and names what could
    /// not be examined.
    pub(crate) fn node_at(&self, path: &Path) -> Result<Option<Node>> {
        path_lookup::node_at(&self.namespace, &self.dir, path)
    }

    /// The node that a record refers to, see [`path_lookup::find`].
    pub(crate) fn node_of(&self, record: &FileRecord) -> Result<Option<Node>> {
        let found = path_lookup::find(&self.namespace, &self.dir, record)?;
        Ok(found.map(|(node, _)| node))
    }

    /// The mount that a file is on, for its record.
    pub(crate) fn mount_of(&self, node: &Node) -> Option<OriginKey> {
        path_lookup::known_mount_of(&self.namespace, node)
    }

    /// An error of examining a path below the origin, with the path.
    pub(crate) fn cannot_look(&self, path: &Path, error: &Error) -> Error {
        path_lookup::cannot_look(&self.dir, path, error)
    }

    /// Reads for a program; bytes that the origin does not have are a hole. Returns whether it had all.
    pub(crate) fn read(
        &self,
        file: &OriginFile,
        part: ByteRange,
        buf: &mut [u8],
    ) -> io::Result<bool> {
        let got = self.serve(|| file.read_at(part.start, buf))?;
        buf[got..].fill(0);
        Ok(got == buf.len())
    }
}
