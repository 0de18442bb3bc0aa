//! Replays the requests of a trace through a simulated extent cache (docs/SIMULATOR.md, The extent cache).
//!
//! The servers of the slowest class are the origin, all others the cache. Which requests deserve the cache, in which
//! layout, and which extents leave, is decided by the same policies of [`halocline_model`] as on a mount, from patterns
//! that the same code detects.

mod backpressure;
mod devices;
mod extents;
mod flush;
mod region;

use halocline_model::admit::{
    self, Admission, CacheSide, Observation, OriginSide, Query, Setting, Verdict,
};
use halocline_model::backpressure::WAIT_MAX;
use halocline_model::evict;
use halocline_model::fill::{Allowance, Reads};
use halocline_model::layout::{CacheGeometry, Placement};
use halocline_model::request::{ByteRange, Direction};
use halocline_trace::{Op, Request};
use rustc_hash::FxHashMap;
use serde::Serialize;

use super::issue::Issuer;
use super::sides::{SPAN, STRIPE, Sides};
use super::{Late, Options, seconds};
use crate::servers::ServerSet;
use backpressure::{Backpressure, Waiter};
use devices::Devices;
use extents::{Extents, Key, LOOK_AHEAD};
use flush::{Flush, Programs};

/// Longest request with which a cache is simulated, in bytes: twice what a system call transfers. Others' traces may
/// claim requests of exbibytes, whose bytes would be searched for on the cache region by region, for years.
const REQUEST_BYTES_MAX: u64 = 1 << 32;
/// Limit of the ranges of missed reads that are remembered; then all are forgotten.
const MISSED_MAX: usize = 1 << 21;

/// The results with one policy.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct CacheOutcome {
    /// The admission policy.
    pub policy: String,
    /// From the first issue to the last completion, seconds.
    pub foreground_seconds: f64,
    /// The same, until all dirty bytes are written back, in seconds.
    pub total_seconds: f64,
    /// Requests.
    pub requests: u64,
    /// Their bytes: the sum of the next four.
    pub bytes: u64,
    /// Bytes that reads got from the cache.
    pub cache_read_bytes: u64,
    /// Bytes that writes put on the cache.
    pub cache_written_bytes: u64,
    /// Bytes that reads got from the origin.
    pub origin_read_bytes: u64,
    /// Bytes that writes put on the origin.
    pub origin_written_bytes: u64,
    /// Bytes put on the cache from reads, for the next time.
    pub filled_bytes: u64,
    /// Bytes that left the cache to make room.
    pub evicted_bytes: u64,
    /// Dirty bytes that were written back.
    pub written_back_bytes: u64,
    /// Largest number of bytes on the cache at any time.
    pub most_used_bytes: u64,
    /// Where the replay is no closed loop.
    #[serde(flatten)]
    pub late: Late,
}

/// Makes an admission policy for a setting.
pub type MakeAdmission<'a> = &'a dyn Fn(&Setting) -> Result<Box<dyn Admission>, String>;

/// Replays `requests` through a cache of `capacity` bytes with the admission policy called `policy` and the eviction
/// policy of a mount.
///
/// # Errors
/// As [`super::replay`]; a policy that does not exist; servers of one class only; more capacity than the cache's
/// servers have; a request of more than 4 GiB.
pub fn replay_cached(
    requests: impl Iterator<Item = Request>,
    servers: &ServerSet,
    capacity: u64,
    policy: &str,
    options: &Options,
) -> Result<CacheOutcome, String> {
    let make =
        |setting: &Setting| admit::by_name(policy, setting).map_err(|error| error.to_string());
    replay_cached_by(requests, servers, capacity, &make, options)
}

/// The same with the admission policy that `make` makes for the setting.
///
/// # Errors
/// As [`replay_cached`], and those of `make`.
pub fn replay_cached_by(
    requests: impl Iterator<Item = Request>,
    servers: &ServerSet,
    capacity: u64,
    make: MakeAdmission<'_>,
    options: &Options,
) -> Result<CacheOutcome, String> {
    let mut cache = Cache::new(servers, capacity, make, options.seed)?;
    let mut issuer = Issuer::new(requests, options.pace)?;
    let mut until_look = 0;
    while let Some((now_ns, request)) = issuer.next()? {
        if until_look == 0 {
            until_look = LOOK_AHEAD / 2;
            let upcoming = issuer.upcoming().map(|request| (request.file, request.offset));
            cache.extents.look_ahead(upcoming);
        }
        until_look -= 1;
        if request.length > REQUEST_BYTES_MAX {
            let length = request.length;
            return Err(format!(
                "a request of {length} bytes: a cache is simulated with requests of {REQUEST_BYTES_MAX} at most, \
                 and no system call transfers as many"
            ));
        }
        let programs = Programs {
            wait: cache.backpressure.has_waiters(),
            origin_until_ns: cache.origin_until_ns,
        };
        cache.flush.until(now_ns, &mut cache.extents, &mut cache.devices, programs);
        match cache.serve(now_ns, (issuer.serving(), &request)) {
            Served::Done(done_ns) => issuer.done(&request, done_ns)?,
            Served::WaitsUntil(again_ns) => issuer.again(request, again_ns),
        }
    }
    Ok(cache.outcome(issuer.late()))
}

