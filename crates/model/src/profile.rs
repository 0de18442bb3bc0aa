//! The cost of one server, as calibrated: startup and transfer by direction and pattern.
//!
//! These are parameters of the cost models; how a device is emulated is in [`crate::emulated`].

use serde::{Deserialize, Serialize};

use crate::request::Direction;

const MICROSECOND_PS: u64 = 1_000_000;

/// The nearest integer to a non-negative time; saturates.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "saturates, and times are not negative"
)]
pub fn whole(time: f64) -> u64 {
    time.round() as u64
}

/// Service times of one server in one direction, in integer picoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceProfile {
    /// Startup of a request that continues a stream on the server.
    pub startup_sequential_ps: u64,
    /// Startup of a request anywhere else: seek and rotation on a disk.
    pub startup_random_ps: u64,
    /// Transfer of one byte.
    pub per_byte_ps: u64,
}

/// Service times of one server in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceProfile {
    /// Reads.
    pub read: ServiceProfile,
    /// Writes.
    pub write: ServiceProfile,
}

/// Limits of a device's times: 13 days, and 4 ms for one byte. Their products with the largest requests then fit exact
/// arithmetic.
const STARTUP_PS_MAX: u64 = 1 << 60;
const PER_BYTE_PS_MAX: u64 = 1 << 32;
/// The least time of a request of [`SMALL_BYTES`] in picoseconds, far below that of any memory. Where servers take no time,
/// no layout is faster than another.
const SMALL_PS_MIN: u64 = 1000;
/// A small request, in bytes.
const SMALL_BYTES: u64 = 4096;

impl DeviceProfile {
    /// What is out of bounds, if it was not measured but written by someone.
    pub fn check(&self) -> Result<(), String> {
        for (direction, service) in [("read", &self.read), ("write", &self.write)] {
            for (key, value, most) in [
                ("startup_sequential_ps", service.startup_sequential_ps, STARTUP_PS_MAX),
                ("startup_random_ps", service.startup_random_ps, STARTUP_PS_MAX),
                ("per_byte_ps", service.per_byte_ps, PER_BYTE_PS_MAX),
            ] {
                if value > most {
                    return Err(format!("{direction}.{key} is {value}, more than {most}"));
                }
            }
        }
        Ok(())
    }

    /// What is wrong with these times if requests take none.
    pub fn check_takes_time(&self) -> Result<(), String> {
        for (direction, service) in [("read", &self.read), ("write", &self.write)] {
            for (pattern, startup_ps) in [
                ("sequential", service.startup_sequential_ps),
                ("random", service.startup_random_ps),
            ] {
                let transfer_ps = service.per_byte_ps.saturating_mul(SMALL_BYTES);
                let took_ps = startup_ps.saturating_add(transfer_ps);
                if took_ps < SMALL_PS_MIN {
                    return Err(format!(
                        "a {pattern} {direction} of 4 KiB takes {took_ps} ps, less than {SMALL_PS_MIN} ps: no device is so fast; \
                         measure it (halocline calibrate), or correct startup_{pattern}_ps and per_byte_ps"
                    ));
                }
            }
        }
        Ok(())
    }

    /// The times that a client sees behind a network path with these times of a connection and of a byte.
    #[must_use]
    pub fn behind(&self, connect_ps: u64, per_byte_ps: u64) -> Self {
        let behind = |service: ServiceProfile| ServiceProfile {
            startup_sequential_ps: service.startup_sequential_ps.saturating_add(connect_ps),
            startup_random_ps: service.startup_random_ps.saturating_add(connect_ps),
            per_byte_ps: service.per_byte_ps.saturating_add(per_byte_ps),
        };
        Self { read: behind(self.read), write: behind(self.write) }
    }

    /// Whether random requests of 4 KiB and of 1 MiB take as long as on `other`, give or take a quarter: measurements of
    /// two devices of one kind never agree exactly.
    pub fn is_like(&self, other: &Self) -> bool {
        let times = |profile: &Self| {
            [profile.read, profile.write].map(|service| {
                [1 << 12, 1 << 20].map(|bytes| {
                    let transfer_ps = u128::from(service.per_byte_ps) * bytes;
                    u128::from(service.startup_random_ps) + transfer_ps
                })
            })
        };
        let pairs = times(self).into_iter().flatten().zip(times(other).into_iter().flatten());
        pairs.into_iter().all(|(one, two)| one.max(two) * 4 <= one.min(two) * 5)
    }

