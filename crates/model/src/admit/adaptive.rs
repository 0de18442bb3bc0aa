//! `adaptive`, ours: admits what saves much disk time per SSD byte written, and is corrected by
//! what both sides are measured to take.
//!
//! The papers' models multiply startup by the number of processes but not transfer, and know one
//! startup time for all requests; nearly everything up to 64 MB is "critical" then, streams
//! included. Here
//!
//! 1. a request is judged as part of its *run*: a stream pays its startup once, so the longer the
//!    run, the less of the disks' time is lost to startup;
//! 2. transfer contends like startup: with p processes that touch m of M servers each, p*m/M
//!    requests wait at every server, and each takes startup and transfer;
//! 3. two conditions must hold: the cache is faster by a margin, and the origin's disks would lose
//!    most of the time to startup (the SSD byte is worth its place and its wear). The second
//!    threshold rises as the cache fills with dirty bytes;
//! 4. measured service times correct the predictions of both sides, slowly and within bounds.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Admission, CostTerms, Explanation, Observation, Query, Setting, Verdict};
use crate::layout::Layout;
use crate::profile::ServiceProfile;
use crate::request::{ByteRange, Direction};
use crate::striping::Shape;

/// The cache must take at most this share of the origin's time: noise cannot flip a decision.
const MARGIN: f64 = 0.8;

/// At least this share of the disks' time must be lost to startup while the cache is empty ...
const WASTE_EMPTY: f64 = 0.7;
/// ... and this share when dirty bytes fill it.
const WASTE_FULL: f64 = 0.92;

/// The first request of a process says nothing about its run; one of at least this size is taken
/// for the beginning of a stream.
const FIRST_STREAM_BYTES: u64 = 128 << 10;

/// Weight of one measurement.
const LEARN: f64 = 1.0 / 64.0;

/// Corrections stay within this factor of the prediction, either way.
const CORRECTION_MAX: f64 = 8.0;

/// The policy.
#[derive(Debug)]
pub struct Adaptive {
    setting: Setting,
    /// Measured over predicted time, as f64 bits: by side, direction and pattern.
    corrections: [AtomicU64; 8],
}

/// One side's part of a judgement, in picoseconds.
#[derive(Debug, Clone, Copy)]
struct Cost {
    layout: Option<Layout>,
    shape: Shape,
    startup_ps: f64,
    transfer_ps: f64,
    total_ps: f64,
}

/// All of a judgement.
struct Judgement {
    origin: Cost,
    best: Cost,
    waste: f64,
    needed: f64,
}

impl Judgement {
    fn faster(&self) -> bool {
        self.best.total_ps < MARGIN * self.origin.total_ps
    }

    fn worth(&self) -> bool {
        self.waste >= self.needed
    }
}

impl Adaptive {
    /// The policy for a setting.
    pub fn new(setting: Setting) -> Self {
        Self { setting, corrections: std::array::from_fn(|_| AtomicU64::new(1f64.to_bits())) }
    }

    fn correction(&self, on_cache: bool, direction: Direction, sequential: bool) -> f64 {
        f64::from_bits(
            self.corrections[slot(on_cache, direction, sequential)].load(Ordering::Relaxed),
        )
    }

    fn judgement(&self, query: &Query) -> Judgement {
        let origin = self.origin(query);
        let mut best = self.cache(query, Layout::OneDh);
        for layout in self.other_layouts() {
            let cost = self.cache(query, layout);
            if cost.total_ps < best.total_ps {
                best = cost;
            }
        }
        Judgement {
            origin,
            best,
            waste: self.waste(query),
            needed: WASTE_EMPTY
                + (WASTE_FULL - WASTE_EMPTY) * f64::from(query.cache_pressure.clamp(0.0, 1.0)),
        }
    }

