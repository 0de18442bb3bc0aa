//! Whether the cache may admit more: its devices' errors, its free space and the origin's.
//!
//! A sick or full cache degrades to the origin (D11): it stops admitting, keeps serving what only it holds, and is
//! tried again after a while.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// The back-off after an error doubles while the cache keeps failing, up to this many times `health_retry`.
const BACK_OFF_FACTOR_MAX: u64 = 32;

/// No retry.
const NEVER_MS: u64 = u64::MAX;

/// State of the cache side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum HealthState {
    /// Requests are admitted.
    Healthy,
    /// A device failed recently: nothing new is admitted until it is tried again.
    Degraded,
    /// The cache's file system is nearly full and nothing new is admitted, or the origin's is and nothing that needs
    /// new space there is admitted.
    Full,
}

/// Health of the cache side with its reason, as `status` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HealthReport {
    /// The state.
    pub state: HealthState,
    /// Why it is not healthy, naming the cause and the remedy.
    pub reason: Option<String>,
}

/// Tracks the health of the cache side.
#[derive(Debug)]
pub(crate) struct Health {
    /// Length of the first back-off after an error.
    retry_ms: u64,
    closed: AtomicBool,
    reopen_ms: AtomicU64,
    full: AtomicBool,
    detail: Mutex<Detail>,
}

#[derive(Debug, Default)]
struct Detail {
    back_off_ms: u64,
    error: Option<String>,
    full: Option<String>,
    short: Option<String>,
    /// The first defect found.
    defect: Option<String>,
}

impl Health {
    /// Health of a cache that is tried again `retry` after a failure.
    pub(crate) fn new(retry: Duration) -> Self {
        Self {
            retry_ms: u64::try_from(retry.as_millis()).unwrap_or(u64::MAX),
            closed: AtomicBool::new(false),
            reopen_ms: AtomicU64::new(0),
            full: AtomicBool::new(false),
            detail: Mutex::default(),
        }
    }

    /// Whether the cache may admit new data at `now_ms`. After a back-off the answer is yes again: the next request
    /// serves as the probe.
    pub(crate) fn admits(&self, now_ms: u64) -> bool {
        if self.full.load(Ordering::Relaxed) {
            return false;
        }
        !self.closed.load(Ordering::Relaxed) || self.may_retry(now_ms)
    }

    /// A device of the cache failed with `what`.
    pub(crate) fn failed(&self, what: &str, now_ms: u64) {
        let mut detail = self.detail.lock();
        if self.closed.swap(true, Ordering::Relaxed) && !self.may_retry(now_ms) {
            return;
        }
        detail.back_off_ms = detail
            .back_off_ms
            .saturating_mul(2)
            .clamp(self.retry_ms, self.retry_ms.saturating_mul(BACK_OFF_FACTOR_MAX));
        self.reopen_ms.store(now_ms.saturating_add(detail.back_off_ms), Ordering::Relaxed);
        tracing::error!(
            "cache: {what}; nothing new is admitted for {} s, programs go on at the origin's speed",
            detail.back_off_ms / 1000
        );
        detail.error = Some(what.to_owned());
    }

    /// A defect of this program was found: the cache backs off as after a failure, then resumes; the defect is reported
    /// until the end of the mount.
    pub(crate) fn defect(&self, what: &str, now_ms: u64) {
        let remedy = "it goes on without what was being done; unmount and mount again, and report it with the log";
        self.detail.lock().defect.get_or_insert_with(|| format!("{what}; {remedy}"));
        self.failed(what, now_ms);
    }

    /// The metadata store refuses changes: nothing is admitted until it is opened again.
    pub(crate) fn failed_for_good(&self, what: &str) {
        let mut detail = self.detail.lock();
        self.closed.store(true, Ordering::Relaxed);
        if self.reopen_ms.swap(NEVER_MS, Ordering::Relaxed) != NEVER_MS {
            tracing::error!(
                "cache: {what}; its dirty data goes to the origin, programs go on at the origin's speed"
            );
        }
        detail.error = Some(what.to_owned());
    }

    /// The cache accepted new data, which ends a back-off.
    pub(crate) fn worked(&self) {
        let for_good = || self.reopen_ms.load(Ordering::Relaxed) == NEVER_MS;
        if self.closed.load(Ordering::Relaxed)
            && !for_good()
            && self.closed.swap(false, Ordering::Relaxed)
        {
            let mut detail = self.detail.lock();
            detail.back_off_ms = 0;
            detail.error = None;
            tracing::info!("cache: works again, admitting");
        }
    }

