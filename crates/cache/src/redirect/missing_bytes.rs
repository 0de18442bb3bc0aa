//! Bytes of a read that the cache does not have: they come from the caches of other nodes, or from the origin.

use std::sync::Arc;

use bon::Builder;
use halocline_model::request::{ByteRange, Direction};

use crate::identify::{Identified, Identifier};
use crate::open_file::OpenFile;
use crate::origin_access::OriginAccess;
use crate::peers::Peers;
use crate::request_split::{missing_in, missing_spans, rest_of, slice_mut};
use halocline_meta::Segment;
use halocline_os::error::Result;

/// The outcome of a read.
#[derive(Debug, Clone, Copy)]
pub(super) enum Read {
    /// So many bytes were read.
    Done(usize),
    /// Other nodes are to be asked first what they have of these bytes.
    AskFirst(ByteRange),
}

/// Where the bytes that the cache lacked came from.
#[derive(Debug, Clone, Copy)]
pub(super) struct MissingBytes {
    /// How many came from the caches of other nodes.
    pub(super) peers: u64,
    /// Whether the origin had all others.
    pub(super) whole: bool,
}

/// Reads bytes that the cache does not have.
#[derive(Debug, Builder)]
pub(crate) struct MissReader {
    peers: Arc<Peers>,
    origin: Arc<OriginAccess>,
    identifier: Arc<Identifier>,
}

impl MissReader {
    /// Reads what `segments` do not have of `range`, in few large pieces that may include cached ranges, into `buf`, which
    /// is of the whole range.
    pub(super) fn read(
        &self,
        handle: &OpenFile,
        identified: &Identified,
        range: ByteRange,
        buf: &mut [u8],
        segments: &[Segment],
    ) -> Result<MissingBytes> {
        let mut missing = MissingBytes { peers: 0, whole: true };
        for span in missing_spans(segments) {
            let served = self.peers.read(&handle.file, span, slice_mut(buf, range.start, span));
            let rest = rest_of(span, &served);
            // What peers served in the middle of the rest is read again with it.
            let before = ByteRange::new(span.start, rest.start);
            let behind = ByteRange::new(rest.end, span.end);
            missing.peers += missing_in(segments, &[before, behind]);
            if rest.is_empty() {
                continue;
            }
            missing.whole &= self.identifier.timed_on_origin(
                &handle.file,
                Direction::Read,
                identified,
                rest,
                || self.origin.read(&handle.origin, rest, slice_mut(buf, range.start, rest)),
            )?;
        }
        Ok(missing)
    }
}
