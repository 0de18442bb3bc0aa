//! The servers of a file system, as `servers.toml` describes them.

mod alike;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use halocline_model::emulated::{EmulatedDevice, Mechanism, expected};
use halocline_model::profile::{DeviceProfile, whole};
use halocline_model::units::parse_bytes;
use serde::Deserialize;
use toml::Spanned;

use alike::alike;

/// Limit of the servers in a file.
pub const SERVERS_MAX: usize = 4096;
/// Limit of the space of all servers together, in bytes: the end of the longest file. Sums of what lies on them, and of
/// what leaves them for it, are below 2^64.
const SPACE_MAX: u64 = (1 << 63) - 1;
/// Longest connection time, a minute, and slowest network, about 1 MB per second: higher values are mistakes.
const CONNECT_US_MAX: f64 = 60e6;
const NS_PER_BYTE_MAX: f64 = 1e6;
/// Of a disk, "random" means within this many bytes where its times are only checked.
const SPAN: u64 = 1 << 30;

/// The properties of a server's device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Profile {
    /// A disk or SSD with its mechanics, as in the emulation.
    Emulated(EmulatedDevice),
    /// Only service times, as measured by `halocline calibrate`.
    Measured(DeviceProfile),
}

impl Profile {
    /// The built-in profile called `name`: `hdd` and `ssd`, as emulated, or one of the model's.
    pub fn builtin(name: &str) -> Option<Self> {
        let emulated = EmulatedDevice::builtin(name).map(Self::Emulated);
        emulated.or_else(|| DeviceProfile::by_name(name).map(Self::Measured))
    }

    /// An idle device of this kind.
    pub fn device(&self) -> Mechanism {
        match self {
            Self::Emulated(device) => Mechanism::new(*device),
            Self::Measured(profile) => Mechanism::measured(*profile),
        }
    }

    /// Service times seen by one caller, for cost models; "random" means within `span` bytes.
    pub fn service(&self, span: u64) -> DeviceProfile {
        match self {
            Self::Emulated(device) => expected(device, span),
            Self::Measured(profile) => *profile,
        }
    }

    /// The same with all times multiplied by `factor`, above 0.
    #[must_use]
    pub fn slower(&self, factor: f64) -> Self {
        match *self {
            Self::Emulated(EmulatedDevice::Hdd(mut hdd)) => {
                hdd.seek_ms_min *= factor;
                hdd.seek_ms_max *= factor;
                hdd.rpm /= factor;
                hdd.mb_per_s /= factor;
                Self::Emulated(EmulatedDevice::Hdd(hdd))
            }
            Self::Emulated(EmulatedDevice::Ssd(mut ssd)) => {
                ssd.read_startup_us *= factor;
                ssd.write_startup_us *= factor;
                ssd.read_mb_per_s /= factor;
                ssd.write_mb_per_s /= factor;
                Self::Emulated(EmulatedDevice::Ssd(ssd))
            }
            Self::Measured(mut profile) => {
                for service in [&mut profile.read, &mut profile.write] {
                    for time in [
                        &mut service.startup_sequential_ps,
                        &mut service.startup_random_ps,
                        &mut service.per_byte_ps,
                    ] {
                        #[expect(
                            clippy::cast_precision_loss,
                            reason = "times are far below 2^52 ps"
                        )]
                        let slower = *time as f64 * factor;
                        *time = whole(slower);
                    }
                }
                Self::Measured(profile)
            }
        }
    }

    /// Requests that it serves concurrently.
    pub fn channels(&self) -> u32 {
        match self {
            Self::Emulated(device) => device.channels(),
            Self::Measured(_) => 1,
        }
    }
}

/// The cost of the network path to a server.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Network {
    /// Time to establish the connection of one request, in microseconds: e of the cost model.
    pub connect_us: f64,
    /// Transfer time of one byte, in nanoseconds: t of the cost model.
    pub ns_per_byte: f64,
}

impl Network {
    /// Transfer time of `bytes` bytes, in nanoseconds.
    #[expect(clippy::cast_precision_loss, reason = "a request is far shorter than 2^52 bytes")]
    pub(crate) fn transfer_ns(&self, bytes: u64) -> u64 {
        whole(bytes as f64 * self.ns_per_byte)
    }
}

/// One server: a directory on a device.
#[derive(Debug, Clone, PartialEq)]
pub struct Server {
    /// Its name, unique in the set.
    pub name: String,
    /// Where it is mounted; not needed for planning and simulation.
    pub directory: Option<PathBuf>,
    /// Name of its profile in the file.
    pub profile_name: String,
    /// Its device.
    pub profile: Profile,
    /// Its capacity in bytes.
    pub capacity: u64,
    /// The network path to it.
    pub network: Network,
}

