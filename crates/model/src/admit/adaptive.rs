//! The default policy (ours): disk time saved per SSD byte, corrected by measured times.
//!
//! Three questions, each of which can send a request to the origin:
//! 1. Does it seek? A stream costs the disk its transfer, and costs it once more when it is flushed or was fetched:
//!    caching it saves the disk nothing and wears the SSD. If several processes stream at the same time, the disks do
//!    seek, unless the request begins where the last one on the origin ended.
//! 2. Is it worth its SSD bytes? The disk saves the startups: the request's own cost on all its servers, less the cost
//!    of flushing (or fetching) it in sorted order. Per byte this must exceed what the SSDs spend on it.
//! 3. Is the cache faster, by a margin, in the current state of both sides? Measured times correct the predictions
//!    ([`super::correction`]), so a congested or failing SSD loses its requests.

use std::sync::atomic::{AtomicU32, Ordering};

use super::correction::Correction;
use super::forecast::{Forecast, Pattern, float, interleaves};
use super::{Admission, Explanation, Observation, Query, Setting, Verdict, benefit_ps};
use crate::layout::Layout;
use crate::profile::DeviceProfile;
use crate::request::Direction;

/// The origin must take this many times as long as the cache.
const ADVANTAGE_MIN: f64 = 1.5;
/// Minimum of the disk time saved per byte, in the disk's own transfer times, even for the fastest SSD, because of its
/// wear.
const WORTH_LEAST: f64 = 0.1;
/// The minimum for the slowest SSD.
const WORTH_MOST: f64 = 1.0;
/// A layout on fewer servers is preferred only if it takes at most this share of the time of one on more: how many
/// requests wait is unknown. If none wait, a request on fewer servers is slower, and so are the flush's reads.
const NARROWER: f64 = 0.8;
/// Processes in step are sent to the origin if less of the cache than this is dirty: a flush would move the disk's
/// head.
const IN_STEP_PRESSURE: f32 = 0.05;
/// At least this many bytes on one server at a random place are flushed without neighbours: passing over the gap to the
/// next ones takes longer than a seek.
const SPARSE_BYTES: u64 = 512 << 10;
/// Share of a random startup that a flush needs for each of them: in sorted order the seeks are shorter.
const SPARSE_STARTUP: f64 = 0.8;
/// Of the requests that only the cache's measured slowness sends to the origin, one in this many is admitted
/// nevertheless, to find out whether the cache has recovered.
const PROBE_EVERY: u32 = 128;

/// A write waits for room at most this many times the predicted difference between the origin and the cache: during a
/// flush the origin takes longer than predicted, and one write that goes to the origin costs the flush two seeks.
const WAIT_PER_GAIN: u64 = 4;

/// The policy with its corrections.
#[derive(Debug)]
pub(crate) struct Adaptive {
    setting: Setting,
    origin: Learnt,
    cache: Learnt,
    /// Minimum worth of a byte, for reads and writes.
    worth_min: [f64; 2],
    refused_as_slow: AtomicU32,
}

/// Corrections of one side by direction and pattern.
#[derive(Debug, Default)]
struct Learnt {
    read: [Correction; 2],
    write: [Correction; 2],
}

impl Learnt {
    fn of(&self, direction: Direction, sequential: bool) -> &Correction {
        let by_pattern = match direction {
            Direction::Read => &self.read,
            Direction::Write => &self.write,
        };
        &by_pattern[usize::from(sequential)]
    }
}

/// Why a request goes to its side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    Empty,
    Stream,
    Wide,
    Continues,
    LargeFirst,
    NotWorth,
    NoFaster,
    SlowNow,
    Worth,
}

