//! Paths of objects on a server: `objects/<2 hex>/<16 hex>.<layout><group>`, which is the file's number, its lowest
//! byte as the directory, and the placement. `docs/FORMAT.md` documents this for users.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use halocline_model::layout::{Layout, Placement};

/// The directory on each server.
pub(super) const ROOT: &str = "objects";

/// The directory with the layouts of a striped origin's objects, on its first server.
pub(super) const LAYOUTS: &str = "layouts";

/// Identifies one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// The file's number in the cache.
    pub file: u64,
    /// The placement of its bytes on the servers.
    pub placement: Placement,
}

pub(super) fn directory_of(file: u64) -> PathBuf {
    Path::new(ROOT).join(format!("{:02x}", file & 0xff))
}

pub(super) fn path_of(key: ObjectKey) -> PathBuf {
    let Placement { layout, group } = key.placement;
    directory_of(key.file).join(format!("{:016x}.{}{group}", key.file, layout.name()))
}

/// The object with this name, if it is exactly what [`path_of`] makes.
pub(super) fn parse(name: &OsStr) -> Option<ObjectKey> {
    let (number, placement) = name.to_str()?.split_once('.')?;
    let file = u64::from_str_radix(number, 16).ok()?;
    Layout::ALL.into_iter().find_map(|layout| {
        let group = placement.strip_prefix(layout.name())?.parse().ok()?;
        let key = ObjectKey { file, placement: Placement { layout, group } };
        (path_of(key).file_name()? == name).then_some(key)
    })
}
