//! Data of a striped origin that no file of its tree names, which a copy of the tree does not have: of files that were moved out
//! of the tree, whose file system below it is not mounted, or that are gone.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::Origin;
use super::relayout::Leftovers;
use halocline_os::error::Result;

/// An object with data that no file names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnnamedObject {
    /// Its name.
    pub object: String,
    /// Bytes of blocks that it uses on all servers.
    pub bytes: u64,
    /// Its files on the servers.
    pub files: Vec<PathBuf>,
}

/// The objects with data in the striped origin in `origin_dir` that no file names, but for those that a move has left, of whose
/// files it is known that they have others. Changes nothing.
///
/// # Errors
/// If a server or a name cannot be read, or names change meanwhile, or the objects are not bound to the files of a copy yet: then
/// it is not known.
pub fn unnamed_objects(origin_dir: &Path) -> Result<Vec<UnnamedObject>> {
    let origin = Origin::open_to_look(origin_dir)?;
    let left = Leftovers::of(&origin)?;
    let superfluous: BTreeSet<_> = left.objects().iter().collect();
    let found = origin.orphans()?.into_iter();
    let found = found.filter(|(id, bytes)| *bytes > 0 && !superfluous.contains(id));
    let objects = found.map(|(id, bytes)| {
        let path = id.path();
        let files = origin.servers().iter().map(|server| server.dir().join(&path));
        let files = files.filter(|file| file.symlink_metadata().is_ok()).collect();
        UnnamedObject { object: id.to_string(), bytes, files }
    });
    Ok(objects.collect())
}
