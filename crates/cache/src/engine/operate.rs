//! The control interface: what a person or a script may ask of a running engine.

use std::path::{Path, PathBuf};

use halocline_model::request::ByteRange;

use super::ExtentEngine;
use crate::extent::file::FileHint;
use halocline_api::control::{
    CachedTree, Controlled, Explanation, ExtentInfo, MoveReport, ProcessHint, ProgressSink,
    Question, Report, RuleChange, Rules, Skipped, Status,
};
use halocline_os::error::Result;

impl Controlled for ExtentEngine {
    fn status(&self) -> Status {
        self.controls.status.status(self.rebuilder.doing(), self.controls.rules.all())
    }

    fn report(&self) -> Report {
        self.controls.status.report()
    }

    fn locate(&self, path: &Path, range: Option<ByteRange>) -> Result<Vec<ExtentInfo>> {
        self.controls.explainer.locate(path, range)
    }

    fn cached(&self, path: &Path) -> Result<CachedTree> {
        Ok(self.controls.status.cached(path))
    }

    fn explain(&self, question: &Question) -> Result<Explanation> {
        self.controls.explainer.explain(question)
    }

    fn flush(
        &self,
        path: Option<&Path>,
        dry_run: bool,
        progress: ProgressSink<'_>,
    ) -> Result<MoveReport> {
        Ok(self.controls.bulk.flush(path, dry_run, progress))
    }

    fn take_conflicts(&self) -> Vec<Skipped> {
        self.components.external.take_conflicts()
    }

    fn warm(
        &self,
        paths: &[PathBuf],
        dry_run: bool,
        progress: ProgressSink<'_>,
    ) -> Result<MoveReport> {
        self.controls.bulk.warm(paths, dry_run, progress)
    }

    fn evict(&self, path: &Path, dry_run: bool, progress: ProgressSink<'_>) -> Result<MoveReport> {
        self.controls.bulk.evict(path, dry_run, progress)
    }

    fn change_rules(&self, change: &RuleChange) -> Result<Rules> {
        self.controls.rules.change(change)
    }

    fn hint(&self, hint: &ProcessHint) -> Result<()> {
        if let Some(rank) = hint.rank {
            self.components.identifier.processes.set_rank(hint.pid, rank);
        }
        if let Some(policy) = &hint.policy {
            self.components.identifier.load_policy(policy)?;
        }
        if !hint.path.as_os_str().is_empty() {
            let wish = FileHint {
                processes: hint.size,
                cache: hint.cache,
                policy: hint.policy.clone(),
                direct: hint.direct,
            };
            self.components.opener.hints.note(&hint.path, wish);
        }
        Ok(())
    }
}
