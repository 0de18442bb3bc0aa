//! The labels of a tier of one node: which directories it consists of, and where these were at its mounts.

use std::path::{Path, PathBuf};

use halocline_api::file_tier::{LABEL, Label};
use halocline_os::bounded;
use halocline_os::error::{Error, Result};

use crate::places::tree::Tree;

/// Which tier of a set the disk below is, if there are only two.
const BELOW: usize = 1;

fn read(tree: &Tree) -> Result<Option<Label>> {
    let Some(json) = tree.private.read(LABEL, bounded::SMALL_FILE_BYTES_MAX)? else {
        return Ok(None);
    };
    serde_json::from_slice(&json).map(Some).map_err(|error| {
        let what = format!("{}: {error}", tree.private.path().join(LABEL).display());
        Error::invalid(what, "restore the file")
    })
}

/// The directories in which the disk below was at the mounts of a tier of one node.
///
/// # Errors
/// [`Error::Invalid`] if it was never mounted, or does not consist of these two directories.
pub(super) fn roots(ssd: &Tree, shared: &Tree, root: &Path) -> Result<Vec<PathBuf>> {
    let Some(label) = read(ssd)? else {
        return Err(Error::invalid(
            format!(
                "{} has no {LABEL}: it was never mounted as a tier",
                ssd.private.path().display()
            ),
            "mount it with --cluster, if it is new; otherwise name the ROOT of the tier",
        ));
    };
    if label.tier != 0 || label.roots.iter().any(|(_, tier)| *tier > BELOW) {
        return Err(Error::invalid(
            format!("{}: this tier does not consist of ssd and hdd alone", root.display()),
            "copy its files out of its mount",
        ));
    }
    let is_below = |below: &Label| below.set == label.set && below.tier == BELOW;
    if !read(shared)?.is_some_and(|below| is_below(&below)) {
        return Err(Error::invalid(
            format!("{} is not the disk below of this tier", shared.path.display()),
            "mount its device there first",
        ));
    }
    Ok(label.roots.into_iter().map(|(path, _)| path).collect())
}