    /// Service times of `direction`.
    pub const fn of(&self, direction: Direction) -> &ServiceProfile {
        match direction {
            Direction::Read => &self.read,
            Direction::Write => &self.write,
        }
    }

    /// A 7200 rpm SATA disk: 8 ms average seek, 4.17 ms half a turn, 120 MB/s.
    pub const fn hdd_7200() -> Self {
        let service = ServiceProfile {
            startup_sequential_ps: 100 * MICROSECOND_PS,
            startup_random_ps: 12_170 * MICROSECOND_PS,
            per_byte_ps: 8_333,
        };
        Self { read: service, write: service }
    }

    /// The PCI Express SSD of the papers (OCZ `RevoDrive` X2, 100 GB; 740 and 700 MB/s by its data
    /// sheet, and no startup of its own in the papers).
    pub const fn ssd_revodrive_x2() -> Self {
        Self {
            read: ServiceProfile {
                startup_sequential_ps: 60 * MICROSECOND_PS,
                startup_random_ps: 60 * MICROSECOND_PS,
                per_byte_ps: 1_351,
            },
            write: ServiceProfile {
                startup_sequential_ps: 80 * MICROSECOND_PS,
                startup_random_ps: 80 * MICROSECOND_PS,
                per_byte_ps: 1_429,
            },
        }
    }

    /// A SATA SSD of no particular make: 500 MB/s.
    pub const fn ssd_generic() -> Self {
        Self {
            read: ServiceProfile {
                startup_sequential_ps: 40 * MICROSECOND_PS,
                startup_random_ps: 90 * MICROSECOND_PS,
                per_byte_ps: 2_000,
            },
            write: ServiceProfile {
                startup_sequential_ps: 40 * MICROSECOND_PS,
                startup_random_ps: 60 * MICROSECOND_PS,
                per_byte_ps: 2_000,
            },
        }
    }

    /// The built-in profile called `name`: a row of [`PROFILES`].
    pub fn by_name(name: &str) -> Option<Self> {
        PROFILES.iter().find(|row| row.0 == name).map(|row| row.1)
    }
}

/// The built-in profiles by name.
pub(crate) const PROFILES: &[(&str, DeviceProfile)] = &[
    ("hdd-7200", DeviceProfile::hdd_7200()),
    ("revodrive-x2", DeviceProfile::ssd_revodrive_x2()),
    ("generic-ssd", DeviceProfile::ssd_generic()),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_found_by_name_and_survive_serialization() {
        for (name, profile) in PROFILES {
            assert_eq!(DeviceProfile::by_name(name), Some(*profile));
            let json = serde_json::to_string(profile).expect("plain data");
            assert!(json.contains("startup_random_ps"), "{json}");
            assert_eq!(serde_json::from_str::<DeviceProfile>(&json).expect("the same"), *profile);
        }
        assert_eq!(DeviceProfile::by_name("drum"), None);
    }

    #[test]
    fn measurements_of_one_kind_are_alike_and_other_kinds_are_not() {
        for (name, profile) in PROFILES {
            let mut other = *profile;
            other.read.startup_random_ps = other.read.startup_random_ps / 10 * 11;
            other.write.per_byte_ps = other.write.per_byte_ps / 10 * 9;
            assert!(profile.is_like(&other) && other.is_like(profile), "{name}");
            other.write.per_byte_ps *= 2;
            assert!(!profile.is_like(&other) && !other.is_like(profile), "{name}");
            let alike = PROFILES.iter().filter(|(_, it)| it.is_like(profile)).count();
            assert_eq!(alike, 1, "{name}");
        }
        let none =
            ServiceProfile { startup_sequential_ps: 0, startup_random_ps: 0, per_byte_ps: 0 };
        let none = DeviceProfile { read: none, write: none };
        assert!(none.is_like(&none));
    }
}
