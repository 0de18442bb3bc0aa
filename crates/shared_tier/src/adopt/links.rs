//! What symbolic links on the SSD of a tier of one node mean: files on the disk below, or links of users.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use halocline_api::file_tier::link_targets::{ESCAPE, NUMBERS_BEFORE_S, SHARED};
use halocline_cluster::names::attributes::{Attributes, RelativePath};
use halocline_os::process_user::own_uid;
use rustix::fs::stat;
use rustix::io::Errno;

/// Times of the tier's own links before this one stand for numbers of files.
const NUMBERS_BEFORE_NS: i64 = NUMBERS_BEFORE_S * 1_000_000_000;

/// What a link on the SSD means.
pub(super) enum Link {
    /// A file below, at this path.
    Below(RelativePath),
    /// One of a user, with this target.
    Users(Vec<u8>),
}

/// Knows the tier's own links.
pub(super) struct Links {
    /// The directories that own links name, with a slash.
    roots: Vec<Vec<u8>>,
}

impl Links {
    /// `roots` are the present directory of the disk below and those of earlier mounts: their links were not changed.
    pub(super) fn new(roots: impl IntoIterator<Item = PathBuf>) -> Self {
        let slashed = |root: PathBuf| [root.as_os_str().as_bytes(), b"/"].concat();
        let mut roots: Vec<_> = roots.into_iter().map(slashed).collect();
        // If one root is inside another, the inner one is meant.
        roots.sort_by_key(|root| std::cmp::Reverse(root.len()));
        Self { roots }
    }

    fn split<'t>(&self, target: &'t [u8]) -> Option<(&[u8], &'t [u8])> {
        let mut roots = self.roots.iter();
        roots.find_map(|root| Some((root.as_slice(), target.strip_prefix(root.as_slice())?)))
    }

    /// What a link with these attributes means.
    pub(super) fn read(&self, of: &Attributes) -> Link {
        let target = of.target.as_slice();
        let Some((root, rest)) = self.split(target) else { return Link::Users(target.to_vec()) };
        if let Some(rest) = rest.strip_prefix(ESCAPE) {
            return Link::Users([root, rest].concat());
        }
        let rest = rest.strip_prefix(SHARED).unwrap_or(rest);
        // Nobody else can give us a link.
        match RelativePath::new(rest).filter(|_| of.uid == own_uid()) {
            Some(path) => Link::Below(path),
            None => Link::Users(target.to_vec()),
        }
    }

    /// Whether this link to a file below may have several names.
    pub(super) fn is_shared(&self, of: &Attributes) -> bool {
        self.split(&of.target).is_some_and(|(_, rest)| rest.starts_with(SHARED))
    }

    /// Whether a link that names no root looks like one of the tier, whose directory it does not know any more: it leads
    /// nowhere, and its time stands for the number of a file, or it ends like the path of a file below (`is_below`) to
    /// which no other link leads.
    pub(super) fn is_forgotten(
        &self,
        of: &Attributes,
        is_below: impl Fn(&RelativePath) -> bool,
    ) -> bool {
        let target = of.target.as_slice();
        if of.uid != own_uid() || !target.starts_with(b"/") || self.split(target).is_some() {
            return false;
        }
        if !matches!(stat(target), Err(Errno::NOENT | Errno::NOTDIR)) {
            return false;
        }
        let slashes = target.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        let mut ends = slashes.filter_map(|(at, _)| RelativePath::new(&target[at + 1..]));
        (1..NUMBERS_BEFORE_NS).contains(&of.mtime_ns) || ends.any(|end| is_below(&end))
    }
}
