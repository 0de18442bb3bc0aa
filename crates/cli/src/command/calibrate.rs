//! `halocline calibrate`: measure devices and remember them in the configuration, or as the servers of a plan.

mod servers;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use halocline_api::config::{Config, EmulatedDevice};
use halocline_api::control::{Progress, path_as_json};
use halocline_model::profile::{DeviceProfile, ServiceProfile};
use halocline_os::bounded;
use halocline_os::error::Error;
use halocline_storage::calibrate::{Calibration, Effort, NetworkCost, calibrate, is_remote};
use halocline_storage::device::Device;
use halocline_storage::device::emulate::EmulatedServer;
use halocline_storage::device::local::LocalDevice;
use serde::Serialize;
use toml_edit::{DocumentMut, InlineTable, Item, Table, Value};

use super::print_json;
use crate::failure::{Failure, Outcome};
use crate::options::{bytes_within, user_file};
use crate::output;
use crate::preflight;
use crate::print::{self, say, tell};
use crate::progress::Meter;
use crate::replaceable::ResultKind;
use crate::text;

/// Longest configuration that is extended, the same as the longest that is read.
const CONFIG_BYTES_MAX: u64 = 16 << 20;

/// Measure startup and per-byte time of devices, and write them to the configuration or as servers of a plan
///
/// Issues thousands of reads and writes, sequential and random, to a scratch file without a name
/// in each directory. Nothing else should use the devices meanwhile. Where a directory may be on another machine, the way
/// there is told from the device: by reading again and again what the server has in memory.
#[derive(Debug, Args)]
pub(crate) struct CalibrateArgs {
    /// Directories, one on each device: the origin, the cache
    #[arg(required = true)]
    dirs: Vec<PathBuf>,
    /// Configuration file to write to; without it the user's own
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Write the directories as servers to this file instead, for plan, simulate and advise, in this order
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    servers: Option<PathBuf>,
    /// Size of the scratch file, from 2M to 64T: the larger, the better random requests on a disk are
    /// measured
    #[arg(long, default_value = "1G", value_name = "BYTES", value_parser = span, allow_hyphen_values = true)]
    span: u64,
    /// Requests for each direction, pattern and size, from 1 to 1000000
    #[arg(long, default_value_t = 200, value_name = "NUMBER", allow_hyphen_values = true, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    requests: u32,
    /// Measure an emulated device (hdd, ssd, or a [profile.NAME] of the configuration) instead
    #[arg(long, value_name = "NAME")]
    emulate_as: Option<String>,
    /// Only show what was measured
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// What was measured in one directory.
#[derive(Debug, Serialize)]
struct Measured<'a> {
    #[serde(serialize_with = "path_as_json")]
    path: &'a Path,
    #[serde(flatten)]
    profile: &'a DeviceProfile,
    /// The network path to another machine, which the profile has in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(rename = "way")]
    network: Option<NetworkCost>,
}

/// Twice the largest request that is measured, at least.
fn span(text: &str) -> Result<u64, String> {
    bytes_within(text, 2 << 20, 64 << 40)
}

/// Measures and writes.
pub(crate) fn execute(args: &CalibrateArgs) -> Outcome {
    let file = args.config.clone().map_or_else(user_file, |file| Ok(Some(file)));
    let Some(file) = file.map_err(Failure::refused)? else {
        return Err(Failure::refused("$HOME is not set: name a configuration with --config"));
    };
    let config = if file.exists() { Config::load(&file) } else { Ok(Config::default()) };
    let config = config.map_err(Failure::refused)?;
    let emulated = emulated(args, &config)?;
    let mut measured = Vec::new();
    for dir in usable(args)? {
        let found = measure(args, &dir, emulated)?;
        if !found.direct && emulated.is_none() {
            tell!(
                "halocline: {}: the page cache cannot be passed by (no O_DIRECT); reads may have \
                 measured memory",
                text::path(&dir)
            );
        }
        measured.push((dir, found));
    }
    if args.json {
        let measured = measured.iter().map(|(path, found)| Measured {
            path,
            profile: &found.profile,
            network: found.network,
        });
        print_json(&measured.collect::<Vec<_>>())?;
    } else {
        for (dir, found) in &measured {
            print::lines(&describe(dir, found));
        }
    }
    if !args.dry_run {
        let file = args.servers.as_ref().unwrap_or(&file);
        match &args.servers {
            Some(file) => servers::write(file, &measured)?,
            None => write(file, &measured)?,
        }
        // Standard output is only for the JSON.
        let written = format!("written to {}", text::path(file));
        if args.json { tell!("{written}") } else { say!("{written}") }
    }
    Ok(ExitCode::SUCCESS)
}