/// Servers that are equal, or as measured nearly so, except for name, directory and capacity.
#[derive(Debug, Clone, PartialEq)]
pub struct Class {
    /// Name of the first one's profile.
    pub name: String,
    /// The device of the first.
    pub profile: Profile,
    /// The network path to the first.
    pub network: Network,
    /// Their indices in the set, ascending.
    pub servers: Vec<usize>,
}

/// The servers of a file system, in order.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerSet {
    servers: Vec<Server>,
}

/// An error in a description of servers, with file, line and remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}, line {line}: {what}")]
pub struct Error {
    /// The file, as it was given.
    pub file: String,
    /// The line, counting from 1.
    pub line: usize,
    /// What is wrong.
    pub what: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    server: Vec<Spanned<Table>>,
    #[serde(default)]
    profile: BTreeMap<String, Spanned<toml::Table>>,
    network: Option<Spanned<Network>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    name: Spanned<String>,
    directory: Option<PathBuf>,
    profile: Spanned<String>,
    capacity: Spanned<Size>,
    network: Option<Spanned<Network>>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "capacity is not bytes above 0 such as \"500G\" or \"1T\"")]
enum Size {
    Bytes(u64),
    Text(String),
}

/// An error, with its position in the text.
type Wrong = (Range<usize>, String);

impl ServerSet {
    /// A set of these servers.
    ///
    /// # Errors
    /// There are none or more than [`SERVERS_MAX`], a name is empty or duplicated, one has no space, or all together have
    /// 8 EiB.
    pub fn new(servers: Vec<Server>) -> Result<Self, String> {
        if servers.is_empty() {
            return Err("no server is described; write a [[server]] table for each".into());
        }
        if servers.len() > SERVERS_MAX {
            return Err(format!("{} servers; at most {SERVERS_MAX}", servers.len()));
        }
        let mut names = BTreeSet::new();
        for server in &servers {
            if server.name.is_empty() {
                return Err("a server has an empty name".into());
            }
            if !names.insert(server.name.as_str()) {
                return Err(format!("two servers are called {:?}", server.name));
            }
            if server.capacity == 0 {
                return Err(format!("server {:?} has no space: capacity is 0", server.name));
            }
        }
        let space = servers.iter().map(|server| server.capacity).fold(0, u64::saturating_add);
        if space > SPACE_MAX {
            return Err("the servers have 8 EiB or more together; correct their capacities".into());
        }
        Ok(Self { servers })
    }

    /// Parses the text of a `servers.toml`; `file` is its name in errors.
    pub fn parse(text: &str, file: &Path) -> Result<Self, Error> {
        let at = |place: Option<Range<usize>>, what: String| Error {
            file: file.display().to_string(),
            line: line_of(text, place.map_or(0, |place| place.start)),
            what,
        };
        let document: Document =
            toml::from_str(text).map_err(|error| at(error.span(), error.message().to_owned()))?;
        document.servers().map_err(|(place, what)| at(Some(place), what))
    }

    /// The servers, in order.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// How many there are; never 0.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.servers.len()
    }

    /// The same servers with other devices: `of` gets the index of each in the set, and its device.
    #[must_use]
    pub fn with_profiles(&self, of: impl Fn(usize, &Profile) -> Profile) -> Self {
        let mut servers = self.servers.clone();
        for (number, server) in servers.iter_mut().enumerate() {
            server.profile = of(number, &server.profile);
        }
        Self { servers }
    }

    /// Servers by their properties, in the order of each class's first server.
    pub fn classes(&self) -> Vec<Class> {
        let mut classes: Vec<Class> = Vec::new();
        for (index, server) in self.servers.iter().enumerate() {
            let same = |class: &&mut Class| alike(&self.servers[class.servers[0]], server);
            match classes.iter_mut().find(same) {
                Some(class) => class.servers.push(index),
                None => classes.push(Class {
                    name: server.profile_name.clone(),
                    profile: server.profile,
                    network: server.network,
                    servers: vec![index],
                }),
            }
        }
        classes
    }
}

