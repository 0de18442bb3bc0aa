//! The configuration: one typed struct, one table of options.
//!
//! [`OPTIONS`] is the only description of every option. The configuration file, the command line, their help, the man
//! pages and `docs/CONFIG.md` are all derived from it, so they cannot disagree. A flag takes precedence over the file,
//! which takes precedence over the default.

mod binding;
mod bounds;
mod device;
mod document;
mod emulation;
mod file;
mod options;
mod scope;
mod shares;
mod units;
mod values;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use halocline_model::profile::DeviceProfile;
use serde::{Deserialize, Serialize};

use halocline_os::error::{Error, Result};

#[cfg(any(test, fuzzing))]
pub(crate) use binding::BINDING_FILE;
pub use binding::Binding;
pub use bounds::{Bounds, SERVERS_MAX, STRIPE_BYTES_MAX};
pub use device::DeviceProfiles;
pub use document::markdown;
pub use emulation::{EmulatedGroup, Emulation};
pub use halocline_model::emulated::{EmulatedDevice, EmulatedHdd, EmulatedSsd};
pub use options::{OPTIONS, OptionSpec};
pub use scope::Scope;
pub use shares::{SIZE_MIN, Shares};
pub use units::{HourWindow, Kind, format_bytes, parse_bytes};

/// When a write reaches the origin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Later: admitted writes go to the cache and are flushed.
    #[default]
    WriteBack,
    /// At once: admitted writes go to both sides; losing the cache loses nothing.
    WriteThrough,
    /// Writes go to the origin and drop cached bytes that they overlap; only reads are cached.
    ReadOnly,
}

/// Which copies of files on a file tier's SSD are kept on a lower tier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Copies {
    /// None: a file is on one tier.
    #[default]
    None,
    /// Of promoted files, until they are changed: demoting such a file moves no bytes.
    Keep,
    /// Also of files that were not written for a while: losing the SSD does not lose them.
    Archive,
}

/// The limit of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum CacheSize {
    /// Bytes on disk.
    Bytes(u64),
    /// Share of the cache's file system, above 0 and at most 100.
    Percent(f64),
}

impl CacheSize {
    /// The limit in bytes on a file system of `total` bytes.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a share of a file system needs no exact bytes"
    )]
    pub fn bytes(self, total: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => (total as f64 * percent / 100.0) as u64,
        }
    }

    /// The size in bytes on a file system of `total` bytes; `named` is where the size was given.
    ///
    /// # Errors
    /// [`Error::Invalid`] for less than [`SIZE_MIN`].
    fn checked_bytes(self, total: u64, named: &str) -> Result<u64> {
        let size = self.bytes(total);
        if size >= SIZE_MIN {
            return Ok(size);
        }
        let least = format_bytes(SIZE_MIN);
        Err(Error::invalid(
            format!("{named}: a cache of {size} bytes has no room for its own records"),
            format!("give at least {least}"),
        ))
    }
}

/// How the servers of a side are found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VolumeKind {
    /// One directory. Server count and stripe describe the parallel file system mounted there.
    #[default]
    Plain,
    /// Striped by Halocline over servers in sub-directories.
    Striped,
}

/// Shape of one side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeShape {
    /// How servers are found.
    pub kind: VolumeKind,
    /// Number of servers: M of the origin, N of the cache.
    pub servers: u32,
    /// Stripe in bytes.
    pub stripe: u64,
}

