//! What other nodes allow this one to do with the bytes of a file (`crate::coherence`).
//!
//! A permit is taken before any lock of the file. What must hold for the remembered size, once it is right: a permit
//! over its last byte keeps it from shrinking; a permit over everything after its last byte keeps it from growing. So
//! a request within the file needs a permit over its own bytes, and one whose result depends on where the file ends (a
//! read past the end, an append, a change of the size) needs one without an end. Other nodes may have extended the file
//! meanwhile: the size is read again under the first permit before the second is requested, which would take from them
//! what they write there.
//!
//! A write past the end makes the file longer, but its result does not depend on where the file ended: a permit over
//! its own bytes is enough if the file can only become longer by it, so that it undoes nothing that others do behind it
//! at the same time. Writing on the origin does that. Setting the size there does not, and is left to a node that holds
//! everything from the write on. Whoever relies on the size holds everything from there on, so such a write takes that
//! away first, as any other write does. (Otherwise nodes that begin parts of one file would take its end from each
//! other again and again.)

mod pages;

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bon::Builder;
use halocline_model::request::{ByteRange, Direction};
use parking_lot::RwLockReadGuard;

pub(crate) use self::pages::OriginPages;
use super::mappings::Mappings;
use super::origin_access::{Forgotten, OriginAccess};
use crate::coherence::{Coherence, FileTokens, LocalCache, Permit, SharedFile, Want};
use crate::extent::file::{CachedFile, tail};
use crate::extent::store::ExtentStore;
use crate::open_file::OpenFile;
use halocline_os::client_pages::ClientPages;
use halocline_os::error::{Error, Result};
use halocline_storage::volume::origin::OriginFile;

/// Asks the node's agent, if there are other nodes.
#[derive(Debug, Builder)]
pub(crate) struct Permits {
    #[builder(required)]
    coherence: Option<Arc<dyn Coherence>>,
    origin: Arc<OriginAccess>,
    store: Arc<ExtentStore>,
    mappings: Arc<Mappings>,
    pages: Arc<OriginPages>,
}

/// A permit in use by a request; empty if there are no other nodes.
#[derive(Debug)]
#[must_use = "the bytes are others' again when it is dropped"]
pub(crate) struct HeldPermit<'f> {
    _permit: Option<Permit<'f>>,
    /// Held if the kernel may have stale pages of the file, which are dropped only while nobody uses them.
    pages: Option<RwLockReadGuard<'f, ()>>,
    /// Whether bytes may be cached.
    pub(crate) caches: bool,
    /// From where on no other node can have or get any byte of the file, so that the size may be set to anything
    /// beyond; `None` if others may make the file longer now.
    pub(crate) alone_from: Option<u64>,
}

/// A file that a request uses, and how it is open on the origin, if the request came through an open file.
#[derive(Debug, Clone, Copy)]
struct UsedBy<'f> {
    file: &'f CachedFile,
    open: Option<&'f OriginFile>,
}

impl<'f> From<&'f CachedFile> for UsedBy<'f> {
    fn from(file: &'f CachedFile) -> Self {
        Self { file, open: None }
    }
}

impl<'f> From<&'f OpenFile> for UsedBy<'f> {
    fn from(handle: &'f OpenFile) -> Self {
        Self { file: &handle.file, open: Some(&handle.origin) }
    }
}

impl HeldPermit<'_> {
    const ALONE: Self =
        HeldPermit { _permit: None, pages: None, caches: true, alone_from: Some(0) };
}

impl Permits {
    /// Whether other nodes use the origin.
    pub(crate) fn are_needed(&self) -> bool {
        self.coherence.is_some()
    }

    /// Whether other nodes see a write that bypassed the cache only once it is synced.
    pub(crate) fn needs_sync(&self, file: &CachedFile, held: &HeldPermit<'_>) -> bool {
        self.are_needed() && !held.caches && self.origin.keeps_pages(&file.vnode.read())
    }

    /// Makes the origin's file end at `end`, with the last byte of `data`. A client may remember too small a size. Then
    /// the last byte is written instead: setting the size would cut off the bytes behind it.
    pub(crate) fn grow(&self, handle: &OpenFile, end: u64, data: &[u8]) -> io::Result<()> {
        if self.are_needed() && self.origin.keeps_pages(&handle.file.vnode.read()) {
            return handle.origin.write_at(end - 1, &data[data.len() - 1..]);
        }
        handle.origin.truncate(end)
    }

    /// The agent, if there are other nodes.
    pub(crate) fn coherence(&self) -> Option<&Arc<dyn Coherence>> {
        self.coherence.as_ref()
    }

