//! Kinds of values and their units: how text becomes bytes, times and hours, and back.

use std::time::Duration;

use halocline_model::units::split_number;
pub use halocline_model::units::{format_bytes, parse_bytes};
use halocline_model::{admit, evict, tier};
use serde::{Deserialize, Serialize};

use super::bounds::{BYTES_MAX, Bounds, SERVERS_MAX};

/// The kind of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`; as a flag without a value, `true`.
    Bool,
    /// A whole number.
    Count(Bounds),
    /// A number of bytes with an optional suffix K, M, G or T (powers of 1024), in whole steps.
    Bytes {
        /// Minimum and maximum in bytes.
        bounds: Bounds,
        /// The number must be a multiple of this many bytes.
        step: u64,
    },
    /// Bytes, at least this many, or a percentage above 0.
    Size(u64),
    /// A percentage.
    Percent,
    /// A time: a number with ms, s, m, h or d.
    Duration,
    /// Hours of the day: `22-6`.
    Hours,
    /// One of a few words.
    Word(&'static [&'static str]),
    /// An admission policy of the model's table, or a tier policy.
    Admission,
    /// An eviction policy of the model's table.
    Eviction,
    /// A record store of the tables' list.
    RecordStore,
    /// A list of globs.
    Globs,
    /// A list of plain names.
    Names,
    /// An emulation: `hdd+ssd`, `8xhdd+4xssd`.
    Emulation,
}

impl Kind {
    /// How the value follows a flag: ` SIZE`, or `[=BOOL]` if the flag alone means `true`.
    pub(crate) fn argument(self) -> String {
        match self {
            Self::Bool => format!("[={}]", self.placeholder()),
            _ => format!(" {}", self.placeholder()),
        }
    }

    /// The value's placeholder in help texts.
    pub fn placeholder(self) -> &'static str {
        match self {
            Self::Bool => "BOOL",
            Self::Count(_) => "NUMBER",
            Self::Bytes { .. } => "BYTES",
            Self::Size(_) => "SIZE",
            Self::Percent => "PERCENT",
            Self::Duration => "TIME",
            Self::Hours => "HOURS",
            Self::Word(_) => "WORD",
            Self::Admission | Self::Eviction => "POLICY",
            Self::RecordStore => "STORE",
            Self::Globs => "GLOB",
            Self::Names => "NAME",
            Self::Emulation => "DEVICES",
        }
    }

    /// The possible names of a value, if there are few.
    pub fn names(self) -> Vec<&'static str> {
        match self {
            Self::Word(words) => words.to_vec(),
            Self::Admission => {
                let tier = tier::POLICIES.iter().map(|row| row.name);
                admit::POLICIES.iter().map(|row| row.name).chain(tier).collect()
            }
            Self::Eviction => evict::POLICIES.iter().map(|row| row.name).collect(),
            _ => Vec::new(),
        }
    }

    /// How a value is written, and its limits.
    pub fn describe(self) -> String {
        let within = self.bounds().map_or_else(String::new, |bounds| format!(", {bounds}"));
        let kind: String = match self {
            Self::Bool => "true or false".into(),
            Self::Count(_) => "a whole number".into(),
            Self::Bytes { .. } => "bytes such as 64K, 8M or 2G".into(),
            Self::Size(_) => "bytes such as 2G, or a share of the file system such as 80%".into(),
            Self::Percent => "a percentage such as 20%".into(),
            Self::Duration => "a time such as 250ms, 30s, 5m, 2h or 1d".into(),
            Self::Hours => "always, or hours of the day such as 22-6".into(),
            Self::Word(words) => format!("one of {}", words.join(", ")),
            Self::Admission | Self::Eviction => format!("one of {}", self.names().join(", ")),
            Self::RecordStore => "the name of a record store such as log".into(),
            Self::Globs => "a list of globs such as [\"*.idx\", \"scratch/**\"]".into(),
            Self::Names => {
                "a list of names such as [\"ssd\", \"hdd\"]; the flag once for each".into()
            }
            Self::Emulation => "devices such as hdd+ssd or 8xhdd+4xssd".into(),
        };
        kind + &within
    }

    /// Limits of the values, if there are any: `from 1 to 256`.
    pub fn bounds(self) -> Option<String> {
        let bytes = |bytes| format_bytes(bytes);
        Some(match self {
            Self::Count(Bounds { least, most }) => format!("from {least} to {most}"),
            Self::Bytes { bounds, step: 1 } if bounds.most == BYTES_MAX => {
                format!("at least {}", bytes(bounds.least))
            }
            Self::Bytes { bounds: Bounds { least, most }, step } => {
                let steps =
                    if step == 1 { String::new() } else { format!(" in steps of {}", bytes(step)) };
                format!("from {} to {}{steps}", bytes(least), bytes(most))
            }
            Self::Size(least) => format!("at least {}, at most 100%", bytes(least)),
            Self::Percent => "from 0% to 100%".into(),
            Self::Duration => format!("from 0s to {}", format_duration(TIME_MAX)),
            Self::Hours => "from 0 to 24".into(),
            Self::Names => "at least two".into(),
            Self::Emulation => format!("at most {SERVERS_MAX} of a side"),
            _ => return None,
        })
    }
}

