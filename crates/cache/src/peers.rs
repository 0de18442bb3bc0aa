//! Reads from the caches of other nodes if this node can reach their directories, too: shared cache servers
//! (`docs/decisions/0041-reads-from-other-nodes-caches.md`).
//!
//! Bytes that another node has stay there: they are served from its servers, and no second copy is made. What is read
//! is compared with the checksums that the node stated; whatever does not agree, is missing or does not answer comes
//! from the origin.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bon::Builder;
use halocline_model::request::ByteRange;
use parking_lot::Mutex;

use crate::coherence::{BLOCK, Coherence, PeerCache};
use crate::extent::file::CachedFile;
use crate::extent::store::ExtentStore;
use crate::peer_copies::Copy;
use crate::request_split::{segments_of, slice, slice_mut};
use crate::servers;
use crate::settings::Settings;
use halocline_api::control::TokenCounts;
use halocline_meta::checksums;
use halocline_os::clock::Clock;
use halocline_os::error::{Error, Result};
use halocline_os::timed_calls::TimedCalls;
use halocline_storage::volume::ObjectKey;
use halocline_storage::volume::objects::CacheObjects;

/// How long a read of another node's servers may take: far longer than a busy SSD behind a network needs.
const READ_LIMIT: Duration = Duration::from_secs(1);
/// How long a cache that did not answer in time is left alone.
const REST: Duration = Duration::from_secs(30);
/// How long a cache that could not be opened or read is left alone.
const RETRY: Duration = Duration::from_secs(5);
/// The most threads that read from one other node's cache.
const READERS: usize = 8;
/// The most caches of other nodes that are open at the same time.
const PEERS_MAX: usize = 64;

/// Reads from other nodes' caches.
#[derive(Debug, Builder)]
pub(crate) struct Peers {
    #[builder(required)]
    coherence: Option<Arc<dyn Coherence>>,
    store: Arc<ExtentStore>,
    settings: Arc<Settings>,
    clock: Clock,
    /// Indexed by the id of the cache.
    #[builder(skip)]
    open: Mutex<BTreeMap<String, Arc<Peer>>>,
    #[builder(skip)]
    requests: AtomicU64,
    #[builder(skip)]
    bytes: AtomicU64,
    #[builder(skip)]
    failures: AtomicU64,
}

/// The cache of another node.
#[derive(Debug)]
struct Peer {
    cache: Arc<PeerCache>,
    readers: TimedCalls,
    objects: Mutex<Option<Arc<CacheObjects>>>,
    rests_until: Mutex<Option<Instant>>,
}

impl Peers {
    fn are_read(&self) -> bool {
        self.coherence.as_ref().is_some_and(|nodes| nodes.reads_peers())
    }

    /// The bytes about which other nodes are to be asked before `range` is read; `None` if that was done, or is not
    /// needed.
    pub(crate) fn due(&self, file: &CachedFile, range: ByteRange) -> Option<ByteRange> {
        if range.is_empty() || !self.are_read() {
            return None;
        }
        let window = file.peer_copies.due(range, self.clock.now_ms())?;
        let mut segments = Vec::new();
        segments_of(&self.store, file, range, &mut segments);
        segments.iter().any(|segment| segment.extent.is_none()).then_some(window)
    }

    /// Asks other nodes what they have of a window. The caller holds no permit and no lock of the file.
    pub(crate) fn ask(&self, file: &CachedFile, window: ByteRange) {
        let Some(tokens) = file.tokens.get() else { return };
        if let Some(question) = file.peer_copies.ask(window, self.clock.now_ms()) {
            question.answered(tokens.copies(window));
        }
    }

