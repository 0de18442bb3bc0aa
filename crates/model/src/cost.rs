//! The papers' cost models, exactly (docs/ALGORITHMS.md, section 2). Inputs are integer picoseconds, results exact
//! fractions, so that only the stated order decides between candidates that tie.

pub mod s4d;
pub mod sla;

use crate::exact::Exact;

/// The terms of one cost, T = startup + transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cost {
    /// Servers touched, m.
    pub servers: u64,
    /// Most bytes on one server, `s_m`. Signed, as the printed table may give anything.
    pub largest: i128,
    /// Least startup on one server, a, in picoseconds.
    pub least_ps: i128,
    /// Greatest startup on one server, b, in picoseconds.
    pub greatest_ps: i128,
    /// Startup of the slowest of m servers (equation 4), in picoseconds.
    pub startup_ps: Exact,
    /// Transfer of the largest part, in picoseconds.
    pub transfer_ps: Exact,
}

impl Cost {
    /// Startup uniform in `[least, greatest]` on each of `servers` servers, whose slowest counts,
    /// and transfer of `largest` bytes. Nothing touched costs nothing.
    pub const fn new(
        servers: u64,
        largest: i128,
        least_ps: i128,
        greatest_ps: i128,
        per_byte_ps: u64,
    ) -> Self {
        let m = servers as i128;
        let startup_ps = if servers == 0 {
            Exact::ZERO
        } else {
            // a + m/(m+1) * (b-a), over the common denominator m+1.
            Exact::new(least_ps * (m + 1) + m * (greatest_ps - least_ps), m + 1)
        };
        let transfer_ps = Exact::whole(largest * per_byte_ps as i128);
        Self { servers, largest, least_ps, greatest_ps, startup_ps, transfer_ps }
    }

    /// T.
    pub fn total_ps(&self) -> Exact {
        self.startup_ps + self.transfer_ps
    }
}