impl Document {
    fn servers(self) -> Result<ServerSet, Wrong> {
        let mut profiles = BTreeMap::new();
        for (name, table) in self.profile {
            let place = table.span();
            let profile = profile(table.into_inner())
                .map_err(|what| (place, format!("[profile.{name}]: {what}")))?;
            profiles.insert(name, profile);
        }
        let common = self.network.map_or(Ok(Network::default()), network)?;
        let mut end = 0..0;
        let mut servers: Vec<Server> = Vec::new();
        for table in self.server {
            end = table.span();
            if servers.len() == SERVERS_MAX {
                return Err((end, format!("more than {SERVERS_MAX} servers")));
            }
            let server = table.into_inner().server(&profiles, common)?;
            if servers.iter().any(|other| other.name == server.name) {
                return Err((end, format!("two servers are called {:?}", server.name)));
            }
            servers.push(server);
        }
        ServerSet::new(servers).map_err(|what| (end, what))
    }
}

impl Table {
    fn server(
        self,
        profiles: &BTreeMap<String, Profile>,
        common: Network,
    ) -> Result<Server, Wrong> {
        let (place, profile_name) = (self.profile.span(), self.profile.into_inner());
        let found = profiles.get(&profile_name).copied();
        let profile = found.or_else(|| Profile::builtin(&profile_name)).ok_or_else(|| {
            let what = format!("no profile is called {profile_name:?}: choose hdd, ssd, hdd-7200, generic-ssd or revodrive-x2, or write [profile.{profile_name}]");
            (place.clone(), what)
        })?;
        let size_place = self.capacity.span();
        let capacity = match self.capacity.into_inner() {
            Size::Bytes(bytes) => Some(bytes),
            Size::Text(text) => parse_bytes(&text),
        };
        let capacity = capacity.filter(|bytes| *bytes > 0).ok_or((
            size_place,
            "capacity is not bytes above 0 such as \"500G\" or \"1T\"".into(),
        ))?;
        let network = self.network.map_or(Ok(common), network)?;
        // A server that was measured from afar may have all of its time in the network.
        let Network { connect_us, ns_per_byte } = network;
        let seen = profile.service(SPAN).behind(whole(connect_us * 1e6), whole(ns_per_byte * 1e3));
        seen.check_takes_time().map_err(|what| (place, format!("{profile_name}: {what}")))?;
        let (place, name) = (self.name.span(), self.name.into_inner());
        if name.is_empty() {
            return Err((place, "a server has an empty name".into()));
        }
        Ok(Server { name, directory: self.directory, profile_name, profile, capacity, network })
    }
}

fn network(network: Spanned<Network>) -> Result<Network, Wrong> {
    let (place, network) = (network.span(), network.into_inner());
    for (key, value, most) in [
        ("connect_us", network.connect_us, CONNECT_US_MAX),
        ("ns_per_byte", network.ns_per_byte, NS_PER_BYTE_MAX),
    ] {
        // NaN is in no range.
        if !(0.0..=most).contains(&value) {
            return Err((place, format!("{key} is {value}, which is not from 0 to {most}")));
        }
    }
    Ok(network)
}

/// A profile defined in full: emulated if it has `kind`, otherwise measured.
fn profile(table: toml::Table) -> Result<Profile, String> {
    let value = toml::Value::Table(table);
    let text = |error: toml::de::Error| error.message().to_owned();
    if value.get("kind").is_some() {
        let device: EmulatedDevice = value.try_into().map_err(text)?;
        device.check()?;
        return Ok(Profile::Emulated(device));
    }
    if value.get("read").is_none() && value.get("write").is_none() {
        return Err(
            "it has neither kind = \"hdd\" or \"ssd\" nor measured times (read, write)".into()
        );
    }
    let measured: DeviceProfile = value.try_into().map_err(text)?;
    measured.check()?;
    Ok(Profile::Measured(measured))
}

