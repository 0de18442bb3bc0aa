//! A file tier's answers for people.

use std::fmt::Write as _;
use std::time::Duration;

use halocline_api::config::Copies;
use halocline_api::control::tier::{CopiesStatus, Moved, ReadsAndWrites};
use halocline_api::control::{
    FileExplanation, FileInfo, Health, JobInfo, MountedPath, Status, TierStatus,
};
use halocline_os::counted::{counted, counted_with};

use crate::failure::Failure;
use crate::mount_lookup;
use crate::text;

/// Moves under way that are told of one by one.
const MOVES_SHOWN: usize = 8;

/// Whether a mount is a file tier.
pub(super) fn is_tier(mounted: &MountedPath) -> Result<bool, Failure> {
    Ok(mount_lookup::status(mounted)?.tier.is_some())
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
        let copy = file.clean_copy.as_ref().map(|tier| format!("clean copy on {tier}"));
        notes.extend(copy.as_deref());
        let notes =
            if notes.is_empty() { String::new() } else { format!("  ({})", notes.join(", ")) };
        let _ = writeln!(
            out,
            "{:<8} {:>10}  {}{notes}",
            text::line(&file.tier_name),
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

/// Why a file is where it is.
pub(super) fn why(told: &FileExplanation) -> String {
    let file = &told.file;
    let mut lines = vec![
        ("file", text::path(&file.path)),
        ("tier", format!("{} ({}), {}", file.tier, file.tier_name, text::path(&file.place))),
        (
            "size",
            format!("{}, {} on disk", text::bytes(file.size_bytes), text::bytes(file.disk_bytes)),
        ),
    ];
    let last = told.last_open_ms.map_or_else(String::new, |ms| format!(", last {}", text::ago(ms)));
    lines.push(("opened", format!("{} since the mount began{last}", counted(told.opens, "time"))));
    lines.push((
        "open now",
        format!(
            "{}, {} served by the kernel",
            counted(told.handles, "handle"),
            told.passed_handles
        ),
    ));
    lines.push((
        "SSD",
        format!(
            "{} free of {}, policy {}",
            text::bytes(told.ssd_free_bytes),
            text::bytes(told.ssd_limit_bytes),
            told.policy
        ),
    ));
    if let Some(ms) = told.stayed_ms {
        lines.push(("stayed", text::ago(ms)));
    }
    lines.extend(told.reasons.iter().map(|reason| ("because", reason.clone())));
    lines.extend(told.remedies.iter().map(|remedy| ("to change", remedy.clone())));
    lines.iter().fold(String::new(), |mut out, (name, value)| {
        let _ = writeln!(out, "{name:<10} {}", text::line(value));
        out
    })
}

/// The state of a mount.
pub(super) fn status(status: &Status, tier: &TierStatus) -> String {
    let mut lines = vec![("requests", format!("through {}", status.transport))];
    for state in &tier.tiers {
        let free = state
            .free_bytes
            .map_or_else(|| "does not answer".into(), |free| format!("{} free", text::bytes(free)));
        lines.push(("tier", format!("{}, {free}", text::path(&state.path))));
    }
    let health = match &status.health {
        Health::Ok => "ok".into(),
        Health::Degraded { reason } => format!("DEGRADED: {reason}"),
        Health::Full { reason } => format!("FULL: {reason}"),
        Health::Silent { reason } => format!("NO ANSWER: {reason}"),
    };
    lines.push(("policy", status.policy.clone()));
    lines.push(("health", health));
    lines.push((
        "space",
        format!(
            "{} of {} ({}) in {}; demotes above {} down to {}",
            text::bytes(status.used_bytes),
            text::bytes(status.limit_bytes),
            text::share(status.used_bytes, status.limit_bytes),
            counted(tier.ssd_files, "file"),
            text::bytes(tier.high_bytes),
            text::bytes(tier.low_bytes)
        ),
    ));
    let moved =
        |moved: &Moved| format!("{} in {}", text::bytes(moved.bytes), counted(moved.files, "file"));
    if tier.waiting_bytes > 0 {
        lines.push(("", format!("{} wait to be demoted", text::bytes(tier.waiting_bytes))));
    }
    lines.push(("promoted", moved(&tier.promoted)));
    lines.push(("demoted", moved(&tier.demoted)));
    copies(&mut lines, &tier.copies);
    let opens = &tier.opens;
    lines.push((
        "opens",
        format!(
            "{} on the first tier, {} promoted, {} served in place",
            opens.hits, opens.promoted, opens.in_place
        ),
    ));
    requests(&mut lines, tier);
    moving(&mut lines, tier);
    lines.extend(super::rules::lines(&status.rules));
    passthrough(&mut lines, tier);
    for job in &tier.jobs {
        lines.push(("job", self::job(job)));
    }
    for note in &status.notes {
        lines.push(("note", note.clone()));
    }
    lines.iter().fold(String::new(), |mut out, (name, value)| {
        let _ = writeln!(out, "  {name:<12} {}", text::line(value));
        out
    })
}

/// What has a copy below, and what not yet.
fn copies(lines: &mut Vec<(&'static str, String)>, copies: &CopiesStatus) {
    if copies.kept == Copies::None && copies.clean.files == 0 {
        return;
    }
    lines.push((
        "clean copies",
        format!(
            "{} of {}; they give way where a disk is full",
            text::bytes(copies.clean.bytes),
            counted(copies.clean.files, "file")
        ),
    ));
    let Moved { files, bytes } = copies.demoted;
    let spared = format!("{} of {} demoted to theirs", text::bytes(bytes), counted(files, "file"));
    lines.push(("", spared));
    if copies.kept == Copies::Archive {
        let Moved { files, bytes } = copies.waiting;
        let age = copies.waiting_ms.map(|ms| Duration::from_millis(ms).as_secs_f64());
        let age = age.map_or_else(String::new, |age| format!(", for {}", text::seconds(age)));
        let waiting =
            format!("{} of {} not archived yet{age}", text::bytes(bytes), counted(files, "file"));
        lines.push(("", waiting));
        lines.extend(copies.trouble.iter().map(|why| ("", format!("not archived last: {why}"))));
    }
}

/// What programs read and wrote through the mount process.
fn requests(lines: &mut Vec<(&'static str, String)>, tier: &TierStatus) {
    let told = |served: &ReadsAndWrites| {
        format!(
            "{} ({}), {} ({})",
            counted(served.reads, "read"),
            text::bytes(served.read_bytes),
            counted(served.writes, "write"),
            text::bytes(served.written_bytes)
        )
    };
    lines.push(("served", format!("on the first tier: {}", told(&tier.requests.on_ssd))));
    lines.push(("", format!("in place, on lower tiers: {}", told(&tier.requests.in_place))));
    lines.push(("", "not counted: what the kernel serves by itself".into()));
}

/// What moves between tiers now.
fn moving(lines: &mut Vec<(&'static str, String)>, tier: &TierStatus) {
    let count = match tier.moving.len() {
        0 => "nothing now".into(),
        some => counted(some, "file"),
    };
    let rate = text::rate(tier.moving_rate, 1.0);
    lines.push(("moving", format!("{count}; {rate} over the last 5 s")));
    let name = |at: usize| tier.tiers.get(at).map_or("?", |tier| tier.name.as_str());
    for file in tier.moving.iter().take(MOVES_SHOWN) {
        lines.push((
            "",
            format!(
                "{} from {} to {}: {} of {} ({}) in {}",
                text::path(&file.path),
                name(file.from),
                name(file.to),
                text::bytes(file.done_bytes),
                text::bytes(file.total_bytes),
                text::share(file.done_bytes, file.total_bytes),
                text::seconds(file.seconds)
            ),
        ));
    }
    if let Some(more) = tier.moving.len().checked_sub(MOVES_SHOWN).filter(|more| *more > 0) {
        lines.push(("", format!("and {more} more: --json lists them")));
    }
}

fn passthrough(lines: &mut Vec<(&'static str, String)>, tier: &TierStatus) {
    let passing = &tier.passthrough;
    let works = match (passing.works, &passing.reason) {
        (Some(true), _) => {
            let files = counted_with(passing.files.len(), "open file", ("is", "are"));
            format!("works; {files} served by the kernel")
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
        lines.push(("", format!("{} not: {why}", counted_with(*count, "open", ("was", "were")))));
    }
}

/// One job for people.
pub(super) fn job(job: &JobInfo) -> String {
    let JobInfo { name, references, position, files, state } = job;
    let references = counted(*references, "reference");
    let files = counted(*files, "file");
    format!("{name}: {state}, at {position} of {references} to {files}")
}
