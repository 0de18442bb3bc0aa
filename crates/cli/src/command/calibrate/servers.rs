//! Writes measured directories as the servers of a plan (docs/SIMULATOR.md, Servers).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use halocline_os::error::Error;
use halocline_storage::calibrate::{Calibration, NetworkCost};
use toml_edit::{ArrayOfTables, DocumentMut, InlineTable, Item, Table, Value, value};

use super::{replace, table_of};
use crate::failure::Failure;
use crate::print::tell;
use crate::text;

/// Writes each directory with its device, its network path, and its free space.
pub(super) fn write(file: &Path, measured: &[(PathBuf, Calibration)]) -> Result<(), Failure> {
    let (mut tables, mut profiles) = (ArrayOfTables::new(), Table::new());
    profiles.set_implicit(true);
    let mut names = BTreeSet::new();
    for (number, (dir, found)) in measured.iter().enumerate() {
        let base = dir.file_name().map(|name| name.to_string_lossy().into_owned());
        let base = base.unwrap_or_else(|| format!("s{number}"));
        let name = if names.contains(&base) { format!("{base}-{number}") } else { base };
        names.insert(name.clone());
        let space = rustix::fs::statvfs(dir).map_err(std::io::Error::from);
        let space = space.map_err(Error::at(dir, "ask for free space"))?;
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        let Some(path) = dir.to_str() else {
            let what = format!("{}: no TOML can name it: it is not UTF-8", text::path(dir));
            return Err(Failure::refused(what));
        };
        let mut table = Table::new();
        table["name"] = value(&name);
        table["directory"] = value(path);
        table["profile"] = value(&name);
        // The space that a plan may use; a server without space is refused there.
        table["capacity"] = value(i64::try_from(free).unwrap_or(i64::MAX));
        if let Some(cost) = &found.network {
            table["network"] = network(*cost);
        }
        tables.push(table);
        profiles[&name] = Item::Table(table_of(&found.device()));
    }
    say_of_shared(measured)?;
    let mut document = DocumentMut::new();
    document.insert("server", Item::ArrayOfTables(tables));
    document.insert("profile", Item::Table(profiles));
    replace(file, &document)
}

#[expect(clippy::cast_precision_loss, reason = "picoseconds far below 2^52")]
fn network(cost: NetworkCost) -> Item {
    let mut network = InlineTable::new();
    network.insert("connect_us", (cost.startup_ps as f64 / 1e6).into());
    network.insert("ns_per_byte", (cost.per_byte_ps as f64 / 1e3).into());
    Item::Value(Value::InlineTable(network))
}

/// Reports servers on one file system, which share its space and its device.
fn say_of_shared(measured: &[(PathBuf, Calibration)]) -> Result<(), Failure> {
    use std::os::unix::fs::MetadataExt;
    let mut first = std::collections::BTreeMap::new();
    for (dir, _) in measured {
        let device = dir.metadata().map_err(Error::at(dir, "look at"))?.dev();
        if let Some(other) = first.insert(device, dir) {
            tell!(
                "halocline: {} and {} lie on one file system: no plan over them is worth anything; name a directory of each",
                text::path(other),
                text::path(dir)
            );
        }
    }
    Ok(())
}
