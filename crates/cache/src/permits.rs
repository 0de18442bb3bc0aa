//! What other nodes allow this one to do with the bytes of a file (`crate::coherence`).
//!
//! A permit is taken before any lock of the file. What must hold for the remembered size, once it is right: a permit
//! over its last byte keeps it from shrinking; a permit over everything after its last byte keeps it from growing. So
//! a request within the file needs a permit over its own bytes, and one that reaches past its end needs one without
//! an end. Other nodes may have extended the file meanwhile: the size is read again under the first permit before the
//! second is requested, which would take from them what they write there.

use std::io;
use std::sync::Arc;

use bon::Builder;
use halocline_model::request::{ByteRange, Direction};

use super::mappings::Mappings;
use super::origin_access::OriginAccess;
use crate::coherence::{Coherence, FileTokens, LocalCache, Permit, SharedFile, Want};
use crate::extent::file::{CachedFile, tail};
use crate::extent::store::ExtentStore;
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
}

/// A permit in use by a request; empty if there are no other nodes.
#[derive(Debug)]
#[must_use = "the bytes are others' again when it is dropped"]
pub(crate) struct HeldPermit<'f> {
    _permit: Option<Permit<'f>>,
    /// Whether bytes may be cached.
    pub(crate) caches: bool,
}

impl HeldPermit<'_> {
    const ALONE: Self = HeldPermit { _permit: None, caches: true };
}

impl Permits {
    /// Whether other nodes use the origin.
    pub(crate) fn are_needed(&self) -> bool {
        self.coherence.is_some()
    }

    /// Whether a write that went past the cache is seen by other nodes only once it was synced.
    pub(crate) fn needs_sync(&self, held: &HeldPermit<'_>) -> bool {
        self.are_needed() && !held.caches && self.origin.keeps_pages()
    }

