//! How long this node waits for others.

use std::time::Duration;

use halocline_os::clock::Clock;

/// How long an intent of another node may be in the way before it is aborted.
#[derive(Debug, Clone)]
pub struct WaitLimit {
    /// The limit.
    pub limit: Duration,
    /// The pause between two attempts.
    pub pause: Duration,
    /// The clock that measures both.
    pub clock: Clock,
}

impl Default for WaitLimit {
    fn default() -> Self {
        Self {
            limit: Duration::from_millis(100),
            pause: Duration::from_millis(1),
            clock: Clock::MACHINE,
        }
    }
}