    fn other_layouts(&self) -> impl Iterator<Item = Layout> {
        let servers = self.setting.cache.geometry.servers();
        let groups = self.setting.cache.geometry.groups();
        (servers > 1).then_some(Layout::OneDv).into_iter().chain(groups.map(|_| Layout::TwoD))
    }

    fn origin(&self, query: &Query) -> Cost {
        let side = &self.setting.origin;
        let service = side.profile.of(query.direction);
        let shape = side.striping().shape(query.range);
        let waiting = waiting(query.processes, shape.servers, side.servers);
        let sequential = is_sequential(query);
        let startup = pick(service, sequential) * waiting;
        let transfer = float(shape.largest) * float(service.per_byte_ps) * waiting;
        let correction = self.correction(false, query.direction, sequential);
        cost(None, shape, startup, transfer, correction)
    }

    fn cache(&self, query: &Query, layout: Layout) -> Cost {
        let side = &self.setting.cache;
        let service = side.profile.of(query.direction);
        let (_, striping) = side.geometry.resolve(side.geometry.place(layout, query.owner));
        let shape = striping.shape(query.range);
        // Owners spread evenly over servers or groups, so all servers share all requests' parts.
        let waiting = waiting(query.processes, shape.servers, side.geometry.servers());
        let startup = float(service.startup_random_ps) * waiting;
        let transfer = float(shape.largest) * float(service.per_byte_ps) * waiting;
        let correction = self.correction(true, query.direction, false);
        cost(Some(layout), shape, startup, transfer, correction)
    }

    /// Share of the origin's disk time that the whole run loses to startup. What the stream has
    /// shown so far, and what this process's runs were like before, tell how long the run is.
    fn waste(&self, query: &Query) -> f64 {
        let side = &self.setting.origin;
        let service = side.profile.of(query.direction);
        let run = query.expected_run_bytes.max(query.run_bytes).max(query.range.len());
        let run = if query.distance.is_none() && query.range.len() >= FIRST_STREAM_BYTES {
            // Nothing is known yet: long enough not to be worth it.
            run.max(64 << 20)
        } else {
            run
        };
        let shape = side.striping().shape(ByteRange::at(0, run));
        let random = float(service.startup_random_ps) - float(service.startup_sequential_ps);
        let startup = random.max(0.0) * f64::from(shape.servers);
        let transfer = float(run) * float(service.per_byte_ps);
        if startup + transfer > 0.0 { startup / (startup + transfer) } else { 0.0 }
    }
}

impl Admission for Adaptive {
    fn name(&self) -> &'static str {
        "adaptive"
    }

    fn judge(&self, query: &Query) -> Verdict {
        let judgement = self.judgement(query);
        Verdict {
            critical: judgement.worth() && judgement.faster(),
            layout: judgement.best.layout.unwrap_or(Layout::OneDh),
            origin_ps: whole(judgement.origin.total_ps),
            cache_ps: whole(judgement.best.total_ps),
        }
    }

    fn explain(&self, query: &Query) -> Explanation {
        let judgement = self.judgement(query);
        let mut costs = vec![terms(&judgement.origin)];
        costs.push(terms(&self.cache(query, Layout::OneDh)));
        costs.extend(self.other_layouts().map(|layout| terms(&self.cache(query, layout))));
        let critical = judgement.worth() && judgement.faster();
        #[expect(clippy::cast_possible_truncation, reason = "saturates")]
        let benefit_ps = (judgement.origin.total_ps - judgement.best.total_ps) as i64;
        Explanation {
            policy: self.name().to_owned(),
            processes: query.processes,
            costs,
            critical,
            layout: judgement.best.layout,
            benefit_ps,
            reason: reason(&judgement),
        }
    }

    fn observe(&self, seen: &Observation) {
        if seen.predicted_ps == 0 {
            return;
        }
        // Predictions carry the correction already, so the ratio says how far it is still off.
        let off = float(seen.measured_ps) / float(seen.predicted_ps);
        let cell = &self.corrections[slot(seen.on_cache, seen.direction, seen.sequential)];
        let old = f64::from_bits(cell.load(Ordering::Relaxed));
        let off = off.clamp(1.0 / CORRECTION_MAX, CORRECTION_MAX);
        let new = (old * (1.0 + LEARN * (off - 1.0))).clamp(1.0 / CORRECTION_MAX, CORRECTION_MAX);
        // A lost update of two threads costs one measurement of thousands.
        cell.store(new.to_bits(), Ordering::Relaxed);
        if !seen.on_cache {
            self.forgive_cache(seen.direction);
        }
    }
}

