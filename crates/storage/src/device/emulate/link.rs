//! An emulated network link to a server, as in the simulator: transfers in one direction are serialised.

use halocline_model::profile::whole;

use super::sleep;

/// One direction between clients and a server, used by one thread.
#[derive(Debug)]
pub struct EmulatedLink {
    ns_per_byte: f64,
    /// Until when it is busy, in nanoseconds of the monotonic clock.
    free_ns: u64,
}

impl EmulatedLink {
    /// A link on which a byte takes `ns_per_byte`.
    pub const fn new(ns_per_byte: f64) -> Self {
        Self { ns_per_byte, free_ns: 0 }
    }

    /// Transfers `bytes` after `connect_us` microseconds, and after earlier transfers.
    pub fn pass(&mut self, connect_us: f64, bytes: u64) {
        let arrival = sleep::arrival();
        #[expect(clippy::cast_precision_loss, reason = "a request is far shorter than 2^52 bytes")]
        let transfer = bytes as f64 * self.ns_per_byte;
        self.free_ns = arrival.max(self.free_ns) + whole(connect_us.mul_add(1e3, transfer));
        sleep::until(self.free_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No time is measured, only until when the link counts as busy.
    #[test]
    fn what_passes_passes_one_after_the_other() {
        let mut link = EmulatedLink::new(10.0);
        link.pass(50.0, 1000);
        let first = link.free_ns;
        link.pass(50.0, 1000);
        assert!(link.free_ns - first >= 60_000, "50 us, and 1000 bytes of 10 ns");
    }
}
