//! An unmounted cache, opened for checking, repair or rescue.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use halocline_api::config::{Binding, Config};
use halocline_meta::identity::{self, CACHE_FILE};
use halocline_meta::lease::{self, Evidence};
use halocline_meta::load::{Recovery, Shutdown};
use halocline_meta::table::{self, Access, ExtentTable};
use halocline_meta::{Extent, FileId};
use halocline_model::evict;
use halocline_model::layout::CacheGeometry;
use halocline_model::request::ByteRange;
use halocline_os::error::{Error, Result};
use halocline_storage::volume::{CacheObjects, Volume};

use super::origin_files::OriginFiles;
use crate::failure::Failure;
use crate::{mount_lookup, text};

/// An open cache, and what was found when it was opened.
pub(super) struct OfflineCache {
    pub(super) dmt: ExtentTable,
    pub(super) objects: CacheObjects,
    access: Access,
    pub(super) binding: Option<Binding>,
    pub(super) recovery: Recovery,
    /// Evidence for recognising changes of the origin by others.
    pub(super) evidence: Evidence,
    /// The files of the origin; `None` without an origin.
    pub(super) names: Option<OriginFiles>,
}

/// The canonical path of a directory that is a cache.
pub(super) fn cache_dir(named: &Path) -> Result<PathBuf, Failure> {
    const REMEDY: &str = "name the directory that `mount` or `run` had as --cache, or the root of a \
                          file tier";
    let shown = text::path(named);
    let dir = fs::canonicalize(named).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            Failure::refused(format!("cache {shown}: there is no such directory; {REMEDY}"))
        }
        _ => Failure::refused(format!("cache {shown}: {error}; correct the path")),
    })?;
    let found = fs::metadata(&dir).map_err(Error::at(&dir, "look at")).map_err(Failure::refused)?;
    if !found.is_dir() {
        return Err(Failure::refused(format!("{shown} is not a directory; {REMEDY}")));
    }
    let mark = dir.join(CACHE_FILE);
    if mark.try_exists().map_err(Error::at(&mark, "look at")).map_err(Failure::refused)? {
        return Ok(dir);
    }
    let held: Vec<_> = fs::read_dir(&dir)?.flatten().map(|entry| entry.file_name()).collect();
    if let Some(lost) = identity::lost_identity(&dir, &held) {
        return Err(Failure::refused(lost));
    }
    let dir = text::path(&dir);
    Err(Failure::refused(format!("{dir} is not a cache: nothing was ever cached here; {REMEDY}")))
}

impl OfflineCache {
    /// Opens the cache in `dir`.
    pub(super) fn open(dir: &Path, access: Access) -> Result<Self> {
        let binding = Binding::load(dir)?;
        // Before anything accesses it: accessing an origin that hangs would wait forever.
        if let Some(binding) = &binding {
            mount_lookup::check_answers(&binding.origin)?;
        }
        let eviction = evict::POLICIES.first().map(|policy| (policy.make)());
        let eviction = eviction.ok_or_else(|| Error::invalid("no eviction policy", "rebuild"))?;
        let options = table::Options {
            access,
            witness: binding
                .as_ref()
                .map(|binding| binding.origin.clone())
                .filter(|dir| dir.is_dir()),
            ..table::Options::new(u64::MAX, eviction, Config::default().cdt_entries)
        };
        let (dmt, recovery) = ExtentTable::open(dir, options)?;
        let geometry =
            binding.as_ref().map_or_else(|| CacheGeometry::new(1, 1, 0), Binding::geometry);
        let volume =
            Volume::in_directory(dir, geometry.servers(), geometry.stripe(), &|_, device| device)?;
        let objects = CacheObjects::new(volume, geometry);
        let evidence = lease::evidence(dir)?;
        let names = binding.as_ref().map(OriginFiles::of);
        Ok(Self { dmt, objects, access, binding, recovery, evidence, names })
    }

    /// Leaves the cache in the state in which it was found. A crashed one stays crashed: what its process wrote was
    /// never synced, and must not count as durable if the machine fails.
    pub(super) fn leave(&self) -> Result<()> {
        if self.recovery.last_shutdown == Shutdown::Crashed {
            self.dmt.changes().persist()?;
        } else {
            self.dmt.close()?;
        }
        if self.access == Access::Change {
            self.dmt.settle_origin();
        }
        Ok(())
    }

    /// Parts of an extent without data in its object: holes, or parts beyond its end.
    pub(super) fn missing(&self, file: FileId, extent: &Extent) -> Result<Vec<ByteRange>> {
        let object = self.objects.open(file.0, extent.placement)?;
        let mut gaps = Vec::new();
        let mut at = extent.range.start;
        while at < extent.range.end {
            let hole = object.seek(at, false)?.unwrap_or(at).min(extent.range.end);
            if hole == extent.range.end {
                break;
            }
            let data = object.seek(hole, true)?.unwrap_or(u64::MAX).min(extent.range.end);
            gaps.push(ByteRange::new(hole, data));
            at = data.max(hole + 1);
        }
        Ok(gaps)
    }
}
