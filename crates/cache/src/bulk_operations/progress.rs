//! Progress and report of a bulk operation.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use parking_lot::Mutex;

use halocline_api::control::{MoveReport, Progress, ProgressSink, Skipped};
use halocline_os::clock::Clock;

/// An operation in progress, with its progress and its report.
pub(super) struct BulkOperation<'a> {
    sink: Mutex<ProgressSink<'a>>,
    done_bytes: Mutex<u64>,
    total_bytes: u64,
    clock: Clock,
    begun: Instant,
    report: MoveReport,
}

/// Progress of one file, for several threads.
pub(super) struct FileProgress<'m, 'a> {
    moving: &'m BulkOperation<'a>,
    path: PathBuf,
}

impl<'a> BulkOperation<'a> {
    pub(super) fn new(clock: &Clock, sink: ProgressSink<'a>, total_bytes: u64) -> Self {
        Self {
            sink: Mutex::new(sink),
            done_bytes: Mutex::new(0),
            total_bytes,
            clock: clock.clone(),
            begun: clock.instant(),
            report: MoveReport::default(),
        }
    }

    /// Counts a file that a dry run would have moved.
    pub(super) fn file(&mut self, path: &Path, bytes: u64) -> ControlFlow<()> {
        let flow = self.shared(path).advance(bytes);
        self.report.files += u64::from(bytes > 0);
        flow
    }

    /// Progress of one file.
    pub(super) fn shared(&self, path: &Path) -> FileProgress<'_, 'a> {
        FileProgress { moving: self, path: path.to_owned() }
    }

    /// A file needed no work.
    pub(super) fn already(&mut self) -> ControlFlow<()> {
        self.report.already_files += 1;
        ControlFlow::Continue(())
    }

    /// A file was processed except for `left` bytes, if any, because of `why`.
    pub(super) fn end_file(&mut self, path: &Path, left: u64, why: &str) -> ControlFlow<()> {
        self.report.files += 1;
        if left > 0 {
            self.skip(path, why.to_owned(), left);
        }
        ControlFlow::Continue(())
    }

    /// A file was skipped.
    pub(super) fn skip(&mut self, path: &Path, reason: String, left: u64) {
        self.report.left_bytes += left;
        self.report.skipped.push(Skipped { path: path.to_owned(), reason });
    }

    /// The report, including what could not be processed apart from the files counted so far.
    pub(super) fn report_with(mut self, skipped: &[Skipped]) -> MoveReport {
        self.report.skipped.extend_from_slice(skipped);
        self.report(0)
    }

    /// The report; `left` more bytes were not processed.
    pub(super) fn report(mut self, left: u64) -> MoveReport {
        self.report.bytes = *self.done_bytes.lock();
        self.report.seconds = self.clock.elapsed(self.begun).as_secs_f64();
        self.report.left_bytes += left;
        self.report
    }
}

impl FileProgress<'_, '_> {
    /// `bytes` more were processed; `Break` asks to stop.
    pub(super) fn advance(&self, bytes: u64) -> ControlFlow<()> {
        let mut done = self.moving.done_bytes.lock();
        *done += bytes;
        let progress = Progress {
            done_bytes: *done,
            total_bytes: self.moving.total_bytes.max(*done),
            path: self.path.clone(),
        };
        (self.moving.sink.lock())(progress)
    }
}
