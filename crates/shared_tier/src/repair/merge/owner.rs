//! Owners of directories.

use halocline_cluster::names::attributes::Attributes;

/// A directory's owner, and who else may make names in it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Owner {
    pub(super) uid: u32,
    gid: u32,
    mode: u32,
}

impl Owner {
    pub(super) const fn of(attributes: &Attributes) -> Self {
        Self { uid: attributes.uid, gid: attributes.gid, mode: attributes.mode }
    }

    /// Whether everybody who may write a file, and therefore its attributes, may make names in this directory.
    pub(super) const fn admits_writers_of(&self, file: &Attributes) -> bool {
        let is_open = self.mode & 0o002 != 0;
        let admits_group = is_open || self.mode & 0o020 != 0 && self.gid == file.gid;
        (file.mode & 0o002 == 0 || is_open) && (file.mode & 0o020 == 0 || admits_group)
    }
}
