//! What other nodes allow this one to do with the bytes of a file (`crate::coherence`).
//!
//! A permit is taken before any lock of the file. What must hold for the remembered size, once it is right: a permit
//! over its last byte keeps it from shrinking; a permit over everything after its last byte keeps it from growing. So
//! a request within the file needs a permit over its own bytes, and one that reaches past its end needs one without
//! an end. Other nodes may have extended the file meanwhile: the size is read again under the first permit before the
//! second is requested, which would take from them what they write there.

use std::sync::Arc;

use bon::Builder;
use halocline_model::request::{ByteRange, Direction};

use super::mappings::Mappings;
use super::origin_access::OriginAccess;
use crate::coherence::{Coherence, FileTokens, Holder, Permit, SharedFile, Want};
use crate::extent::file::{CachedFile, tail};
use crate::extent::store::ExtentStore;
use halocline_os::error::Result;

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
pub(crate) struct Held<'f> {
    _permit: Option<Permit<'f>>,
    /// Whether bytes may be cached.
    pub(crate) caches: bool,
}

impl Held<'_> {
    const ALONE: Self = Held { _permit: None, caches: true };
}

impl Permits {
    /// Whether other nodes use the origin.
    pub(crate) fn are_needed(&self) -> bool {
        self.coherence.is_some()
    }

    /// The agent, if there are other nodes.
    pub(crate) fn coherence(&self) -> Option<&Arc<dyn Coherence>> {
        self.coherence.as_ref()
    }

    /// Registers the holder, which gives up what other nodes ask for.
    pub(crate) fn attach(&self, holder: &Arc<dyn Holder>) {
        if let Some(coherence) = &self.coherence {
            coherence.attach(Arc::downgrade(holder));
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
    pub(crate) fn to_read<'f>(&self, file: &'f CachedFile, range: ByteRange) -> Result<Held<'f>> {
        let Some(tokens) = self.tokens(file)? else { return Ok(Held::ALONE) };
        let held = self.wait(tokens, file, Direction::Read, range, false)?;
        if self.lies_within(file, range)? {
            return Ok(held);
        }
        drop(held);
        self.wait(tokens, file, Direction::Read, tail(range.start), false)
    }

    /// To write `range`, or as many bytes at the end if `appends`.
    pub(crate) fn to_write<'f>(
        &self,
        file: &'f CachedFile,
        range: ByteRange,
        appends: bool,
    ) -> Result<Held<'f>> {
        let Some(tokens) = self.tokens(file)? else { return Ok(Held::ALONE) };
        if !appends {
            let held = self.wait(tokens, file, Direction::Write, range, false)?;
            if self.lies_within(file, range)? {
                return Ok(held);
            }
        }
        self.alone_from(tokens, file, if appends { u64::MAX } else { range.start })
    }

    /// To change the size to `size`: exclusively from there or from the end on.
    pub(crate) fn to_resize<'f>(&self, file: &'f CachedFile, size: u64) -> Result<Held<'f>> {
        let Some(tokens) = self.tokens(file)? else { return Ok(Held::ALONE) };
        self.alone_from(tokens, file, size)
    }

    /// For background work: `None` if it must be postponed.
    pub(crate) fn try_to_read<'f>(
        &self,
        file: &'f CachedFile,
        range: ByteRange,
    ) -> Option<Held<'f>> {
        let Some(tokens) = self.tokens(file).ok()? else { return Some(Held::ALONE) };
        let want = Want { direction: Direction::Read, range, alone: false };
        let permit = Permit::try_take(tokens, want)?;
        let grant = permit.grant();
        (grant.caches && !grant.renewed).then_some(Held { _permit: Some(permit), caches: true })
    }

    /// Why a request waits for other nodes, or goes to the origin because of them.
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
        tokens.explain(Want { direction, range, alone: false })
    }

    /// Exclusively from `start` or from the end on, whichever comes first.
    fn alone_from<'f>(
        &self,
        tokens: &'f dyn FileTokens,
        file: &CachedFile,
        start: u64,
    ) -> Result<Held<'f>> {
        loop {
            let from = start.min(file.size());
            let held = self.wait(tokens, file, Direction::Write, tail(from), true)?;
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
        direction: Direction,
        range: ByteRange,
        alone: bool,
    ) -> Result<Held<'f>> {
        let permit = Permit::wait(tokens, Want { direction, range, alone })?;
        let grant = permit.grant();
        if grant.renewed || !grant.caches {
            self.look_again(file)?;
            self.drop_clean(file, range)?;
            self.origin.forget_pages(&file.node.read())?;
        }
        Ok(Held { _permit: Some(permit), caches: grant.caches })
    }

    /// Whether the file reaches to the end of `range`, over which the caller has a permit: then no one shortens it.
    fn lies_within(&self, file: &CachedFile, range: ByteRange) -> Result<bool> {
        if range.end > file.size() {
            self.look_again(file)?;
        }
        Ok(range.end <= file.size())
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
    /// Drops cached bytes of a range that others may have changed. No one else could have changed dirty ones.
    fn drop_clean(&self, file: &CachedFile, range: ByteRange) -> Result<()> {
        let Some(id) = file.id().or_else(|| self.store.dmt.find(file.key)) else { return Ok(()) };
        let _range = file.range.exclusive(range);
        for extent in self.store.dmt.extents(id) {
            if let Some(part) = extent.range.intersect(range).filter(|_| !extent.dirty) {
                self.mappings.let_go(id, part)?;
            }
        }
        Ok(())
    }
}

/// The file's identity on all nodes.
pub(crate) fn shared(file: &CachedFile) -> SharedFile {
    SharedFile { inode: file.key.inode, born_ns: file.key.born_ns.cast_signed() }
}
