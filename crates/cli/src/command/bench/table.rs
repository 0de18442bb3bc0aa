//! The results for people: one row for each run, as soon as it is done.

use std::fmt::Write as _;

use super::record::{Phase, Run};
use crate::text;

/// The heading; every table says whether its devices are emulated.
pub(super) fn heading(devices: Option<&str>) -> String {
    let devices = self::devices(devices);
    format!(
        "{devices}; MB/s are 10^6 bytes a second, x is the ratio to the origin alone\n\
         {:<12}{:>9}  {:<10}{:>9} |{:>9}{:>7}{:>8}{:>9}{:>7} |{:>9}{:>7}{:>8}{:>8} |{:>9}{:>10}  \
         layouts\n",
        "pattern",
        "request",
        "policy",
        "cache",
        "write",
        "x",
        "cached",
        "drained",
        "x",
        "read",
        "x",
        "cached",
        "of max",
        "SSD",
        "flush"
    )
}

/// What was measured; an emulation is always called one.
pub(super) fn devices(devices: Option<&str>) -> String {
    devices.map_or_else(
        || "real devices".to_owned(),
        |devices| format!("emulated devices ({devices}): no real hardware was measured"),
    )
}

/// The row of one run.
pub(super) fn row(run: &Run) -> String {
    let mut out = String::new();
    let key = &run.key;
    let cache = if key.setup == "cached" { key.cache_limit.as_str() } else { "-" };
    let name = match key.setup {
        "cached" => key.policy.as_deref().unwrap_or_default(),
        setup => setup,
    };
    let request = text::bytes(key.request_size);
    let _ = write!(out, "{:<12}{request:>9}  {name:<10}{cache:>9} |", key.pattern);
    let write = run.phase("write");
    let _ = write!(
        out,
        "{:>9}{:>7}{:>8}{:>9}{:>7} |",
        number(write.map(|phase| phase.mb_per_s)),
        ratio(write.and_then(|phase| phase.ratio)),
        percent(write.and_then(Phase::cache_share)),
        number(write.and_then(|phase| phase.drained_mb_per_s)),
        ratio(write.and_then(|phase| phase.drained_ratio)),
    );
    let read = run.phase("read");
    let of_allowed = read.and_then(|phase| Some(phase.mb_per_s / phase.allowed_mb_per_s?));
    let _ = write!(
        out,
        "{:>9}{:>7}{:>8}{:>8} |",
        number(read.map(|phase| phase.mb_per_s)),
        ratio(read.and_then(|phase| phase.ratio)),
        percent(read.and_then(Phase::cache_share)),
        percent(of_allowed.filter(|_| key.setup == "cached")),
    );
    let flush = run.phase("flush").map(|phase| text::seconds(phase.seconds));
    let ssd = run.report.as_ref().map(|report| text::bytes(report.ssd_bytes_written));
    let _ = writeln!(out, "{:>9}{:>10}  {}", or_dash(ssd), or_dash(flush), layouts(run));
    out
}

fn layouts(run: &Run) -> String {
    or_dash(run.report.as_ref().and_then(|report| text::layouts(&report.layouts)))
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".into())
}

fn number(value: Option<f64>) -> String {
    or_dash(value.map(|value| format!("{value:.1}")))
}

fn ratio(value: Option<f64>) -> String {
    or_dash(value.map(|value| format!("{value:.2}x")))
}

fn percent(value: Option<f64>) -> String {
    or_dash(value.map(text::percent))
}
