//! The layouts of a plan, for a replay of a trace that may be another one than the plan was made from.

use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use halocline_plan::plan_file::Plan;
use halocline_sim::{FileLayout, Outcome as Replayed, ServerSet};
use halocline_trace::Reader;
use serde::Serialize;

use crate::command::planned_files::PlannedFiles;
use crate::command::{judge, placement};
use crate::failure::Failure;
use crate::text;

/// What `simulate --plan --json` says beside the replay under the plan.
#[derive(Debug, Serialize)]
pub(super) struct Comparison {
    /// Files of the trace that the plan has a layout for.
    pub(super) files: usize,
    /// Files of the trace that keep the default layout.
    pub(super) other_files: usize,
    /// Throughput that the plan gains, as a share of the default layout's.
    pub(super) gain_over_default: f64,
    /// What the plan promised for its own trace.
    pub(super) promised_gain: f64,
    /// The replay under the default layout.
    pub(super) default: Replayed,
}

/// A plan, and its layouts by the path of the file.
#[derive(Debug)]
pub(super) struct PlannedLayouts {
    plan: Plan,
    /// What its paths begin with.
    below: Option<PathBuf>,
    by_path: HashMap<Vec<u8>, FileLayout>,
}

impl PlannedLayouts {
    /// The layouts of the plan at `path`. Refused: what is not a plan, or one for other servers than `set`.
    pub(super) fn read(
        path: &Path,
        below: Option<&Path>,
        set: &ServerSet,
    ) -> Result<Self, Failure> {
        let refused = |what: String| Failure::refused(format!("{}: {what}", text::path(path)));
        let plan = placement::read(path)?;
        let there = judge::servers(set).map_err(Failure::refused)?;
        plan.check_servers(there.all()).map_err(|error| refused(error.to_string()))?;
        let mut by_path = HashMap::new();
        for file in &plan.file {
            let name = file.path_bytes().ok_or_else(|| refused("a file has no path".into()))?;
            let layout = file.layout(set.len()).and_then(|layout| judge::file_layout(&layout));
            by_path.insert(name, layout.map_err(&refused)?);
        }
        Ok(Self { plan, below: below.map(Path::to_owned), by_path })
    }

    /// What the plan promised for its own trace.
    pub(super) const fn promised_gain(&self) -> f64 {
        self.plan.expected.gain_over_def
    }

    /// The layout of each file of the trace, by its number; `None` keeps the default.
    pub(super) fn by_number<R: Read>(&self, trace: &Reader<R>) -> Vec<Option<&FileLayout>> {
        let files = u32::try_from(trace.files()).unwrap_or(u32::MAX);
        let planned = PlannedFiles::new(&self.plan, self.below.as_deref());
        let layout = |number| {
            let file = planned.find(trace.file(number)?, trace.source())?;
            self.by_path.get(&file.path_bytes()?)
        };
        (0..files).map(layout).collect()
    }
}
