//! Reads a configuration file: every error names file, line, key and remedy.

#[cfg(test)]
use std::fs;
use std::ops::Range;
use std::path::Path;

use halocline_model::profile::DeviceProfile;
use serde::de::DeserializeOwned;
use toml::de::{DeTable, DeValue};

use super::EmulatedDevice;
use super::{Config, Kind, OPTIONS, OptionSpec};
use halocline_os::bounded;
use halocline_os::error::{Error, Result};

/// Limit of a configuration file in bytes; globs make it long.
const BYTES_MAX: u64 = 16 << 20;
/// Tables that are not options: emulated devices and measured devices.
const TABLES: [&str; 2] = ["profile", "device"];

/// A file being read.
struct Source<'a> {
    path: &'a Path,
    text: &'a str,
}

/// Reads `path`; options that it does not set keep their defaults.
pub(super) fn load(path: &Path) -> Result<Config> {
    let text = bounded::read_to_string(path, BYTES_MAX).map_err(|error| {
        Error::invalid(
            format!("configuration file {}: {error}", path.display()),
            "name a readable file with --config",
        )
    })?;
    let mut config = Config { source: Some(path.to_owned()), ..Config::default() };
    Source { path, text: &text }.read_into(&mut config)?;
    Ok(config)
}

impl Source<'_> {
    fn read_into(&self, config: &mut Config) -> Result<()> {
        let root = DeTable::parse(self.text).map_err(|error| {
            self.complain(&error.span().unwrap_or_default(), error.message(), "correct the TOML")
        })?;
        let root = root.into_inner();
        // Profiles come first, because `emulate` refers to them wherever it is in the file.
        if let Some(table) = root.get("profile") {
            self.named_tables("profile", table.span(), &mut |name, profile: EmulatedDevice| {
                profile.check()?;
                config.profiles.insert(name, profile);
                Ok(())
            })?;
        }
        if let Some(table) = root.get("device") {
            self.named_tables("device", table.span(), &mut |dir, profile: DeviceProfile| {
                profile.check()?;
                config.devices.insert(dir.into(), profile);
                Ok(())
            })?;
        }
        for (key, value) in &root {
            let name: &str = key.get_ref();
            if TABLES.contains(&name) {
                continue;
            }
            let Some(option) = OptionSpec::find(name) else {
                return Err(match value.get_ref() {
                    DeValue::Table(_) => self.unknown_table(name, &key.span()),
                    _ => self.unknown(name, &key.span()),
                });
            };
            self.set(config, option, value.get_ref(), &value.span())?;
        }
        Ok(())
    }

    /// Sets one option from its TOML value.
    fn set(
        &self,
        config: &mut Config,
        option: &OptionSpec,
        value: &DeValue<'_>,
        span: &Range<usize>,
    ) -> Result<()> {
        let done =
            as_text(option.kind, value).map(|text| (config.set_quietly(option, &text), text));
        match done {
            Some((Some(()), _)) => {
                config.given.insert(option.key, format!("{}: {}", self.line(span), option.key));
                Ok(())
            }
            Some((None, text)) => {
                let reason = config.why_not(option, &text);
                let what = format!("{}: {reason}", option.key);
                Err(self.complain(span, &what, &super::remedy(option)))
            }
            None => {
                let what = match value {
                    // An integer that is outside every number type is too large, not of a wrong type.
                    DeValue::Integer(number) => format!("{}: {number} does not fit", option.key),
                    _ => format!("{} is a TOML {}", option.key, value.type_str()),
                };
                Err(self.complain(span, &what, &super::remedy(option)))
            }
        }
    }

    /// Reads the entries of `[table.NAME]`.
    fn named_tables<T: DeserializeOwned>(
        &self,
        table: &str,
        span: Range<usize>,
        take: &mut dyn FnMut(String, T) -> std::result::Result<(), String>,
    ) -> Result<()> {
        let whole: toml::Table = self.text.parse().map_err(|error: toml::de::Error| {
            self.complain(&span, error.message(), "correct the TOML")
        })?;
        let Some(toml::Value::Table(entries)) = whole.get(table) else {
            let what = format!("{table} is not a table");
            let remedy = format!("write [{table}.NAME] tables, as docs/CONFIG.md shows");
            return Err(self.complain(&span, &what, &remedy));
        };
        for (name, entry) in entries {
            let read = entry.clone().try_into();
            let read = read.map_err(|error: toml::de::Error| error.message().to_owned());
            read.and_then(|read| take(name.clone(), read)).map_err(|wrong| {
                let at = self.text.find(name.as_str()).map_or(span.clone(), |at| at..at);
                let what = format!("[{table}.{name}]: {wrong}");
                self.complain(&at, &what, "see docs/CONFIG.md for the keys of this table")
            })?;
        }
        Ok(())
    }

    fn unknown(&self, key: &str, span: &Range<usize>) -> Error {
        let known = OPTIONS.iter().map(|option| option.key).chain(TABLES);
        let nearest = known.min_by_key(|known| distance(key, known)).unwrap_or_default();
        let what = format!("unknown key {key:?}");
        self.complain(span, &what, &format!("did you mean {nearest:?}?"))
    }

    /// People who know other programs' files expect a table for each subject.
    fn unknown_table(&self, name: &str, span: &Range<usize>) -> Error {
        let what = format!("there is no table [{name}]");
        let remedy = "options stand outside of any table, in front of the first: take its line out (tables are \
                      [profile.NAME] and [device.\"DIR\"])";
        self.complain(span, &what, remedy)
    }

    fn complain(&self, span: &Range<usize>, what: &str, remedy: &str) -> Error {
        Error::invalid(format!("{}: {what}", self.line(span)), remedy)
    }

    /// The file, and the line on which `span` begins.
    fn line(&self, span: &Range<usize>) -> String {
        let before = self.text.get(..span.start).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        format!("{}, line {line}", self.path.display())
    }
}