    /// Reads what other nodes have of `span` into `buf`; returns which parts it got, in order. The caller has a permit
    /// and holds the bytes at least shared.
    pub(crate) fn read(
        &self,
        file: &CachedFile,
        span: ByteRange,
        buf: &mut [u8],
    ) -> Vec<ByteRange> {
        let mut served: Vec<ByteRange> = Vec::new();
        // One limit for all pieces: the request holds a permit meanwhile, and others may wait for that.
        let until = self.clock.instant() + READ_LIMIT;
        for copy in file.peer_copies.find(span) {
            let all = copy.blocks.range();
            let Some(part) = all.intersect(span) else { continue };
            if self.clock.instant() >= until {
                break;
            }
            let Some(bytes) = self.read_copy(&copy, until) else {
                file.peer_copies.forget(all);
                self.failures.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            slice_mut(buf, span.start, part).copy_from_slice(slice(&bytes, all.start, part));
            match served.last_mut() {
                Some(last) if last.end == part.start => last.end = part.end,
                _ => served.push(part),
            }
        }
        served
    }

    /// Counts a request for which other nodes' caches served so many bytes.
    pub(crate) fn served(&self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// All blocks of a copy, if they are as stated and there in time.
    fn read_copy(&self, copy: &Copy, until: Instant) -> Option<Vec<u8>> {
        let peer = self.peer(&copy.cache)?;
        if peer.rests(self.clock.instant()) {
            return None;
        }
        let read = {
            let (peer, copy) = (Arc::clone(&peer), copy.clone());
            let (settings, clock) = (Arc::clone(&self.settings), self.clock.clone());
            move || peer.read(&copy, &settings, &clock)
        };
        let what = match peer
            .readers
            .within(until.saturating_duration_since(self.clock.instant()), read)
        {
            Some(Ok(bytes)) => return Some(bytes).filter(|bytes| agrees(copy, bytes)),
            Some(Err(error)) => {
                *peer.objects.lock() = None;
                peer.rest(self.clock.instant() + RETRY);
                error.to_string()
            }
            None => {
                peer.rest(self.clock.instant() + REST);
                "it does not answer in time".to_owned()
            }
        };
        let PeerCache { node, dir, .. } = &*peer.cache;
        tracing::warn!(
            "the cache of node {node} at {} is left alone for a while: {what}",
            dir.display()
        );
        None
    }

    fn peer(&self, cache: &Arc<PeerCache>) -> Option<Arc<Peer>> {
        let mut open = self.open.lock();
        if let Some(peer) = open.get(&cache.cache_id)
            && (Arc::ptr_eq(&peer.cache, cache) || *peer.cache == **cache)
        {
            return Some(Arc::clone(peer));
        }
        if open.len() >= PEERS_MAX && !open.contains_key(&cache.cache_id) {
            return None;
        }
        let peer = Arc::new(Peer {
            cache: Arc::clone(cache),
            readers: TimedCalls::new("other cache", READERS, READERS),
            objects: Mutex::default(),
            rests_until: Mutex::default(),
        });
        open.insert(cache.cache_id.clone(), Arc::clone(&peer));
        Some(peer)
    }

    /// Adds the counts of reads from other nodes' caches to `tokens`.
    pub(crate) fn counts(&self, tokens: TokenCounts) -> TokenCounts {
        let now = |count: &AtomicU64| count.load(Ordering::Relaxed);
        TokenCounts {
            peer_requests: now(&self.requests),
            peer_bytes: now(&self.bytes),
            peer_failures: now(&self.failures),
            ..tokens
        }
    }
}

/// Whether each block has the checksum that was stated.
fn agrees(copy: &Copy, bytes: &[u8]) -> bool {
    let block = usize::try_from(BLOCK).expect("a small number");
    let sums = bytes.chunks(block).map(checksums::sum);
    sums.eq(copy.blocks.sums.iter().copied())
}

impl Peer {
    fn rests(&self, now: Instant) -> bool {
        self.rests_until.lock().is_some_and(|until| now < until)
    }

    fn rest(&self, until: Instant) {
        let mut rests_until = self.rests_until.lock();
        *rests_until = (*rests_until).max(Some(until));
    }

    /// Reads the blocks as they are there now. This may hang.
    fn read(&self, copy: &Copy, settings: &Settings, clock: &Clock) -> Result<Vec<u8>> {
        let objects = self.objects(copy, settings, clock)?;
        let (range, blocks) = (copy.blocks.range(), &copy.blocks);
        let len = usize::try_from(range.len()).expect("not more than a request asks for");
        let mut bytes = vec![0; len];
        let key = ObjectKey { file: blocks.file, placement: blocks.placement };
        let read = objects.read_once(key, range.start, &mut bytes);
        read.map_err(Error::at(&self.cache.dir, "read from the cache"))?;
        Ok(bytes)
    }

    fn objects(
        &self,
        copy: &Copy,
        settings: &Settings,
        clock: &Clock,
    ) -> Result<Arc<CacheObjects>> {
        let known = self.objects.lock().clone();
        if let Some(known) = known.filter(|known| known.geometry() == copy.geometry) {
            return Ok(known);
        }
        // The lock is not held meanwhile, because this may hang.
        let opened = servers::open_peer(&self.cache, copy.geometry, &settings.config, clock)?;
        let opened = Arc::new(opened);
        *self.objects.lock() = Some(Arc::clone(&opened));
        Ok(opened)
    }
}