/// All options, typed. Built by [`Config::default`], [`Config::load`] and [`Config::set`].
#[derive(Debug, Clone, PartialEq, Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub struct Config {
    /// Limit of the cache.
    pub size: CacheSize,
    /// When a write reaches the origin.
    pub mode: Mode,
    /// Admission policy, by its name in the model's table.
    pub policy: String,
    /// Eviction policy, by its name in the model's table.
    pub eviction: String,
    /// Kind of the cache's record store, by its name in the tables' list.
    pub record_store: String,
    /// Whether every read of a program reaches the engine.
    pub direct: bool,
    /// Whether users other than the owner may use the mount.
    pub allow_other: bool,
    /// Whether set-id bits and file capabilities of programs on the mount take effect.
    pub allow_suid: bool,
    /// Whether device nodes on the mount can be opened.
    pub allow_dev: bool,
    /// Threads that serve the kernel; 0: the front end's default.
    pub threads: u32,
    /// How long the kernel may keep attributes and names.
    pub attr_timeout: Duration,
    /// Shape of the origin.
    pub origin: VolumeShape,
    /// Shape of the cache.
    pub cache: VolumeShape,
    /// Groups g of the 2-D layout.
    pub groups: u32,
    /// Entries of the critical data table.
    pub cdt_entries: usize,
    /// Whether cached bytes have checksums, which are verified before the bytes go to the origin.
    pub checksums: bool,
    /// Whether bytes that programs read from the cache are verified, too.
    pub verify_reads: bool,
    /// Whether the rebuilder runs in the background.
    pub rebuild: bool,
    /// Whether bytes that are read again are put on the cache at once.
    pub fill: bool,
    /// Limit of the rebuilder's transfers while programs use the origin, in bytes per second; 0: no limit.
    pub rebuild_rate: u64,
    /// Regions of the origin that are flushed concurrently.
    pub flush_workers: u32,
    /// Age at which dirty data is flushed unconditionally (I3).
    pub max_dirty_age: Duration,
    /// Local hours during which dirty data may be flushed before that age; `None`: always.
    pub flush_window: Option<HourWindow>,
    /// Share of the cache, in percent, above which dirty data is flushed at once.
    pub dirty_high: f64,
    /// Globs of files that are never evicted.
    pub pin: Vec<String>,
    /// Globs of files that are never admitted.
    pub exclude: Vec<String>,
    /// Time after which a failed cache is tried again; doubles while it keeps failing.
    pub health_retry: Duration,
    /// Limit of the files on a file tier's SSD.
    pub ssd_limit: CacheSize,
    /// Share of that limit, in percent, above which files are demoted in the background.
    pub tier_high: f64,
    /// Share of that limit, in percent, at which these demotions stop.
    pub tier_low: f64,
    /// How long the kernel may keep attributes and names of a file tier.
    pub tier_attr_timeout: Duration,
    /// Names of a file tier's directories below its root, fastest first.
    pub tiers: Vec<String>,
    /// Which copies of files on a file tier's SSD are kept below.
    pub copies: Copies,
    /// How long a file must not have been written before [`Copies::Archive`] copies it.
    pub archive_after: Duration,
    /// Whether the kernel may serve files on the SSD by itself.
    pub passthrough: bool,
    /// Whether this includes files opened for writing.
    pub passthrough_writes: bool,
    /// Whether requests may come from the kernel through `io_uring`.
    pub io_uring: bool,
    /// Whether threads poll briefly for the next such request before they sleep.
    pub busy_poll: bool,
    /// Whether the kernel may serve reads of origin files that are entirely in memory.
    pub warm_passthrough: bool,
    /// Emulated devices for the two directories.
    pub emulate: Option<Emulation>,
    /// Emulated devices by name, from `[profile.NAME]` tables.
    pub profiles: BTreeMap<String, EmulatedDevice>,
    /// Measurements of `calibrate`, by directory, from `[device."DIR"]` tables.
    pub devices: DeviceProfiles,
    /// The file this came from, if any.
    pub source: Option<PathBuf>,
    /// Where each option that was set was set, by key: a flag, or a line of a file.
    pub given: BTreeMap<&'static str, String>,
}

impl Default for Config {
    fn default() -> Self {
        let volume = VolumeShape { kind: VolumeKind::Plain, servers: 1, stripe: 64 << 10 };
        Self {
            size: CacheSize::Percent(80.0),
            mode: Mode::WriteBack,
            policy: "adaptive".into(),
            eviction: "s3fifo".into(),
            record_store: "log".into(),
            direct: false,
            allow_other: false,
            allow_suid: false,
            allow_dev: false,
            threads: 0,
            attr_timeout: Duration::from_secs(1),
            origin: volume,
            cache: volume,
            groups: 2,
            cdt_entries: 65_536,
            checksums: true,
            verify_reads: true,
            rebuild: true,
            fill: true,
            rebuild_rate: 0,
            flush_workers: 3,
            max_dirty_age: Duration::from_secs(30),
            flush_window: None,
            dirty_high: 50.0,
            pin: Vec::new(),
            exclude: Vec::new(),
            health_retry: Duration::from_secs(10),
            ssd_limit: CacheSize::Percent(90.0),
            tier_high: 95.0,
            tier_attr_timeout: Duration::from_mins(1),
            tier_low: 90.0,
            tiers: vec!["ssd".into(), "hdd".into()],
            copies: Copies::None,
            archive_after: Duration::from_secs(30),
            passthrough: true,
            passthrough_writes: false,
            io_uring: true,
            busy_poll: true,
            warm_passthrough: false,
            emulate: None,
            profiles: BTreeMap::new(),
            devices: DeviceProfiles::new(),
            source: None,
            given: BTreeMap::new(),
        }
    }
}

