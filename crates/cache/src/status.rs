//! What `status` and reports say about an engine, and what is cached of a tree.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use bon::Builder;

use crate::counters::{Counters, Distribution};
use crate::damage::Damage;
use crate::extent::store::ExtentStore;
use crate::fetch::Fetcher;
use crate::fill::Fills;
use crate::hang_detection::HangDetector;
use crate::health::{self, HealthState};
use crate::identify::Identifier;
use crate::origin_access::OriginAccess;
use crate::page_cache_passthrough::PageCachePassthrough;
use crate::peers::Peers;
use crate::permits::Permits;
use crate::rebuild::Doing;
use crate::servers::ServerStates;
use crate::settings::Settings;
use crate::status_notes::Notes;
use halocline_api::control::{
    CachedFileInfo, CachedTree, FlushTotals, Health, LayoutBytes, Rebuilder, Report, RequestTotals,
    Rules, Status, Totals,
};
use halocline_os::clock::Clock;

/// Reports on an engine.
#[derive(Debug, Builder)]
pub(crate) struct StatusReporter {
    origin: Arc<OriginAccess>,
    store: Arc<ExtentStore>,
    damage: Arc<Damage>,
    health: Arc<health::Health>,
    counters: Arc<Counters>,
    notes: Arc<Notes>,
    settings: Arc<Settings>,
    clock: Clock,
    identifier: Arc<Identifier>,
    fetcher: Arc<Fetcher>,
    fills: Arc<Fills>,
    page_cache_passthrough: Arc<PageCachePassthrough>,
    servers: Arc<ServerStates>,
    hangs: Arc<HangDetector>,
    permits: Arc<Permits>,
    peers: Arc<Peers>,
    /// When the engine began.
    begun: Instant,
}

impl StatusReporter {
    /// All that `status` shows; `rebuilder` is what the rebuilder is doing.
    pub(crate) fn status(&self, rebuilder: Doing, rules: Rules) -> Status {
        let usage = self.store.dmt.index().usage();
        let now_ms = self.clock.now_ms();
        let oldest = self.store.dmt.index().dirty_files().iter().map(|(_, since)| *since).min();
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            origin: self.settings.origin_dir.clone(),
            cache: self.settings.cache_dir.clone(),
            // Filled in by the mount.
            transport: String::new(),
            mode: self.settings.config.mode,
            policy: self.identifier.policy_name().to_owned(),
            eviction: self.settings.config.eviction.clone(),
            limit_bytes: self.store.dmt.space().limit(),
            used_bytes: usage.used,
            records_bytes: self.store.dmt.space().records_bytes(),
            mapped_bytes: usage.mapped,
            dirty_bytes: usage.dirty,
            oldest_dirty_age_ms: oldest.map(|since| now_ms.saturating_sub(since)),
            extents: usage.extents,
            dirty_extents: usage.dirty_extents,
            wanted_ranges: self.fetcher.wanted_ranges(),
            damaged_bytes: self.damage.dirty_bytes(),
            repaired_bytes: self.counters.snapshot().damaged_clean_bytes,
            warm_opens: self.page_cache_passthrough.opens(),
            detached: None,
            health: self.health(),
            rebuilder: match rebuilder {
                Doing::Idle => Rebuilder::Idle,
                Doing::Waiting => Rebuilder::Waiting,
                Doing::Flushing => Rebuilder::Flushing,
                Doing::Fetching => Rebuilder::Fetching,
            },
            servers: self
                .servers
                .states(self.origin.data.servers(), self.store.objects.volume().servers()),
            rules,
            report: self.report(),
            notes: self.notes.all(),
        }
    }

    /// What the engine has done so far.
    pub(crate) fn report(&self) -> Report {
        let counts = self.counters.snapshot();
        let totals = |side: Distribution| RequestTotals {
            requests: side.requests,
            bytes: side.bytes,
            cache_requests: side.cache_requests,
            cache_bytes: side.cache_bytes,
        };
        // In the order of `Layout::ALL`.
        let [one_dh, one_dv, two_d] = counts.layout_bytes;
        let nodes = self.permits.coherence().and_then(|nodes| nodes.counts());
        let mut report = Report {
            policy: self.identifier.policy_name().to_owned(),
            elapsed_s: self.clock.elapsed(self.begun).as_secs_f64(),
            exit_status: None,
            read: totals(counts.read),
            write: totals(counts.write),
            admitted: Totals { requests: counts.admitted_requests, bytes: counts.admitted_bytes },
            layouts: LayoutBytes { one_dh, one_dv, two_d },
            ssd_bytes_written: counts.ssd_bytes_written,
            filled_bytes: self.fills.filled_bytes(),
            flush: FlushTotals {
                bytes: counts.flushed_bytes,
                seconds: std::time::Duration::from_micros(counts.flush_us).as_secs_f64(),
            },
            dirty_bytes_left: self.store.dmt.index().usage().dirty,
            // Filled in by the last flush.
            left_files: 0,
            left: Vec::new(),
            conflicts: counts.conflicts,
            hit_ratio: 0.0,
            emulated: self.settings.config.emulate.as_ref().map(ToString::to_string),
            cluster: nodes.map(|counts| self.peers.counts(counts)),
        };
        report.hit_ratio = report.byte_hit_ratio();
        report
    }

    /// What is cached at and below a path, according to the records.
    pub(crate) fn cached(&self, path: &Path) -> CachedTree {
        let dmt = &self.store.dmt;
        let mut tree = CachedTree::default();
        // From the records alone: no name is looked up, so a slow origin delays no one.
        for record in dmt.files().all().into_iter().filter(|record| record.path.starts_with(path)) {
            let extents = dmt.index().extents(record.id);
            let sum = |dirty: bool| -> u64 {
                let of = extents.iter().filter(|extent| extent.dirty || !dirty);
                of.map(|extent| extent.range.len()).sum()
            };
            let file = CachedFileInfo {
                path: record.path,
                cached_bytes: sum(false),
                dirty_bytes: sum(true),
                extents: extents.len() as u64,
            };
            if file.extents > 0 {
                tree.cached_bytes += file.cached_bytes;
                tree.dirty_bytes += file.dirty_bytes;
                tree.files.push(file);
            }
        }
        tree.files.sort_by(|a, b| a.path.cmp(&b.path));
        tree
    }

    /// Whether both sides respond, and whether the cache admits more.
    fn health(&self) -> Health {
        if let Some(reason) = self.hangs.silent() {
            return Health::Silent { reason };
        }
        let health = self.health.report();
        match (health.state, health.reason) {
            (HealthState::Healthy, _) => match self.store.dmt.changes().usable() {
                Ok(()) => Health::Ok,
                // The store has not been used since it failed.
                Err(store) => Health::Degraded { reason: store.to_string() },
            },
            (HealthState::Full, reason) => Health::Full { reason: reason.unwrap_or_default() },
            (HealthState::Degraded, reason) => {
                Health::Degraded { reason: reason.unwrap_or_default() }
            }
        }
    }
}
