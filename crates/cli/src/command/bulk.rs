//! Common to commands that move data: send the request, show progress, report the result.

use std::process::ExitCode;

use halocline_api::control::{MountedPath, MoveReport, NAMED_MAX, Request, Skipped};
use halocline_os::counted::counted_with;

use super::print_json;
use crate::failure::{Failure, Outcome};
use crate::mount_lookup;
use crate::print::{self, tell};
use crate::progress::Meter;
use crate::text;

/// Refuses a command at mounts of the wrong kind, a file tier or a cache; `remedy` is what to type instead.
pub(super) fn only_on_a_tier<'a>(
    tier: bool,
    mounts: impl IntoIterator<Item = &'a MountedPath>,
    remedy: &str,
) -> Result<(), Failure> {
    let mut last = None;
    for mounted in mounts {
        if last.replace(&mounted.socket) == Some(&mounted.socket) {
            continue;
        }
        let is_a_tier = mount_lookup::status(mounted)?.tier.is_some();
        if is_a_tier != tier {
            let what = if is_a_tier { "a file tier" } else { "a cache" };
            return Err(Failure::refused(format!("this mount is {what}: {remedy}")));
        }
    }
    Ok(())
}

/// How a move is reported.
pub(super) struct Telling {
    /// The verb during the move: "flushing".
    pub(super) doing: &'static str,
    /// The verb for the result: "flushed".
    pub(super) done: &'static str,
    /// Makes the failure if bytes were left, given their number as text.
    pub(super) left: fn(String) -> Failure,
    /// Whether a file that was left is a failure though it is empty: what is skipped is files, and nothing else.
    pub(super) counts_empty: bool,
    /// Whether nothing is moved, only reported.
    pub(super) dry_run: bool,
    /// In JSON.
    pub(super) json: bool,
}

impl Telling {
    /// Requests moves from their mounts, one after the other, and waits for the end of the last one.
    pub(super) fn ask(&self, requests: &[(MountedPath, Request)]) -> Outcome {
        let (mut report, mut failed) = (MoveReport::default(), None);
        for (number, (mounted, request)) in requests.iter().enumerate() {
            match self.one(mounted, request, requests.len() > 1) {
                Ok(moved) => report.add(moved),
                Err(error) if number == 0 => return Err(error),
                // What was moved before is told.
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        if self.json {
            print_json(&report)?;
        } else {
            print::lines(&text::moved(self.done, &report, self.dry_run));
        }
        if let Some(error) = failed {
            return Err(error);
        }
        let are_left = report.left_bytes > 0 || self.counts_empty && !report.skipped.is_empty();
        if are_left && !self.dry_run {
            return Err((self.left)(text::bytes(report.left_bytes)));
        }
        conflicts(&report).map_or(Ok(ExitCode::SUCCESS), Err)
    }

    fn one(
        &self,
        mounted: &MountedPath,
        request: &Request,
        is_one_of_many: bool,
    ) -> Result<MoveReport, Failure> {
        let mut meter = Meter::new(self.doing, self.json || self.dry_run);
        match mount_lookup::connect(mounted)?.call(request, |now| meter.tell(&now)) {
            // It was there when the shell listed it, and when its mount was sought.
            Err(error) if is_one_of_many && error.errno() == libc::ENOENT => {
                Ok(MoveReport::default())
            }
            moved => Ok(moved?),
        }
    }
}

/// Reports on standard error which files stay dirty, and which were changed by others.
pub(super) fn tell_left(report: &MoveReport) {
    let tell = |left: &Skipped| {
        if left.path.as_os_str().is_empty() {
            // Nothing was flushed, so this concerns no single file.
            tell!("halocline: {}", left.reason);
        } else {
            tell!("halocline: {}", text::left(left));
        }
    };
    report.skipped.iter().take(NAMED_MAX).for_each(tell);
    if let Some(more @ 1..) = report.skipped.len().checked_sub(NAMED_MAX) {
        let more = counted_with(more, "more file", ("is", "are"));
        tell!("halocline: {more} not flushed");
    }
    report.conflicts.iter().for_each(tell);
}

/// The failure of a move that found files changed by others.
pub(super) fn conflicts(report: &MoveReport) -> Option<Failure> {
    (!report.conflicts.is_empty()).then(|| Failure::conflicts(report.conflicts.len()))
}
