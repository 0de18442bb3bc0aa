//! The text of a report: the verdict, and the reasons for it.

use std::fmt::Write;

use halocline_os::counted::counted;
use halocline_plan::planner::{Judged, Name};

use super::{Load, Page, mb_per_s, stations};
use crate::command::plan::gains;
use crate::command::plan::picture::{COLUMNS, ROWS};
use crate::command::plan::report;
use crate::text::{self, percent};

/// The recommendation: a headline, and a sentence under it.
pub(super) fn verdict(page: &Page<'_>) -> (String, String) {
    let outcome = page.outcome;
    if outcome.chosen == Name::Def {
        let headline = "Leave the layout alone".to_owned();
        if let Some(job) = page.job {
            let sentence = format!(
                "The best of the other layouts gives the requests {} more throughput; {}.",
                percent(outcome.best_gain),
                job.why_not()
            );
            return (headline, sentence);
        }
        let sentence = format!(
            "The best of the other layouts gains {}, {}: that is not certain enough.",
            percent(outcome.best_gain),
            gains::range(outcome)
        );
        return (headline, sentence);
    }
    let times = 1.0 + outcome.gain_over_def;
    let headline = format!("{}: {times:.2} times the throughput", outcome.chosen.text());
    let sentence = format!(
        "of the default stripes of 64 KiB on every server (def), in a replay on simulated servers. The gain of {} is {}.",
        percent(outcome.gain_over_def),
        gains::range(outcome)
    );
    (headline, sentence)
}

/// The reasons, one sentence each.
pub(super) fn reasons(page: &Page<'_>) -> Vec<String> {
    let mut all = vec![asked(page)];
    if page.seen.has_few_requests() {
        all.push("These are too few to say what others like them would gain.".to_owned());
    }
    all.extend(gains::lines(page.outcome, page.job).iter().map(|line| sentence(line)));
    for lines in [
        report::order_lines(page.seen, page.outcome),
        report::job_lines(page.seen, page.outcome, page.job),
    ] {
        if !lines.is_empty() {
            all.push(sentence(&lines.join(" ")));
        }
    }
    all.extend(report::default_line(page.outcome).map(|line| sentence(&line)));
    for load in &page.loads {
        if load.name == Name::Def || load.name == page.outcome.chosen {
            all.push(bottleneck(page, load));
        }
    }
    if let Ok(judged) = page.outcome.of(page.outcome.chosen) {
        let lines = report::layout_lines(page.seen, page.servers, page.outcome);
        all.extend(lines.iter().map(|line| sentence(line)));
        all.extend(space(page, judged));
        all.push(agreement(page, judged));
    }
    for name in Name::ALL {
        if let Err(why) = page.outcome.of(name) {
            all.push(format!("There is no layout {}: {why}.", name.text()));
        }
    }
    for line in report::unanswered_lines(page.seen, page.outcome) {
        all.push(sentence(&line));
    }
    for (name, pairs) in report::ties_told(page.seen, page.outcome) {
        all.push(format!(
            "For {name} the cost model of psa gives {pairs} of stripes the same time; it takes the one with the widest stripe on the disks."
        ));
    }
    if page.seen.completeness.is_partial() {
        all.push("The trace is not whole, so a gain must be larger to be believed.".to_owned());
    }
    all
}

fn asked(page: &Page<'_>) -> String {
    let (workload, mix) = (&page.seen.workload, &page.picture.mix);
    let [reads, writes] = [(mix.reads, "read"), (mix.writes, "write")];
    let kinds = match (reads.0, writes.0) {
        (0, _) => "all of them writes".to_owned(),
        (_, 0) => "all of them reads".to_owned(),
        _ => format!("{} and {}", counted(reads.0, reads.1), counted(writes.0, writes.1)),
    };
    let processes = workload.files.iter().map(|file| file.processes).max().unwrap_or(0);
    let usual = workload.files.first().map_or(0, halocline_plan::workload::File::size);
    let sharing = match processes {
        0 | 1 => "no file is used by several processes".to_owned(),
        _ => format!("up to {} share a file", counted(processes, "process")),
    };
    format!(
        "The trace has {} ({kinds}) of {} to {}; most bytes of the busiest file are in requests of {}, and {sharing}.",
        counted(workload.requests, "request"),
        text::bytes(workload.bytes),
        counted(page.picture.files, "file"),
        text::bytes(usual)
    )
}

