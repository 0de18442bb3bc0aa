//! Whether the cache may be given more: its devices' errors, its free space and the origin's.
//!
//! A sick or full cache degrades to the origin (D11): it stops admitting, goes on serving what
//! only it holds, and is tried again after a while.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// After an error the cache is not given new data for this long.
const QUARANTINE_MS: u64 = 10_000;

/// Errors within one quarantine after which it doubles, up to [`QUARANTINE_MS_MAX`].
const QUARANTINE_MS_MAX: u64 = 320_000;

/// State of the cache side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum HealthState {
    /// Requests are admitted.
    Healthy,
    /// A device failed lately: nothing new is admitted until it is tried again.
    Degraded,
    /// The cache's file system or the origin's is nearly full: nothing new is admitted.
    Full,
}

/// Health of the cache side with its reason, as `status` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HealthReport {
    /// The state.
    pub state: HealthState,
    /// Why it is not healthy, naming the thing and the remedy.
    pub reason: Option<String>,
}

/// Tracks the health of the cache side.
#[derive(Debug, Default)]
pub(crate) struct Health {
    closed: AtomicBool,
    reopen_ms: AtomicU64,
    full: AtomicBool,
    detail: Mutex<Detail>,
}

#[derive(Debug, Default)]
struct Detail {
    quarantine_ms: u64,
    error: Option<String>,
    full: Option<String>,
}

impl Health {
    /// Whether the cache may be given new data at `now_ms`. After a quarantine the answer is yes
    /// again: the next request is the probe.
    pub(crate) fn admits(&self, now_ms: u64) -> bool {
        if self.full.load(Ordering::Relaxed) {
            return false;
        }
        !self.closed.load(Ordering::Relaxed) || now_ms >= self.reopen_ms.load(Ordering::Relaxed)
    }

    /// A device of the cache failed with `what`.
    pub(crate) fn failed(&self, what: &str, now_ms: u64) {
        let mut detail = self.detail.lock();
        if self.closed.swap(true, Ordering::Relaxed) && !self.quarantine_over(now_ms) {
            return;
        }
        detail.quarantine_ms = (detail.quarantine_ms * 2).clamp(QUARANTINE_MS, QUARANTINE_MS_MAX);
        self.reopen_ms.store(now_ms + detail.quarantine_ms, Ordering::Relaxed);
        tracing::error!(
            "cache: {what}; nothing new is admitted for {} s, programs go on at the origin's speed",
            detail.quarantine_ms / 1000
        );
        detail.error = Some(what.to_owned());
    }

    /// The cache took new data: if it was in quarantine, that is over.
    pub(crate) fn worked(&self) {
        if self.closed.load(Ordering::Relaxed) && self.closed.swap(false, Ordering::Relaxed) {
            let mut detail = self.detail.lock();
            detail.quarantine_ms = 0;
            detail.error = None;
            tracing::info!("cache: works again, admitting");
        }
    }

    /// A periodic check found no room on one side (`Some(why)`), or room on both.
    pub(crate) fn set_full(&self, why: Option<String>) {
        let was = self.full.swap(why.is_some(), Ordering::Relaxed);
        match (&why, was) {
            (Some(why), false) => tracing::warn!("cache: {why}; nothing new is admitted"),
            (None, true) => tracing::info!("cache: there is room again, admitting"),
            _ => {}
        }
        self.detail.lock().full = why;
    }

    /// State and reason at `now_ms`.
    pub(crate) fn report(&self, now_ms: u64) -> HealthReport {
        let detail = self.detail.lock();
        if self.closed.load(Ordering::Relaxed) && !self.quarantine_over(now_ms) {
            return HealthReport { state: HealthState::Degraded, reason: detail.error.clone() };
        }
        let state = if detail.full.is_some() { HealthState::Full } else { HealthState::Healthy };
        HealthReport { state, reason: detail.full.clone() }
    }

    fn quarantine_over(&self, now_ms: u64) -> bool {
        now_ms >= self.reopen_ms.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_cache_rests_is_tried_again_and_recovers() {
        let health = Health::default();
        assert!(health.admits(0));
        health.failed("/ssd: input/output error", 1000);
        assert!(!health.admits(1000 + QUARANTINE_MS - 1));
        assert_eq!(health.report(1001).state, HealthState::Degraded);
        assert!(health.admits(1000 + QUARANTINE_MS), "the next request is the probe");
        health.failed("/ssd: input/output error", 1000 + QUARANTINE_MS);
        assert!(!health.admits(1000 + 3 * QUARANTINE_MS - 1), "the second rest is longer");
        health.worked();
        assert!(health.admits(2000));
        assert_eq!(health.report(2000).state, HealthState::Healthy);
    }

    #[test]
    fn a_full_side_closes_admission_until_there_is_room() {
        let health = Health::default();
        health.set_full(Some("/ssd has 1 MiB left".to_owned()));
        assert!(!health.admits(0));
        assert_eq!(health.report(0).state, HealthState::Full);
        health.set_full(None);
        assert!(health.admits(0));
    }
}
