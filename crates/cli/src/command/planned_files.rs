//! The files of a plan, as a trace of another run names them.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

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

/// What paths of a plan begin with: `below` as it is given or, if none of them does, the path of the directory to which that
/// leads, because recorded paths have no symbolic links.
pub(super) fn below_of<'b>(below: Option<&'b Path>, plan: &Plan) -> Option<Cow<'b, Path>> {
    let below = below?;
    let is_used = |below: &Path| {
        let mut paths = plan.file.iter().filter_map(PlannedFile::path_bytes);
        paths.any(|path| Path::new(OsStr::from_bytes(&path)).starts_with(below))
    };
    let canonical = || fs::canonicalize(below).ok().filter(|canonical| is_used(canonical));
    let other = if is_used(below) { None } else { canonical() };
    Some(other.map_or(Cow::Borrowed(below), Cow::Owned))
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