/// The directories, by canonical paths. Nothing is measured where one of them, or the file to be written, cannot be used.
fn usable(args: &CalibrateArgs) -> Result<Vec<PathBuf>, Failure> {
    if let Some(file) = args.servers.as_ref().filter(|_| !args.dry_run) {
        preflight::report_file(file, ResultKind::Servers).map_err(Failure::refused)?;
    }
    let usable = |named: &PathBuf| {
        let dir = fs::canonicalize(named).and_then(|dir| fs::read_dir(&dir).map(|_| dir));
        let dir = dir.map_err(|error| Failure::unusable(named, &error))?;
        // In the configuration it would be another directory's name.
        if !args.dry_run && dir.to_str().is_none() {
            let what = format!("{}: no TOML can name it: it is not UTF-8", text::path(&dir));
            return Err(Failure::refused(what));
        }
        Ok(dir)
    };
    args.dirs.iter().map(usable).collect()
}

fn emulated(args: &CalibrateArgs, config: &Config) -> Result<Option<EmulatedDevice>, Failure> {
    let Some(name) = &args.emulate_as else { return Ok(None) };
    EmulatedDevice::named(name, &config.profiles).map(Some).ok_or_else(|| {
        Failure::refused(format!(
            "--emulate-as {name:?}: give hdd, ssd, or a [profile.NAME] of the configuration"
        ))
    })
}

fn measure(
    args: &CalibrateArgs,
    dir: &Path,
    emulated: Option<EmulatedDevice>,
) -> Result<Calibration, Failure> {
    let local: Arc<dyn Device> = Arc::new(LocalDevice::open(dir)?);
    let device = match emulated {
        Some(profile) => Arc::new(EmulatedServer::new(profile, local)),
        None => local,
    };
    let effort = Effort {
        span: args.span,
        requests: args.requests as usize,
        direct: emulated.is_none(),
        network: emulated.is_none() && is_remote(dir)?,
        ..Effort::default()
    };
    let mut meter = Meter::of_requests("measuring", args.json);
    let mut tell = |done_bytes, total_bytes| {
        meter.tell(&Progress { done_bytes, total_bytes, path: dir.to_owned() });
    };
    Ok(calibrate(dir, &*device, &effort, &mut tell)?)
}

#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn describe(dir: &Path, found: &Calibration) -> String {
    let profile = &found.profile;
    let mut out = format!("{}\n", text::path(dir));
    for (name, direction) in [("read", &profile.read), ("write", &profile.write)] {
        let rate = 1e6 / direction.per_byte_ps.max(1) as f64;
        let startup = |time_ps: u64| text::seconds(time_ps as f64 * 1e-12);
        out += &[
            format!(
                "  {name:<6} startup {} sequential, ",
                startup(direction.startup_sequential_ps)
            ),
            format!("{} random; {rate:.0} MB/s\n", startup(direction.startup_random_ps)),
        ]
        .concat();
    }
    if let Some(network) = &found.network {
        let rate = 1e6 / network.per_byte_ps.max(1) as f64;
        let startup = text::seconds(network.startup_ps as f64 * 1e-12);
        out +=
            &["  of that, the way there: ", &startup, &format!(" for a request; {rate:.0} MB/s\n")]
                .concat();
    }
    out
}

