//! Opens both sides with their decorators and finds the profiles that the cost models use.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use halocline_model::admit::CacheSide;
use halocline_model::layout::CacheGeometry;
use halocline_model::profile::DeviceProfile;
use halocline_model::request::Direction;

use crate::coherence::{Coherence, PeerCache};
use crate::decorators::{Decorated, ServerRole};
use halocline_api::config::{Config, EmulatedGroup, Shares, VolumeKind, VolumeShape};
use halocline_api::control::{ServerStatus, Side};
use halocline_meta::identity::identity_of;
use halocline_meta::records::StoreKind;
use halocline_meta::table::ExtentTable;
use halocline_os::clock::Clock;
use halocline_os::error::{Error, Result};
use halocline_os::private;
use halocline_storage::calibration_drift::Drift;
use halocline_storage::device::emulate::{self, CommonQueue};
use halocline_storage::device::local::LocalDevice;
use halocline_storage::device::meter::Meter;
use halocline_storage::device::{Device, Directory};
use halocline_storage::volume::objects::CacheObjects;
use halocline_storage::volume::{Decorate, Server, Volume, label};

/// Bytes of disk over which emulated requests are assumed to spread, for predicting their seeks.
const EMULATED_SPAN_BYTES: u64 = 64 << 30;

/// The meters of both sides' servers, in the servers' order.
#[derive(Debug, Default)]
pub(crate) struct Meters {
    origin: Vec<Arc<Meter>>,
    cache: Vec<Arc<Meter>>,
}

/// Makes the server of a cache with the given number.
pub type CacheServers<'a> = &'a dyn Fn(usize) -> (Arc<dyn Directory>, Arc<dyn Device>);

/// What tests put between an engine and the machine. Decorators are inside the meters that count requests and errors.
#[derive(Clone, Copy)]
pub struct Decorations<'a> {
    /// Around the origin's devices, by the number of the server.
    pub origin: Decorate<'a>,
    /// Around the cache's devices.
    pub cache: Decorate<'a>,
    /// Servers that replace the cache's own directories, by number: their names and their bytes. The cache's records
    /// stay where they are.
    pub cache_servers: Option<CacheServers<'a>>,
    /// Kinds of record stores that the configuration may name besides those of the table.
    pub record_stores: &'static [StoreKind],
    /// The clock of the engine and of its emulated devices.
    pub clock: &'a Clock,
    /// The machine's boot id, for simulating a power loss; `None`: the real one.
    pub boot_id: Option<&'a str>,
    /// Room for data, however small, not counting records; `None`: what the configured size leaves.
    pub data_bytes: Option<u64>,
    /// The agent of this node if other nodes cache the same origin.
    pub coherence: Option<&'a Arc<dyn Coherence>>,
    /// All mounts that name this directory share the origin's emulated devices; `None`: each mount has its own.
    pub common_devices: Option<&'a Path>,
}

impl Decorations<'_> {
    /// No decorators on either side.
    pub const NONE: Decorations<'static> = Decorations {
        origin: &|_, device| device,
        cache: &|_, device| device,
        cache_servers: None,
        record_stores: &[],
        clock: &Clock::MACHINE,
        boot_id: None,
        data_bytes: None,
        coherence: None,
        common_devices: None,
    };
}

impl fmt::Debug for Decorations<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decorations").finish_non_exhaustive()
    }
}

/// The directory of each of the `count` servers of a volume in `dir`: `dir` itself if it has no servers of its own.
fn directories(dir: &Path, count: u32, divided: bool) -> Vec<PathBuf> {
    let of = |index| if divided { dir.join(format!("server-{index}")) } else { dir.to_owned() };
    (0..count).map(of).collect()
}

/// Meters of the servers in `dirs`, which detect drift of those that were calibrated: each may be a device of its own
/// kind.
fn new_meters(dirs: Vec<PathBuf>, config: &Config, clock: &Clock) -> Vec<Arc<Meter>> {
    let meter = |dir: PathBuf| {
        let calibrated = config.device(&dir).filter(|_| config.emulate.is_none()).copied();
        let drift = calibrated.map(|profile| Drift::new(dir, profile, clock));
        Arc::new(drift.map_or_else(Meter::default, Meter::with_drift))
    };
    dirs.into_iter().map(meter).collect()
}