/// The result of issuing a request.
#[derive(Debug, Clone, Copy)]
enum Served {
    /// It completes then.
    Done(u64),
    /// It waits for room, which may be available then.
    WaitsUntil(u64),
}

/// How a request was judged.
#[derive(Debug, Clone, Copy)]
struct Judged {
    verdict: Verdict,
    sequential: bool,
    /// When it was ready to be transferred.
    since_ns: u64,
}

#[derive(Debug)]
struct Cache {
    devices: Devices,
    admission: Box<dyn Admission>,
    extents: Extents,
    /// Ranges that critical reads missed, and how many bytes programs had read by then.
    missed: FxHashMap<Key, u64>,
    pieces: Vec<(ByteRange, Option<Placement>)>,
    flush: Flush,
    backpressure: Backpressure,
    /// Writes to the origin that wait for the flush of their region, by [`Issuer::serving`].
    held_up: FxHashMap<usize, Judged>,
    capacity: u64,
    allowance: Allowance,
    first_ns: Option<u64>,
    end_ns: u64,
    /// When the last request of a program to the origin completes.
    origin_until_ns: u64,
    sums: CacheOutcome,
}

impl Cache {
    fn new(
        set: &ServerSet,
        capacity: u64,
        make: MakeAdmission<'_>,
        seed: u64,
    ) -> Result<Self, String> {
        let Sides { slow, fast } = Sides::new(set, capacity, "cache")?;
        let servers = set.servers();
        let count = |side: &[usize]| u32::try_from(side.len()).map_err(|_| "too many servers");
        let geometry = CacheGeometry::new(count(&fast)?, STRIPE, 2);
        let setting = Setting {
            origin: OriginSide {
                servers: count(&slow)?,
                stripe: STRIPE,
                profile: servers[slow[0]].profile.service(SPAN),
            },
            cache: CacheSide {
                geometry,
                profile: servers[fast[0]].profile.service(SPAN),
                channels: servers[fast[0]].profile.channels(),
            },
        };
        let admission = make(&setting)?;
        let policy = admission.name().to_owned();
        Ok(Self {
            devices: Devices::new(
                servers,
                (geometry, fast),
                (setting.origin.striping(), &slow),
                seed,
            ),
            admission,
            extents: Extents::new(capacity, (evict::POLICIES[0].make)()),
            missed: FxHashMap::default(),
            pieces: Vec::new(),
            flush: Flush::new(capacity, slow.len(), &setting.origin.profile),
            backpressure: Backpressure::default(),
            held_up: FxHashMap::default(),
            capacity,
            allowance: Allowance::new(capacity),
            first_ns: None,
            end_ns: 0,
            origin_until_ns: 0,
            sums: CacheOutcome { policy, ..Default::default() },
        })
    }

    /// Serves a request issued at `now_ns`, unless it must wait.
    fn serve(&mut self, now_ns: u64, (serving, request): (usize, &Request)) -> Served {
        let (file, range) = (request.file, ByteRange::at(request.offset, request.length));
        let direction = match request.op {
            Op::Read => Direction::Read,
            Op::Write => Direction::Write,
        };
        if let Some(judged) = self.held_up.remove(&serving) {
            let mut pieces = std::mem::take(&mut self.pieces);
            self.extents.pieces(file, range, &mut pieces);
            self.pieces = pieces;
            return self.transfer(now_ns, (serving, request), judged, true);
        }
        let waiter = self.backpressure.waiter(serving);
        let mut is_in_vain = false;
        if let Some(waiter) = waiter.filter(|waiter| waiter.changes == self.extents.changes()) {
            if let Some(again_ns) = self.wait(now_ns, serving, waiter, false) {
                return Served::WaitsUntil(again_ns);
            }
            is_in_vain = true;
        }
        let (verdict, sequential) = match waiter {
            Some(waiter) => (waiter.verdict, waiter.sequential),
            None => self.judge(now_ns, request, range, direction),
        };
        let placement = self.devices.geometry.place(verdict.layout, request.process);
        let mut pieces = std::mem::take(&mut self.pieces);
        self.extents.pieces(file, range, &mut pieces);
        let is_known = pieces.iter().any(|piece| piece.1.is_some());
        let mut waits = None;
        if direction == Direction::Write && verdict.critical && !is_in_vain {
            let all = self.admit_missing(file, range, placement, &mut pieces);
            let waiter = waiter.unwrap_or_else(|| self.waiter(now_ns, verdict, sequential));
            waits = self.wait(now_ns, serving, waiter, all);
        }
        self.pieces = pieces;
        if let Some(again_ns) = waits {
            return Served::WaitsUntil(again_ns);
        }
        let judged = Judged { verdict, sequential, since_ns: now_ns };
        self.transfer(now_ns, (serving, request), judged, is_known)
    }