/// The server that requests wait for under a layout, and the one with the least load.
fn bottleneck(page: &Page<'_>, load: &Load) -> String {
    let servers = stations(page, load, usize::MAX);
    let busiest = servers.iter().max_by(|a, b| a.busy.total_cmp(&b.busy)).expect("a server");
    let idlest = servers.iter().min_by(|a, b| a.busy.total_cmp(&b.busy)).expect("a server");
    let of = |it: &super::Station| format!("{} ({}) {}", it.name, it.kind, percent(it.busy));
    if busiest.busy - idlest.busy < 0.1 {
        return format!(
            "Under {} all servers are about as busy: {} of the time at least.",
            load.name.text(),
            percent(idlest.busy)
        );
    }
    format!(
        "Under {} requests wait for the servers that are busiest: {} of the time, while {}.",
        load.name.text(),
        of(busiest),
        of(idlest)
    )
}

/// What is on the SSDs; `None` where all servers are of one kind.
fn space(page: &Page<'_>, judged: &Judged) -> Option<String> {
    page.servers.fast().next()?;
    let sizes = page.seen.workload.files.iter().map(|file| file.bytes);
    let all = sizes.fold(0, u64::saturating_add);
    let full = judged.full_after_seconds.map_or_else(
        || "the SSDs do not run full".to_owned(),
        |seconds| format!("they are full after {} of simulated time", text::seconds(seconds)),
    );
    Some(format!(
        "{} puts {} of {} on servers that are not of the slowest class, the SSDs, where {} of the bytes are read and written; {full}.",
        page.outcome.chosen.text(),
        text::bytes(judged.ssd_bytes),
        text::bytes(all),
        percent(judged.ssd_traffic)
    ))
}

/// How predicted, simulated and measured throughput agree.
fn agreement(page: &Page<'_>, judged: &Judged) -> String {
    let [predicted, simulated] = [judged.predicted_seconds, judged.simulated_seconds];
    let apart = simulated / predicted.max(1e-12) - 1.0;
    let name = page.outcome.chosen.text();
    let mut said = if apart.abs() < 0.005 {
        format!("For {name} cost model and replay agree: {}.", text::seconds(simulated))
    } else {
        format!(
            "For {name} the cost model predicts {} and the replay takes {}, {} {}; the replay decides, because it knows seeks and queues.",
            text::seconds(predicted),
            text::seconds(simulated),
            percent(apart.abs()),
            if apart > 0.0 { "longer" } else { "shorter" }
        )
    };
    if let Some(seconds) = page.seen.io_time.seconds() {
        let rate = mb_per_s(page.seen.workload.bytes, seconds);
        let _ = write!(
            said,
            " When the trace was recorded, it took {} with a request under way: {rate:.1} MB/s, on the servers that it had then.",
            text::seconds(seconds)
        );
    }
    said
}

/// How a map is filled, for people who cannot see it.
pub(super) fn shape(counts: &[u32]) -> &'static str {
    // The middle of the accessed part, column by column.
    let middles: Vec<usize> = counts
        .chunks(ROWS)
        .filter_map(|rows| {
            let touched: Vec<usize> = (0..rows.len()).filter(|row| rows[*row] > 0).collect();
            (!touched.is_empty()).then(|| touched.iter().sum::<usize>() / touched.len())
        })
        .collect();
    let filled = counts.iter().filter(|count| **count > 0).count();
    let rising = middles.windows(2).filter(|pair| pair[1] >= pair[0]).count();
    let span =
        middles.last().copied().unwrap_or(0).saturating_sub(middles.first().copied().unwrap_or(0));
    if middles.len() < 3 {
        "in a short time"
    } else if rising + 2 >= middles.len() && span > ROWS / 3 {
        "from the beginning of the file towards its end"
    } else if filled * 2 > COLUMNS * ROWS {
        "all over the file all the time"
    } else {
        "here and there"
    }
}

/// A line of the report as a sentence.
fn sentence(line: &str) -> String {
    let mut letters = line.chars();
    letters
        .next()
        .map_or_else(String::new, |first| format!("{}{}.", first.to_uppercase(), letters.as_str()))
}
