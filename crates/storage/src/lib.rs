//! Where bytes are stored: one server, and files over several servers.
//!
//! [`volume`] (servers and striping, cache objects, the origin) is built on [`device`] (one server: a directory,
//! memory, and the decorators that emulate, meter and fail). [`calibrate`] measures a device.

pub mod calibrate;
pub mod device;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod volume;