    /// Registers this node's cache, which gives up what other nodes ask for.
    pub(crate) fn attach(&self, local_cache: &Arc<dyn LocalCache>) {
        if let Some(coherence) = &self.coherence {
            coherence.attach(Arc::downgrade(local_cache));
        }
    }

    fn tokens<'f>(&self, file: &'f CachedFile) -> Result<Option<&'f dyn FileTokens>> {
        let Some(coherence) = &self.coherence else { return Ok(None) };
        if let Some(tokens) = file.tokens.get() {
            return Ok(Some(&**tokens));
        }
        let tokens = coherence.tokens(shared(file))?;
        Ok(Some(&**file.tokens.get_or_init(|| tokens)))
    }

    /// To read `range`; a read past the end returns nothing there. Bytes that the kernel keeps as pages need a token
    /// that is revoked before others change them, even where all nodes use the origin directly.
    pub(crate) fn to_read<'f>(
        &self,
        handle: &'f OpenFile,
        range: ByteRange,
        for_pages: bool,
    ) -> Result<HeldPermit<'f>> {
        let file = &*handle.file;
        let Some(tokens) = self.tokens(file)? else { return Ok(HeldPermit::ALONE) };
        let mut want = to_use(Direction::Read, range);
        let mut held = self.wait(tokens, handle, want)?;
        if !self.lies_within(file, range)? {
            drop(held);
            want.range = tail(range.start);
            held = self.wait(tokens, handle, want)?;
        }
        if for_pages && !held.caches {
            drop(held);
            held = self.wait(tokens, handle, Want { alone: true, ..want })?;
        }
        Ok(held)
    }

    /// To write `range`, or as many bytes at the end if `appends`.
    pub(crate) fn to_write<'f>(
        &self,
        handle: &'f OpenFile,
        range: ByteRange,
        appends: bool,
    ) -> Result<HeldPermit<'f>> {
        let file = &*handle.file;
        let Some(tokens) = self.tokens(file)? else { return Ok(HeldPermit::ALONE) };
        self.check_writable(file)?;
        if !appends {
            let mut held = self.wait(tokens, handle, to_use(Direction::Write, range))?;
            if self.lies_within(file, range)? {
                return Ok(held);
            }
            // The next permit may drop pages, and nobody, not even this thread, may use pages meanwhile.
            held.pages = None;
            let Some(rest) = self.at_once(tokens, handle, alone(range.start, range))? else {
                return Ok(HeldPermit { pages: self.pages.in_use(file), ..held });
            };
            return Ok(HeldPermit { alone_from: Some(range.start), ..rest });
        }
        // Where an append writes is known only once no other node can change the file.
        self.alone_from(tokens, handle, u64::MAX, NOTHING)
    }

    /// To punch, reserve or zero `range`, which sets the size of a striped file.
    pub(crate) fn to_allocate<'f>(
        &self,
        handle: &'f OpenFile,
        range: ByteRange,
    ) -> Result<HeldPermit<'f>> {
        if !self.origin.data.is_striped() {
            return self.to_write(handle, range, false);
        }
        let file = &*handle.file;
        let Some(tokens) = self.tokens(file)? else { return Ok(HeldPermit::ALONE) };
        self.check_writable(file)?;
        let held = self.wait(tokens, handle, to_use(Direction::Write, range))?;
        if self.lies_within(file, range)? {
            return Ok(held);
        }
        drop(held);
        self.alone_from(tokens, handle, range.start, range)
    }

    /// To change the size to `size`: exclusively from there or from the end on.
    pub(crate) fn to_resize<'f>(&self, file: &'f CachedFile, size: u64) -> Result<HeldPermit<'f>> {
        let Some(tokens) = self.tokens(file)? else { return Ok(HeldPermit::ALONE) };
        self.check_writable(file)?;
        self.alone_from(tokens, file, size, NOTHING)
    }

    /// To set the modification time. Nodes that wrote to the file hold back the time of their writes, and set it on the
    /// origin when they give up their bytes: so this makes all of them give up their bytes first.
    pub(crate) fn to_set_time<'f>(&self, file: &'f CachedFile) -> Result<HeldPermit<'f>> {
        let Some(tokens) = self.tokens(file)? else { return Ok(HeldPermit::ALONE) };
        self.alone_from(tokens, file, 0, NOTHING)
    }

    /// For background work: `None` if it must be postponed.
    pub(crate) fn try_to_read<'f>(
        &self,
        file: &'f CachedFile,
        range: ByteRange,
    ) -> Option<HeldPermit<'f>> {
        self.try_take(file, to_use(Direction::Read, range))
    }

    /// For a flush that writes unchanged bytes between dirty extents again: `None` unless no other node can have
    /// changed any byte of `range`, or will before the permit ends.
    pub(crate) fn try_to_rewrite<'f>(
        &self,
        file: &'f CachedFile,
        range: ByteRange,
    ) -> Option<HeldPermit<'f>> {
        self.try_take(
            file,
            Want { touches: NOTHING, alone: true, ..to_use(Direction::Write, range) },
        )
    }

    /// The same for a range that is being given up, by the thread that does that: the node has the token until it is
    /// done.
    pub(crate) fn gives_alone(&self, file: &CachedFile, range: ByteRange) -> bool {
        self.tokens(file).is_ok_and(|tokens| tokens.is_some_and(|held| held.gives_alone(range)))
    }

    /// A permit for background work, if it is available at once and allows caching. If this node got the token only
    /// now, others may have changed what it knows, and its client of a network file system may still have stale pages.
    fn try_take<'f>(&self, file: &'f CachedFile, want: Want) -> Option<HeldPermit<'f>> {
        let Some(tokens) = self.tokens(file).ok()? else { return Some(HeldPermit::ALONE) };
        let permit = Permit::try_take(tokens, want)?;
        let grant = permit.grant();
        if !grant.caches || grant.renewed {
            return None;
        }
        let keeps_pages = self.origin.keeps_pages(&file.vnode.read());
        let pages = if keeps_pages { Some(file.pages.try_read()?) } else { None };
        Some(HeldPermit { _permit: Some(permit), pages, caches: true, alone_from: None })
    }

    /// Explains why a request waits for other nodes, or goes to the origin because of them.
    pub(crate) fn explain(
        &self,
        file: &CachedFile,
        direction: Direction,
        range: ByteRange,
    ) -> Option<String> {
        let tokens = match self.tokens(file) {
            Ok(tokens) => tokens?,
            Err(error) => return Some(error.to_string()),
        };
        tokens.explain(to_use(direction, range))
    }

    /// A permit, exclusive from `start` or from the end on, whichever comes first, to change `touches`.
    fn alone_from<'f>(
        &self,
        tokens: &'f dyn FileTokens,
        by: impl Into<UsedBy<'f>>,
        start: u64,
        touches: ByteRange,
    ) -> Result<HeldPermit<'f>> {
        let by = by.into();
        let file = by.file;
        loop {
            let from = start.min(file.size());
            let held = self.wait(tokens, by, alone(from, touches))?;
            // Another node may have shortened it before it gave up its token.
            if start.min(file.size()) >= from {
                return Ok(HeldPermit { alone_from: Some(from), ..held });
            }
        }
    }

    /// A permit under a token that this node holds already; `None` if it does not.
    fn at_once<'f>(
        &self,
        tokens: &'f dyn FileTokens,
        by: impl Into<UsedBy<'f>>,
        want: Want,
    ) -> Result<Option<HeldPermit<'f>>> {
        let permit = Permit::at_once(tokens, want);
        permit.map(|permit| self.begun(permit, by.into(), want)).transpose()
    }

    fn wait<'f>(
        &self,
        tokens: &'f dyn FileTokens,
        by: impl Into<UsedBy<'f>>,
        want: Want,
    ) -> Result<HeldPermit<'f>> {
        self.begun(Permit::wait(tokens, want)?, by.into(), want)
    }

    /// Brings what this node knows of a file up to date under a permit that begins.
    fn begun<'f>(
        &self,
        mut permit: Permit<'f>,
        UsedBy { file, open }: UsedBy<'f>,
        want: Want,
    ) -> Result<HeldPermit<'f>> {
        let grant = permit.grant();
        // The whole range of the new tokens counts as known afterwards, not only what is wanted now.
        let unknown = hull(want.range, grant.fresh);
        // Other nodes' copies of what this node is about to change become stale.
        if grant.renewed || !grant.caches || want.direction == Direction::Write {
            file.peer_copies.drop_range(unknown);
        }
        let mut pages = self.pages.in_use(file);
        if grant.renewed || !grant.caches {
            self.refresh_size(file)?;
            self.drop_clean(file, unknown)?;
            // Pages elsewhere belong to tokens that this node has held all along, or must get before it reads them.
            let mut is_sure = true;
            if let Some(guard) = pages {
                let (guard, forgotten) = self.pages.forget(file, open, unknown, guard)?;
                (pages, is_sure) = (Some(guard), forgotten == Forgotten::All);
            }
            // Otherwise the next request under this token looks again: it may be able to drop the pages.
            if is_sure {
                permit.looked();
            }
        }
        let caches = grant.caches && !file.unlinked.load(Ordering::SeqCst);
        Ok(HeldPermit { _permit: Some(permit), pages, caches, alone_from: None })
    }

    /// Refuses to change a file below the origin whose client would write whole pages, which would undo what other
    /// nodes write beside. (If the origin itself has such a client, it is refused at mount.)
    fn check_writable(&self, file: &CachedFile) -> Result<()> {
        if self.origin.pages_of(&file.vnode.read()) < ClientPages::WrittenWhole {
            return Ok(());
        }
        Err(Error::Cluster {
            what: format!(
                "the file of inode {} lies on NFS or SMB below the origin, whose clients write whole pages: what another \
                 vnode wrote beside could be lost",
                file.key.inode
            ),
            remedy: "mount a file system there that keeps its clients coherent, or change such files past the mounts"
                .to_owned(),
        })
    }

    /// Whether the file extends to the end of `range`. The caller has a permit over it, so no other node can shorten
    /// the file.
    fn lies_within(&self, file: &CachedFile, range: ByteRange) -> Result<bool> {
        if range.end > file.size() {
            self.refresh_size(file)?;
        }
        Ok(range.end <= file.size())
    }

    /// Called before the file is made longer under `held`, to bring its remembered size up to date. If that is not
    /// exact, bytes by which another node has made the file longer would be cut off. The tokens ensure that it is
    /// exact, except for what others may write before the bytes held alone; a defect in them must not cost another node
    /// its bytes (I11). The caller holds `growth`.
    pub(crate) fn check_size(&self, file: &CachedFile, held: &HeldPermit<'_>) -> Result<()> {
        if !self.are_needed() {
            return Ok(());
        }
        let vnode = file.vnode.read().clone();
        #[expect(clippy::cast_sign_loss, reason = "a regular file's size is not negative")]
        let size = self.origin.key_of(&vnode)?.1.st_size as u64;
        if size == file.size() {
            return Ok(());
        }
        let what = format!(
            "a file of inode {} has {size} bytes, not {}, as this node's tokens promise",
            file.key.inode,
            file.size()
        );
        // No node of this cluster can have shortened it since.
        if size < file.size() {
            return Err(Error::invalid(what, "use no program that changes files past the mounts"));
        }
        if held.alone_from.is_some_and(|from| size > from) {
            tracing::error!("{what}; this is a fault of the program");
        }
        file.set_size(size);
        Ok(())
    }

    /// Adopts the current size of the origin's file, and whether it still has a name: a node that removes the last one
    /// holds all tokens of the file meanwhile, so that this node looks after that. A change of the size on this node
    /// holds `growth` from before the origin's file has its new size.
    ///
    /// # Errors
    /// `ESTALE` if another node removed the file from a striped origin, with the objects that have its data.
    fn refresh_size(&self, file: &CachedFile) -> Result<()> {
        let vnode = file.vnode.read().clone();
        let _growth = file.growth.lock();
        let (_, raw) = self.origin.key_of(&vnode)?;
        #[expect(clippy::cast_sign_loss, reason = "a regular file's size is not negative")]
        file.set_size(raw.st_size as u64);
        if raw.st_nlink == 0 && !file.unlinked.load(Ordering::SeqCst) {
            if self.origin.data.is_striped() {
                return Err(rustix::io::Errno::STALE.into());
            }
            file.unlinked.store(true, Ordering::SeqCst);
        }
        Ok(())
    }
}

