//! Waiting for room: how long a critical write that finds the cache full of dirty data waits for the flush at most,
//! and when it does not (docs/ALGORITHMS.md, section 3.6; ours).

use std::time::Duration;

/// Longest wait, whatever the policy says.
pub const WAIT_MAX: Duration = Duration::from_millis(200);

/// Writes that go to the origin at once after one waited in vain.
pub const BACKOFF_WRITES: u32 = 16;