    /// A periodic check found no room on one side (`Some(why)`), or room on both.
    pub(crate) fn set_full(&self, why: Option<String>) {
        let was = self.full.swap(why.is_some(), Ordering::Relaxed);
        match (&why, was) {
            (Some(why), false) => tracing::warn!("cache: {why}"),
            (None, true) => tracing::info!("cache: there is room again, admitting"),
            _ => {}
        }
        self.detail.lock().full = why;
    }

    /// The origin has little space left (`Some(why)`), or enough. With little, writes that need more space are not kept
    /// dirty.
    pub(crate) fn set_origin_short(&self, why: Option<String>) {
        let mut detail = self.detail.lock();
        match (&why, &detail.short) {
            (Some(why), None) => tracing::warn!("origin: {why}"),
            (None, Some(_)) => tracing::info!("origin: there is room again"),
            _ => {}
        }
        detail.short = why;
    }

    /// State and reason.
    pub(crate) fn report(&self) -> HealthReport {
        let detail = self.detail.lock();
        // Also after the back-off: only a successful probe shows that the cache works.
        if self.closed.load(Ordering::Relaxed) {
            return HealthReport { state: HealthState::Degraded, reason: detail.error.clone() };
        }
        if let Some(defect) = &detail.defect {
            return HealthReport { state: HealthState::Degraded, reason: Some(defect.clone()) };
        }
        let reason = detail.full.as_ref().or(detail.short.as_ref()).cloned();
        let state = if reason.is_some() { HealthState::Full } else { HealthState::Healthy };
        HealthReport { state, reason }
    }

    fn may_retry(&self, now_ms: u64) -> bool {
        let reopen_ms = self.reopen_ms.load(Ordering::Relaxed);
        // Further in the future than the longest back-off: the clock was set back.
        let longest_ms = self.retry_ms.saturating_mul(BACK_OFF_FACTOR_MAX);
        let jumped = reopen_ms > now_ms.saturating_add(longest_ms);
        reopen_ms != NEVER_MS && (now_ms >= reopen_ms || jumped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_cache_backs_off_as_configured_is_tried_again_and_recovers() {
        let health = Health::new(Duration::from_secs(3));
        assert!(health.admits(0));
        health.failed("/ssd: input/output error", 1000);
        assert!(!health.admits(3999));
        assert_eq!(health.report().state, HealthState::Degraded);
        assert!(health.admits(4000), "the next request is the probe");
        health.failed("/ssd: input/output error", 4000);
        assert!(!health.admits(9999), "the second back-off is longer");
        health.worked();
        assert!(health.admits(5000));
        assert_eq!(health.report().state, HealthState::Healthy);
    }

    /// Regression: the cache admitted nothing for as long as the clock had been set back.
    #[test]
    fn a_clock_that_is_set_back_makes_no_back_off_longer() {
        let health = Health::new(Duration::from_secs(3));
        let year_ms = 365 * 86_400_000;
        health.failed("/ssd: input/output error", 2 * year_ms);
        assert!(!health.admits(2 * year_ms));
        assert!(health.admits(year_ms));
    }

    #[test]
    fn a_store_that_refuses_changes_is_not_tried_again() {
        let health = Health::new(Duration::from_secs(3));
        health.failed_for_good("metadata store: a write failed");
        health.worked();
        assert!(!health.admits(NEVER_MS - 1));
        let report = health.report();
        assert_eq!(report.state, HealthState::Degraded);
        assert!(report.reason.unwrap().contains("a write failed"));
    }

    #[test]
    fn without_a_retry_time_every_request_is_a_probe() {
        let health = Health::new(Duration::ZERO);
        health.failed("/ssd: input/output error", 1000);
        assert!(health.admits(1000));
    }

    #[test]
    fn a_defect_is_reported_although_the_cache_works_again() {
        let health = Health::new(Duration::from_secs(3));
        health.defect("filler: it panicked", 1000);
        assert!(!health.admits(3999));
        health.worked();
        assert!(health.admits(3999));
        let report = health.report();
        assert_eq!(report.state, HealthState::Degraded);
        assert!(report.reason.unwrap().contains("filler: it panicked"));
    }

    #[test]
    fn a_full_side_closes_admission_until_there_is_room() {
        let health = Health::new(Duration::from_secs(10));
        health.set_full(Some("/ssd has 1 MiB left".to_owned()));
        assert!(!health.admits(0));
        assert_eq!(health.report().state, HealthState::Full);
        health.set_full(None);
        assert!(health.admits(0));
    }
}
