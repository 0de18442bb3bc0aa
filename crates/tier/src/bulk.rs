//! Files that a command moves, the progress that is reported to it meanwhile, and its report.

use std::ops::ControlFlow;
use std::sync::Arc;

use parking_lot::Mutex;

use super::batch::{OnFileProgress, Outcomes, batch_of};
use super::not_moved::NotMoved;
use super::parallel::{PARALLEL_MAX, in_parallel, parallel_count};
use super::tree_walk::Named;
use halocline_api::control::{MoveReport, Progress, ProgressSink, Skipped};
use halocline_os::clock::Clock;
use halocline_os::leased_files::Patience;

/// A move in progress.
struct BulkMove<'a> {
    sink: ProgressSink<'a>,
    total: u64,
    /// Bytes copied, including those of unfinished files.
    done: u64,
    /// The command wants no more files to be moved.
    stop: bool,
    report: MoveReport,
    /// What it still waits for the leases of files.
    patience: Arc<Patience>,
}

impl BulkMove<'_> {
    /// Reports that bytes of a file were copied; `false` stops the move.
    fn tell(&mut self, file: &Named, bytes: u64) -> bool {
        self.done += bytes;
        let (done_bytes, path) = (self.done, file.path.clone());
        let now = Progress { done_bytes, total_bytes: self.total.max(done_bytes), path };
        self.stop |= (self.sink)(now).is_break();
        !self.stop
    }

    /// Moves some files at the same time by `act`, which gets a callback for copied bytes.
    fn some(
        &mut self,
        files: &[&Named],
        one_by_one: bool,
        act: impl Fn(&Named, &mut dyn FnMut(u64) -> bool) -> Result<u64, NotMoved> + Sync,
    ) -> ControlFlow<()> {
        let patience = Arc::clone(&self.patience);
        let shared = Mutex::new(&mut *self);
        let outcomes = in_parallel(files, one_by_one, |file| {
            let act = || act(file, &mut |bytes| shared.lock().tell(file, bytes));
            let is_leased = |outcome: &Result<u64, NotMoved>| {
                matches!(outcome, Err(NotMoved::Leased)) && !shared.lock().stop
            };
            patience.wait(&Clock::MACHINE, act, is_leased)
        });
        for (file, outcome) in files.iter().zip(outcomes) {
            let outcome = match outcome {
                // The others have reserved more room for their copies than they have taken so far.
                Err(NotMoved::NoRoom) if files.len() > 1 && !self.stop => {
                    act(file, &mut |bytes| self.tell(file, bytes))
                }
                other => other,
            };
            self.count(file, outcome);
        }
        self.done = self.report.bytes;
        if self.stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Moves many files as a batch, and those that the batch leaves, some at a time.
    fn many<A, B>(&mut self, files: &[&Named], by: &MoveBy<A, B>) -> ControlFlow<()>
    where
        A: Fn(&Named, &mut dyn FnMut(u64) -> bool) -> Result<u64, NotMoved> + Sync,
        B: Fn(&[&Named], OnFileProgress<'_>) -> Outcomes,
    {
        let shared = Mutex::new(&mut *self);
        let outcomes = (by.many)(files, &|at, bytes| shared.lock().tell(files[at], bytes));
        let mut alone = Vec::new();
        for (file, outcome) in files.iter().zip(outcomes) {
            match outcome {
                Some(Err(NotMoved::Leased)) | None => alone.push(*file),
                Some(outcome) => self.count(file, outcome),
            }
        }
        self.done = self.report.bytes;
        let mut left = &alone[..];
        while !left.is_empty() && !self.stop {
            let count = parallel_count(left.iter().map(|file| file.size), u64::MAX, PARALLEL_MAX);
            let (now, later) = left.split_at(count);
            self.some(now, by.one_by_one, &by.one)?;
            left = later;
        }
        if self.stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn count(&mut self, file: &Named, outcome: Result<u64, NotMoved>) {
        match outcome {
            Ok(bytes) => {
                self.report.bytes += bytes;
                // If nothing of a file was copied, it had a clean copy.
                self.report.clean_bytes += if bytes == 0 { file.size } else { 0 };
                self.report.files += 1;
            }
            Err(NotMoved::There) => self.report.already_files += 1,
            Err(NotMoved::Gone) => {}
            Err(_) if self.stop => {}
            Err(why) => self.skip(file, why.to_string()),
        }
    }

    fn skip(&mut self, file: &Named, reason: String) {
        self.report.left_bytes += file.size;
        self.report.skipped.push(Skipped { path: file.path.clone(), reason });
    }
}

/// The ways to move files.
pub(super) struct MoveBy<A, B> {
    /// Moves one file; it gets a callback for copied bytes.
    pub(super) one: A,
    /// Moves many small files; those that it does not move are moved one by one.
    pub(super) many: B,
    /// Whether there must be only one move at a time, in the calling thread.
    pub(super) one_by_one: bool,
}

/// Moves the wanted ones of `files` by `by`, except those that `stays` says stay. The caller fills in how long this
/// takes.
pub(super) fn move_all<A, B>(
    files: &[Named],
    dry_run: bool,
    wanted: impl Fn(&Named) -> bool,
    stays: impl Fn(&Named) -> Option<NotMoved>,
    by: &MoveBy<A, B>,
    sink: ProgressSink<'_>,
) -> MoveReport
where
    A: Fn(&Named, &mut dyn FnMut(u64) -> bool) -> Result<u64, NotMoved> + Sync,
    B: Fn(&[&Named], OnFileProgress<'_>) -> Outcomes,
{
    let total = files.iter().filter(|file| wanted(file)).map(|file| file.size).sum();
    let already_files = files.iter().filter(|file| !wanted(file)).count() as u64;
    let report = MoveReport { already_files, ..MoveReport::default() };
    let patience = Arc::default();
    let mut moving = BulkMove { sink, total, done: 0, stop: false, report, patience };
    let mut moves = Vec::new();
    for file in files.iter().filter(|file| wanted(file)) {
        if let Some(why) = stays(file) {
            moving.skip(file, why.to_string());
        } else if dry_run {
            moving.report.files += 1;
            moving.report.bytes += file.size;
        } else {
            moves.push(file);
        }
    }
    let mut left = &moves[..];
    while !left.is_empty() {
        let count = batch_of(left.iter().map(|file| file.size), u64::MAX);
        let (now, later) = left.split_at(count);
        if moving.many(now, by).is_break() {
            break;
        }
        left = later;
    }
    moving.report
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::components::Components;
    use super::super::options::{TierOptions, TierSet};
    use super::*;
    use crate::decorations::Decorations;

    /// Regression: copies in progress reserve more room than they take, so it was a matter of chance whether the last
    /// file of a batch was refused.
    #[test]
    fn a_file_without_room_beside_others_is_tried_again_alone() {
        let dir = tempfile::tempdir().unwrap();
        for tier in ["ssd", "hdd"] {
            std::fs::create_dir(dir.path().join(tier)).unwrap();
        }
        for name in ["a", "b", "c"] {
            std::fs::write(dir.path().join("hdd").join(name), name).unwrap();
        }
        let set = TierSet::below(dir.path(), &["ssd", "hdd"]).unwrap();
        let components =
            Components::open(&set, TierOptions::default(), &Decorations::NONE).unwrap();
        components.scan.recover().unwrap();
        let files = components.tree_walk.named(Path::new(""), usize::MAX).unwrap();
        let refused = Mutex::new(Vec::new());
        let act = |file: &Named, _: &mut dyn FnMut(u64) -> bool| {
            let mut refused = refused.lock();
            if refused.contains(&file.path) {
                return Ok(file.size);
            }
            refused.push(file.path.clone());
            Err(NotMoved::NoRoom)
        };
        let sink = &mut |_| ControlFlow::Continue(());
        let alone = |files: &[&Named], _: OnFileProgress<'_>| files.iter().map(|_| None).collect();
        let by = MoveBy { one: act, many: alone, one_by_one: false };
        let report = move_all(&files, false, |_| true, |_| None, &by, sink);
        assert_eq!((report.files, report.skipped.len()), (3, 0), "{report:?}");
    }
}
