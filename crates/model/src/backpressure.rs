//! Backpressure: how long a critical write that finds the cache full of dirty data waits for the flush at most, and
//! when it does not wait (docs/ALGORITHMS.md, section 3.6; ours).

use std::time::Duration;

/// Longest wait, whatever the policy's limit.
pub const WAIT_MAX: Duration = Duration::from_millis(200);

/// Most writes that go to the origin without waiting after waits in vain.
const BACKOFF_WRITES_MAX: u32 = 16;

/// How many writes go to the origin without waiting after a wait in vain, of which there were `in_vain` before it since
/// one got room: one, then two, four, up to 16. A write that goes to the origin delays the flush that others wait for: 16
/// at once made the next wait as vain. But where nothing makes room in time, few shall wait.
#[must_use]
pub const fn backoff_writes(in_vain: u32) -> u32 {
    match 1_u32.checked_shl(in_vain) {
        Some(writes) if writes < BACKOFF_WRITES_MAX => writes,
        _ => BACKOFF_WRITES_MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_with_each_wait_in_vain_up_to_a_limit() {
        let all = [0, 1, 2, 3, 4, 5, 31, 32, u32::MAX].map(backoff_writes);
        assert_eq!(all, [1, 2, 4, 8, 16, 16, 16, 16, 16]);
    }
}
