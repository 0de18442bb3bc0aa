//! The files of the origin that a cache knows.

use std::path::PathBuf;

use halocline_api::config::Binding;
use halocline_cache::judging::judge;
use halocline_cache::path_lookup;
use halocline_meta::lease::{Evidence, Verdict};
use halocline_meta::{FileRecord, Stamp};
use halocline_os::error::Result;
use halocline_storage::volume::Origin;
use halocline_vfs::namespace::{Namespace, Vnode};

/// The origin's tree and its path, or why it cannot be examined.
pub(super) struct OriginFiles(Result<(Namespace, PathBuf), String>);

impl OriginFiles {
    /// The tree of the origin that a cache belongs to.
    pub(super) fn of(binding: &Binding) -> Self {
        let open = || {
            binding.check_origin()?;
            let dir = Origin::tree_in(&binding.origin)?;
            Ok((Namespace::open(&dir)?, dir))
        };
        let opened: Result<_> = open();
        Self(opened.map_err(|error| error.to_string()))
    }

    /// Who changed a record's file since it was left, if it exists; or why that is unknown.
    pub(super) fn judge(
        &self,
        file: &FileRecord,
        evidence: Evidence,
    ) -> Result<Option<Verdict>, String> {
        let (namespace, _) = self.0.as_ref().map_err(Clone::clone)?;
        let found = self.find(file)?;
        Ok(found.map(|(vnode, found)| judge(evidence, (file.stamp, found), (namespace, &vnode))))
    }

    /// A record's file with its state, if it exists; or why that is unknown.
    pub(super) fn find(&self, file: &FileRecord) -> Result<Option<(Vnode, Stamp)>, String> {
        let (namespace, dir) = self.0.as_ref().map_err(Clone::clone)?;
        let found = path_lookup::find(namespace, dir, file).map_err(|error| error.to_string())?;
        Ok(found.map(|(vnode, stat)| (vnode, Stamp::of_stat(&stat.raw))))
    }
}