    /// Transfers the pieces of a request, which was judged so, unless a flush of the region holds it up. `is_known`: some
    /// were on the cache before.
    fn transfer(
        &mut self,
        now_ns: u64,
        (serving, request): (usize, &Request),
        judged: Judged,
        is_known: bool,
    ) -> Served {
        let (file, range) = (request.file, ByteRange::at(request.offset, request.length));
        let pieces = std::mem::take(&mut self.pieces);
        if request.op == Op::Write {
            let mut to_origin = pieces.iter().filter(|piece| piece.1.is_none());
            let held = to_origin.find_map(|(piece, _)| self.flush.holds(file, *piece));
            if let Some(again_ns) = held {
                self.pieces = pieces;
                self.held_up.insert(serving, judged);
                return Served::WaitsUntil(again_ns.max(now_ns + 1));
            }
        }
        let done_ns = self.transfer_all(now_ns, request, &pieces, judged);
        match request.op {
            // Bytes that were just put there are dirty.
            Op::Write if is_known => self.extents.write(file, range),
            Op::Write => {}
            Op::Read => {
                if is_known {
                    self.extents.touch(file, range);
                }
                if judged.verdict.critical {
                    let placement =
                        self.devices.geometry.place(judged.verdict.layout, request.process);
                    self.fill(done_ns, file, range, placement, &pieces);
                }
            }
        }
        self.pieces = pieces;
        self.sums.requests += 1;
        self.sums.bytes = self.sums.bytes.saturating_add(request.length);
        self.first_ns.get_or_insert(now_ns);
        self.end_ns = self.end_ns.max(done_ns);
        Served::Done(done_ns)
    }

    /// When reading or writing all pieces of a request completes, which was judged so.
    fn transfer_all(
        &mut self,
        now_ns: u64,
        request: &Request,
        pieces: &[(ByteRange, Option<Placement>)],
        Judged { verdict, sequential, since_ns }: Judged,
    ) -> u64 {
        let (file, mut done_ns) = (request.file, now_ns);
        let direction = match request.op {
            Op::Read => Direction::Read,
            Op::Write => Direction::Write,
        };
        for on_cache in [true, false] {
            let of_side = pieces.iter().filter(|piece| piece.1.is_some() == on_cache);
            let (mut bytes, mut parts, mut side_ns) = (0, 0, now_ns);
            for (piece, place) in of_side {
                side_ns =
                    side_ns.max(self.devices.transfer(now_ns, file, *piece, *place, direction));
                bytes += piece.len();
                parts += 1;
            }
            if bytes > 0 && !on_cache {
                self.origin_until_ns = self.origin_until_ns.max(side_ns);
                if direction == Direction::Write {
                    let of_side = pieces.iter().filter(|piece| piece.1.is_none());
                    for (piece, _) in of_side {
                        self.flush.note_write(now_ns, file, *piece, side_ns);
                    }
                }
            }
            if bytes > 0 && self.admission.learns() {
                let predicted_ps = if on_cache { verdict.cache_ps } else { verdict.origin_ps };
                let measured_ps = (side_ns - since_ns).saturating_mul(1000);
                self.admission.observe(&Observation {
                    on_cache,
                    direction,
                    sequential,
                    bytes,
                    parts,
                    predicted_ps,
                    measured_ps,
                });
            }
            let sum = self.sum(on_cache, direction);
            *sum = sum.saturating_add(bytes);
            done_ns = done_ns.max(side_ns);
        }
        done_ns
    }

    /// The state of a write that may wait from `now_ns` on, as long as its policy allows.
    fn waiter(&self, now_ns: u64, verdict: Verdict, sequential: bool) -> Waiter {
        let wait_limit_ns = self.admission.wait_limit_ps(&verdict) / 1000;
        let most_ns = u64::try_from(WAIT_MAX.as_nanos()).unwrap_or(u64::MAX);
        let until_ns = now_ns.saturating_add(wait_limit_ns.min(most_ns));
        Waiter { verdict, sequential, until_ns, has_waited: false, changes: 0 }
    }

