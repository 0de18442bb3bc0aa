//! A file tier's answers for people.

use std::fmt::Write as _;

use halocline_core::control::{FileInfo, Health, Place, Status, TierStatus};

use crate::failure::Failure;
use crate::text;

/// Whether a mount is a file tier.
pub(super) fn is_tier(place: &Place) -> Result<bool, Failure> {
    Ok(super::status::ask(place)?.tier.is_some())
}

/// One line a file and a sum.
pub(super) fn files(files: &[FileInfo]) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{:<8} {:>10}  path", "tier", "size");
    for file in files {
        let mut notes = Vec::new();
        for (note, holds) in [
            ("pinned", file.pinned),
            ("excluded", file.excluded),
            ("served by the kernel", file.passed_through),
            ("lost: restore it, or remove the name", file.lost),
        ] {
            if holds {
                notes.push(note);
            }
        }
        let notes =
            if notes.is_empty() { String::new() } else { format!("  ({})", notes.join(", ")) };
        let _ = writeln!(
            out,
            "{:<8} {:>10}  {}{notes}",
            file.tier_name,
            text::bytes(file.size_bytes),
            text::path(&file.path)
        );
    }
    let on_ssd: u64 = files.iter().filter(|f| f.tier == 0).map(|f| f.size_bytes).sum();
    let all: u64 = files.iter().map(|file| file.size_bytes).sum();
    let _ = writeln!(
        out,
        "{} of {} on the first tier ({})",
        text::bytes(on_ssd),
        text::bytes(all),
        text::share(on_ssd, all)
    );
    out
}

/// The state of a mount.
pub(super) fn status(status: &Status, tier: &TierStatus) -> String {
    let mut lines = vec![("requests", format!("through {}", status.transport))];
    for state in &tier.tiers {
        let free = state
            .free_bytes
            .map_or_else(|| "does not answer".into(), |free| format!("{} free", text::bytes(free)));
        lines.push(("tier", format!("{}, {free}", state.path.display())));
    }
    let health = match &status.health {
        Health::Ok => "ok".into(),
        Health::Degraded { reason } | Health::Full { reason } => format!("DEGRADED: {reason}"),
    };
    lines.push(("policy", status.policy.clone()));
    lines.push(("health", health));
    lines.push((
        "space",
        format!(
            "{} of {} ({}) in {} files; demotes above {} down to {}",
            text::bytes(status.used_bytes),
            text::bytes(status.limit_bytes),
            text::share(status.used_bytes, status.limit_bytes),
            tier.ssd_files,
            text::bytes(tier.high_bytes),
            text::bytes(tier.low_bytes)
        ),
    ));
    let moved = |moved: &halocline_core::control::tier::Moved| {
        format!("{} in {} files", text::bytes(moved.bytes), moved.files)
    };
    lines.push(("promoted", moved(&tier.promoted)));
    lines.push(("demoted", moved(&tier.demoted)));
    let opens = &tier.opens;
    lines.push((
        "opens",
        format!(
            "{} on the first tier, {} promoted, {} served in place",
            opens.hits, opens.promoted, opens.in_place
        ),
    ));
    lines.extend(super::status::rules(&status.rules));
    passthrough(&mut lines, tier);
    for job in &tier.jobs {
        lines.push(("job", super::jobs::line(job)));
    }
    for note in &status.notes {
        lines.push(("note", note.clone()));
    }
    lines.iter().fold(String::new(), |mut out, (name, value)| {
        let _ = writeln!(out, "  {name:<12} {value}");
        out
    })
}

fn passthrough(lines: &mut Vec<(&'static str, String)>, tier: &TierStatus) {
    let passing = &tier.passthrough;
    let works = match (passing.works, &passing.reason) {
        (Some(true), _) => {
            format!("works; {} open files are served by the kernel", passing.files.len())
        }
        (_, Some(reason)) => format!("no: {reason}"),
        (Some(false), None) => "no".into(),
        (None, None) => "not tried yet".into(),
    };
    lines.push(("passthrough", works));
    for file in &passing.files {
        lines.push(("", format!("served by the kernel: {file}")));
    }
    for (why, count) in &passing.refused {
        lines.push(("", format!("{count} opens were not: {why}")));
    }
}
