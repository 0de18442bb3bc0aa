//! What people read: sizes, rates, times and the report's table.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use halocline_api::control::{
    LayoutBytes, MoveReport, Report, RequestTotals, Skipped, TokenCounts,
};
use halocline_model::layout::Layout;
use halocline_os::counted::{counted, counted_with};
use halocline_os::shown_name::is_obeyed;

/// A path on one line of a terminal: as it is, or quoted where it has characters that are obeyed or
/// none at all.
#[expect(clippy::unnecessary_debug_formatting, reason = "it is the escapes that are wanted")]
pub(crate) fn path(path: &Path) -> String {
    match path.to_str() {
        Some(text) if !text.contains(is_obeyed) && !text.starts_with('"') => text.to_owned(),
        _ => format!("{path:?}"),
    }
}

/// Other people's words on one line of a terminal: what a terminal would obey is shown.
pub(crate) fn line(text: &str) -> String {
    escaped(text, is_obeyed)
}

/// Lines whose words are known to stay on theirs ([`line()`], [`path`]).
pub(crate) fn lines(text: &str) -> String {
    escaped(text, |c| c != '\n' && is_obeyed(c))
}

fn escaped(text: &str, is_shown: impl Fn(char) -> bool) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_shown(c) { out.extend(c.escape_debug()) } else { out.push(c) }
    }
    out
}

/// JSON as it is, where it has none but characters that a terminal shows, and escaped where not.
/// What it says stays the same: such characters stand only in strings.
pub(crate) fn json(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if c != '\n' && is_obeyed(c) {
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    out
}

/// Words in a row, such as globs: each as it is, or quoted where it would not be seen as one.
pub(crate) fn words<'a>(words: impl IntoIterator<Item = &'a String>) -> String {
    let odd = |c: char| c.is_whitespace() || c == '"' || is_obeyed(c);
    let word = |word: &String| {
        if word.is_empty() || word.contains(odd) { format!("{word:?}") } else { word.clone() }
    };
    words.into_iter().map(word).collect::<Vec<_>>().join(" ")
}

/// Bytes in binary units with three digits: `1.50 GiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    in_units(bytes).0
}

/// The same where these digits are exact, and else the number: for layouts, of which each byte counts.
pub(crate) fn exact_bytes(bytes: u64) -> String {
    let (shown, is_exact) = in_units(bytes);
    if is_exact { shown } else { format!("{bytes} B") }
}

/// Bytes as [`bytes`] shows them, and whether that is exact.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn in_units(bytes: u64) -> (String, bool) {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1023.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        return (format!("{bytes} B"), true);
    }
    let digits = if value < 9.995 { 2_u8 } else { u8::from(value < 99.95) };
    let is_exact =
        (u128::from(bytes) * 10_u128.pow(digits.into())).trailing_zeros() as usize >= 10 * unit;
    let digits = usize::from(digits);
    (format!("{value:.digits$} {}", UNITS[unit]), is_exact)
}

/// A number beside an axis, without what adding up steps of it left behind.
pub(crate) fn tick(value: f64) -> String {
    let near = (value * 1e6).round() / 1e6;
    if near.is_finite() { format!("{near}") } else { format!("{value}") }
}

/// Seconds with a fitting unit: `12 us`, `3.40 ms`, `1.25 s`, `2 min 5 s`.
pub(crate) fn seconds(seconds: f64) -> String {
    let size = seconds.abs();
    if size == 0.0 {
        "0 s".into()
    } else if size < 1e-3 {
        format!("{:.1} us", seconds * 1e6)
    } else if size < 1.0 {
        format!("{:.2} ms", seconds * 1e3)
    } else if size < 100.0 {
        format!("{seconds:.2} s")
    } else {
        let whole = Duration::try_from_secs_f64(size).unwrap_or(Duration::MAX).as_secs();
        let sign = if seconds < 0.0 { "-" } else { "" };
        format!("{sign}{} min {} s", whole / 60, whole % 60)
    }
}

/// Bytes a second, or a dash when no time passed.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "three digits are shown"
)]
pub(crate) fn rate(total: u64, seconds: f64) -> String {
    if seconds <= 0.0 {
        return "-".into();
    }
    format!("{}/s", bytes((total as f64 / seconds) as u64))
}

/// A share in percent, with one decimal.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// A share in percent; a dash of nothing.
#[expect(clippy::cast_precision_loss, reason = "one digit after the point is shown")]
pub(crate) fn share(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".into();
    }
    format!("{:.1} %", part as f64 / whole as f64 * 100.0)
}

