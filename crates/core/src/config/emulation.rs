//! Which emulated devices lie under the two directories, and what they are like.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::values::SERVERS_MAX;

/// A disk with one head and a FIFO queue.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EmulatedHdd {
    /// Shortest seek in milliseconds.
    pub seek_ms_min: f64,
    /// Seek over the whole surface in milliseconds.
    pub seek_ms_max: f64,
    /// Revolutions a minute: half a turn is the mean rotational delay.
    pub rpm: f64,
    /// Transfer in megabytes (10^6 bytes) a second.
    pub mb_per_s: f64,
    /// Bytes of the surface: the distance of a full seek.
    pub capacity_gb: f64,
}

/// A solid-state device: startup, transfer and parallel channels.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EmulatedSsd {
    /// Startup of a read in microseconds.
    pub read_startup_us: f64,
    /// Startup of a write in microseconds.
    pub write_startup_us: f64,
    /// Reading in megabytes (10^6 bytes) a second, all channels together.
    pub read_mb_per_s: f64,
    /// Writing in megabytes (10^6 bytes) a second, all channels together.
    pub write_mb_per_s: f64,
    /// Requests in service at once.
    pub channels: u32,
}

impl Default for EmulatedHdd {
    /// A 7200 rpm SATA disk.
    fn default() -> Self {
        Self {
            seek_ms_min: 0.8,
            seek_ms_max: 16.0,
            rpm: 7200.0,
            mb_per_s: 120.0,
            capacity_gb: 250.0,
        }
    }
}

impl Default for EmulatedSsd {
    /// The papers' PCI Express SSD.
    fn default() -> Self {
        Self {
            read_startup_us: 60.0,
            write_startup_us: 80.0,
            read_mb_per_s: 740.0,
            write_mb_per_s: 700.0,
            channels: 4,
        }
    }
}

/// One emulated device.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum EmulatedDevice {
    /// A disk.
    Hdd(EmulatedHdd),
    /// A solid-state device.
    Ssd(EmulatedSsd),
}

impl EmulatedDevice {
    /// The device called `name` in a configuration's profiles, or a built-in one.
    pub fn named(name: &str, profiles: &BTreeMap<String, Self>) -> Option<Self> {
        profiles.get(name).copied().or_else(|| Self::builtin(name))
    }

    /// What of it no device has: such a number would become a time that never ends, or more channels
    /// than fit in memory.
    pub(super) fn check(&self) -> Result<(), String> {
        let bounds: &[(&str, f64, f64, f64)] = match self {
            Self::Hdd(hdd) => &[
                ("seek_ms_min", hdd.seek_ms_min, 0.0, STARTUP_MS_MAX),
                ("seek_ms_max", hdd.seek_ms_max, hdd.seek_ms_min, STARTUP_MS_MAX),
                ("rpm", hdd.rpm, 1.0, 1e6),
                ("mb_per_s", hdd.mb_per_s, MB_PER_S_MIN, MB_PER_S_MAX),
                ("capacity_gb", hdd.capacity_gb, 0.001, 1e9),
            ],
            Self::Ssd(ssd) => &[
                ("read_startup_us", ssd.read_startup_us, 0.0, STARTUP_MS_MAX * 1e3),
                ("write_startup_us", ssd.write_startup_us, 0.0, STARTUP_MS_MAX * 1e3),
                ("read_mb_per_s", ssd.read_mb_per_s, MB_PER_S_MIN, MB_PER_S_MAX),
                ("write_mb_per_s", ssd.write_mb_per_s, MB_PER_S_MIN, MB_PER_S_MAX),
                ("channels", f64::from(ssd.channels), 0.0, CHANNELS_MAX),
            ],
        };
        // Not a number lies in no range.
        match bounds.iter().find(|(_, value, least, most)| !(least..=most).contains(&value)) {
            Some((key, value, least, most)) => {
                Err(format!("{key} is {value}, which is not from {least} to {most}"))
            }
            None => Ok(()),
        }
    }

    fn builtin(name: &str) -> Option<Self> {
        match name {
            "hdd" => Some(Self::Hdd(EmulatedHdd::default())),
            "ssd" => Some(Self::Ssd(EmulatedSsd::default())),
            _ => None,
        }
    }
}

/// Like devices of one side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EmulatedGroup {
    /// How many; more than one makes the side a striped volume.
    pub count: u32,
    /// Profile: `hdd`, `ssd`, or a name from `[profile.NAME]` of the configuration file.
    pub name: String,
    /// What it is like.
    pub device: EmulatedDevice,
}

/// Emulated devices under origin and cache.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Emulation {
    /// The origin's.
    pub origin: EmulatedGroup,
    /// The cache's.
    pub cache: EmulatedGroup,
}

/// Longest startup of an emulated device: a minute.
const STARTUP_MS_MAX: f64 = 60_000.0;
/// Slowest and fastest emulated transfer.
const MB_PER_S_MIN: f64 = 0.001;
const MB_PER_S_MAX: f64 = 1e6;
/// Most channels of an emulated device.
const CHANNELS_MAX: f64 = 4096.0;
impl Emulation {
    /// Reads `ORIGIN+CACHE`, each `[COUNTx]PROFILE`, finding profiles with `named`.
    pub fn parse(
        text: &str,
        named: impl Fn(&str) -> Option<EmulatedDevice>,
    ) -> Result<Self, String> {
        let (origin, cache) = text
            .split_once('+')
            .ok_or_else(|| format!("{text:?} does not name an origin and a cache device"))?;
        let group = |part: &str| parse_group(part.trim(), &named);
        Ok(Self { origin: group(origin)?, cache: group(cache)? })
    }
}

fn parse_group(
    text: &str,
    named: impl Fn(&str) -> Option<EmulatedDevice>,
) -> Result<EmulatedGroup, String> {
    let counted = text.split_once('x').and_then(|(count, name)| Some((count.parse().ok()?, name)));
    let (count, name) = counted.unwrap_or((1, text));
    if count == 0 || count > SERVERS_MAX {
        return Err(format!("{text:?}: the count is not from 1 to {SERVERS_MAX}"));
    }
    let device = named(name).or_else(|| EmulatedDevice::builtin(name))
        .ok_or_else(|| format!("no emulated device is called {name:?}: hdd, ssd, or a [profile.NAME] of the configuration file"))?;
    Ok(EmulatedGroup { count, name: name.to_owned(), device })
}

impl fmt::Display for EmulatedGroup {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.count > 1 {
            write!(out, "{}x", self.count)?;
        }
        out.write_str(&self.name)
    }
}

impl fmt::Display for Emulation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}+{}", self.origin, self.cache)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_names_are_read() {
        let parse = |text| Emulation::parse(text, |_| None);
        let eight = parse("8xhdd+4xssd").unwrap();
        assert_eq!((eight.origin.count, eight.cache.count), (8, 4));
        assert!(matches!(eight.cache.device, EmulatedDevice::Ssd(_)));
        assert_eq!(eight.to_string(), "8xhdd+4xssd");
        assert_eq!(parse("hdd+ssd").unwrap().to_string(), "hdd+ssd");
        for bad in ["hdd", "0xhdd+ssd", "hdd+tape", "999xhdd+ssd", ""] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn custom_profiles_come_first() {
        let slow = EmulatedDevice::Hdd(EmulatedHdd { rpm: 5400.0, ..EmulatedHdd::default() });
        let found =
            Emulation::parse("2xslow+ssd", |name| (name == "slow").then_some(slow)).unwrap();
        assert_eq!(found.origin.device, slow);
        assert_eq!(found.to_string(), "2xslow+ssd");
    }
}