    /// Until when a write waits for room unless it got all it needs; a flush makes room only if there are too many dirty
    /// bytes.
    fn wait(&mut self, now_ns: u64, serving: usize, waiter: Waiter, got_all: bool) -> Option<u64> {
        if got_all {
            self.backpressure.got_room(waiter);
            return None;
        }
        let short = self.extents.dirty_bytes > self.capacity / flush::BEGINS_AT_ONE_IN;
        let made_ns = self.flush.next_ns();
        let waiter = Waiter { changes: self.extents.changes(), ..waiter };
        self.backpressure.wait(serving, now_ns, waiter, (short, made_ns))
    }

    fn judge(
        &mut self,
        now_ns: u64,
        request: &Request,
        range: ByteRange,
        direction: Direction,
    ) -> (Verdict, bool) {
        let striping = self.devices.striping;
        let streams = self.devices.streams.entry(request.file).or_default();
        let pattern = streams.note(striping, request.process, range, now_ns / 1_000_000);
        let continues_origin = streams.continues_origin(striping, range, pattern, direction);
        let origin_serves_reads = streams.origin_serves_reads();
        let verdict = self.admission.judge(&Query {
            direction,
            range,
            processes: pattern.processes,
            owner: request.process,
            distance: pattern.distance,
            run_bytes: pattern.run_bytes,
            last_run_bytes: pattern.last_run_bytes,
            orderly: pattern.orderly,
            continues_origin,
            in_step: pattern.in_step,
            origin_serves_reads,
            cache_pressure: self.extents.pressure(),
        });
        (verdict, pattern.distance == Some(0))
    }

    /// Reserves room on the cache for each missing piece of a critical write; returns whether all have room.
    fn admit_missing(
        &mut self,
        file: u32,
        range: ByteRange,
        placement: Placement,
        pieces: &mut [(ByteRange, Option<Placement>)],
    ) -> bool {
        let mut all = true;
        for (piece, place) in pieces.iter_mut().filter(|piece| piece.1.is_none()) {
            if self.extents.make_room(piece.len(), (file, range), u64::MAX) {
                self.extents.put(file, *piece, placement, true);
                *place = Some(placement);
            } else {
                all = false;
            }
        }
        all
    }

    /// Puts bytes that a critical read missed for the second time on the cache, from the bytes that it got.
    fn fill(
        &mut self,
        now_ns: u64,
        file: u32,
        range: ByteRange,
        placement: Placement,
        pieces: &[(ByteRange, Option<Placement>)],
    ) {
        let from_cache = self.sums.cache_read_bytes;
        let read = from_cache.saturating_add(self.sums.origin_read_bytes);
        for (piece, _) in pieces.iter().filter(|piece| piece.1.is_none()) {
            let Some(missed) = self.missed.insert((file, piece.start), read) else {
                if self.missed.len() > MISSED_MAX {
                    self.missed.clear();
                }
                continue;
            };
            self.allowance.earn(Reads { bytes: read, from_cache }, self.capacity);
            let allowed = self.allowance.allows(piece.len(), read - missed);
            let may_evict = if allowed { u64::MAX } else { 0 };
            let before = self.extents.evicted_bytes;
            if self.extents.make_room(piece.len(), (file, range), may_evict) {
                self.allowance.spend(self.extents.evicted_bytes - before);
                self.extents.put(file, *piece, placement, false);
                self.devices.transfer(now_ns, file, *piece, Some(placement), Direction::Write);
                self.sums.filled_bytes += piece.len();
            }
        }
    }

    fn sum(&mut self, on_cache: bool, direction: Direction) -> &mut u64 {
        match (on_cache, direction) {
            (true, Direction::Read) => &mut self.sums.cache_read_bytes,
            (true, Direction::Write) => &mut self.sums.cache_written_bytes,
            (false, Direction::Read) => &mut self.sums.origin_read_bytes,
            (false, Direction::Write) => &mut self.sums.origin_written_bytes,
        }
    }

    fn outcome(mut self, late: Late) -> CacheOutcome {
        let first_ns = self.first_ns.unwrap_or(0);
        let drained_ns = self.flush.drain(self.end_ns, &mut self.extents, &mut self.devices);
        CacheOutcome {
            foreground_seconds: seconds(self.end_ns - first_ns),
            total_seconds: seconds(drained_ns - first_ns),
            evicted_bytes: self.extents.evicted_bytes,
            written_back_bytes: self.flush.written_back_bytes,
            most_used_bytes: self.extents.most_used,
            late,
            ..self.sums
        }
    }
}

#[cfg(test)]
mod tests;