/// How long ago a time in milliseconds since the epoch was.
pub(crate) fn ago(ms: u64) -> String {
    let then = SystemTime::UNIX_EPOCH + Duration::from_millis(ms);
    let passed = SystemTime::now().duration_since(then).unwrap_or_default().as_secs();
    match passed {
        0..100 => format!("{passed} s ago"),
        100..6000 => format!("{} min ago", passed / 60),
        6000..360_000 => format!("{} h ago", passed / 3600),
        _ => format!("{} days ago", passed / 86_400),
    }
}

/// The report of a run as a table: the papers' request distribution, then what the cache cost.
pub(crate) fn report(report: &Report) -> String {
    served(report, Some(&report.policy))
}

/// The same; with the policy where nothing else tells it.
pub(crate) fn served(report: &Report, policy: Option<&str>) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{:<8}{:>12}{:>12}{:>14}{:>14}{:>10}",
        "", "requests", "bytes", "by cache", "bytes", "share"
    );
    for (name, totals) in [("read", &report.read), ("write", &report.write)] {
        row(&mut out, name, totals);
    }
    let layouts = layouts(&report.layouts).unwrap_or_else(|| "none".into());
    let lines = [
        ("mounted for", seconds(report.elapsed_s)),
        // Writes that the cache took are not hits.
        ("by cache", format!("{:.1} % of all bytes", report.hit_ratio * 100.0)),
        ("read hits", of_bytes_read(&report.read)),
        (
            "admitted",
            format!(
                "{} in {}",
                bytes(report.admitted.bytes),
                counted(report.admitted.requests, "request")
            ),
        ),
        ("layouts", layouts),
        ("SSD writes", bytes(report.ssd_bytes_written)),
        (
            "flushed",
            // No rate: the bytes are those of the background, too, and the time is not.
            match bytes(report.flush.bytes) {
                flushed if report.flush.seconds > 0.0 => {
                    format!("{flushed}, {} of waiting for it", seconds(report.flush.seconds))
                }
                flushed => flushed,
            },
        ),
        ("left dirty", bytes(report.dirty_bytes_left)),
    ];
    let conflicts = (report.conflicts > 0).then(|| {
        let files = counted(report.conflicts, "file");
        ("conflicts", format!("{files} changed behind the mount, see `conflicts` in the cache"))
    });
    let emulated = report.emulated.as_ref();
    let emulated =
        emulated.map(|devices| ("devices", format!("EMULATED ({devices}): no real hardware")));
    let nodes = report.cluster.as_ref().map(tokens).into_iter().flatten();
    let policy = policy.map(|policy| ("policy", policy.to_owned()));
    let lines = policy.into_iter().chain(lines);
    for (name, value) in lines.chain(conflicts).chain(nodes).chain(emulated) {
        let _ = writeln!(out, "{name:<12}{}", line(&value));
    }
    out
}

/// What a node had to do with others.
fn tokens(counts: &TokenCounts) -> Vec<(&'static str, String)> {
    let ms = |us: u64| seconds(Duration::from_micros(us).as_secs_f64());
    let waits = match counts.waits {
        0 => "none".to_owned(),
        waits => format!(
            "{}, {} in all, {} the longest",
            counted(waits, "request"),
            ms(counts.waited_us),
            ms(counts.longest_wait_us)
        ),
    };
    let failed = if counts.refused == 0 {
        String::new()
    } else {
        format!("; {} answered with an error", counted(counts.refused, "request"))
    };
    let lapses = if counts.lapses == 0 {
        String::new()
    } else {
        format!(", lapsed {}", counted(counts.lapses, "time"))
    };
    let peers = (counts.peer_requests + counts.peer_failures > 0).then(|| {
        let failures = match counts.peer_failures {
            0 => String::new(),
            failures => format!("; {} in vain", counted(failures, "read")),
        };
        let read = format!(
            "{} read from other nodes' caches by {}{failures}",
            bytes(counts.peer_bytes),
            counted(counts.peer_requests, "request")
        );
        ("peers", read)
    });
    let all = [
        (
            "tokens",
            format!(
                "{} of {} held, {} contended; {} waiting now; {} taken away",
                counts.tokens,
                counted(counts.files, "file"),
                counts.contended_files,
                counts.waiting,
                counts.handovers
            ),
        ),
        ("token waits", waits + &failed),
        (
            "store",
            format!(
                "{}; the lease runs for {}{lapses}",
                counted(counts.round_trips, "round trip"),
                ms(counts.lease_left_ms.saturating_mul(1000))
            ),
        ),
    ];
    let others =
        if counts.others_use_origin > 0 { "; rests for programs of other nodes" } else { "" };
    let share = (counts.share_parts > 1 || counts.others_use_origin > 0).then(|| {
        let part = match counts.share_parts {
            0 | 1 => "all".to_owned(),
            parts => format!("1/{parts}"),
        };
        ("background", format!("{part} of what one node alone would use of the origin{others}"))
    });
    all.into_iter().chain(share).chain(peers).collect()
}

