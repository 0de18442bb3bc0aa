//! Backpressure: how long a critical write that finds the cache full of dirty data waits for the flush at most, and
//! when it does not wait (docs/ALGORITHMS.md, section 3.6; ours).

use std::time::Duration;

/// Longest wait, whatever the policy's limit.
pub const WAIT_MAX: Duration = Duration::from_millis(200);

/// How many writes go to the origin without waiting after a wait in vain.
pub const BACKOFF_WRITES: u32 = 16;
