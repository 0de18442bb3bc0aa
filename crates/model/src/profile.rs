//! What a server costs: the parameters of the cost models, by direction and pattern.

use serde::{Deserialize, Serialize};

use crate::request::Direction;

/// Service time of one direction: `startup + bytes * per_byte`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceProfile {
    /// Startup of a request that continues a stream, in picoseconds.
    pub startup_sequential_ps: u64,
    /// Startup of a request anywhere else (alpha of the papers), in picoseconds.
    pub startup_random_ps: u64,
    /// Transfer (beta of the papers), in picoseconds a byte.
    pub per_byte_ps: u64,
}

/// One server as calibrated, or as its kind usually is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceProfile {
    /// Reads.
    pub read: ServiceProfile,
    /// Writes.
    pub write: ServiceProfile,
}

const MICROSECOND_PS: u64 = 1_000_000;

impl DeviceProfile {
    /// A 7200 rpm SATA disk: 8 ms average seek, half a turn of 8.33 ms, 120 MB/s.
    pub const fn hdd_7200() -> Self {
        let service = ServiceProfile {
            startup_sequential_ps: 100 * MICROSECOND_PS,
            startup_random_ps: 12_170 * MICROSECOND_PS,
            per_byte_ps: 8_333,
        };
        Self { read: service, write: service }
    }

    /// The papers' PCIe SSD (`OCZ RevoDrive X2`): 740 MB/s read, 690 MB/s written by its data sheet.
    pub const fn ssd_paper() -> Self {
        Self { read: flash(60 * MICROSECOND_PS, 1_351), write: flash(80 * MICROSECOND_PS, 1_449) }
    }

    /// A SATA or NVMe SSD of no particular make: 500 MB/s.
    pub const fn ssd_generic() -> Self {
        Self { read: flash(90 * MICROSECOND_PS, 2_000), write: flash(60 * MICROSECOND_PS, 2_000) }
    }

    /// The service times of one direction.
    pub const fn of(&self, direction: Direction) -> &ServiceProfile {
        match direction {
            Direction::Read => &self.read,
            Direction::Write => &self.write,
        }
    }
}

/// Flash starts up alike wherever the request goes.
const fn flash(startup_ps: u64, per_byte_ps: u64) -> ServiceProfile {
    ServiceProfile { startup_sequential_ps: startup_ps, startup_random_ps: startup_ps, per_byte_ps }
}