/// How much of what was read came from the cache.
fn of_bytes_read(read: &RequestTotals) -> String {
    match read.bytes {
        0 => "nothing was read".to_owned(),
        all => format!("{} of bytes read", share(read.cache_bytes, all)),
    }
}

/// Bytes by layout, of the layouts that have any: `1-DH 3.00 MiB, 2-D 4.00 KiB`.
pub(crate) fn layouts(of: &LayoutBytes) -> Option<String> {
    let LayoutBytes { one_dh, one_dv, two_d } = *of;
    let each = [(Layout::OneDh, one_dh), (Layout::OneDv, one_dv), (Layout::TwoD, two_d)];
    let used = each.iter().filter(|(_, count)| *count > 0);
    let used = used.map(|(layout, count)| format!("{} {}", layout.title(), bytes(*count)));
    let used: Vec<_> = used.collect();
    (!used.is_empty()).then(|| used.join(", "))
}

fn row(out: &mut String, name: &str, totals: &RequestTotals) {
    let _ = writeln!(
        out,
        "{name:<8}{:>12}{:>12}{:>14}{:>14}{:>10}",
        totals.requests,
        bytes(totals.bytes),
        totals.cache_requests,
        bytes(totals.cache_bytes),
        share(totals.cache_bytes, totals.bytes),
    );
}

/// One line on what was moved, and one for each file that was not.
pub(crate) fn moved(verb: &str, done: &MoveReport, dry_run: bool) -> String {
    let would = if dry_run { "would be " } else { "" };
    let already = counted_with(done.already_files, "file", ("was", "were"));
    let mut out = if done.files == 0 && done.bytes == 0 {
        format!("nothing {would}{verb}")
    } else {
        let mut out =
            format!("{} in {} {would}{verb}", bytes(done.bytes), counted(done.files, "file"));
        // Empty files, and clean copies that were there, have no rate.
        if !dry_run && done.bytes > 0 {
            let (took, at) = (seconds(done.seconds), rate(done.bytes, done.seconds));
            let _ = write!(out, " in {took} ({at})");
        }
        out
    };
    if done.already_files > 0 {
        let _ = write!(out, "; {already} there already");
    }
    if done.clean_bytes > 0 {
        let clean = bytes(done.clean_bytes);
        let _ = write!(out, "; {clean} of clean copies were there already");
    }
    if done.left_bytes > 0 {
        let _ = write!(out, "; {} left", bytes(done.left_bytes));
    }
    out.push_str(&skipped(done));
    out
}

/// One line for each file that was not moved, or that others had changed.
pub(crate) fn skipped(done: &MoveReport) -> String {
    let one = |skipped: &Skipped| format!("\n  {}", self::left(skipped));
    done.skipped.iter().chain(&done.conflicts).map(one).collect()
}

