//! The directories above a directory, by every mounted path.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::super::mount;
use super::names::Id;

/// A directory, or one above it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ancestor {
    /// A path that leads there.
    pub(super) path: PathBuf,
    pub(super) id: Id,
    /// The path from it to the directory whose ancestor it is; empty for that directory itself.
    pub(super) inside: PathBuf,
}

/// `dir`, absolute and without links, and the directories above it, without those that cannot be examined. If only a
/// part of a file system is mounted here (a bind mount) and more of it elsewhere, the directories above that part
/// count, too.
pub(super) fn of(dir: &Path) -> Vec<Ancestor> {
    let mut found = Vec::new();
    add(&mut found, dir, dir, Path::new(""));
    for (outer, inside) in mount::wider_paths(dir).unwrap_or_default() {
        add(&mut found, &outer, &outer, &inside);
    }
    found
}

/// Adds `path` and the directories above it; `inside` is the part of the path below `path`.
fn add(found: &mut Vec<Ancestor>, dir: &Path, path: &Path, inside: &Path) {
    for above in path.ancestors() {
        let Ok(seen) = fs::metadata(above) else { continue };
        let id = (seen.dev(), seen.ino());
        if found.iter().any(|other| other.id == id) {
            continue;
        }
        let rest = dir.strip_prefix(above).unwrap_or(Path::new(""));
        let inside =
            if inside.as_os_str().is_empty() { rest.to_owned() } else { rest.join(inside) };
        found.push(Ancestor { path: above.to_owned(), id, inside });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_above_a_directory_is_found() {
        let scratch = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(scratch.path()).unwrap();
        let dir = root.join("a/b");
        fs::create_dir_all(&dir).unwrap();
        let found = of(&dir);
        assert_eq!((&found[0].path, &found[0].inside), (&dir, &PathBuf::new()));
        assert_eq!((&found[1].path, &found[1].inside), (&root.join("a"), &PathBuf::from("b")));
        assert_eq!((&found[2].path, &found[2].inside), (&root, &PathBuf::from("a/b")));
        assert!(found.iter().any(|above| above.path == Path::new("/")));
    }
}
