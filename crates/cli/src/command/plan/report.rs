//! What a plan says to people, and to scripts.

use std::collections::BTreeMap;

use halocline_os::counted::counted;
use halocline_plan::layout::Layout;
use halocline_plan::paper::Unanswered;
use halocline_plan::planner::{Judged, Name, Outcome};
use halocline_plan::servers::Servers;
use halocline_plan::workload::File;
use serde::Serialize;

use super::apart::Apart;
use super::job::Job;
use super::source::TraceSummary;
use crate::print::say;
use crate::text;

/// Files whose parts are shown to people.
const SHOWN: usize = 8;
/// Servers of a class that are shown by their names.
const NAMED: usize = 4;

/// The whole comparison.
#[derive(Debug, Serialize)]
pub(crate) struct Json {
    requests: u64,
    sampled_requests: usize,
    partial: bool,
    layouts: BTreeMap<&'static str, LayoutJson>,
    chosen: &'static str,
    gain_over_def: f64,
    best_gain: f64,
    spread: f64,
    least_gain: f64,
    most_gain: f64,
    few_requests: bool,
    io_share: Option<f64>,
    job: Option<Job>,
    ties: Vec<TieJson>,
    notes: Vec<String>,
    replays: usize,
}

#[derive(Debug, Default, Serialize)]
struct LayoutJson {
    simulated_seconds: Option<f64>,
    predicted_seconds: Option<f64>,
    ssd_bytes: Option<u64>,
    ssd_traffic: Option<f64>,
    /// Simulated seconds until the SSDs are full.
    full_after_seconds: Option<f64>,
    stripes: Vec<FileJson>,
    /// Files for which the paper has no stripes.
    default_files: usize,
    /// Why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    unavailable: Option<String>,
}

#[derive(Debug, Serialize)]
struct FileJson {
    file: String,
    parts: Vec<halocline_plan::layout::Part>,
}

/// What PSA cannot tell apart for a file.
#[derive(Debug, Serialize)]
struct TieJson {
    file: String,
    /// How many pairs, of which the last are among the candidates.
    pairs: usize,
    /// Stripes on disks and on SSDs, and the requests that fit on both.
    candidates: Vec<[u64; 3]>,
}

/// For scripts.
pub(crate) fn json(
    seen: &TraceSummary,
    servers: &Servers,
    outcome: &Outcome,
    job: Option<Job>,
) -> Json {
    let name = |number| text::line(&String::from_utf8_lossy(seen.name(number)));
    let layouts = Name::ALL.into_iter().map(|which| {
        let layout = match outcome.of(which) {
            Ok(judged) => layout_json(seen, judged, unanswered(outcome, which)),
            Err(why) => LayoutJson { unavailable: Some(why.clone()), ..LayoutJson::default() },
        };
        (which.text(), layout)
    });
    let ties = outcome.ties.iter().map(|ties| TieJson {
        file: name(ties.file),
        pairs: ties.pairs,
        candidates: ties.candidates.iter().map(|it| [it.h, it.s, it.j]).collect(),
    });
    Json {
        requests: seen.workload.requests,
        sampled_requests: seen.workload.sampled(),
        partial: seen.completeness.is_partial(),
        layouts: layouts.collect(),
        chosen: outcome.chosen.text(),
        gain_over_def: outcome.gain_over_def,
        best_gain: outcome.best_gain,
        spread: outcome.gains.spread(),
        least_gain: outcome.gains.least,
        most_gain: outcome.gains.most,
        few_requests: seen.has_few_requests(),
        io_share: seen.io_time.share(),
        job,
        ties: ties.collect(),
        notes: placement_lines(seen, servers, outcome),
        replays: outcome.replays,
    }
}

/// How many files lie as under `def` because this layout has no stripes for them.
fn unanswered(outcome: &Outcome, which: Name) -> usize {
    let mut all = outcome.unanswered.iter();
    all.find(|it| Name::of_scheme(it.scheme) == which).map_or(0, |it| it.files)
}

/// The same in sentences, with the reason of the first.
pub(super) fn unanswered_lines(seen: &TraceSummary, outcome: &Outcome) -> Vec<String> {
    let line = |it: &Unanswered| {
        let verbs = if it.files == 1 { ("has", "lies") } else { ("have", "lie") };
        format!(
            "{} of {} {} no stripes of {} and {} as under def; of the first, {}: {}",
            it.files,
            counted(seen.workload.files.len(), "file"),
            verbs.0,
            Name::of_scheme(it.scheme).text(),
            verbs.1,
            text::line(&String::from_utf8_lossy(seen.name(it.first))),
            it.why
        )
    };
    outcome.unanswered.iter().map(line).collect()
}