/// A file that was not moved, and why.
pub(crate) fn left(skipped: &Skipped) -> String {
    format!("{}: {}", path(&skipped.path), line(&skipped.reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_on_their_line() {
        use std::os::unix::ffi::OsStrExt;

        let odd = std::ffi::OsStr::from_bytes(b"a\xff");
        assert_eq!(path(Path::new("grö ße")), "grö ße");
        assert_eq!(path(Path::new("a\n\u{1b}[2J")), "\"a\\n\\u{1b}[2J\"");
        assert_eq!(path(Path::new(odd)), "\"a\\xFF\"");
        assert_eq!(path(Path::new("\u{202e}gpj.a")), "\"\\u{202e}gpj.a\"");
        assert_eq!(path(Path::new("\"a")), "\"\\\"a\"");
    }

    #[test]
    fn what_a_terminal_obeys_is_shown() {
        // A title, a cleared screen, a line that looks like ours, the 8-bit form of ESC [, and
        // letters that are written backwards.
        let evil = "a\u{1b}]0;t\u{7}\u{1b}[2J\nok\r\u{9b}1m\u{202e}b\u{2066}\u{7f}ö";
        let shown = "a\\u{1b}]0;t\\u{7}\\u{1b}[2J\\nok\\r\\u{9b}1m\\u{202e}b\\u{2066}\\u{7f}ö";
        assert_eq!(line(evil), shown);
        assert_eq!(line(shown), shown, "what was shown once is not shown twice");
        assert_eq!(lines(evil), shown.replacen("\\n", "\n", 1));
        let said = json(&serde_json::to_string_pretty(&[evil]).unwrap());
        assert!(!said.contains(|c: char| c != '\n' && is_obeyed(c)), "{said}");
        assert_eq!(serde_json::from_str::<[String; 1]>(&said).unwrap(), [evil]);
        let globs = ["a".into(), "b c".into(), String::new(), "\u{1b}".into()];
        assert_eq!(words(&globs), "a \"b c\" \"\" \"\\u{1b}\"");
    }

    #[test]
    fn a_report_of_others_stays_on_its_lines() {
        let evil = "x\n\u{1b}[2J".to_owned();
        let skipped = vec![Skipped { path: evil.clone().into(), reason: evil.clone() }];
        let done =
            MoveReport { skipped: skipped.clone(), conflicts: skipped, ..MoveReport::default() };
        let told = moved("flushed", &done, false);
        assert_eq!(told.lines().count(), 3, "{told}");
        assert_eq!(lines(&told), told);
        let all = Report { policy: evil.clone(), emulated: Some(evil), ..Report::default() };
        let told = report(&all);
        assert_eq!(told.lines().count(), 13, "{told}");
        assert_eq!(lines(&told), told);
    }

    /// Writes that the cache had taken were told as hits, where no read had met one.
    #[test]
    fn writes_that_the_cache_took_are_no_hits() {
        let totals =
            |bytes, cache_bytes| RequestTotals { bytes, cache_bytes, ..Default::default() };
        let (read, write) = (totals(100, 0), totals(300, 300));
        let told = report(&Report { read, write, hit_ratio: 0.75, ..Report::default() });
        assert!(told.contains("by cache    75.0 % of all bytes\n"), "{told}");
        assert!(told.contains("read hits   0.0 % of bytes read\n"), "{told}");
        let none = report(&Report { write, hit_ratio: 1.0, ..Report::default() });
        assert!(none.contains("read hits   nothing was read\n"), "{none}");
    }

    #[test]
    fn a_status_tells_the_policy_once() {
        let all = Report { policy: "sla".into(), ..Report::default() };
        assert!(report(&all).contains("policy      sla\n"));
        assert!(!served(&all, None).contains("policy"));
    }

    /// `0 B in 0 files flushed in 1.93 ms (0 B/s)` was said.
    #[test]
    fn a_move_of_nothing_says_so() {
        let told = |done: MoveReport| moved("flushed", &MoveReport { seconds: 1.0, ..done }, false);
        let nothing = MoveReport::default();
        assert_eq!(told(nothing.clone()), "nothing flushed");
        assert_eq!(
            told(MoveReport { left_bytes: 1024, ..nothing.clone() }),
            "nothing flushed; 1.00 KiB left"
        );
        let already = MoveReport { already_files: 3, ..nothing.clone() };
        assert_eq!(told(already), "nothing flushed; 3 files were there already");
        let empty = MoveReport { files: 1, ..nothing.clone() };
        assert_eq!(told(empty), "0 B in 1 file flushed");
        assert_eq!(
            told(MoveReport { files: 1, bytes: 1024, ..nothing }),
            "1.00 KiB in 1 file flushed in 1.00 s (1.00 KiB/s)"
        );
    }

    /// A mount that flushed in the background alone said "104 MiB in 0 s (-)", and after a short
    /// flush a rate that no disk has.
    #[test]
    fn what_was_flushed_in_the_background_has_no_rate() {
        let line = |seconds| {
            let mut all = Report::default();
            (all.flush.bytes, all.flush.seconds) = (1 << 20, seconds);
            let told = report(&all);
            told.lines().find(|line| line.contains("flushed")).unwrap().to_owned()
        };
        assert!(line(0.0).ends_with("  1.00 MiB"), "{}", line(0.0));
        assert!(line(0.5).ends_with("1.00 MiB, 500.00 ms of waiting for it"), "{}", line(0.5));
    }

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1024), "1.00 KiB");
        assert_eq!(bytes(1536 << 20), "1.50 GiB");
        assert_eq!(bytes(1023 << 20), "1023 MiB");
        assert_eq!(bytes(u64::MAX), "16384 PiB");
        // Regression: a part of a layout from byte 700,000 on was said to be from 684 KiB on.
        assert_eq!((bytes(700_000), exact_bytes(700_000)), ("684 KiB".into(), "700000 B".into()));
        assert_eq!(exact_bytes((1 << 20) + 4096), "1052672 B");
        for exact in [0, 700, 1024, 1536, 684 << 10, 1 << 20, 1536 << 20, 1 << 60] {
            assert_eq!(exact_bytes(exact), bytes(exact));
        }
        assert_eq!(seconds(0.0), "0 s");
        assert_eq!(seconds(12e-6), "12.0 us");
        assert_eq!(seconds(-1.25), "-1.25 s");
        assert_eq!(seconds(125.0), "2 min 5 s");
        assert_eq!(share(1, 0), "-");
        assert_eq!(
            (tick(0.2 + 0.2 + 0.2), tick(1500.0), tick(-0.25)),
            ("0.6".into(), "1500".into(), "-0.25".into())
        );
        assert_eq!((tick(f64::MAX), tick(f64::NAN)), (f64::MAX.to_string(), "NaN".into()));
        assert_eq!(rate(1 << 20, 0.0), "-");
    }
}