/// Opens the origin of this shape as `open` does, with decorators around its servers.
pub(crate) fn open_origin<T>(
    (dir, shape): (&Path, VolumeShape),
    config: &Config,
    meters: &mut Meters,
    around: Decorations<'_>,
    open: fn(&Path, VolumeShape, Decorate<'_>) -> Result<T>,
) -> Result<T> {
    let dirs = directories(dir, shape.servers, shape.kind == VolumeKind::Striped);
    meters.origin = new_meters(dirs, config, around.clock);
    let common = around.common_devices.filter(|_| config.emulate.is_some());
    let numbers = 0..shape.servers as usize;
    let queues = |dir: &Path| numbers.map(|number| CommonQueue::open(dir, number)).collect();
    let common: Option<Vec<CommonQueue>> = common.map(queues).transpose()?;
    open(dir, shape, &|index, device| {
        let queue = common.as_ref().map(|queues| queues[index].clone());
        let (clock, injected) = (around.clock, around.origin);
        let meter = Some(&meters.origin[index]);
        let role = ServerRole::Origin;
        Decorated { role, index, config, clock, queue, injected, meter }.decorate(device)
    })
}

/// Opens the cache volume.
pub(crate) fn open_cache(
    dir: &Path,
    config: &Config,
    meters: &mut Meters,
    around: Decorations<'_>,
) -> Result<Volume> {
    let shape = config.cache_shape();
    let dirs = directories(dir, shape.servers, shape.servers > 1);
    meters.cache = new_meters(dirs, config, around.clock);
    let decorate = |index: usize, device| {
        let (clock, injected) = (around.clock, around.cache);
        let meter = Some(&meters.cache[index]);
        let role = ServerRole::Cache;
        Decorated { role, index, config, clock, queue: None, injected, meter }.decorate(device)
    };
    let Some(server) = around.cache_servers else {
        return Volume::in_directory(dir, shape.servers, shape.stripe, &decorate);
    };
    let servers = (0..shape.servers as usize).map(|index| {
        let (directory, device) = server(index);
        let name = format!("server-{index}");
        Arc::new(Server::new(&name, dir, directory, decorate(index, device)))
    });
    Ok(Volume::new(servers.collect(), shape.stripe))
}

/// Opens the cache of another node, to read.
pub(crate) fn open_peer(
    peer: &PeerCache,
    geometry: CacheGeometry,
    config: &Config,
    clock: &Clock,
) -> Result<CacheObjects> {
    let PeerCache { node, dir, cache_id } = peer;
    let other = || {
        Error::invalid(
            format!("{} is not the cache of node {node}", dir.display()),
            "see what --peers says: each node's cache must be reached there",
        )
    };
    private::check_above(dir)?;
    if identity_of(dir)?.is_none_or(|found| found.cache_id != *cache_id) {
        return Err(other());
    }
    let decorate = |index, device| {
        let (role, injected) = (ServerRole::Peer, Decorations::NONE.cache);
        let peer = Decorated { role, index, config, clock, queue: None, injected, meter: None };
        peer.decorate(device)
    };
    let volume = Volume::of_another(dir, geometry.servers(), geometry.stripe(), &decorate)?;
    if !label::unlabelled(&volume, cache_id)?.is_empty() {
        return Err(other());
    }
    Ok(CacheObjects::new(volume, geometry))
}

/// Refuses a cache one of whose servers was replaced or is not mounted (I6).
pub(crate) fn check_servers(cache: &Volume, dmt: &ExtentTable, dir: &Path) -> Result<()> {
    let cache_id = &dmt.identity().cache_id;
    let unmarked = label::unlabelled(cache, cache_id)?;
    match unmarked.first() {
        None => Ok(()),
        Some(_) if dmt.index().usage().extents == 0 => label::write(cache, cache_id),
        Some(server) => Err(Error::invalid(
            format!(
                "{} holds nothing of the cache {}: its device is not mounted, or was replaced",
                server.display(),
                dir.display()
            ),
            format!(
                "mount it; if it is lost, `halocline fsck --repair {}` lists what is lost with it, \
                 file by file, and drops it",
                dir.display()
            ),
        )),
    }
}

/// How the cache's size is divided (I5); `data` as in [`Decorations`].
pub(crate) fn shares(cache_dir: &Path, config: &Config, data: Option<u64>) -> Result<Shares> {
    if let Some(data) = data {
        return Ok(Shares { data, records: u64::MAX });
    }
    let space = LocalDevice::open(cache_dir)?
        .space()
        .map_err(halocline_os::error::Error::at(cache_dir, "read the free space of"))?;
    Ok(Shares::of(config.cache_bytes(space.total)?))
}

/// The profile that the cost models use for the origin's servers: emulated, calibrated, or by kind.
pub(crate) fn origin_profile(dir: &Path, config: &Config) -> DeviceProfile {
    let group = config.emulate.as_ref().map(|emulation| &emulation.origin);
    profile(dir, config, group, DeviceProfile::hdd_7200)
}

/// The profile that the cost models use for the cache's servers.
pub(crate) fn cache(geometry: CacheGeometry, dir: &Path, config: &Config) -> CacheSide {
    let group = config.emulate.as_ref().map(|emulation| &emulation.cache);
    CacheSide {
        geometry,
        profile: profile(dir, config, group, DeviceProfile::ssd_generic),
        // Calibration measures one caller.
        channels: group.map_or(1, |group| group.device.channels()),
    }
}

fn profile(
    dir: &Path,
    config: &Config,
    group: Option<&EmulatedGroup>,
    unknown: fn() -> DeviceProfile,
) -> DeviceProfile {
    if let Some(group) = group {
        return emulate::expected(&group.device, EMULATED_SPAN_BYTES);
    }
    if let Some(calibrated) = config.device(dir) {
        return *calibrated;
    }
    match halocline_storage::calibrate::rotational(dir) {
        Some(true) => DeviceProfile::hdd_7200(),
        Some(false) => DeviceProfile::ssd_generic(),
        // A network file system: assumed to be what its side usually is until calibrated.
        None => unknown(),
    }
}

/// Profile names and traffic of both sides' servers, for `status`.
#[derive(Debug)]
pub(crate) struct ServerStates {
    meters: Meters,
    /// Names of the servers' profiles, the origin's first. Looked up once: the look-up would wait for a hung device.
    profiles: Vec<String>,
}

impl ServerStates {
    /// For both sides; `meters` are those of their servers.
    pub(crate) fn new(
        meters: Meters,
        config: &Config,
        origin: &[Arc<Server>],
        cache: &[Arc<Server>],
    ) -> Self {
        let origin = origin.iter().map(|server| profile_name(config, Side::Origin, server));
        let cache = cache.iter().map(|server| profile_name(config, Side::Cache, server));
        Self { meters, profiles: origin.chain(cache).collect() }
    }

    /// State of every server of both sides, the origin's first. Waits for no device.
    pub(crate) fn states(
        &self,
        origin: &[Arc<Server>],
        cache: &[Arc<Server>],
    ) -> Vec<ServerStatus> {
        let origin = origin.iter().zip(&self.meters.origin);
        let servers = origin.map(|(server, meter)| (Side::Origin, server, meter));
        let cache = cache.iter().zip(&self.meters.cache);
        let servers = servers.chain(cache.map(|(server, meter)| (Side::Cache, server, meter)));
        let named = servers.zip(&self.profiles);
        named.map(|((side, server, meter), profile)| state(side, server, meter, profile)).collect()
    }
}

fn profile_name(config: &Config, side: Side, server: &Server) -> String {
    if let Some(emulation) = &config.emulate {
        let group = if side == Side::Origin { &emulation.origin } else { &emulation.cache };
        return format!("emulated {}", group.name);
    }
    if config.device(server.dir()).is_some() {
        return "calibrated".to_owned();
    }
    match halocline_storage::calibrate::rotational(server.dir()) {
        Some(true) => "hdd, not calibrated".to_owned(),
        Some(false) => "ssd, not calibrated".to_owned(),
        None => "not calibrated".to_owned(),
    }
}

fn state(side: Side, server: &Server, meter: &Meter, profile: &str) -> ServerStatus {
    let (read, write) = (meter.traffic(Direction::Read), meter.traffic(Direction::Write));
    ServerStatus {
        side,
        path: server.dir().to_owned(),
        profile: profile.to_owned(),
        reads: read.requests,
        read_bytes: read.bytes,
        writes: write.requests,
        written_bytes: write.bytes,
        errors: read.errors + write.errors + meter.other().errors,
        queued: meter.under_way() + server.waiting(),
        slower: meter.slower(),
    }
}