fn line_of(text: &str, place: usize) -> usize {
    text.bytes().take(place).filter(|byte| *byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ServerSet, Error> {
        ServerSet::parse(text, Path::new("servers.toml"))
    }

    const SERVERS: &str = r#"
[[server]]
name = "s0"
directory = "/mnt/s0"
profile = "hdd"
capacity = "1T"

[[server]]
name = "s1"
profile = "fast"
capacity = 1000
network = { connect_us = 50.0, ns_per_byte = 1.0 }

[[server]]
name = "s2"
profile = "hdd"
capacity = "2T"

[[server]]
name = "s3"
profile = "measured"
capacity = "2T"

[network]
connect_us = 100.0

[profile.fast]
kind = "ssd"
channels = 8

[profile.measured]
read = { startup_sequential_ps = 1, startup_random_ps = 2, per_byte_ps = 3 }
write = { startup_sequential_ps = 4, startup_random_ps = 5, per_byte_ps = 6 }
"#;

    #[test]
    fn servers_are_read_and_classed() {
        let set = parse(SERVERS).unwrap();
        assert_eq!(set.len(), 4);
        assert_eq!(set.servers()[0].directory.as_deref(), Some(Path::new("/mnt/s0")));
        assert_eq!(set.servers()[0].capacity, 1 << 40);
        assert_eq!(set.servers()[1].profile.channels(), 8);
        assert!((set.servers()[0].network.connect_us - 100.0).abs() < 1e-9);
        assert!((set.servers()[1].network.connect_us - 50.0).abs() < 1e-9);
        let classes: Vec<_> = set.classes().into_iter().map(|class| class.servers).collect();
        assert_eq!(classes, [vec![0, 2], vec![1], vec![3]]);
        assert_eq!(set.servers()[3].profile.service(1).write.per_byte_ps, 6);
    }

    #[test]
    fn a_slower_device_takes_all_its_times_longer() {
        let set = parse(SERVERS).unwrap();
        let slower = set.with_profiles(|_, profile| profile.slower(2.0));
        let ratio = |one: u64, other: u64| other.abs_diff(2 * one) <= 2;
        for (before, after) in set.servers().iter().zip(slower.servers()) {
            assert_eq!((&before.name, before.capacity), (&after.name, after.capacity));
            let (before, after) = (before.profile.service(1 << 30), after.profile.service(1 << 30));
            for (one, other) in [(before.read, after.read), (before.write, after.write)] {
                assert!(ratio(one.startup_sequential_ps, other.startup_sequential_ps));
                assert!(ratio(one.startup_random_ps, other.startup_random_ps), "{one:?} {other:?}");
                assert!(ratio(one.per_byte_ps, other.per_byte_ps), "{one:?} {other:?}");
            }
        }
        assert_eq!(slower.classes().len(), set.classes().len());
    }

    #[test]
    fn errors_name_file_line_and_remedy() {
        let server = "[[server]]\nname = \"a\"\nprofile = \"hdd\"\ncapacity = \"1G\"\n";
        let twice = format!("{server}\n{server}");
        let times = "{ startup_sequential_ps = 1000, startup_random_ps = 4, per_byte_ps = 0 }";
        let still = server.replace("hdd", "still")
            + &format!("[profile.still]\nread = {}\nwrite = {times}\n", times.replace('4', "1000"));
        parse(&format!("{still}[network]\nconnect_us = 1.0\n")).expect("its network takes time");
        let large = twice.replacen("\"a\"", "\"b\"", 1).replace("1G", "5000000T");
        for (text, line, what) in [
            ("", 1, "[[server]]"),
            ("[[server]]\nname = \"a\"\nprofile = \"tape\"\ncapacity = 1\n", 3, "generic-ssd"),
            ("[[server]]\nname = \"a\"\nprofile = \"hdd\"\ncapacity = 0\n", 4, "above 0"),
            ("[[server]]\nname = \"a\"\nprofile = \"hdd\"\ncapacity = -1\n", 4, "1T"),
            ("[[server]]\nname = \"a\"\nprofile = \"hdd\"\ncapacity = \"x\"\n", 4, "500G"),
            ("[[server]]\nname = \"a\"\nprofile = \"hdd\"\ncapacity = nan\n", 4, "capacity is"),
            ("[[server]]\nname = \"\"\nprofile = \"hdd\"\ncapacity = 1\n", 2, "empty"),
            ("[[server]]\nname = \"a\"\nprofile = \"hdd\"\n", 1, "capacity"),
            ("[[server]]\nname = \"a\"\nprofil = \"hdd\"\n", 3, "profil"),
            (twice.as_str(), 6, "two servers"),
            (large.as_str(), 6, "8 EiB or more together"),
            ("\n[network]\nconnect_us = nan\n", 2, "NaN"),
            ("[profile.x]\nkind = \"hdd\"\nrpm = 0.0\n", 1, "rpm"),
            ("[profile.x]\nkind = \"hdd\"\nrpn = 0.0\n", 1, "rpn"),
            ("[profile.x]\nrpm = 0.0\n", 1, "measured"),
            ("[[server]\n", 1, ""),
            // Regression: servers that take no time were planned for.
            (still.as_str(), 3, "a random write of 4 KiB takes 4 ps, less than 1000 ps"),
        ] {
            let error = parse(text).expect_err(text);
            assert_eq!(
                (error.line, error.file.as_str()),
                (line, "servers.toml"),
                "{text}: {error}"
            );
            assert!(error.to_string().contains(what), "{text}: {error}");
        }
    }
}
