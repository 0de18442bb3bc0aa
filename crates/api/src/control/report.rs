//! The report of a run: the papers' request-distribution table, and the cost of the cache.

use serde::{Deserialize, Serialize};

use super::Skipped;

/// How many files a report names at most.
pub const NAMED_MAX: usize = 100;

/// What was served, by which side. The field names are an interface: scripts read them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Admission policy.
    pub policy: String,
    /// Seconds since the mount began.
    pub elapsed_s: f64,
    /// Exit status of the command that `run` started; `None` for a plain mount.
    pub exit_status: Option<i32>,
    /// Read requests.
    pub read: RequestTotals,
    /// Write requests.
    pub write: RequestTotals,
    /// What was admitted to the cache by writes and fetches.
    pub admitted: Totals,
    /// Bytes admitted by layout.
    pub layouts: LayoutBytes,
    /// Bytes of data written to the cache: by writes and by fetches.
    pub ssd_bytes_written: u64,
    /// Those of them written by fills: critical bytes that were missed again.
    #[serde(default)]
    pub filled_bytes: u64,
    /// What was flushed.
    pub flush: FlushTotals,
    /// Bytes that only the cache has.
    pub dirty_bytes_left: u64,
    /// Files that the flush at the end of a `run` left dirty.
    #[serde(default)]
    pub left_files: u64,
    /// The first [`NAMED_MAX`] of them, and why.
    #[serde(default)]
    pub left: Vec<Skipped>,
    /// Files that were changed behind the mount while they had dirty bytes: the origin's version was kept, and the
    /// bytes are saved in `conflicts` in the cache directory.
    #[serde(default)]
    pub conflicts: u64,
    /// Bytes served by the cache over all bytes served, 0 when none were.
    pub hit_ratio: f64,
    /// The emulated devices, if there are any: no real hardware was measured then.
    pub emulated: Option<String>,
    /// The coordination with other nodes; `None` if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<TokenCounts>,
}

/// Requests of one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestTotals {
    /// All requests.
    pub requests: u64,
    /// All bytes.
    pub bytes: u64,
    /// Requests of which the cache served every byte.
    pub cache_requests: u64,
    /// Bytes served by the cache, including those of other requests.
    pub cache_bytes: u64,
}

/// A number of requests and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Requests.
    pub requests: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Bytes by layout.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayoutBytes {
    /// Striped over all servers.
    #[serde(rename = "1dh")]
    pub one_dh: u64,
    /// Whole on the owner's server.
    #[serde(rename = "1dv")]
    pub one_dv: u64,
    /// Striped inside the owner's group.
    #[serde(rename = "2d")]
    pub two_d: u64,
}

/// What was flushed and how long flushing took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct FlushTotals {
    /// Bytes written to the origin.
    pub bytes: u64,
    /// Seconds that foreground flushes took, which a caller waited for; background flushes are not included.
    pub seconds: f64,
}

/// A node's coordination with others that cache the same origin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenCounts {
    /// Tokens held.
    pub tokens: u64,
    /// Files of which some are held.
    pub files: u64,
    /// Those of them with ranges that no node caches, because they changed hands too often.
    pub contended_files: u64,
    /// Requests that wait for a token now.
    pub waiting: u64,
    /// Permits that had to wait for another node.
    pub waits: u64,
    /// The duration of these waits together, in microseconds.
    pub waited_us: u64,
    /// The longest of them, in microseconds.
    pub longest_wait_us: u64,
    /// Tokens that were requested.
    pub asked: u64,
    /// Ranges that were given up because others wanted them.
    pub handovers: u64,
    /// Idle files whose tokens were all given back because there were too many.
    #[serde(default)]
    pub given_back: u64,
    /// Tokens that were granted for contended ranges, where nothing is cached.
    pub direct: u64,
    /// Permits that were refused.
    pub refused: u64,
    /// How often the lease expired.
    pub lapses: u64,
    /// How often this node had to report its tokens again because the store may have forgotten them.
    pub epochs: u64,
    /// Requests to the store.
    pub round_trips: u64,
    /// The remaining time of the lease in milliseconds, less the reserve for the longest system call.
    pub lease_left_ms: u64,
    /// The shortest remaining time at a renewal, in milliseconds: 0 after a lapse.
    pub lease_least_ms: u64,
    /// The node's low-priority work may use one part in so many of what one node alone would use of the origin.
    #[serde(default)]
    pub share_parts: u64,
    /// Whether programs of other nodes use the origin, as far as is known: 1 or 0.
    #[serde(default)]
    pub others_use_origin: u64,
    /// Reads to which the caches of other nodes contributed bytes.
    #[serde(default)]
    pub peer_requests: u64,
    /// Those bytes.
    #[serde(default)]
    pub peer_bytes: u64,
    /// Failed reads of other nodes' caches: the bytes came from the origin.
    #[serde(default)]
    pub peer_failures: u64,
}