/// Hours of the local day, from `start` up to `end`, across midnight if `end <= start`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HourWindow {
    /// First hour, 0 to 23.
    pub start: u8,
    /// The hour at which it ends, 0 to 24.
    pub end: u8,
}

impl HourWindow {
    /// Whether `hour` (0 to 23) is inside.
    pub fn contains(self, hour: u8) -> bool {
        if self.start < self.end {
            (self.start..self.end).contains(&hour)
        } else {
            hour >= self.start || hour < self.end
        }
    }

    /// Reads `22-6`.
    pub fn parse(text: &str) -> Option<Self> {
        let (start, end) = text.split_once('-')?;
        let (start, end) = (start.trim().parse().ok()?, end.trim().parse().ok()?);
        (start < 24 && end <= 24 && start != end).then_some(Self { start, end })
    }
}

impl std::fmt::Display for HourWindow {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}-{}", self.start, self.end)
    }
}

/// Units of time in milliseconds, largest first.
const TIME_UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// Longest time that an option accepts: a hundred years, which can be added to any clock.
const TIME_MAX: Duration = Duration::from_hours(100 * 366 * 24);

/// Reads a time of at most a hundred years: `250ms`, `30s`, `1.5h`.
pub(crate) fn parse_duration(text: &str) -> Option<Duration> {
    let (number, unit) = split_number(text)?;
    let (_, ms) = TIME_UNITS.iter().find(|(name, _)| *name == unit)?;
    #[expect(clippy::cast_precision_loss, reason = "a unit's length is far below 2^53")]
    let seconds = number * *ms as f64 / 1000.0;
    Duration::try_from_secs_f64(seconds).ok().filter(|time| *time <= TIME_MAX)
}

/// Writes a time exactly, to the millisecond, as [`parse_duration`] reads it.
pub(crate) fn format_duration(time: Duration) -> String {
    let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    if ms == 0 {
        return "0s".into();
    }
    TIME_UNITS
        .iter()
        .find(|(_, unit)| ms.is_multiple_of(*unit))
        .map_or_else(|| format!("{ms}ms"), |(name, unit)| format!("{}{name}", ms / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_in_every_customary_spelling() {
        for (text, bytes) in [
            ("0", Some(0)),
            ("4096", Some(4096)),
            ("64K", Some(65536)),
            ("64k", Some(65536)),
            ("1.5G", Some(3 << 29)),
            ("2GiB", Some(2 << 30)),
            ("2 GB", Some(2 << 30)),
            ("1T", Some(1 << 40)),
            ("2X", None),
            ("G", None),
            ("-1", None),
            ("9999999T", None),
        ] {
            assert_eq!(parse_bytes(text), bytes, "{text}");
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        for bytes in [0, 1, 1023, 1024, 65536, 3 << 29, 1 << 40, (1 << 40) + 1] {
            assert_eq!(parse_bytes(&format_bytes(bytes)), Some(bytes));
        }
        for ms in [0, 1, 999, 1000, 1500, 60_000, 90_000, 3_600_000, 86_400_000] {
            let time = Duration::from_millis(ms);
            assert_eq!(parse_duration(&format_duration(time)), Some(time));
        }
    }

    #[test]
    fn times_need_a_unit() {
        assert_eq!(parse_duration("30"), None);
        assert_eq!(parse_duration("30s"), Some(Duration::from_secs(30)));
        assert_eq!(parse_duration("5m"), Some(Duration::from_mins(5)));
        assert_eq!(parse_duration("5min"), None);
    }

    #[test]
    fn an_hour_window_goes_over_midnight() {
        let night = HourWindow::parse("22-6").unwrap();
        assert!(night.contains(23) && night.contains(0) && night.contains(5));
        assert!(!night.contains(6) && !night.contains(21));
        let day = HourWindow::parse("9-17").unwrap();
        assert!(day.contains(9) && !day.contains(17));
        assert_eq!(HourWindow::parse("24-3"), None);
        assert_eq!(HourWindow::parse("7-7"), None);
    }
}