/// The basis of a decision.
#[derive(Debug)]
struct Assessment {
    reason: Reason,
    origin: Forecast,
    origin_factor: f64,
    cache: [Option<Forecast>; 3],
    cache_factor: f64,
    best: Layout,
    best_response_ps: f64,
    /// Time that one disk needs to write the request in order, and the number of disks.
    flush_ps: f64,
    origin_servers: f64,
    /// Whether the request is one whole stripe of the origin.
    is_one_stripe: bool,
    /// Disk time saved per byte, in the disk's own transfer times.
    worth: f64,
    worth_min: f64,
}

impl Assessment {
    fn verdict(&self, critical: bool) -> Verdict {
        let best = self.cache[self.best as usize].unwrap_or_default();
        Verdict {
            critical,
            layout: self.best,
            origin_ps: self.origin.total_ps(self.origin_factor),
            cache_ps: best.total_ps(self.cache_factor),
        }
    }
}

impl Adaptive {
    /// The policy for `setting`, without any corrections yet.
    pub(crate) fn new(setting: &Setting) -> Self {
        Self {
            setting: setting.clone(),
            origin: Learnt::default(),
            cache: Learnt::default(),
            worth_min: [Direction::Read, Direction::Write]
                .map(|direction| worth_min(setting, direction)),
            refused_as_slow: AtomicU32::new(0),
        }
    }

    /// The request as it is judged. For processes in step a seek of each disk is accepted: once there, they stay in
    /// step. If they keep less than half of the disks busy, they are faster on the cache, from which a flush goes to
    /// all disks at once.
    fn with_attempt(&self, query: &Query) -> Query {
        let origin = &self.setting.origin;
        let busy =
            u64::from(query.processes) * u64::from(origin.striping().shape(query.range).servers);
        let attempt = query.in_step
            && query.cache_pressure < IN_STEP_PRESSURE
            && 2 * busy >= u64::from(origin.servers);
        Query { continues_origin: query.continues_origin || attempt, ..*query }
    }

    fn assess(&self, query: &Query) -> Assessment {
        let query = &self.with_attempt(query);
        let pattern = Pattern::of(query);
        let streams = pattern.streams() || query.continues_origin;
        let origin_factor = self.origin.of(query.direction, streams).factor();
        let cache_factor = self.cache.of(query.direction, streams).factor();
        let origin = Forecast::origin(&self.setting.origin, query);
        let cache = Layout::ALL.map(|layout| Forecast::cache(&self.setting.cache, layout, query));
        let (mut best, mut best_response_ps) = (Layout::OneDh, f64::INFINITY);
        for (layout, forecast) in Layout::ALL.into_iter().zip(&cache) {
            if let Some(forecast) = forecast
                && forecast.response_ps() < NARROWER * best_response_ps
            {
                (best, best_response_ps) = (layout, forecast.response_ps());
            }
        }
        let mut said = Assessment {
            reason: Reason::Worth,
            origin,
            origin_factor,
            cache,
            cache_factor,
            best,
            best_response_ps,
            flush_ps: float(query.range.len())
                * float(self.setting.origin.profile.of(query.direction).per_byte_ps),
            origin_servers: f64::from(self.setting.origin.servers),
            is_one_stripe: origin.touched <= 1.0 && query.range.len() >= self.setting.origin.stripe,
            worth: self.worth(query, &origin, origin_factor),
            worth_min: self.worth_min[usize::from(query.direction == Direction::Write)],
        };
        said.reason = reason(query, pattern, &said);
        said
    }

    /// Disk time saved per cached byte, in the disk's own transfer times: startups on all servers now, less startups in
    /// sorted order later, which count no more than those now.
    fn worth(&self, query: &Query, origin: &Forecast, origin_factor: f64) -> f64 {
        let service = self.setting.origin.profile.of(query.direction);
        let transfer = float(query.range.len()) * float(service.per_byte_ps);
        let sorted_factor = self.origin.of(query.direction, true).factor().min(origin_factor);
        let now = origin_factor * (origin.touched * origin.startup_ps + transfer);
        let later = match query.direction {
            Direction::Write => {
                let startup = if is_sparse(query, origin) {
                    SPARSE_STARTUP * origin.startup_ps
                } else {
                    float(service.startup_sequential_ps)
                };
                sorted_factor * (origin.touched * startup + transfer)
            }
            // A fill costs the disk nothing later: it comes from a read that programs waited for anyway.
            Direction::Read => 0.0,
        };
        (now - later) / (transfer * sorted_factor).max(1.0)
    }
}

