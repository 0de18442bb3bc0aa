//! The files of a plan, as a trace of another run names them.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use halocline_plan::plan_file::{Plan, PlannedFile};
use halocline_trace::{Kind, Source};

/// A path of a plan as it is below the mount; `None` if it is not below `below`, what such paths begin with.
pub(super) fn path_below_mount<'p>(below: Option<&Path>, path: &'p Path) -> Option<&'p Path> {
    let inside = match below {
        None => path,
        Some(below) => path.strip_prefix(below).ok()?,
    };
    Some(inside.strip_prefix("/").unwrap_or(inside))
}

/// What paths of a plan begin with: `below` as it is given or, if none of them does, the absolute path without symbolic links
/// to which that leads, as recorded paths are.
pub(super) fn below_of<'b>(below: Option<&'b Path>, plan: &Plan) -> Option<Cow<'b, Path>> {
    let below = below?;
    let is_used = |below: &Path| {
        let mut paths = plan.file.iter().filter_map(PlannedFile::path_bytes);
        paths.any(|path| Path::new(OsStr::from_bytes(&path)).starts_with(below))
    };
    let resolved = || resolved(below).filter(|resolved| is_used(resolved));
    let other = if is_used(below) { None } else { resolved() };
    Some(other.map_or(Cow::Borrowed(below), Cow::Owned))
}

/// The absolute path without symbolic links to which `path` leads, as far as it exists: a mount point may be gone by now.
pub(super) fn resolved(path: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    let real = |above: &Path| {
        let rest = path.strip_prefix(above).ok()?;
        Some(fs::canonicalize(above).ok()?.join(rest))
    };
    path.ancestors().find_map(real)
}

/// The directories that paths of a plan begin with, those of the most files first: the longest that all of them have that
/// begin with the same name.
pub(super) fn beginnings(plan: &Plan) -> Vec<PathBuf> {
    let mut known: HashMap<PathBuf, (PathBuf, usize)> = HashMap::new();
    for path in plan.file.iter().filter_map(PlannedFile::path_bytes) {
        let path = PathBuf::from(OsString::from_vec(path));
        let dir = path.parent().unwrap_or(&path);
        let first = path.components().find(|part| matches!(part, Component::Normal(_)));
        let first = first.map_or_else(PathBuf::new, |first| first.as_os_str().into());
        let (common, files) = known.entry(first).or_insert_with(|| (dir.to_owned(), 0));
        let both = common.components().zip(dir.components()).take_while(|(a, b)| a == b);
        *common = both.map(|(part, _)| part).collect();
        *files += 1;
    }
    let mut known: Vec<_> = known.into_values().collect();
    known.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    known.dedup_by(|a, b| a.0 == b.0);
    known.into_iter().map(|(dir, _)| dir).collect()
}

/// The files of a plan by their paths. A run's mount need not be where that of the plan's trace was: of what a mount
/// recorded, paths below it are compared with those of the plan below what `--below` takes off.
#[derive(Debug)]
pub(super) struct PlannedFiles<'p> {
    by_path: HashMap<PathBuf, &'p PlannedFile>,
    by_path_below: HashMap<PathBuf, &'p PlannedFile>,
}

impl<'p> PlannedFiles<'p> {
    pub(super) fn new(plan: &'p Plan, below: Option<&Path>) -> Self {
        let (mut by_path, mut by_path_below) = (HashMap::new(), HashMap::new());
        let below = below_of(below, plan);
        for file in &plan.file {
            let Some(name) = file.path_bytes() else { continue };
            let name = PathBuf::from(OsString::from_vec(name));
            let inside = path_below_mount(below.as_deref(), &name).map(Path::to_owned);
            by_path_below.extend(inside.map(|inside| (inside, file)));
            by_path.insert(name, file);
        }
        Self { by_path, by_path_below }
    }

    /// What the plan has for the file that a trace from `source` calls `name`.
    pub(super) fn find(&self, name: &[u8], source: &Source) -> Option<&'p PlannedFile> {
        let name = Path::new(OsStr::from_bytes(name));
        let is_of_a_mount = matches!(source.kind, Kind::Mount | Kind::MountDirect);
        let mountpoint = Path::new(OsStr::from_bytes(&source.name));
        let below = || self.by_path_below.get(name.strip_prefix(mountpoint).ok()?);
        self.by_path.get(name).or_else(|| if is_of_a_mount { below() } else { None }).copied()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_is_given_leads_to_the_path_that_was_recorded() {
        let scratch = tempfile::tempdir().unwrap();
        let real = fs::canonicalize(scratch.path()).unwrap();
        symlink(&real, real.join("link")).unwrap();
        // A mount point that is gone, too.
        assert_eq!(resolved(&real.join("link/gone/dir")), Some(real.join("gone/dir")));
        assert_eq!(resolved(&real.join("link")), Some(real));
        let here = std::env::current_dir().and_then(fs::canonicalize).unwrap();
        assert_eq!(resolved(Path::new("src")), Some(here.join("src")));
        assert_eq!(resolved(Path::new("gone")), Some(here.join("gone")));
    }
}
