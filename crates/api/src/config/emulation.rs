//! The emulated devices for the two directories, and their properties.

use std::fmt;

use halocline_model::emulated::EmulatedDevice;
use serde::{Deserialize, Serialize};

use super::bounds::SERVERS_MAX;

/// The identical devices of one side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EmulatedGroup {
    /// How many; more than one makes the side a striped volume.
    pub count: u32,
    /// Profile: `hdd`, `ssd`, or a name from `[profile.NAME]` of the configuration file.
    pub name: String,
    /// The device's properties.
    pub device: EmulatedDevice,
}

/// Emulated devices for origin and cache.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Emulation {
    /// The origin's.
    pub origin: EmulatedGroup,
    /// The cache's.
    pub cache: EmulatedGroup,
}

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
    use halocline_model::emulated::EmulatedHdd;

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
