//! The rules for pinned and excluded files, as people change them.

use std::sync::Arc;

use bon::Builder;

use crate::bulk_operations::BulkOperations;
use crate::extent::store::ExtentStore;
use crate::extent::table::FileTable;
use crate::known_files::KnownFiles;
use crate::settings::Settings;
use halocline_api::control::{RuleChange, Rules};
use halocline_os::error::Result;

/// Changes the globs of pinned and excluded files.
#[derive(Debug, Builder)]
pub(crate) struct GlobRules {
    store: Arc<ExtentStore>,
    files: Arc<FileTable>,
    settings: Arc<Settings>,
    known: Arc<KnownFiles>,
    bulk: Arc<BulkOperations>,
}

impl GlobRules {
    /// Changes the rules, and applies the consequences to files that are cached.
    pub(crate) fn change(&self, change: &RuleChange) -> Result<Rules> {
        if let RuleChange::Pin(glob) = change {
            self.bulk.check_pin(glob)?;
        }
        let mut globs = self.known.globs.write();
        match change {
            RuleChange::Pin(glob) => globs.add_pin(glob)?,
            RuleChange::Unpin(glob) => globs.remove_pin(glob)?,
            RuleChange::Exclude(glob) => globs.add_exclude(glob)?,
            RuleChange::Include(glob) => globs.remove_exclude(glob)?,
        }
        globs.save(&self.settings.cache_dir)?;
        drop(globs);
        for file in self.files.all() {
            self.known.apply_globs(&file);
        }
        for record in self.store.dmt.files().all() {
            let pinned = self.known.globs.read().pins(&record.path);
            self.store.dmt.evictor().pin(record.id, pinned);
        }
        if matches!(change, RuleChange::Exclude(_)) {
            self.bulk.evict_excluded()?;
        }
        Ok(self.all())
    }

    /// The rules in force.
    pub(crate) fn all(&self) -> Rules {
        let globs = self.known.globs.read();
        Rules { pin: globs.pin_sources().to_vec(), exclude: globs.exclude_sources().to_vec() }
    }
}