impl Config {
    /// Reads a configuration file; options that it does not set keep their defaults.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming file, line, key and remedy.
    pub fn load(path: &Path) -> Result<Self> {
        file::load(path)
    }

    /// Sets one option from the text of a flag.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the flag and how its value is written.
    pub fn set(&mut self, option: &OptionSpec, text: &str) -> Result<()> {
        self.set_quietly(option, text).ok_or_else(|| {
            let reason = self.why_not(option, text);
            Error::invalid(format!("--{}: {reason}", option.flag()), remedy(option))
        })?;
        self.given.insert(option.key, format!("--{}", option.flag()));
        Ok(())
    }

    /// How an error refers to the option with this key: the flag, or the line of the file that set it.
    pub fn named(&self, key: &str) -> String {
        let flag = || format!("--{}", key.replace('_', "-"));
        self.given.get(key).cloned().unwrap_or_else(flag)
    }

    /// Bytes of the cache on a file system of `total` bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`] for less than [`SIZE_MIN`], naming where the size was given.
    pub fn cache_bytes(&self, total: u64) -> Result<u64> {
        self.size.checked_bytes(total, &self.named("size"))
    }

    /// Sets one option; if the result is `None`, the configuration is unchanged.
    fn set_quietly(&mut self, option: &OptionSpec, text: &str) -> Option<()> {
        (option.set)(self, text)
    }

    /// The measured profile of the nearest calibrated directory at or above `dir`.
    pub fn device(&self, dir: &Path) -> Option<&DeviceProfile> {
        device::nearest(&self.devices, dir)
    }

    /// Shape of the origin, which the emulation determines if there is one.
    pub fn origin_shape(&self) -> VolumeShape {
        emulated_shape(self.origin, self.emulate.as_ref().map(|emulation| emulation.origin.count))
    }

    /// Shape of the cache, which the emulation determines if there is one.
    pub fn cache_shape(&self) -> VolumeShape {
        emulated_shape(self.cache, self.emulate.as_ref().map(|emulation| emulation.cache.count))
    }

    /// Why `text` is not a value of `option`.
    fn why_not(&self, option: &OptionSpec, text: &str) -> String {
        let named = |name: &str| self.profiles.get(name).copied();
        match option.kind {
            Kind::Emulation => Emulation::parse(text, named)
                .err()
                .unwrap_or_else(|| format!("{text:?} does not fit")),
            Kind::Size(least)
                if units::parse_bytes(text).is_some_and(|n| n < least) && least > 1 =>
            {
                format!("{text:?} has no room for the cache's own records")
            }
            _ => format!("{text:?} does not fit"),
        }
    }
}

/// What to write instead of a value that does not fit.
fn remedy(option: &OptionSpec) -> String {
    let default = option.default_value().replace('\n', ", ");
    let default = if default.is_empty() { "empty".into() } else { default };
    format!("give {} (the default is {default})", option.kind.describe())
}

/// Several emulated devices make a side a striped volume.
fn emulated_shape(shape: VolumeShape, count: Option<u32>) -> VolumeShape {
    match count {
        None => shape,
        Some(1) => VolumeShape { kind: VolumeKind::Plain, servers: 1, ..shape },
        Some(servers) => VolumeShape { kind: VolumeKind::Striped, servers, ..shape },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_without_room_for_records_is_refused_with_the_least_one() {
        let half = CacheSize::Percent(50.0).checked_bytes(SIZE_MIN * 2, "--size");
        assert_eq!(half.unwrap(), SIZE_MIN);
        let small = CacheSize::Bytes(SIZE_MIN - 1).checked_bytes(0, "--size");
        let error = small.unwrap_err().to_string();
        assert!(error.contains("--size") && error.contains("1M"), "{error}");
    }
}