    /// Makes the origin's file end at `end`, with the last byte of `data`. Where a client may remember too small a size, the
    /// file is not given one, which would cut off what lies behind it.
    pub(crate) fn grow(&self, origin: &OriginFile, end: u64, data: &[u8]) -> io::Result<()> {
        if self.are_needed() && self.origin.keeps_pages() {
            return origin.write_at(end - 1, &data[data.len() - 1..]);
        }
        origin.truncate(end)
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

    /// To read `range`; a read past the end returns nothing there.
    pub(crate) fn to_read<'f>(
        &self,
        file: &'f CachedFile,
        range: ByteRange,
    ) -> Result<HeldPermit<'f>> {
        let Some(tokens) = self.tokens(file)? else { return Ok(HeldPermit::ALONE) };
        let held = self.wait(tokens, file, to_use(Direction::Read, range))?;
        if self.lies_within(file, range)? {
            return Ok(held);
        }
        drop(held);
        let want = Want { range: tail(range.start), ..to_use(Direction::Read, range) };
        self.wait(tokens, file, want)
    }

    /// To write `range`, or as many bytes at the end if `appends`.
    pub(crate) fn to_write<'f>(
        &self,
        file: &'f CachedFile,
        range: ByteRange,
        appends: bool,
    ) -> Result<HeldPermit<'f>> {
        let Some(tokens) = self.tokens(file)? else { return Ok(HeldPermit::ALONE) };
        if !appends {
            let held = self.wait(tokens, file, to_use(Direction::Write, range))?;
            if self.lies_within(file, range)? {
                return Ok(held);
            }
        }
        // Where an append writes is known only once no other node can change the file.
        let (start, touches) = if appends { (u64::MAX, NOTHING) } else { (range.start, range) };
        self.alone_from(tokens, file, start, touches)
    }

    /// To change the size to `size`: exclusively from there or from the end on.
    pub(crate) fn to_resize<'f>(&self, file: &'f CachedFile, size: u64) -> Result<HeldPermit<'f>> {
        let Some(tokens) = self.tokens(file)? else { return Ok(HeldPermit::ALONE) };
        self.alone_from(tokens, file, size, NOTHING)
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

    /// A permit for background work, if it is there to have and may be cached. If this node got the token only now, others
    /// may have changed what it knows, and its client of a network file system may still have old pages.
    fn try_take<'f>(&self, file: &'f CachedFile, want: Want) -> Option<HeldPermit<'f>> {
        let Some(tokens) = self.tokens(file).ok()? else { return Some(HeldPermit::ALONE) };
        let permit = Permit::try_take(tokens, want)?;
        let grant = permit.grant();
        (grant.caches && !grant.renewed)
            .then_some(HeldPermit { _permit: Some(permit), caches: true })
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
        file: &CachedFile,
        start: u64,
        touches: ByteRange,
    ) -> Result<HeldPermit<'f>> {
        loop {
            let from = start.min(file.size());
            let (direction, range) = (Direction::Write, tail(from));
            let held = self.wait(tokens, file, Want { direction, range, touches, alone: true })?;
            // Another node may have shortened it before it gave up its token.
            if start.min(file.size()) >= from {
                return Ok(held);
            }
        }
    }

    fn wait<'f>(
        &self,
        tokens: &'f dyn FileTokens,
        file: &CachedFile,
        want: Want,
    ) -> Result<HeldPermit<'f>> {
        let mut permit = Permit::wait(tokens, want)?;
        let grant = permit.grant();
        // Other nodes' copies of what this node is about to change become stale.
        if grant.renewed || !grant.caches || want.direction == Direction::Write {
            file.peer_copies.drop_range(want.range);
        }
        if grant.renewed || !grant.caches {
            self.look_again(file)?;
            self.drop_clean(file, want.range)?;
            self.origin.forget_pages(&file.node.read())?;
            permit.looked();
        }
        Ok(HeldPermit { _permit: Some(permit), caches: grant.caches })
    }

    /// Whether the file extends to the end of `range`. The caller has a permit over it, so no other node can shorten
    /// the file.
    fn lies_within(&self, file: &CachedFile, range: ByteRange) -> Result<bool> {
        if range.end > file.size() {
            self.look_again(file)?;
        }
        Ok(range.end <= file.size())
    }

    /// Called before the file is made longer. If its remembered size is not exact, bytes by which another node has made
    /// it longer would be cut off. The tokens ensure that it is; a defect in them must not cost another node its bytes
    /// (I11). The caller holds `growth`.
    pub(crate) fn check_size(&self, file: &CachedFile) -> Result<()> {
        if !self.are_needed() {
            return Ok(());
        }
        let node = file.node.read().clone();
        #[expect(clippy::cast_sign_loss, reason = "a regular file's size is not negative")]
        let size = self.origin.key_of(&node)?.1.st_size as u64;
        if size == file.size() {
            return Ok(());
        }
        let what = format!(
            "a file of inode {} has {size} bytes, not {}, as this node's tokens promise",
            file.key.inode,
            file.size()
        );
        // What was longer a moment ago was not shortened by a node of this cluster.
        if size < file.size() {
            return Err(Error::invalid(what, "use no program that changes files past the mounts"));
        }
        tracing::error!("{what}; this is a fault of the program");
        file.set_size(size);
        Ok(())
    }

    /// Adopts the current size of the origin's file. A change of the size on this node holds `growth` from before the
    /// origin's file has its new size.
    fn look_again(&self, file: &CachedFile) -> Result<()> {
        let node = file.node.read().clone();
        let _growth = file.growth.lock();
        let (_, raw) = self.origin.key_of(&node)?;
        #[expect(clippy::cast_sign_loss, reason = "a regular file's size is not negative")]
        file.set_size(raw.st_size as u64);
        Ok(())
    }
}

impl Permits {
    /// Drops cached bytes of a range that other nodes may have changed. Dirty ones stay: no other node can have changed
    /// them.
    fn drop_clean(&self, file: &CachedFile, range: ByteRange) -> Result<()> {
        let Some(id) = file.id().or_else(|| self.store.dmt.find(file.key)) else { return Ok(()) };
        let _range = file.range.exclusive(range);
        self.mappings.let_clean_go(id, range)
    }
}

/// No bytes.
const NOTHING: ByteRange = ByteRange::new(0, 0);

/// The needs of a request that uses all bytes of `range`, and no others.
const fn to_use(direction: Direction, range: ByteRange) -> Want {
    Want { direction, range, touches: range, alone: false }
}

/// The file's identity on all nodes.
pub(crate) fn shared(file: &CachedFile) -> SharedFile {
    SharedFile { inode: file.key.inode, born_ns: file.key.born_ns.cast_signed() }
}
