//! The parts of a striped volume are no origins of their own.
//!
//! A file in the tree of a volume has its names and sizes without its data, which would read as zeros, and what is written there past
//! the mount is never read through it. What must hold: neither the tree of a volume, nor a server, nor a directory in one of them is
//! used as an origin, by whatever path it is reached.

use std::fs;
use std::path::Path;

use super::label::{NAMESPACE, VolumeLabel};
use super::tree_mark;
use super::volume_directory::VolumeDir;
use halocline_os::error::{Error, Result};

/// Refuses a directory that is a part of a striped volume, or lies in one, unless it is a volume itself.
///
/// # Errors
/// [`Error::Invalid`] if it is; else if its path cannot be followed.
pub fn check_is_none(dir: &Path) -> Result<()> {
    if VolumeLabel::read(&VolumeDir::open(dir)?)?.is_some() {
        return Ok(());
    }
    let path = fs::canonicalize(dir).map_err(Error::at(dir, "look at"))?;
    for above in path.ancestors() {
        let volume = volume_with_part(above);
        let is_tree = volume.is_none() && tree_mark::is_on(above);
        if volume.is_none() && !is_tree {
            continue;
        }
        let (shown, part) = (dir.display(), above.display());
        let is_part = if above == path { "is".into() } else { format!("lies in {part},") };
        let what = format!(
            "{shown}: it {is_part} a part of a striped volume, whose files have their data elsewhere"
        );
        let remedy = match volume {
            Some(volume) => format!("give the volume's own directory, {}", volume.display()),
            None => format!(
                "give the directory of the volume whose names these are; if it is no part of one, remove its mark: setfattr -x \
                 {} {part}",
                tree_mark::ATTRIBUTE
            ),
        };
        return Err(Error::invalid(what, remedy));
    }
    Ok(())
}

/// Refuses a directory for files of its own, if it is a striped volume, a part of one, or lies in one.
///
/// # Errors
/// [`Error::Invalid`] if it is; else if its path cannot be followed.
pub fn check_is_outside(dir: &Path) -> Result<()> {
    let path = fs::canonicalize(dir).map_err(Error::at(dir, "look at"))?;
    let label = |dir: &Path| VolumeLabel::read(&VolumeDir::open(dir).ok()?).ok()?;
    let Some(volume) = path.ancestors().find(|above| label(above).is_some()) else {
        return check_is_none(dir);
    };
    let (is, shown) = (if volume == path { "is" } else { "lies in" }, volume.display());
    Err(Error::invalid(
        format!(
            "{}: it {is} a striped volume, which shows its files on a mount alone",
            dir.display()
        ),
        format!(
            "mount it (`halocline mount {shown} MOUNTPOINT --cache CACHE`), and name the mount point"
        ),
    ))
}

/// The directory of the volume of which `dir` is the tree or a server.
fn volume_with_part(dir: &Path) -> Option<&Path> {
    let (volume, name) = (dir.parent()?, dir.file_name()?.to_str()?);
    let index = name.strip_prefix("server-").map(str::parse::<u32>);
    if name != NAMESPACE && !matches!(index, Some(Ok(_))) {
        return None;
    }
    // What cannot be read, or was not made by whom the volume belongs to, says nothing.
    let label = VolumeLabel::read(&VolumeDir::open(volume).ok()?).ok()??;
    let is_part = index.is_none_or(|index| index.is_ok_and(|index| index < label.servers));
    is_part.then_some(volume)
}