impl Adaptive {
    /// A cache that was measured slow gets no requests, so nothing would ever show that it has
    /// recovered: while the origin serves, its bad mark fades until it is tried again.
    fn forgive_cache(&self, direction: Direction) {
        for sequential in [false, true] {
            let cell = &self.corrections[slot(true, direction, sequential)];
            let mark = f64::from_bits(cell.load(Ordering::Relaxed));
            if mark > 1.0 {
                let faded = 1.0 + (mark - 1.0) * (1.0 - LEARN / 16.0);
                cell.store(faded.to_bits(), Ordering::Relaxed);
            }
        }
    }
}

/// Whether the request goes on where a stream ended.
fn is_sequential(query: &Query) -> bool {
    match query.distance {
        Some(distance) => distance == 0,
        None => query.range.len() >= FIRST_STREAM_BYTES,
    }
}

fn slot(on_cache: bool, direction: Direction, sequential: bool) -> usize {
    // Flash starts up alike in both patterns, so the cache has one mark a direction.
    let sequential = sequential && !on_cache;
    usize::from(on_cache) * 4
        + usize::from(matches!(direction, Direction::Write)) * 2
        + usize::from(sequential)
}

fn pick(service: &ServiceProfile, sequential: bool) -> f64 {
    float(if sequential { service.startup_sequential_ps } else { service.startup_random_ps })
}

/// Requests at a server when `processes` processes touch `touched` of `servers` servers each.
fn waiting(processes: u32, touched: u32, servers: u32) -> f64 {
    (f64::from(processes) * f64::from(touched) / f64::from(servers)).max(1.0)
}

fn cost(
    layout: Option<Layout>,
    shape: Shape,
    startup_ps: f64,
    transfer_ps: f64,
    correction: f64,
) -> Cost {
    let total_ps = (startup_ps + transfer_ps) * correction;
    Cost { layout, shape, startup_ps, transfer_ps, total_ps }
}

fn terms(cost: &Cost) -> CostTerms {
    CostTerms {
        on_cache: cost.layout.is_some(),
        layout: cost.layout,
        servers: u64::from(cost.shape.servers),
        largest_part_bytes: cost.shape.largest,
        startup_ps: whole(cost.startup_ps),
        transfer_ps: whole(cost.transfer_ps),
        total_ps: whole(cost.total_ps),
    }
}

fn reason(judgement: &Judgement) -> String {
    let (lost, needed) = (judgement.waste * 100.0, judgement.needed * 100.0);
    let times = judgement.origin.total_ps / judgement.best.total_ps.max(1.0);
    if !judgement.faster() {
        format!("the cache would be {times:.2} times as fast: both sides are about equally fast")
    } else if judgement.worth() {
        format!(
            "the disks would lose {lost:.0} % of the time to startup ({needed:.0} % needed) and \
             the cache is {times:.1} times as fast"
        )
    } else {
        format!(
            "the disks lose only {lost:.0} % of the time to startup ({needed:.0} % needed): the \
             request belongs to a stream that is not worth SSD bytes"
        )
    }
}

#[expect(clippy::cast_precision_loss, reason = "picoseconds and bytes far below 2^52 matter")]
fn float(value: u64) -> f64 {
    value as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "saturates, and times are not negative"
)]
fn whole(value: f64) -> u64 {
    value as u64
}

#[cfg(test)]
mod tests;
