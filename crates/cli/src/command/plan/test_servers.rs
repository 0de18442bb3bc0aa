//! Servers for tests of what a plan tells.

use halocline_model::profile::DeviceProfile;
use halocline_plan::servers::{Network, Server, Servers};

/// Servers with these names and devices, without a network and as large as they need to be.
pub(super) fn named(devices: impl IntoIterator<Item = (String, DeviceProfile)>) -> Servers {
    let server = |(name, profile)| Server {
        name,
        directory: None,
        capacity: None,
        channels: 1,
        profile,
        network: Network::default(),
    };
    Servers::new(devices.into_iter().map(server).collect()).expect("servers")
}