/// The text that a flag would have given, or `None` if the TOML type does not match the kind.
fn as_text(kind: Kind, value: &DeValue<'_>) -> Option<String> {
    match (kind, value) {
        (Kind::Bool, DeValue::Boolean(value)) => Some(value.to_string()),
        (Kind::Count(_) | Kind::Bytes { .. } | Kind::Size(_), DeValue::Integer(value)) => {
            i64::from_str_radix(value.as_str(), value.radix()).ok().map(|value| value.to_string())
        }
        (Kind::Bool | Kind::Count(_), _) => None,
        (Kind::Globs | Kind::Names, DeValue::Array(globs)) => {
            let globs: Option<Vec<_>> = globs.iter().map(|glob| glob.get_ref().as_str()).collect();
            Some(globs?.join("\n"))
        }
        (_, DeValue::String(text)) => Some(text.clone().into_owned()),
        _ => None,
    }
}

/// Number of edits that turn one word into the other (Levenshtein).
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.iter().enumerate() {
            let replace = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = replace.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use halocline_testkit::hostile::attack;

    use super::*;
    use crate::config::{CacheSize, EmulatedDevice};

    fn load_text(text: &str) -> Result<Config> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("halocline.toml");
        fs::write(&path, text).unwrap();
        load(&path)
    }

    #[test]
    fn a_file_sets_options_profiles_and_devices() {
        let config = load_text(
            "emulate = \"2xslow+ssd\"\nsize = \"2G\"\ncdt_entries = 100\npin = [\"*.{idx,h5}\"]\n\
             [profile.slow]\nkind = \"hdd\"\nrpm = 5400.0\n\
             [device.\"/mnt/ssd\"]\n\
             read = { startup_sequential_ps = 1, startup_random_ps = 2, per_byte_ps = 3 }\n\
             write = { startup_sequential_ps = 4, startup_random_ps = 5, per_byte_ps = 6 }\n",
        )
        .unwrap();
        assert_eq!(config.size, CacheSize::Bytes(2 << 30));
        assert_eq!(config.pin, ["*.{idx,h5}"]);
        let emulation = config.emulate.as_ref().unwrap();
        assert!(matches!(emulation.origin.device, EmulatedDevice::Hdd(hdd) if hdd.rpm < 5401.0));
        assert_eq!(config.origin_shape().servers, 2);
        let device = config.device(Path::new("/mnt/ssd/cache")).unwrap();
        assert_eq!((device.write.startup_random_ps, device.write.per_byte_ps), (5, 6));
        assert_eq!(config.device(Path::new("/mnt/other")), None);
    }

    #[test]
    fn complaints_name_file_line_key_and_remedy() {
        for (text, parts) in [
            ("\nsise = \"2G\"\n", &["line 2", "unknown key \"sise\"", "\"size\""][..]),
            ("\n[cache]\nsize = \"2G\"\n", &["line 2", "[cache]", "outside of any table"]),
            ("cache = { size = \"2G\" }\n", &["line 1", "[cache]", "outside of any table"]),
            ("direct = true\nsize = \"2X\"\n", &["line 2", "size", "\"2X\"", "2G"]),
            ("threads = \"four\"\n", &["line 1", "threads", "string", "a whole number"]),
            ("max_dirty_age = 30\n", &["line 1", "max_dirty_age", "30s"]),
            ("mode = \"writeback\"\n", &["line 1", "mode", "write-back"]),
            ("emulate = \"hdd+tape\"\n", &["line 1", "emulate", "tape", "hdd+ssd"]),
            ("pin = [\"a[\"]\n", &["line 1", "pin", "globs"]),
            ("size = \n", &["line 1"]),
            ("[profile.x]\nkind = \"hdd\"\nrpn = 3\n", &["[profile.x]", "rpn"]),
            ("[profile.x]\nkind = \"ssd\"\nchannels = 4294967295\n", &["[profile.x]", "channels"]),
            ("[profile.x]\nkind = \"hdd\"\nrpm = nan\n", &["[profile.x]", "rpm", "NaN"]),
            ("[profile.x]\nkind = \"ssd\"\nread_startup_us = -1.0\n", &["read_startup_us"]),
            ("[profile.x]\nkind = \"hdd\"\nmb_per_s = 0.0\n", &["mb_per_s"]),
            ("threads = 100000\n", &["line 1", "threads"]),
            ("max_dirty_age = \"99999999999d\"\n", &["line 1", "max_dirty_age"]),
            ("[device.\"/a\"]\nread = 3\n", &["[device./a]"]),
            (
                "[device.\"/a\"]\n\
                 read = { startup_sequential_ps = 1, startup_random_ps = 9223372036854775807, per_byte_ps = 3 }\n\
                 write = { startup_sequential_ps = 4, startup_random_ps = 5, per_byte_ps = 6 }\n",
                &["[device./a]", "read.startup_random_ps"],
            ),
            ("[device.\"/a\"]\nread = { startup_ps = 3 }\n", &["startup_ps", "per_byte_ps"]),
        ] {
            let error = load_text(text).unwrap_err().to_string();
            for part in parts.iter().chain(&["halocline.toml"]) {
                assert!(error.contains(part), "{text:?} answers {error:?} without {part:?}");
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_a_configuration_or_refused(text: String, key in 0..OPTIONS.len(), number: i64) {
            let _ = load_text(&text);
            let key = OPTIONS[key].key;
            let _ = load_text(&format!("{key} = {number}\n"));
            let _ = load_text(&format!("{key} = {text:?}\n"));
            let _ = load_text(&format!("{key} = \"{number}{text}\"\n"));
            let _ = load_text(&format!("[profile.x]\nkind = \"ssd\"\nchannels = {number}\n"));
        }
    }

    /// A modified result of `calibrate` is refused, or the cost models can calculate with it.
    #[test]
    fn hostile_calibrations_are_refused_or_can_be_counted_with() {
        let sample = "[device.\"/mnt/hdd\"]\n\
             read = { startup_sequential_ps = 100000000, startup_random_ps = 12170000000, per_byte_ps = 8333 }\n\
             write = { startup_sequential_ps = 100000000, startup_random_ps = 12170000000, per_byte_ps = 8333 }\n\n\
             [device.\"/mnt/ssd\".read]\nstartup_sequential_ps = 0\nstartup_random_ps = 60000000\n\
             per_byte_ps = 1351\n[device.\"/mnt/ssd\".write]\nstartup_sequential_ps = 80000000\n\
             startup_random_ps = 80000000\nper_byte_ps = 1429\n";
        let other = b"[device.x]\nread = { startup_sequential_ps = 1152921504606846976, startup_random_ps = 1.5, \
            per_byte_ps = 4294967296 }\nwrite = nan\n[device]\ny = 3\n";
        let mut accepted = 0;
        attack(&[sample.as_bytes(), other], 10_000, |bytes| {
            let Ok(text) = std::str::from_utf8(bytes) else { return };
            let Ok(config) = load_text(text) else { return };
            for profile in config.devices.values() {
                accepted += 1;
                for service in [&profile.read, &profile.write] {
                    let startup = service.startup_sequential_ps.max(service.startup_random_ps);
                    let longest = (1 << 30) * u128::from(service.per_byte_ps);
                    let sum = u128::from(startup) + longest;
                    assert!(u64::try_from(sum).is_ok(), "{profile:?}");
                }
            }
        });
        assert!(accepted > 100, "{accepted} were accepted");
    }
}