/// Whether a flush would need a seek for the request's bytes alone: the request is long, at a random place, from the
/// only process, and that process's reads on the origin come in between.
fn is_sparse(query: &Query, origin: &Forecast) -> bool {
    query.origin_serves_reads
        && !interleaves(query)
        && origin.largest >= SPARSE_BYTES
        && Pattern::of(query) == Pattern::Jump
}

/// How much of the disks' transfer time each byte on the cache must save: the time that the SSDs spend on it, during
/// which the disks may be idle.
fn worth_min(setting: &Setting, direction: Direction) -> f64 {
    let (origin, cache) = (&setting.origin, &setting.cache);
    let per_byte = |profile: &DeviceProfile| float(profile.of(direction).per_byte_ps);
    let at_once = float(cache.geometry.servers().into()) * f64::from(cache.channels.max(1));
    let ssds = per_byte(&cache.profile) / at_once;
    let disks = per_byte(&origin.profile) / f64::from(origin.servers);
    (ssds / disks.max(f64::MIN_POSITIVE)).clamp(WORTH_LEAST, WORTH_MOST)
}

fn reason(query: &Query, pattern: Pattern, said: &Assessment) -> Reason {
    let origin = said.origin.response_ps() * said.origin_factor;
    let beaten_by =
        |cache_factor: f64| origin > ADVANTAGE_MIN * cache_factor * said.best_response_ps;
    let not_worth = if query.continues_origin { Reason::Continues } else { Reason::NotWorth };
    match pattern {
        _ if query.range.is_empty() => Reason::Empty,
        Pattern::Stream if !interleaves(query) && is_wide(query, said) => Reason::Wide,
        Pattern::Stream if !interleaves(query) => Reason::Stream,
        Pattern::LargeFirst => Reason::LargeFirst,
        Pattern::Jump | Pattern::Run | Pattern::Stream => {
            if beaten_by(said.cache_factor) {
                if said.worth >= said.worth_min { Reason::Worth } else { not_worth }
            } else if beaten_by(1.0) && said.worth >= said.worth_min {
                Reason::SlowNow
            } else if query.continues_origin {
                Reason::Continues
            } else {
                Reason::NoFaster
            }
        }
    }
}

/// Whether a lone stream of writes, a stripe of the origin at a time, is faster on the cache, even if all of it is
/// flushed only at its end: the flush uses all disks.
fn is_wide(query: &Query, said: &Assessment) -> bool {
    let flush = said.flush_ps / said.origin_servers;
    let is_faster = |origin_factor: f64, cache_factor: f64| {
        cache_factor * said.best_response_ps + flush < origin_factor * said.origin.response_ps()
    };
    // By the profiles, and by what was measured: either alone is too inexact for so small a difference.
    query.direction == Direction::Write
        && !query.origin_serves_reads
        && said.is_one_stripe
        && is_faster(1.0, 1.0)
        && is_faster(said.origin_factor, said.cache_factor)
}

