//! The directories of one mount.

use std::path::PathBuf;
use std::sync::Arc;

use halocline_fuse::PrivateView;

/// The directories of a mount.
#[derive(Debug, Clone)]
pub(crate) struct MountPaths {
    /// The origin.
    pub(crate) origin: PathBuf,
    /// The cache.
    pub(crate) cache: PathBuf,
    /// The mount point; may be the origin.
    pub(crate) mountpoint: PathBuf,
    /// Who will see the mount, if not everyone who sees the mount point.
    pub(crate) view: Option<Arc<PrivateView>>,
}
