//! Writes measured directories as the servers of a plan (docs/SIMULATOR.md, Servers).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use halocline_os::error::Error;
use halocline_storage::calibrate::{Calibration, NetworkCost};
use toml_edit::{ArrayOfTables, DocumentMut, InlineTable, Item, Table, Value, value};

use super::table_of;
use crate::command::server_file::ServerSpace;
use crate::failure::Failure;
use crate::output;
use crate::print::tell;
use crate::text;

/// Writes each directory with its device, its network path, and its space: what is free, and what the files of a striped
/// volume have of it.
pub(super) fn write(file: &Path, measured: &[(PathBuf, Calibration)]) -> Result<(), Failure> {
    let (mut tables, mut profiles) = (ArrayOfTables::new(), Table::new());
    profiles.set_implicit(true);
    let names = names(measured.iter().map(|(dir, _)| dir.as_path()));
    for ((dir, found), name) in measured.iter().zip(names) {
        let space = ServerSpace::of(dir)?;
        if space.own > 0 {
            let (free, own) = (text::bytes(space.free), text::bytes(space.own));
            let dir = text::path(dir);
            tell!(
                "halocline: {dir}: {free} free, and {own} of the volume's files, which a plan may move: its capacity is both"
            );
        }
        let path = dir.to_str().expect("refused before anything is measured");
        let mut table = Table::new();
        table["name"] = value(&name);
        table["directory"] = value(path);
        table["profile"] = value(&name);
        table["capacity"] = value(i64::try_from(space.capacity()).unwrap_or(i64::MAX));
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
    Ok(output::write(file, document.to_string()).map_err(Error::at(file, "write"))?)
}

/// A name for each directory: its own, or where another one has that, with a number behind it.
fn names<'d>(dirs: impl Iterator<Item = &'d Path>) -> Vec<String> {
    let mut taken = BTreeSet::new();
    let mut names = Vec::new();
    for (number, dir) in dirs.enumerate() {
        let base = dir.file_name().map(|name| name.to_string_lossy().into_owned());
        let base = base.unwrap_or_else(|| format!("s{number}"));
        let numbered = (number..).map(|number| format!("{base}-{number}"));
        let mut all = std::iter::once(base.clone()).chain(numbered);
        let name = all.find(|name| !taken.contains(name)).expect("numbers without end");
        taken.insert(name.clone());
        names.push(name);
    }
    names
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory's own name could be one that had been made for another: no command took the file.
    #[test]
    fn no_two_servers_have_one_name() {
        let dirs = ["/a/s-2", "/b/s", "/c/s", "/d/s-3", "/", "/e/s4", "/", "/f/s"];
        let named = names(dirs.iter().map(Path::new));
        assert_eq!(named, ["s-2", "s", "s-3", "s-3-3", "s4", "s4-5", "s6", "s-7"]);
    }
}