fn sentence(said: &Assessment) -> String {
    let (worth, least) = (said.worth, said.worth_min);
    let ratio = said.origin.response_ps() * said.origin_factor
        / (said.best_response_ps * said.cache_factor).max(1.0);
    match said.reason {
        Reason::Empty => "the request is empty".to_owned(),
        Reason::Stream => "it is part of a long sequential stream: the disk serves it without \
                           seeks, so caching it saves no disk time and wears the SSD"
            .to_owned(),
        Reason::Wide => "it is part of a stream that keeps one disk busy at a time: the \
                         cache takes it faster, and a flush writes it to all disks at once"
            .to_owned(),
        Reason::Continues => "it begins where the origin's last requests in the file ended: the \
                              disk serves it without a seek, and others may follow it in order"
            .to_owned(),
        Reason::LargeFirst => "it is a large first request and taken for the beginning of a \
                               sequential stream, which stays on the origin"
            .to_owned(),
        Reason::NotWorth => format!(
            "caching it saves {worth:.2} of the disk's transfer time per SSD byte, and it takes \
             {least:.2} to make up for the SSD's"
        ),
        Reason::NoFaster => format!(
            "the origin is predicted to take {ratio:.2} times as long as the cache, and it takes \
             {ADVANTAGE_MIN} to cache anything: the two sides are about equally fast for it"
        ),
        Reason::SlowNow => format!(
            "the cache is measured {:.1} times slower than its profile, so requests stay on the \
             origin until it recovers",
            said.cache_factor
        ),
        Reason::Worth => format!(
            "the origin is predicted to take {ratio:.1} times as long as the cache, and caching it \
             saves {worth:.1} times the disk's transfer time per SSD byte"
        ),
    }
}

impl Admission for Adaptive {
    fn name(&self) -> &'static str {
        "adaptive"
    }

    fn judge(&self, query: &Query) -> Verdict {
        let said = self.assess(query);
        let critical = match said.reason {
            Reason::Worth | Reason::Wide => true,
            Reason::SlowNow => {
                self.refused_as_slow.fetch_add(1, Ordering::Relaxed) % PROBE_EVERY
                    == PROBE_EVERY - 1
            }
            _ => false,
        };
        said.verdict(critical)
    }

    fn wait_limit_ps(&self, verdict: &Verdict) -> u64 {
        WAIT_PER_GAIN.saturating_mul(verdict.origin_ps.saturating_sub(verdict.cache_ps))
    }

    fn explain(&self, query: &Query) -> Explanation {
        let said = self.assess(query);
        let Verdict { critical, layout, origin_ps, cache_ps } =
            said.verdict(matches!(said.reason, Reason::Worth | Reason::Wide));
        let mut costs = vec![said.origin.terms(None, said.origin_factor)];
        for (layout, forecast) in Layout::ALL.into_iter().zip(&said.cache) {
            costs.extend(forecast.map(|cost| cost.terms(Some(layout), said.cache_factor)));
        }
        Explanation {
            policy: self.name().to_owned(),
            processes: query.processes,
            critical,
            reason: sentence(&said),
            layout: Some(layout),
            costs,
            benefit_ps: benefit_ps(origin_ps, cache_ps),
        }
    }

    fn learns(&self) -> bool {
        true
    }

    fn observe(&self, seen: &Observation) {
        if seen.bytes == 0 {
            return;
        }
        let (learnt, profile, servers) = if seen.on_cache {
            (&self.cache, &self.setting.cache.profile, self.setting.cache.geometry.servers())
        } else {
            (&self.origin, &self.setting.origin.profile, self.setting.origin.servers)
        };
        let service = profile.of(seen.direction);
        let correction = learnt.of(seen.direction, seen.sequential);
        let startup = float(if seen.sequential {
            service.startup_sequential_ps
        } else {
            service.startup_random_ps
        });
        let transfer = float(seen.bytes) * float(service.per_byte_ps);
        let factor = correction.factor();
        // Startup is an average over distances and devices: half of it is not unusual.
        let least = factor * (startup + transfer / f64::from(servers)) / 2.0;
        let most = (factor * (startup + transfer)).max(float(seen.predicted_ps));
        // The page cache accepts writes at the speed of RAM; the device still has to do the work.
        let hides_work = seen.direction == Direction::Write;
        correction.learn(least, most, float(seen.measured_ps), hides_work);
    }
}
