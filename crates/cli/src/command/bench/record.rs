//! Results as they go into the JSON file. The field names are an interface: scripts read them.

use halocline_core::control::{LayoutBytes, Report, RequestTotals};
use serde::Serialize;

/// Everything that one benchmark measured.
#[derive(Debug, Serialize)]
pub(super) struct Results {
    pub(super) benchmark: &'static str,
    pub(super) version: &'static str,
    /// True when no real device was measured.
    pub(super) emulated: bool,
    /// The emulated devices, origin first.
    pub(super) devices: Option<String>,
    pub(super) processes: u32,
    pub(super) seed: u64,
    /// Whether every read call reached the engine.
    pub(super) direct: bool,
    pub(super) runs: Vec<Run>,
}

/// What a run was made with.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Key {
    pub(super) pattern: String,
    pub(super) request_size: u64,
    /// `bare` directory, `origin` through a mount with policy never, or `cached`.
    pub(super) setup: &'static str,
    pub(super) policy: Option<String>,
    pub(super) cache_size: u64,
}

/// One case, once.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Run {
    #[serde(flatten)]
    pub(super) key: Key,
    /// Counts from 0.
    pub(super) repetition: u32,
    pub(super) data_bytes: u64,
    /// In their order.
    pub(super) phases: Vec<Phase>,
    pub(super) layouts: LayoutBytes,
    pub(super) ssd_bytes_written: u64,
    /// Bytes of the origin that were compared after the mount was gone.
    pub(super) verified_origin_bytes: u64,
}

/// One part of a run.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Phase {
    /// `write`, `flush`, `first_read`, `fetch` or `read`.
    pub(super) name: &'static str,
    pub(super) bytes: u64,
    pub(super) requests: u64,
    /// From the start to the return of the last request of the slowest process.
    pub(super) seconds: f64,
    /// 10^6 bytes a second.
    pub(super) mb_per_s: f64,
    /// Throughput over that of the origin alone.
    pub(super) ratio: Option<f64>,
    /// A write's seconds with the `fsync` at its end.
    pub(super) fsynced_seconds: Option<f64>,
    /// A write's seconds until everything was on the origin, too.
    pub(super) drained_seconds: Option<f64>,
    pub(super) drained_mb_per_s: Option<f64>,
    pub(super) drained_ratio: Option<f64>,
    /// Share of the data that the cache had when the phase began.
    pub(super) cached_share_before: Option<f64>,
    /// Throughput that this share allows: its bytes in no time, the others at the origin's speed.
    pub(super) allowed_mb_per_s: Option<f64>,
    /// As the engine counted.
    pub(super) served: Option<RequestTotals>,
    pub(super) ssd_bytes_written: u64,
}

impl Phase {
    pub(super) fn new(name: &'static str, bytes: u64, requests: u64, seconds: f64) -> Self {
        let mb_per_s = rate(bytes, seconds);
        Self { name, bytes, requests, seconds, mb_per_s, ..Self::default() }
    }

    /// Share of the bytes that the cache served.
    #[expect(clippy::cast_precision_loss, reason = "a share for people")]
    pub(super) fn cache_share(&self) -> Option<f64> {
        let served = self.served.filter(|served| served.bytes > 0)?;
        Some(served.cache_bytes as f64 / served.bytes as f64)
    }
}

impl Run {
    pub(super) fn phase(&self, name: &str) -> Option<&Phase> {
        self.phases.iter().find(|phase| phase.name == name)
    }

    /// Compares with the origin alone.
    pub(super) fn compare(&mut self, baseline: &Self) {
        for phase in &mut self.phases {
            let Some(base) = baseline.phase(phase.name) else { continue };
            if base.seconds <= 0.0 || phase.bytes == 0 {
                continue;
            }
            phase.ratio = Some(phase.mb_per_s / base.mb_per_s);
            phase.drained_ratio =
                phase.drained_mb_per_s.zip(base.drained_mb_per_s).map(|(own, base)| own / base);
            phase.allowed_mb_per_s = phase
                .cached_share_before
                .filter(|share| *share > 0.0 && *share < 1.0)
                .map(|share| base.mb_per_s / (1.0 - share));
        }
    }
}

/// 10^6 bytes a second.
#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
pub(super) fn rate(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { bytes as f64 / 1e6 / seconds } else { 0.0 }
}

/// What was served between two reports.
pub(super) fn difference(before: RequestTotals, after: RequestTotals) -> RequestTotals {
    RequestTotals {
        requests: after.requests - before.requests,
        bytes: after.bytes - before.bytes,
        cache_requests: after.cache_requests - before.cache_requests,
        cache_bytes: after.cache_bytes - before.cache_bytes,
    }
}

/// Bytes written to the SSD between two reports.
pub(super) fn ssd_difference(before: &Report, after: &Report) -> u64 {
    after.ssd_bytes_written - before.ssd_bytes_written
}