fn layout_json(seen: &TraceSummary, judged: &Judged, default_files: usize) -> LayoutJson {
    let stripes = seen.workload.files.iter().map(|file| FileJson {
        file: text::line(&String::from_utf8_lossy(seen.name(file.number))),
        parts: judged.layouts.of(file.number).parts().to_vec(),
    });
    LayoutJson {
        simulated_seconds: Some(judged.simulated_seconds),
        predicted_seconds: Some(judged.predicted_seconds),
        ssd_bytes: Some(judged.ssd_bytes),
        ssd_traffic: Some(judged.ssd_traffic),
        full_after_seconds: judged.full_after_seconds,
        stripes: stripes.collect(),
        default_files,
        unavailable: None,
    }
}

/// For people.
pub(crate) fn print(seen: &TraceSummary, servers: &Servers, outcome: &Outcome, job: Option<&Job>) {
    let count =
        |number: u64, what: &str| counted(usize::try_from(number).unwrap_or(usize::MAX), what);
    let workload = &seen.workload;
    say!(
        "{} to {} on {} of {}; {} replayed in the search",
        count(workload.requests, "request"),
        counted(workload.files.len(), "file"),
        counted(servers.count(), "server"),
        counted(servers.classes().len(), "kind"),
        counted(workload.sampled(), "request")
    );
    if workload.requests_of_other_files > 0 {
        let others = count(workload.requests_of_other_files, "request");
        say!("{others} to further files, which keep the default layout");
    }
    say!("");
    say!(
        "{:<6} {:>12} {:>12} {:>9} {:>9}   SSDs full",
        "layout",
        "simulated",
        "predicted",
        "MB/s",
        "on SSDs"
    );
    for which in Name::ALL {
        match outcome.of(which) {
            Ok(judged) => print_row(which, judged, workload.bytes),
            Err(why) => say!("{:<6}   none: {why}", which.text()),
        }
    }
    say!("");
    for line in unanswered_lines(seen, outcome) {
        say!("{line}");
    }
    for ties in &outcome.ties {
        let name = text::line(&String::from_utf8_lossy(seen.name(ties.file)));
        say!("{name}: psa cannot tell {} of stripes apart", counted(ties.pairs, "pair"));
    }
    recommend(seen, servers, outcome, job);
    if outcome.chosen == Name::Def {
        return;
    }
    for file in workload.files.iter().take(SHOWN) {
        say!("{}", text::line(&String::from_utf8_lossy(seen.name(file.number))));
        print_parts(servers, outcome.choice().layouts.of(file.number));
    }
    if workload.files.len() > SHOWN {
        say!("and {}", counted(workload.files.len() - SHOWN, "further file"));
    }
}

fn recommend(seen: &TraceSummary, servers: &Servers, outcome: &Outcome, job: Option<&Job>) {
    let best = percent(outcome.best_gain);
    let parts = range_in_parts(outcome);
    match (outcome.chosen, job) {
        (Name::Def, None) => say!(
            "recommended: leave the layout alone; the best of the others gains {best}, {parts}"
        ),
        (Name::Def, Some(_)) => {
            say!(
                "recommended: leave the layout alone; the job hardly waits for its requests, which {} would give",
                outcome.best.text()
            );
            say!("{best} more throughput, {parts}");
        }
        (chosen, _) => {
            say!("recommended: {}, with {best} more throughput than def, {parts}", chosen.text());
        }
    }
    for line in order_lines(seen, outcome).into_iter().chain(job_lines(seen, outcome, job)) {
        say!("{line}");
    }
    for line in placement_lines(seen, servers, outcome) {
        say!("{line}");
    }
}

/// What the chosen layout does that stripes for each kind of server do not tell.
pub(super) fn placement_lines(
    seen: &TraceSummary,
    servers: &Servers,
    outcome: &Outcome,
) -> Vec<String> {
    if outcome.chosen == Name::Def {
        return Vec::new();
    }
    let judged = outcome.choice();
    let files = &seen.workload.files;
    let layouts = files.iter().map(|file| judged.layouts.of(file.number));
    let mut lines = Vec::new();
    if let Some(each) = Apart::of(servers, layouts) {
        lines.push(each.sentence().to_owned());
    }
    if judged.ssd_bytes > 0 && judged.ssd_traffic == 0.0 {
        lines.push(format!(
            "the {} on the SSDs are gaps between the requests, of which the disks are free; nothing is read or written there",
            text::bytes(judged.ssd_bytes)
        ));
    }
    let is_divided = |def: &Judged, file: &File| {
        def.layouts.of(file.number).parts().get(1).is_some_and(|part| part.begin < file.bytes)
    };
    if let Ok(def) = outcome.of(Name::Def)
        && files.iter().any(|file| is_divided(def, file))
    {
        lines.push(
            "def is the paper's: what the SSDs have no room for lies on the disks in stripes of a request's length over \
             their number, not of 64 KiB; files that lie otherwise gain more or less than this"
                .to_owned(),
        );
    }
    lines
}

