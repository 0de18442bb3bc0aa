//! The origin's tree and data together, and whether programs use them.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use halocline_model::request::ByteRange;

use super::path_lookup;
use halocline_meta::{FileRecord, OriginKey};
use halocline_os::client_pages::ClientPages;
use halocline_os::clock::{Clock, age_ms};
use halocline_os::error::{Error, Result};
use halocline_storage::volume::Server;
use halocline_storage::volume::origin::{Origin, OriginFile};
use halocline_vfs::namespace::{Namespace, Vnode};
use parking_lot::RwLock;
use rustc_hash::FxHashMap;

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
    /// How the file-system clients of a striped origin's servers treat pages: the worst of them.
    servers_pages: ClientPages,
    /// How the clients of its files treat pages, by device: other file systems may be mounted below its root.
    pages: RwLock<FxHashMap<u64, ClientPages>>,
}

/// Which pages of a file the kernel has dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Forgotten {
    All,
    /// Some are being used by requests.
    NotThoseInUse,
    /// Nothing could be done, as this user may not open the file; once it may, the pages may still be there.
    Unknown,
}

impl OriginAccess {
    /// An origin that was not used yet; `namespace` is its tree.
    pub(crate) fn new(namespace: Arc<Namespace>, data: Origin, dir: &Path, clock: Clock) -> Self {
        let (used_ms, busy) = (AtomicU64::new(0), AtomicU64::new(0));
        let servers_pages = pages_of_servers(&data);
        let (dir, pages) = (dir.to_owned(), RwLock::default());
        Self { namespace, data, dir, clock, used_ms, busy, servers_pages, pages }
    }

    /// Identity of `vnode` on the origin.
    pub(crate) fn key_of(&self, vnode: &Vnode) -> Result<(OriginKey, libc::stat64)> {
        let stat = self.namespace.stat(vnode)?;
        Ok((path_lookup::origin_key(&stat), stat.raw))
    }

    /// Opens the origin's data of a vnode; `flags` are `open(2)`'s.
    ///
    /// # Errors
    /// [`Error::Leased`] if a program's lease would have to be waited for.
    pub(crate) fn open(&self, vnode: &Vnode, flags: i32) -> Result<OriginFile> {
        let descriptor = self.namespace.descriptor(vnode)?;
        let opened = self.data.open_data(descriptor.as_fd(), flags).map_err(Error::from);
        opened.map_err(|error| if error.is_leased() { Error::Leased } else { error })
    }

    /// Removes the data of a file whose last name is gone, once that is durable. The name goes whatever becomes of the data: what
    /// cannot be removed takes space until a repair finds it, as after a crash.
    pub(crate) fn remove_data(&self, namespace_file: impl AsFd) {
        if let Err(error) = self.data.remove_data(namespace_file) {
            tracing::warn!(
                %error,
                "the data of a removed file stays on the origin's servers; `halocline fsck` of the cache, \
                 unmounted, tells how to remove it"
            );
        }
    }

    /// Makes a name, with the room of files that were removed before.
    pub(crate) fn with_room<T>(&self, make: impl Fn() -> Result<T>) -> Result<T> {
        self.data.removals().with_room(|error: &Error| Some(error.errno()), make)
    }

    /// The totals of the file system of `vnode`, on which the data of removed files counts as free.
    pub(crate) fn with_removed(
        &self,
        vnode: &Vnode,
        mut totals: libc::statvfs64,
    ) -> libc::statvfs64 {
        let (device, _) = vnode.key();
        // Nobody is refused the totals for a server that does not answer.
        let bytes = self.data.removals().bytes_on(device).unwrap_or(0);
        let blocks = bytes / totals.f_frsize.max(1);
        totals.f_bfree = totals.f_bfree.saturating_add(blocks).min(totals.f_blocks);
        totals.f_bavail = totals.f_bavail.saturating_add(blocks).min(totals.f_bfree);
        totals
    }

    /// Syncs the origin's entire file systems: for a file that this user may not open.
    pub(crate) fn sync_everything(&self) -> Result<()> {
        for server in self.data.servers() {
            server.directory().sync_all()?;
        }
        Ok(())
    }

    /// How the clients of the file systems with a file's bytes treat pages; the worst case if that is unknown.
    pub(crate) fn pages_of(&self, vnode: &Vnode) -> ClientPages {
        let (device, _) = vnode.key();
        let known = self.pages.read().get(&device).copied();
        let own = known.unwrap_or_else(|| {
            let found = self.namespace.descriptor(vnode);
            match found.and_then(|descriptor| Ok(ClientPages::of(&*descriptor)?)) {
                Ok(found) => {
                    self.pages.write().insert(device, found);
                    found
                }
                Err(error) => {
                    tracing::debug!("a file does not say what it lies on: {error}");
                    ClientPages::Kept
                }
            }
        });
        own.max(self.servers_pages)
    }

    /// Whether a client keeps pages that others may have changed, or writes that others do not see yet.
    pub(crate) fn keeps_pages(&self, vnode: &Vnode) -> bool {
        self.pages_of(vnode) > ClientPages::Coherent
    }

    /// Drops the kernel's pages of a file that may be stale after writes by others. Uses the already `open` file if
    /// this user may no longer open it.
    pub(crate) fn forget_pages(
        &self,
        vnode: &Vnode,
        open: Option<&OriginFile>,
        range: ByteRange,
    ) -> Result<Forgotten> {
        let opened = match self.open(vnode, libc::O_RDONLY) {
            Err(error) if error.errno() == libc::EACCES => None,
            opened => Some(opened?),
        };
        let Some(file) = opened.as_ref().or(open) else { return Ok(Forgotten::Unknown) };
        Ok(if file.forget_pages(range)? { Forgotten::All } else { Forgotten::NotThoseInUse })
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

    /// The vnode at a path below the origin, if there is one. An error means that this is unknown, and names what could
    /// not be examined.
    pub(crate) fn vnode_at(&self, path: &Path) -> Result<Option<Vnode>> {
        path_lookup::vnode_at(&self.namespace, &self.dir, path)
    }

    /// The vnode that a record refers to, see [`path_lookup::find`].
    pub(crate) fn vnode_of(&self, record: &FileRecord) -> Result<Option<Vnode>> {
        let found = path_lookup::find(&self.namespace, &self.dir, record)?;
        Ok(found.map(|(vnode, _)| vnode))
    }

    /// The mount that a file is on, for its record.
    pub(crate) fn mount_of(&self, vnode: &Vnode) -> Option<OriginKey> {
        path_lookup::known_mount_of(&self.namespace, vnode)
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

/// How the clients of the file systems with a striped origin's servers treat pages.
fn pages_of_servers(data: &Origin) -> ClientPages {
    if !data.is_striped() {
        return ClientPages::Coherent;
    }
    let pages = |server: &Arc<Server>| {
        let dir = std::fs::File::open(server.dir())?;
        ClientPages::of(dir)
    };
    let all = data.servers().iter().map(|server| pages(server).unwrap_or(ClientPages::Kept));
    all.max().unwrap_or(ClientPages::Coherent)
}
