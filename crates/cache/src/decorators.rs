//! What stands around the device of each server: one table for all servers, from the inside out.

use std::sync::Arc;

use halocline_api::config::{Config, EmulatedGroup};
use halocline_os::clock::Clock;
use halocline_storage::device::Device;
use halocline_storage::device::emulate::{CommonQueue, EmulatedServer};
use halocline_storage::device::meter::{Meter, MeteredDevice};
use halocline_storage::device::piecewise::PiecewiseDevice;
use halocline_storage::volume::Decorate;

/// What a server is to this mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServerRole {
    Origin,
    Cache,
    /// The cache of another node, which is only read.
    Peer,
}

/// A server, and what its decorators may need.
pub(crate) struct Decorated<'a> {
    pub(crate) role: ServerRole,
    /// The server's number.
    pub(crate) index: usize,
    pub(crate) config: &'a Config,
    pub(crate) clock: &'a Clock,
    /// The queue that an emulated device shares with other mounts.
    pub(crate) queue: Option<CommonQueue>,
    /// What a test puts around the device.
    pub(crate) injected: Decorate<'a>,
    /// The meter of a server of this mount's origin or cache.
    pub(crate) meter: Option<&'a Arc<Meter>>,
}

/// A decorator: whose servers get it, and how it is put around a device. It returns the device itself where the
/// configuration does not want it.
struct Decorator {
    around: &'static [ServerRole],
    put: fn(Arc<dyn Device>, &Decorated<'_>) -> Arc<dyn Device>,
}

/// From the inside out. Meters are outside, so that they count what the engine asks for and how long it takes; what a
/// test injects is directly inside them, so that its errors are counted.
const DECORATORS: &[Decorator] = &[
    Decorator { around: &[ServerRole::Cache], put: in_pieces },
    Decorator { around: &[ServerRole::Origin, ServerRole::Cache, ServerRole::Peer], put: emulated },
    Decorator { around: &[ServerRole::Origin, ServerRole::Cache], put: injected },
    Decorator { around: &[ServerRole::Origin, ServerRole::Cache], put: metered },
];

impl Decorated<'_> {
    /// Puts the decorators of the table around the server's device.
    pub(crate) fn decorate(&self, device: Arc<dyn Device>) -> Arc<dyn Device> {
        self.by(DECORATORS, device)
    }

    fn by(&self, table: &[Decorator], device: Arc<dyn Device>) -> Arc<dyn Device> {
        let mine = table.iter().filter(|decorator| decorator.around.contains(&self.role));
        mine.fold(device, |device, decorator| (decorator.put)(device, self))
    }

    fn group(&self) -> Option<&EmulatedGroup> {
        let emulation = self.config.emulate.as_ref()?;
        Some(match self.role {
            ServerRole::Origin => &emulation.origin,
            ServerRole::Cache | ServerRole::Peer => &emulation.cache,
        })
    }
}

fn in_pieces(device: Arc<dyn Device>, _: &Decorated<'_>) -> Arc<dyn Device> {
    Arc::new(PiecewiseDevice::new(device))
}

fn emulated(device: Arc<dyn Device>, server: &Decorated<'_>) -> Arc<dyn Device> {
    let Some(group) = server.group() else { return device };
    let emulated = EmulatedServer::new(group.device, device).in_common(server.queue.clone());
    Arc::new(emulated.timed_by(server.clock))
}

fn injected(device: Arc<dyn Device>, server: &Decorated<'_>) -> Arc<dyn Device> {
    (server.injected)(server.index, device)
}

fn metered(device: Arc<dyn Device>, server: &Decorated<'_>) -> Arc<dyn Device> {
    match server.meter {
        Some(meter) => Arc::new(MeteredDevice::new(device, Arc::clone(meter))),
        None => device,
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;

    use halocline_api::config::OptionSpec;
    use halocline_storage::device::fault::{Effect, Faults, FaultyDevice, Operation, When};
    use halocline_storage::device::null::NullDevice;

    use super::*;

    /// The names of the decorators around a device, from the outside in.
    fn names(device: &Arc<dyn Device>) -> Vec<String> {
        let text = format!("{device:?}");
        let words = text.split(|letter: char| !letter.is_alphanumeric());
        let devices = words.filter(|word| word.ends_with("Device") || *word == "EmulatedServer");
        devices.map(str::to_owned).collect()
    }

    fn decorated<'a>(role: ServerRole, config: &'a Config, meter: &'a Arc<Meter>) -> Decorated<'a> {
        let meter = (role != ServerRole::Peer).then_some(meter);
        let injected = &|_, device| device;
        Decorated { role, index: 0, config, clock: &Clock::MACHINE, queue: None, injected, meter }
    }

    #[test]
    fn each_server_gets_its_decorators_from_the_inside_out() {
        let (mut config, meter) = (Config::default(), Arc::default());
        let of = |role, config: &Config| {
            names(&decorated(role, config, &meter).decorate(Arc::new(NullDevice)))
        };
        assert_eq!(of(ServerRole::Origin, &config), ["MeteredDevice", "NullDevice"]);
        assert_eq!(
            of(ServerRole::Cache, &config),
            ["MeteredDevice", "PiecewiseDevice", "NullDevice"]
        );
        assert_eq!(of(ServerRole::Peer, &config), ["NullDevice"]);
        config.set(OptionSpec::find("emulate").unwrap(), "hdd+ssd").unwrap();
        assert_eq!(
            of(ServerRole::Origin, &config),
            ["MeteredDevice", "EmulatedServer", "NullDevice"]
        );
        assert_eq!(
            of(ServerRole::Cache, &config),
            ["MeteredDevice", "EmulatedServer", "PiecewiseDevice", "NullDevice"]
        );
        assert_eq!(of(ServerRole::Peer, &config), ["EmulatedServer", "NullDevice"]);
    }

    /// The recipe of CONTRIBUTING.md: a decorator is a file and a row.
    #[test]
    fn a_new_row_of_the_table_acts_on_its_servers_and_no_others() {
        fn failing(device: Arc<dyn Device>, _: &Decorated<'_>) -> Arc<dyn Device> {
            let faults = Arc::new(Faults::default());
            faults.set(Some(Operation::Write), Effect::Errno(libc::EIO), When::Always);
            Arc::new(FaultyDevice::new(device, faults))
        }
        let (config, meter) = (Config::default(), Arc::default());
        let row = Decorator { around: &[ServerRole::Origin], put: failing };
        let file =
            halocline_storage::device::ServerFile::new(tempfile::tempfile().unwrap()).unwrap();
        for (role, fails) in
            [(ServerRole::Origin, true), (ServerRole::Cache, false), (ServerRole::Peer, false)]
        {
            let device = decorated(role, &config, &meter)
                .by(std::slice::from_ref(&row), Arc::new(NullDevice));
            assert_eq!(
                device.write_at(&file, 0, &[IoSlice::new(b"x")]).is_err(),
                fails,
                "{role:?}"
            );
        }
    }
}
