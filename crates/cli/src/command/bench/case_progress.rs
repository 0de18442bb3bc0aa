//! Listens to signals and shows progress while a case runs.

use halocline_api::control::Progress;

use super::interrupted;
use super::worker_processes::Watch;
use crate::child::Signals;
use crate::failure::Failure;
use crate::progress::Meter;

/// What the parent of a case's processes does while they run.
pub(super) struct CaseProgress<'a> {
    signals: &'a mut Signals,
    meter: Meter,
    progress: Progress,
    stopped: Option<i32>,
}

impl<'a> CaseProgress<'a> {
    /// For a case called `name` that moves `total_bytes` bytes.
    pub(super) fn new(signals: &'a mut Signals, total_bytes: u64, name: String) -> Self {
        let progress = Progress { done_bytes: 0, total_bytes, path: name.into() };
        let meter = Meter::new("measuring", false);
        Self { signals, meter, progress, stopped: None }
    }
}

impl Watch for CaseProgress<'_> {
    fn go_on(&mut self) -> Result<(), Failure> {
        self.stopped = self.stopped.or_else(|| self.signals.stop_signal());
        self.stopped.map_or(Ok(()), |signal| Err(interrupted(signal)))
    }

    fn advance(&mut self, bytes: u64) {
        self.progress.done_bytes += bytes;
        self.meter.tell(&self.progress);
    }
}
