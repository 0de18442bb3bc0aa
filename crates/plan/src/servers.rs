//! The servers to plan for, with their service times and their space.

use std::path::PathBuf;

use halocline_model::profile::{DeviceProfile, ServiceProfile};
use halocline_model::request::Direction;
use halocline_trace::Op;
use serde::{Deserialize, Serialize};

use crate::Error;

/// One server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// Its name.
    pub name: String,
    /// Where it is mounted, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    /// Its capacity in bytes; unlimited if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u64>,
    /// Requests that it serves concurrently.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub channels: u32,
    /// The service times seen by one caller.
    pub profile: DeviceProfile,
    /// The network path to it; plans of earlier versions say nothing of it, and mean none.
    #[serde(default, skip_serializing_if = "Network::is_none")]
    pub network: Network,
}

impl Server {
    /// The service times of the device behind its network path, as a client sees them.
    pub fn seen(&self) -> DeviceProfile {
        let Network { connect_ps, per_byte_ps } = self.network;
        self.profile.behind(connect_ps, per_byte_ps)
    }
}

const fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks with a reference")]
const fn is_one(channels: &u32) -> bool {
    *channels == 1
}

/// The network between clients and a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// Time to establish one connection, in picoseconds.
    pub connect_ps: u64,
    /// Transfer time of one byte, in picoseconds.
    pub per_byte_ps: u64,
}

impl Network {
    /// Whether it takes no time.
    const fn is_none(&self) -> bool {
        self.connect_ps == 0 && self.per_byte_ps == 0
    }

    /// Transfer time of so many bytes, in picoseconds.
    pub const fn transfer_ps(self, bytes: u64) -> u64 {
        self.per_byte_ps.saturating_mul(bytes)
    }
}

/// Servers of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Class {
    /// Indices of its servers.
    pub members: Vec<usize>,
    /// The service times seen by one caller, the longest of any of them.
    pub profile: DeviceProfile,
    /// Requests that each server serves concurrently.
    pub channels: u32,
    /// The network path to the farthest of them.
    pub network: Network,
}

impl Class {
    /// The class of `members`, of which there is one at least. A request waits for the slowest server, so times are the
    /// longest of any.
    fn of(all: &[Server], members: Vec<usize>) -> Self {
        let servers = || members.iter().map(|member| &all[*member]);
        let slower = |a: ServiceProfile, b: ServiceProfile| ServiceProfile {
            startup_sequential_ps: a.startup_sequential_ps.max(b.startup_sequential_ps),
            startup_random_ps: a.startup_random_ps.max(b.startup_random_ps),
            per_byte_ps: a.per_byte_ps.max(b.per_byte_ps),
        };
        let profiles = servers().map(|server| server.profile);
        let profile = profiles.reduce(|a, b| DeviceProfile {
            read: slower(a.read, b.read),
            write: slower(a.write, b.write),
        });
        let channels = servers().map(|server| server.channels.max(1)).min().unwrap_or(1);
        let most = |of: fn(Network) -> u64| servers().map(|s| of(s.network)).max().unwrap_or(0);
        let network = Network {
            connect_ps: most(|network| network.connect_ps),
            per_byte_ps: most(|network| network.per_byte_ps),
        };
        Self { profile: profile.expect("a class has members"), channels, network, members }
    }
}

/// The servers, by class from the slowest to the fastest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Servers {
    all: Vec<Server>,
    classes: Vec<Class>,
}

/// Length in bytes of the request by which classes are ordered.
const TYPICAL: u64 = 64 << 10;

/// Service time of a request of `length` bytes, in picoseconds.
pub fn service_ps(service: &ServiceProfile, sequential: bool, length: u64) -> u64 {
    let startup =
        if sequential { service.startup_sequential_ps } else { service.startup_random_ps };
    startup.saturating_add(service.per_byte_ps.saturating_mul(length))
}

/// The direction of a request of a trace.
pub const fn direction(op: Op) -> Direction {
    match op {
        Op::Read => Direction::Read,
        Op::Write => Direction::Write,
    }
}

/// A disk and an SSD, for tests.
#[cfg(test)]
pub(crate) fn disk_and_ssd() -> Servers {
    let server = |(name, profile): (&str, DeviceProfile)| Server {
        name: name.into(),
        directory: None,
        capacity: None,
        channels: 1,
        profile,
        network: Network::default(),
    };
    let all = [("disk", DeviceProfile::hdd_7200()), ("ssd", DeviceProfile::ssd_generic())];
    Servers::new(all.map(server).into()).expect("servers")
}

impl Servers {
    /// Servers of which those with equal service times and network paths are a class. Refused: none.
    pub fn new(all: Vec<Server>) -> Result<Self, Error> {
        let mut classes: Vec<Vec<usize>> = Vec::new();
        for (index, server) in all.iter().enumerate() {
            let same = |class: &&mut Vec<usize>| {
                let kind = |of: &Server| (of.profile, of.channels.max(1), of.network);
                kind(&all[class[0]]) == kind(server)
            };
            match classes.iter_mut().find(same) {
                Some(class) => class.push(index),
                None => classes.push(vec![index]),
            }
        }
        Self::in_classes(all, classes)
    }

    /// Servers in these classes: each server's index is in exactly one. Refused: none.
    pub fn in_classes(all: Vec<Server>, classes: Vec<Vec<usize>>) -> Result<Self, Error> {
        if all.is_empty() {
            return Err(Error::NoServers);
        }
        let mut classes: Vec<Class> =
            classes.into_iter().map(|members| Class::of(&all, members)).collect();
        let slowness = |class: &Class| {
            let one = |service| service_ps(service, false, TYPICAL);
            let Network { connect_ps, .. } = class.network;
            let there = connect_ps.saturating_add(class.network.transfer_ps(TYPICAL));
            let both = one(&class.profile.read).saturating_add(one(&class.profile.write));
            both.saturating_add(there.saturating_mul(2))
        };
        classes.sort_by_key(|class| std::cmp::Reverse(slowness(class)));
        Ok(Self { all, classes })
    }

    /// All servers in their order.
    pub fn all(&self) -> &[Server] {
        &self.all
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// Classes of servers, the slowest first.
    pub fn classes(&self) -> &[Class] {
        &self.classes
    }

    /// Servers of all classes but the slowest.
    pub fn fast(&self) -> impl Iterator<Item = usize> {
        self.classes.iter().skip(1).flat_map(|class| class.members.iter().copied())
    }

    /// Capacity of each in bytes.
    pub fn room(&self) -> Vec<u64> {
        self.all.iter().map(|server| server.capacity.unwrap_or(u64::MAX)).collect()
    }

    /// The same servers with the capacity that is left on each that has one.
    pub(crate) fn with_room(&self, room: &[u64]) -> Self {
        let mut left = self.clone();
        for (server, room) in left.all.iter_mut().zip(room) {
            server.capacity = server.capacity.map(|_| *room);
        }
        left
    }

    /// Widths for each server, given one for each class.
    pub fn widths(&self, by_class: &[u64]) -> Vec<u64> {
        let mut widths = vec![0; self.count()];
        for (class, width) in self.classes.iter().zip(by_class) {
            for &member in &class.members {
                widths[member] = *width;
            }
        }
        widths
    }
}
