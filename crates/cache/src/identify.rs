//! The identifier of SLA-Cache: decides for every request whether its bytes deserve the cache, and in which layout.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use halocline_model::admit::{self, Admission, Observation, Query, Setting, Verdict};
use halocline_model::layout::Placement;
use halocline_model::request::{ByteRange, Direction};
use parking_lot::RwLock;

use crate::extent::file::CachedFile;
use crate::processes::{Process, Processes};
use halocline_os::clock::Clock;
use halocline_os::error::{Error, Result};

/// Decides which requests are critical.
#[derive(Debug)]
pub(crate) struct Identifier {
    setting: Setting,
    clock: Clock,
    default: Arc<dyn Admission>,
    /// Policies that hints asked for by name.
    by_name: RwLock<HashMap<String, Arc<dyn Admission>>>,
    pub(crate) processes: Processes,
}

/// The identifier's answer for one request.
#[derive(Debug)]
pub(crate) struct Identified {
    /// The policy's answer; `critical` is false if a hint or a glob forbids the cache.
    pub(crate) verdict: Verdict,
    /// Where the request's bytes go if they are admitted.
    pub(crate) placement: Placement,
    /// Whether the request continues its process's stream.
    pub(crate) sequential: bool,
    policy: Option<Arc<dyn Admission>>,
}

impl Identifier {
    /// An identifier with `policy` as its default.
    pub(crate) fn new(setting: Setting, policy: &str, clock: Clock) -> Result<Self> {
        let default = policy_by_name(policy, &setting)?;
        let (by_name, processes) = (RwLock::default(), Processes::default());
        Ok(Self { setting, clock, default, by_name, processes })
    }

    /// Name of the default policy.
    pub(crate) fn policy_name(&self) -> &'static str {
        self.default.name()
    }

    /// Judges a request of thread `tid` at `now_ms` and notes it in its process's stream.
    /// `pressure` is the share of the cache that dirty bytes fill, 0 to 1.
    pub(crate) fn judge(
        &self,
        file: &CachedFile,
        direction: Direction,
        range: ByteRange,
        tid: u32,
        now_ms: u64,
        pressure: f32,
    ) -> Identified {
        let process = self.processes.of_thread(tid);
        let striping = self.setting.origin.striping();
        let (pattern, continues_origin, origin_serves_reads) = {
            let mut streams = file.streams.lock();
            let pattern = streams.note(striping, process.pid, range, now_ms);
            let continues = streams.continues_origin(striping, range, pattern, direction);
            (pattern, continues, streams.origin_serves_reads())
        };
        let hint = file.hint.get();
        let hint = hint.as_deref();
        let query = Query {
            direction,
            range,
            processes: hint.and_then(|hint| hint.processes).unwrap_or(pattern.processes).max(1),
            owner: process.owner,
            distance: pattern.distance,
            run_bytes: pattern.run_bytes,
            last_run_bytes: pattern.last_run_bytes,
            orderly: pattern.orderly,
            continues_origin,
            in_step: pattern.in_step,
            origin_serves_reads,
            cache_pressure: pressure,
        };
        let named = hint.and_then(|hint| hint.policy.as_deref()).and_then(|name| self.named(name));
        let mut verdict = named.as_ref().unwrap_or(&self.default).judge(&query);
        let wanted = hint.is_none_or(|hint| hint.cache != Some(false));
        verdict.critical &= wanted && !file.is_kept_out();
        Identified {
            placement: self.setting.cache.geometry.place(verdict.layout, process.owner),
            sequential: pattern.distance == Some(0),
            verdict,
            policy: named,
        }
    }

    /// The terms of the answer for a process that jumps to `range`, with `processes` processes on the file.
    pub(crate) fn explain(
        &self,
        file: Option<&CachedFile>,
        direction: Direction,
        range: ByteRange,
        processes: Option<u32>,
    ) -> admit::Explanation {
        let process = Process { pid: 0, owner: 0 };
        // Assumes a process that jumps to the range, the case that is asked about most.
        let striping = self.setting.origin.striping();
        let (pattern, continues_origin) = file.map_or((None, false), |file| {
            let streams = file.streams.lock();
            let pattern = streams.peek(striping, process.pid, range);
            (Some(pattern), streams.continues_origin(striping, range, pattern, direction))
        });
        self.default.explain(&Query {
            direction,
            range,
            processes: processes.or(pattern.map(|pattern| pattern.processes)).unwrap_or(1).max(1),
            owner: process.owner,
            distance: Some(u64::MAX),
            run_bytes: range.len(),
            last_run_bytes: 0,
            orderly: false,
            continues_origin,
            in_step: false,
            origin_serves_reads: false,
            cache_pressure: 0.0,
        })
    }

    /// Whether the policy learns from measured times.
    pub(crate) fn learns(&self, identified: &Identified) -> bool {
        self.policy_of(identified).learns()
    }

    /// Reports to the policy how long a side took.
    pub(crate) fn observe(&self, identified: &Identified, observation: &Observation) {
        self.policy_of(identified).observe(observation);
    }

    /// How long a critical write may wait for room on a cache full of dirty data.
    pub(crate) fn wait_limit(&self, identified: &Identified) -> Duration {
        let policy = self.policy_of(identified);
        Duration::from_nanos(policy.wait_limit_ps(&identified.verdict) / 1000)
    }

    /// Makes policy `name` available to hints.
    pub(crate) fn load_policy(&self, name: &str) -> Result<()> {
        if self.by_name.read().contains_key(name) {
            return Ok(());
        }
        let policy = policy_by_name(name, &self.setting)?;
        self.by_name.write().insert(name.to_owned(), policy);
        Ok(())
    }

    fn policy_of<'a>(&'a self, identified: &'a Identified) -> &'a Arc<dyn Admission> {
        identified.policy.as_ref().unwrap_or(&self.default)
    }

    fn named(&self, name: &str) -> Option<Arc<dyn Admission>> {
        self.by_name.read().get(name).cloned()
    }

    /// Runs I/O on the origin, where it moves the heads, and reports to the policy how long it took.
    pub(crate) fn timed_on_origin<T, E>(
        &self,
        file: &CachedFile,
        direction: Direction,
        identified: &Identified,
        part: ByteRange,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        file.streams.lock().goes_to_origin(self.setting.origin.striping(), part, direction);
        self.timed(false, direction, Some(identified), part.len(), work)
    }

    /// Runs I/O on one side and reports to the policy how long it took.
    pub(crate) fn timed<T, E>(
        &self,
        on_cache: bool,
        direction: Direction,
        identified: Option<&Identified>,
        bytes: u64,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let Some(identified) = identified.filter(|request| self.learns(request)) else {
            return work();
        };
        let begun = self.clock.instant();
        let done = work()?;
        let verdict = &identified.verdict;
        self.observe(
            identified,
            &Observation {
                on_cache,
                direction,
                sequential: identified.sequential,
                bytes,
                parts: 1,
                predicted_ps: if on_cache { verdict.cache_ps } else { verdict.origin_ps },
                measured_ps: u64::try_from(self.clock.elapsed(begun).as_nanos())
                    .unwrap_or(u64::MAX)
                    .saturating_mul(1000),
            },
        );
        Ok(done)
    }
}

fn policy_by_name(name: &str, setting: &Setting) -> Result<Arc<dyn Admission>> {
    let policy = admit::by_name(name, setting).map_err(|unknown| {
        Error::invalid(unknown.to_string(), "choose one of them with --policy")
    })?;
    Ok(Arc::from(policy))
}
