//! Where files are, for people: what `where`, `explain` and lists of files say of each.

use std::path::Path;

use halocline_api::control::FileInfo;
use halocline_api::file_tier::not_found;
use halocline_cluster::names::attributes::Kind;
use halocline_os::error::Result;

use crate::base::Base;
use crate::lookup::{FoundInode, Lookup};
use crate::ssd::executor::Executor;

/// Says where files are. Read-only.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileInfos<'a> {
    pub(crate) base: &'a Base,
    pub(crate) lookup: &'a Lookup,
    pub(crate) executor: &'a Executor,
}

impl FileInfos<'_> {
    /// What is at a path below the root.
    pub(crate) fn find(self, path: &Path) -> Result<FoundInode> {
        let at = self.base.at(path);
        let (name, stored) = at.map_err(|error| not_found(path, &error))?;
        Ok(FoundInode { name, stored })
    }

    /// Says where the file found at a path is; `None` if it is no file.
    pub(crate) fn of(self, path: &Path, found: &FoundInode) -> Option<FileInfo> {
        let of = &found.stored.attributes;
        let place = of.location.as_ref().filter(|_| of.kind == Kind::File)?;
        let inode = self.base.table.intern(found.stored.inode, false, found.name.clone());
        let shown = self.lookup.shown(&inode.0, &found.stored);
        let rules = &self.executor.planner.rules;
        let tier_name = match &place.node {
            Some(node) => format!("ssd of {node}"),
            None => "hdd".to_owned(),
        };
        Some(FileInfo {
            path: path.to_owned(),
            tier: usize::from(place.tier),
            tier_name,
            place: place.path.as_path().to_owned(),
            size_bytes: shown.raw.st_size.unsigned_abs(),
            disk_bytes: shown.disk_bytes(),
            pinned: rules.has_pins() && rules.pins(path),
            excluded: rules.has_excludes() && rules.excludes(path),
            passed_through: inode.0.is_served_by_kernel(),
            lost: false,
            clean_copy: None,
        })
    }
}
