//! The nodes, and what is known of each from outside.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64};

use halocline_api::control::SOCKET_NAME;
use halocline_testkit::scratch::Scratch;

/// The nodes, which are called as their mount points.
pub(crate) const NODES: [&str; 2] = ["one", "two"];
/// How long the time is with which a line of a log begins.
const TIME_CHARS: usize = "2026-11-26T10:37:51.811195Z".len();
/// The most lines of a log that are shown, and the longest.
const LINES_MAX: usize = 12;
const LINE_CHARS_MAX: usize = 300;

/// How often a node was killed: an error of before is none.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    pub(crate) kills: AtomicU64,
    pub(crate) is_down: AtomicBool,
    /// Its lease may end: then it answers `EIO`.
    pub(crate) may_fail: AtomicBool,
}

/// Where a node is asked to move files.
pub(crate) fn socket(scratch: &Scratch, node: &str) -> PathBuf {
    scratch.path(&format!("{node}-tiers/ssd/.halocline")).join(SOCKET_NAME)
}

/// The end of a node's log.
pub(crate) fn log(scratch: &Scratch, node: &str) -> String {
    let log = format!("{node}-tiers/ssd/.halocline/halocline.log");
    let log = fs::read_to_string(scratch.path(&log)).unwrap_or_default();
    let mut seen = BTreeSet::new();
    // What a node says again and again is shown once, when it was said last.
    let of_message = |line: &&str| seen.insert(line.get(TIME_CHARS..).unwrap_or(line).to_owned());
    let lines = log.lines().rev().filter(of_message).take(LINES_MAX);
    let mut lines: Vec<String> =
        lines.map(|line| line.chars().take(LINE_CHARS_MAX).collect()).collect();
    lines.reverse();
    lines.join("\n")
}
