//! What commands that move data have in common: ask, show progress, tell what moved.

use std::process::ExitCode;

use halocline_api::control::{MoveReport, NAMED_MAX, Place, Request, Skipped};
use halocline_os::counted::counted_with;

use super::print_json;
use crate::failure::{Failure, Outcome};
use crate::mount_lookup;
use crate::print::{self, tell};
use crate::progress::Meter;
use crate::text;

/// Refuses a command at a mount of the other kind, a file tier or a cache; `remedy` is what to type
/// there.
pub(super) fn only_on_a_tier(tier: bool, place: &Place, remedy: &str) -> Result<(), Failure> {
    let is_a_tier = mount_lookup::status(place)?.tier.is_some();
    if is_a_tier == tier {
        return Ok(());
    }
    let what = if is_a_tier { "a file tier" } else { "a cache" };
    Err(Failure::refused(format!("this mount is {what}: {remedy}")))
}

/// How a move is told of.
pub(super) struct Telling {
    /// While it goes on: "flushing".
    pub(super) doing: &'static str,
    /// Of what moved: "flushed".
    pub(super) done: &'static str,
    /// The failure where bytes stayed, which it is given as text.
    pub(super) left: fn(String) -> Failure,
    /// Nothing was to move, only to be told.
    pub(super) dry_run: bool,
    /// In JSON.
    pub(super) json: bool,
}

impl Telling {
    /// Asks the mount at `place` for a move and waits for its end.
    pub(super) fn ask(&self, place: &Place, request: &Request) -> Outcome {
        let mut meter = Meter::new(self.doing, self.json || self.dry_run);
        let report: MoveReport =
            mount_lookup::connect(place)?.call(request, |now| meter.tell(&now))?;
        drop(meter);
        if self.json {
            print_json(&report)?;
        } else {
            print::lines(&text::moved(self.done, &report, self.dry_run));
        }
        if report.left_bytes > 0 && !self.dry_run {
            return Err((self.left)(text::bytes(report.left_bytes)));
        }
        conflicts(&report).map_or(Ok(ExitCode::SUCCESS), Err)
    }
}

/// Says on standard error which files stay dirty, and which others had changed.
pub(super) fn tell_left(report: &MoveReport) {
    let tell = |left: &Skipped| {
        if left.path.as_os_str().is_empty() {
            // Nothing was flushed: it is of no one file.
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

/// The failure of a move that met files which others had changed.
pub(super) fn conflicts(report: &MoveReport) -> Option<Failure> {
    (!report.conflicts.is_empty()).then(|| Failure::conflicts(report.conflicts.len()))
}