impl TokenCounts {
    /// The counts since `before`; current values, and the longest and the shortest, are those of the whole mount.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            waits: self.waits.saturating_sub(before.waits),
            waited_us: self.waited_us.saturating_sub(before.waited_us),
            asked: self.asked.saturating_sub(before.asked),
            handovers: self.handovers.saturating_sub(before.handovers),
            given_back: self.given_back.saturating_sub(before.given_back),
            direct: self.direct.saturating_sub(before.direct),
            refused: self.refused.saturating_sub(before.refused),
            lapses: self.lapses.saturating_sub(before.lapses),
            epochs: self.epochs.saturating_sub(before.epochs),
            round_trips: self.round_trips.saturating_sub(before.round_trips),
            peer_requests: self.peer_requests.saturating_sub(before.peer_requests),
            peer_bytes: self.peer_bytes.saturating_sub(before.peer_bytes),
            peer_failures: self.peer_failures.saturating_sub(before.peer_failures),
            ..*self
        }
    }
}

/// What is cached of the files at and below a path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedTree {
    /// The files that have bytes there, by path.
    pub files: Vec<CachedFileInfo>,
    /// Sum of their cached bytes.
    pub cached_bytes: u64,
    /// Those of them that only the cache has.
    pub dirty_bytes: u64,
}

/// What is cached of one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedFileInfo {
    /// Path relative to the mount's root.
    #[serde(with = "super::wire::path")]
    pub path: std::path::PathBuf,
    /// Bytes on the cache.
    pub cached_bytes: u64,
    /// Those of them that only the cache has.
    pub dirty_bytes: u64,
    /// Ranges on the cache.
    pub extents: u64,
}

impl Report {
    /// What was served since `before`, an earlier report of the same mount.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let requests = |now: RequestTotals, then: RequestTotals| RequestTotals {
            requests: now.requests.saturating_sub(then.requests),
            bytes: now.bytes.saturating_sub(then.bytes),
            cache_requests: now.cache_requests.saturating_sub(then.cache_requests),
            cache_bytes: now.cache_bytes.saturating_sub(then.cache_bytes),
        };
        let (layouts, earlier) = (self.layouts, before.layouts);
        // Without `..`: the compiler asks of each new field whether it counts.
        let mut since = Self {
            policy: self.policy.clone(),
            elapsed_s: self.elapsed_s - before.elapsed_s,
            exit_status: self.exit_status,
            read: requests(self.read, before.read),
            write: requests(self.write, before.write),
            admitted: Totals {
                requests: self.admitted.requests.saturating_sub(before.admitted.requests),
                bytes: self.admitted.bytes.saturating_sub(before.admitted.bytes),
            },
            layouts: LayoutBytes {
                one_dh: layouts.one_dh.saturating_sub(earlier.one_dh),
                one_dv: layouts.one_dv.saturating_sub(earlier.one_dv),
                two_d: layouts.two_d.saturating_sub(earlier.two_d),
            },
            ssd_bytes_written: self.ssd_bytes_written.saturating_sub(before.ssd_bytes_written),
            filled_bytes: self.filled_bytes.saturating_sub(before.filled_bytes),
            flush: FlushTotals {
                bytes: self.flush.bytes.saturating_sub(before.flush.bytes),
                seconds: (self.flush.seconds - before.flush.seconds).max(0.0),
            },
            dirty_bytes_left: self.dirty_bytes_left,
            left_files: self.left_files,
            left: self.left.clone(),
            conflicts: self.conflicts.saturating_sub(before.conflicts),
            hit_ratio: self.hit_ratio,
            emulated: self.emulated.clone(),
            cluster: self.cluster.map(|now| now.since(&before.cluster.unwrap_or_default())),
        };
        since.hit_ratio = since.byte_hit_ratio();
        since
    }

    /// Bytes served by the cache over all bytes served, 0 when none were.
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
    pub fn byte_hit_ratio(&self) -> f64 {
        let all = self.read.bytes + self.write.bytes;
        let hit = self.read.cache_bytes + self.write.cache_bytes;
        if all == 0 { 0.0 } else { hit as f64 / all as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::Report;

    #[test]
    fn the_report_has_the_keys_that_scripts_read() {
        let json = serde_json::to_value(Report::default()).unwrap();
        for key in [
            "/policy",
            "/elapsed_s",
            "/exit_status",
            "/read/requests",
            "/read/bytes",
            "/read/cache_requests",
            "/read/cache_bytes",
            "/write/requests",
            "/write/bytes",
            "/write/cache_requests",
            "/write/cache_bytes",
            "/admitted/requests",
            "/admitted/bytes",
            "/layouts/1dh",
            "/layouts/1dv",
            "/layouts/2d",
            "/ssd_bytes_written",
            "/flush/bytes",
            "/flush/seconds",
            "/dirty_bytes_left",
            "/left_files",
            "/left",
            "/conflicts",
            "/hit_ratio",
            "/emulated",
        ] {
            assert!(json.pointer(key).is_some(), "{key} is missing in {json}");
        }
    }
}