impl Permits {
    /// Drops cached bytes of a range that other nodes may have changed. Dirty ones stay: no other node can have changed
    /// them.
    fn drop_clean(&self, file: &CachedFile, range: ByteRange) -> Result<()> {
        let Some(id) = file.id().or_else(|| self.store.dmt.files().find(file.key)) else {
            return Ok(());
        };
        let _range = file.range.exclusive(range);
        self.mappings.unmap_clean(id, range)
    }
}

/// The smallest range that contains both; the second may be empty.
fn hull(one: ByteRange, other: ByteRange) -> ByteRange {
    if other.is_empty() {
        return one;
    }
    ByteRange::new(one.start.min(other.start), one.end.max(other.end))
}

/// No bytes.
const NOTHING: ByteRange = ByteRange::new(0, 0);

/// The needs of a request that uses all bytes of `range`, and no others.
const fn to_use(direction: Direction, range: ByteRange) -> Want {
    Want { direction, range, touches: range, alone: false }
}

/// The needs of a request that changes the file's end: everything from `start` on, of which it uses `touches`.
const fn alone(start: u64, touches: ByteRange) -> Want {
    Want { direction: Direction::Write, range: tail(start), touches, alone: true }
}

/// The file's identity on all nodes.
pub(crate) fn shared(file: &CachedFile) -> SharedFile {
    SharedFile { inode: file.key.inode, born_ns: file.key.born_ns.cast_signed() }
}
