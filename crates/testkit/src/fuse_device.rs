//! The device that mounts need.

use std::fs::File;

/// Why no mount can be made here, if so.
pub fn obstacle() -> Option<&'static str> {
    let device = File::options().read(true).write(true).open("/dev/fuse");
    device.is_err().then_some("/dev/fuse cannot be opened")
}
