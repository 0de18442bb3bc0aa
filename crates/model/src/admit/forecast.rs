//! Predicts how long a request takes on one side, in floating point, for judging (ours).
//!
//! p processes with one request each at a time, each touching m of a side's servers, keep
//! q = p*m/servers requests waiting at each server on average, or 1/c of that where a server has c channels.
//! A request therefore takes q times startup and transfer: transfer contends as startup does. q is at least 1.

use super::{CacheSide, CostTerms, OriginSide, Query};
use crate::layout::Layout;
use crate::profile::{ServiceProfile, whole};
use crate::request::Direction;
use crate::striping::{Shape, Striping};

/// A first request up to this size may be the first of many at random places.
pub(super) const FIRST_BYTES_MAX: u64 = 64 << 10;
/// A contiguous run up to this size, cut into requests by the kernel or the program, counts as one random request;
/// beyond it, it is a stream.
pub(super) const RUN_BYTES_MAX: u64 = 512 << 10;
/// Minimum read-ahead of an origin's file systems for a stream.
const READ_AHEAD_BYTES: u64 = 128 << 10;
/// Requests at least this large that miss their predecessor's end by a few lengths are a stream that several threads
/// issue out of order.
const NEAR_REQUEST_BYTES: u64 = 64 << 10;
const NEAR_LENGTHS: u64 = 4;

/// How a request continues what its process did before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pattern {
    /// At another place: a startup, shared by the bytes if the process's runs are longer.
    Jump,
    /// Inside a contiguous run that is short, or, if it is like the last one, will soon end: the run's startup, shared
    /// by its bytes.
    Run,
    /// Part of a stream: sequential startup.
    Stream,
    /// Too large for the first of many random requests: assumed to begin a stream.
    LargeFirst,
}

impl Pattern {
    /// The pattern of `query`.
    pub(super) const fn of(query: &Query) -> Self {
        let len = query.range.len();
        match query.distance {
            None if len <= FIRST_BYTES_MAX => Self::Jump,
            None => Self::LargeFirst,
            Some(0) if run_bytes(query) <= RUN_BYTES_MAX => Self::Run,
            Some(0) if query.run_bytes <= query.last_run_bytes && !interleaves(query) => Self::Run,
            Some(0) => Self::Stream,
            Some(gap)
                if query.orderly
                    && len >= NEAR_REQUEST_BYTES
                    && gap <= NEAR_LENGTHS.saturating_mul(len) =>
            {
                Self::Stream
            }
            Some(_) => Self::Jump,
        }
    }

    /// Whether the pattern is served at the sequential startup.
    pub(super) const fn streams(self) -> bool {
        matches!(self, Self::Stream | Self::LargeFirst)
    }

    /// Startup in picoseconds on one server.
    fn startup_ps(self, service: &ServiceProfile, query: &Query) -> f64 {
        let (sequential, random) =
            (float(service.startup_sequential_ps), float(service.startup_random_ps));
        let alone = match self {
            Self::Stream | Self::LargeFirst => sequential,
            Self::Jump | Self::Run => {
                let share = float(query.range.len()) / float(run_bytes(query).max(1));
                sequential + (random - sequential) * share
            }
        };
        if query.continues_origin {
            return sequential;
        }
        if !interleaves(query) {
            return alone;
        }
        // A head that serves several processes in turn seeks between them.
        alone.max(sequential + (random - sequential) * share_of_ahead(query))
    }
}

/// Whether the request's stream is one of several among which a disk alternates.
pub(super) const fn interleaves(query: &Query) -> bool {
    query.processes > 1
}

/// Share of a startup that a request of interleaved streams pays: read-ahead below us makes larger requests of reads.
fn share_of_ahead(query: &Query) -> f64 {
    match query.direction {
        Direction::Write => 1.0,
        Direction::Read => (float(query.range.len()) / float(READ_AHEAD_BYTES)).min(1.0),
    }
}

/// Length that the request's run is expected to reach.
const fn run_bytes(query: &Query) -> u64 {
    let run =
        if query.last_run_bytes > query.run_bytes { query.last_run_bytes } else { query.run_bytes };
    if run > query.range.len() { run } else { query.range.len() }
}

/// A predicted time and its terms.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Forecast {
    /// Servers touched, m.
    pub(super) touched: f64,
    /// Most bytes on one server.
    pub(super) largest: u64,
    /// Requests at each server, q.
    pub(super) queue: f64,
    /// Startup on one server without waiting.
    pub(super) startup_ps: f64,
    /// Transfer of the largest part without waiting.
    pub(super) transfer_ps: f64,
}

impl Forecast {
    /// On the origin.
    pub(super) fn origin(side: &OriginSide, query: &Query) -> Self {
        let shape = side.striping().shape(query.range);
        Self::new(shape, side.servers.into(), side.profile.of(query.direction), query)
    }

    /// On the cache in `layout`, if that is a candidate.
    pub(super) fn cache(side: &CacheSide, layout: Layout, query: &Query) -> Option<Self> {
        let geometry = side.geometry;
        let servers = geometry.servers();
        let over = match layout {
            Layout::OneDh => servers,
            Layout::OneDv => 1,
            Layout::TwoD => servers / geometry.groups()?,
        };
        let shape = Striping::new(over, geometry.stripe()).shape(query.range);
        let at_once = u64::from(servers) * u64::from(side.channels.max(1));
        Some(Self::new(shape, at_once, side.profile.of(query.direction), query))
    }

    fn new(shape: Shape, at_once: u64, service: &ServiceProfile, query: &Query) -> Self {
        let touched = f64::from(shape.servers);
        let queue = (f64::from(query.processes) * touched / float(at_once)).max(1.0);
        Self {
            touched,
            largest: shape.largest,
            queue,
            startup_ps: Pattern::of(query).startup_ps(service, query),
            transfer_ps: float(shape.largest) * float(service.per_byte_ps),
        }
    }

    /// Startup and transfer with waiting.
    pub(super) fn response_ps(&self) -> f64 {
        if self.touched == 0.0 { 0.0 } else { self.queue * (self.startup_ps + self.transfer_ps) }
    }

    /// The response times `correction`, in whole picoseconds.
    pub(super) fn total_ps(&self, correction: f64) -> u64 {
        whole(self.response_ps() * correction)
    }

    /// As terms for people.
    pub(super) fn terms(&self, layout: Option<Layout>, correction: f64) -> CostTerms {
        CostTerms {
            on_cache: layout.is_some(),
            layout,
            servers: whole(self.touched),
            largest_part_bytes: self.largest,
            startup_ps: whole(self.queue * self.startup_ps),
            transfer_ps: whole(self.queue * self.transfer_ps),
            total_ps: self.total_ps(correction),
        }
    }
}

/// A count as a floating-point number.
#[expect(clippy::cast_precision_loss, reason = "a part in 2^53 decides nothing here")]
pub(super) fn float(count: u64) -> f64 {
    count as f64
}
