//! Directories above a shared origin record that it is shared: a mount of one of them, on any machine, would cache the
//! same files without the nodes' tokens.
//!
//! A node records the path to its origin in an extended attribute of each directory above, as far as these are on the
//! same file system and writable. The attribute is never removed: whoever finds it checks whether there are sessions.
//! If it cannot be written, or a directory in between has been renamed since, this protection is missing.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{XattrFlags, fgetxattr, flistxattr, fsetxattr};

/// The rest of the attributes' names after their class; the inode of the origin follows.
const NAME: &str = "halocline.shared-below.";
/// The most bytes that a list of names takes: the kernel's own limit.
const NAMES_BYTES_MAX: usize = 1 << 16;
/// The longest path that is recorded or accepted, in bytes.
const WAY_BYTES_MAX: usize = 1024;
/// The most origins below one directory that are examined.
const ORIGINS_MAX: usize = 64;

/// Records in the directories above an origin, given as a real path, that it is shared.
pub fn note_above(origin: &Path) {
    let Ok(stat) = std::fs::metadata(origin) else { return };
    for dir in origin.ancestors().skip(1) {
        let opened = File::open(dir).and_then(|file| Ok((file.metadata()?.dev(), file)));
        let (Ok((device, file)), Ok(way)) = (opened, origin.strip_prefix(dir)) else { return };
        if device != stat.dev() || way.as_os_str().len() > WAY_BYTES_MAX {
            return;
        }
        let name = |class: &str| format!("{class}.{NAME}{:x}", stat.ino());
        let note = |class: &str| {
            fsetxattr(&file, name(class), way.as_os_str().as_bytes(), XattrFlags::empty())
        };
        // Only root may write the first one; a user who may write neither has no right to keep others from the
        // directory.
        if let Err(error) = note("trusted").or_else(|_| note("user")) {
            tracing::debug!(
                "{}: not noted that {} is shared: {error}",
                dir.display(),
                origin.display()
            );
        }
    }
}

/// Directories below `dir` that may be shared origins, as recorded by nodes.
pub fn noted_below(dir: &Path) -> Vec<PathBuf> {
    let mut names = vec![0; NAMES_BYTES_MAX];
    let Ok(file) = File::open(dir) else { return Vec::new() };
    let length = flistxattr(&file, &mut names[..]).unwrap_or(0);
    let way = |name: &[u8]| {
        let mut way = vec![0; WAY_BYTES_MAX];
        let length = fgetxattr(&file, OsStr::from_bytes(name), &mut way[..]).ok()?;
        way_of(&way[..length]).map(|way| dir.join(way))
    };
    notes_in(&names[..length]).filter_map(way).collect()
}

/// The names of our attributes in a list of names, ended by NUL each.
fn notes_in(names: &[u8]) -> impl Iterator<Item = &[u8]> {
    let classes = [format!("trusted.{NAME}"), format!("user.{NAME}")];
    let is_note =
        move |name: &&[u8]| classes.iter().any(|class| name.starts_with(class.as_bytes()));
    names.split(|byte| *byte == 0).filter(is_note).take(ORIGINS_MAX)
}

/// The path from a directory to an origin below it, as anyone who may write to the directory may have written it.
fn way_of(value: &[u8]) -> Option<&Path> {
    let way = Path::new(OsStr::from_bytes(value));
    let is_below = way.components().all(|part| matches!(part, Component::Normal(_)));
    (is_below && !value.is_empty()).then_some(way)
}

/// What directories above an origin say: body of a fuzz target (`crate::fuzzing`).
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing {
    use super::{NAME, ORIGINS_MAX, Path, notes_in, way_of};

    /// A list of names of attributes, or the value of one: few origins are looked at, and none outside.
    pub fn way_below(bytes: &[u8]) {
        assert!(notes_in(bytes).count() <= ORIGINS_MAX);
        for name in notes_in(bytes) {
            assert!(name.len() > NAME.len() && !name.contains(&0));
        }
        let Some(way) = way_of(bytes) else { return };
        let dir = Path::new("/mnt/disks");
        let origin = dir.join(way);
        assert!(origin.starts_with(dir) && origin != dir);
        assert_eq!(origin.components().count(), 3 + way.components().count());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_that_lead_elsewhere_are_not_believed() {
        let place = tempfile::tempdir().unwrap();
        let inner = place.path().join("a/b");
        std::fs::create_dir_all(&inner).unwrap();
        note_above(&inner);
        let noted = noted_below(place.path());
        if noted.is_empty() {
            return halocline_testkit::skipping::skip("no extended attributes here");
        }
        assert_eq!(noted, [inner.as_path()]);
        assert_eq!(noted_below(&place.path().join("a")), [inner]);
        let file = File::open(place.path()).unwrap();
        for (number, way) in ["/etc", "../x", "", "a/../../x"].into_iter().enumerate() {
            let name = format!("user.{NAME}f{number}");
            let _ = fsetxattr(&file, name, way.as_bytes(), XattrFlags::empty());
        }
        assert_eq!(noted_below(place.path()).len(), 1);
    }
}
