//! Where bytes lie: one server, and files over several of them.
//!
//! [`volume`] (servers and striping, cache objects, the origin) stands on [`device`] (one server: a directory, memory, and the
//! decorators that emulate, meter and fail). [`calibrate`] measures a device.

pub mod calibrate;
pub mod device;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod volume;