/// The least and the largest gain of the best layout.
pub(super) fn range_in_parts(outcome: &Outcome) -> String {
    let [least, most] = [outcome.gains.least, outcome.gains.most].map(percent);
    format!("{least} to {most} in parts of the trace")
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// What the range of gains does not include, where the order of processes is a matter of chance.
pub(super) fn order_lines(seen: &TraceSummary, outcome: &Outcome) -> Vec<String> {
    let has_turns = seen.workload.files.iter().any(|file| file.processes > 1);
    if outcome.chosen == Name::Def || !has_turns {
        return Vec::new();
    }
    let lines = [
        "these gains are for the order in which the processes took turns in this trace; in another one",
        "the gain can be a fraction of that, or a multiple",
    ];
    lines.map(str::to_owned).to_vec()
}

/// What the best layout is worth to the job, if that is known.
pub(super) fn job_lines(seen: &TraceSummary, outcome: &Outcome, job: Option<&Job>) -> Vec<String> {
    let Some(job) = job else {
        let lines = [
            "that is of the requests alone: the trace does not say how long they took, so what it is",
            "worth to a job that also computes is not known",
        ];
        let is_of_interest = outcome.chosen != Name::Def;
        return lines.into_iter().filter(|_| is_of_interest).map(str::to_owned).collect();
    };
    let [def, planned] = [job.def_seconds, job.seconds].map(text::seconds);
    let share = match seen.io_time.share() {
        Some(share) if share < 5e-4 => "less than 0.1 %".to_owned(),
        share => share.map(percent).unwrap_or_default(),
    };
    vec![
        format!(
            "the job had a request under way in {share} of its time; when it computes as before, it takes"
        ),
        format!(
            "{def} with def and {planned} with {}: it gains {}",
            outcome.best.text(),
            percent(job.gain)
        ),
    ]
}

fn print_row(which: Name, judged: &Judged, bytes: u64) {
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let rate = bytes as f64 / judged.simulated_seconds.max(1e-12) / 1e6;
    let full =
        judged.full_after_seconds.map_or("-".to_owned(), |s| format!("after {}", text::seconds(s)));
    say!(
        "{:<6} {:>12} {:>12} {:>9.1} {:>9}   {full}",
        which.text(),
        text::seconds(judged.simulated_seconds),
        text::seconds(judged.predicted_seconds),
        rate,
        text::bytes(judged.ssd_bytes)
    );
}

fn print_parts(servers: &Servers, layout: &Layout) {
    for part in layout.parts() {
        say!("  from {}: {}", text::exact_bytes(part.begin), stripes(servers, part));
    }
}

/// Servers by their names, or of many the first and the last.
fn named(servers: &Servers, members: &[usize]) -> String {
    let name = |member: &usize| text::line(&servers.all()[*member].name);
    match members {
        [first, .., last] if members.len() > NAMED => {
            format!("{} servers from {} to {}", members.len(), name(first), name(last))
        }
        _ => members.iter().map(name).collect::<Vec<_>>().join(", "),
    }
}

/// The stripes of a part, class by class.
pub(super) fn stripes(servers: &Servers, part: &halocline_plan::layout::Part) -> String {
    let stripes = servers.classes().iter().map(|class| {
        let widths: Vec<u64> = class.members.iter().map(|&member| part.widths[member]).collect();
        let even = widths.iter().all(|width| *width == widths[0]);
        let names = named(servers, &class.members);
        if even && widths[0] == 0 {
            format!("nothing on {names}")
        } else if even && widths.len() > 1 {
            format!("{} on each of {names}", text::exact_bytes(widths[0]))
        } else {
            let widths: Vec<String> =
                widths.iter().map(|width| text::exact_bytes(*width)).collect();
            format!("{} on {names}", widths.join(", "))
        }
    });
    stripes.collect::<Vec<_>>().join("; ")
}
