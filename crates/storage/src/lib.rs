//! Where bytes are stored: one server, and files over several servers.
//!
//! [`volume`] (servers and striping, cache objects, the origin) is built on [`device`] (one server: a directory,
//! memory, and the decorators that emulate, meter and fail). [`calibrate`] measures a device, and [`calibration_drift`] notices
//! when it has become slower than that.

pub mod calibrate;
pub mod calibration_drift;
pub mod device;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod volume;