/// Adds the measured devices to the file and leaves the rest of it, including comments, unchanged.
fn write(file: &Path, measured: &[(PathBuf, Calibration)]) -> Result<(), Failure> {
    let text = match bounded::read_to_string(file, CONFIG_BYTES_MAX) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        // A file that cannot be read is not replaced.
        text => text.map_err(Error::at(file, "read"))?,
    };
    let mut document: DocumentMut = text.parse().map_err(|error: toml_edit::TomlError| {
        Failure::failed(format!("{}: {}", file.display(), error.message()))
    })?;
    let devices = document.entry("device").or_insert_with(|| {
        let mut table = Table::new();
        table.set_implicit(true);
        Item::Table(table)
    });
    for (dir, found) in measured {
        devices[&*dir.to_string_lossy()] = Item::Table(table_of(&found.profile));
    }
    if let Some(parent) = file.parent() {
        fs::create_dir_all(parent).map_err(Error::at(parent, "create the directory"))?;
    }
    Ok(output::write(file, document.to_string()).map_err(Error::at(file, "write"))?)
}

fn table_of(profile: &DeviceProfile) -> Table {
    let mut table = Table::new();
    for (name, direction) in [("read", &profile.read), ("write", &profile.write)] {
        let ServiceProfile { startup_sequential_ps, startup_random_ps, per_byte_ps } = *direction;
        let mut values = InlineTable::new();
        for (key, number) in [
            ("startup_sequential_ps", startup_sequential_ps),
            ("startup_random_ps", startup_random_ps),
            ("per_byte_ps", per_byte_ps),
        ] {
            values.insert(key, i64::try_from(number).unwrap_or(i64::MAX).into());
        }
        table[name] = Item::Value(Value::InlineTable(values));
    }
    table
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn writing_keeps_the_rest_and_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("sub/c.toml");
        let direction = |n| ServiceProfile {
            startup_sequential_ps: n,
            startup_random_ps: n + 1,
            per_byte_ps: 9,
        };
        let of = |profile| Calibration { profile, direct: true, network: None, requests: 1 };
        let (old, new) = [(1, 3), (5, 7)]
            .map(|(read, write)| DeviceProfile { read: direction(read), write: direction(write) })
            .into();
        write(&file, &[("/mnt/a b".into(), of(old)), ("/mnt/c".into(), of(old))]).unwrap();
        let text =
            format!("# by hand\ndirect = true # yes\n\n{}", fs::read_to_string(&file).unwrap());
        fs::write(&file, text).unwrap();
        write(&file, &[("/mnt/a b".into(), of(new))]).unwrap();
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.starts_with("# by hand\ndirect = true # yes\n"), "{text}");
        let config = Config::load(&file).unwrap();
        assert!(config.direct);
        assert_eq!(config.device(Path::new("/mnt/a b")), Some(&new));
        assert_eq!(config.device(Path::new("/mnt/c")), Some(&old));
        // No one else could read it, and it is a link's target.
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        let link = dir.path().join("link.toml");
        symlink(&file, &link).unwrap();
        write(&link, &[("/mnt/d".into(), of(new))]).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(Config::load(&file).unwrap().device(Path::new("/mnt/d")).is_some());
    }

    #[test]
    fn a_configuration_that_cannot_be_read_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.toml");
        let text = b"# by J\xf6rg\ndirect = true\n";
        fs::write(&file, text).unwrap();
        let direction =
            ServiceProfile { startup_sequential_ps: 1, startup_random_ps: 1, per_byte_ps: 1 };
        let profile = DeviceProfile { read: direction, write: direction };
        let found = Calibration { profile, direct: true, network: None, requests: 1 };
        assert!(write(&file, &[("/mnt/a".into(), found)]).is_err());
        assert_eq!(fs::read(&file).unwrap(), text);
    }
}
