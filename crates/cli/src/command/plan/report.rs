//! What a plan says to people, and to scripts.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use halocline_os::counted::counted;
use halocline_plan::default_layout::Rest;
use halocline_plan::gain_range::PartSeconds;
use halocline_plan::layout::Part;
use halocline_plan::paper::Unanswered;
use halocline_plan::planner::{Judged, Name, Outcome, RestOfDefault};
use halocline_plan::servers::Servers;
use serde::Serialize;

use super::alike::Alike;
use super::apart::Apart;
use super::gains;
use super::job::Job;
use super::source::TraceSummary;
use crate::print::say;
use crate::text::{self, percent};

/// Files whose parts are shown to people; those that lie alike are one.
const SHOWN: usize = 8;
/// Servers of a class that are shown by their names.
const NAMED: usize = 4;
/// Different stripes in a class of servers that are told.
const WIDTHS_TOLD: usize = 6;

/// The whole comparison.
#[derive(Debug, Serialize)]
pub(crate) struct Json {
    requests: u64,
    sampled_requests: usize,
    partial: bool,
    layouts: BTreeMap<&'static str, LayoutJson>,
    chosen: &'static str,
    gain_over_def: f64,
    def_rest: Option<Rest>,
    other_def_seconds: Option<f64>,
    best_gain: f64,
    spread: f64,
    least_gain: f64,
    most_gain: f64,
    sure_gain: f64,
    parts: Vec<PartJson>,
    placements: Vec<PartJson>,
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
    parts: Vec<Part>,
}

/// A part of the sample, or the trace in a placement of the files.
#[derive(Debug, Serialize)]
struct PartJson {
    def_seconds: f64,
    seconds: f64,
    gain: f64,
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
    let part = |part: &PartSeconds| PartJson {
        def_seconds: part.default,
        seconds: part.seconds,
        gain: part.gain(),
    };
    Json {
        requests: seen.workload.requests,
        sampled_requests: seen.workload.sampled(),
        partial: seen.completeness.is_partial(),
        layouts: layouts.collect(),
        chosen: outcome.chosen.text(),
        gain_over_def: outcome.gain_over_def,
        def_rest: outcome.rest.as_ref().map(|it| it.rest),
        other_def_seconds: outcome.rest.as_ref().map(|it| it.other.simulated_seconds),
        best_gain: outcome.best_gain,
        spread: outcome.gains.spread(),
        least_gain: outcome.gains.least,
        most_gain: outcome.gains.most,
        sure_gain: outcome.sure_gain,
        parts: outcome.parts.iter().map(part).collect(),
        placements: outcome.placements.iter().map(part).collect(),
        few_requests: seen.has_few_requests(),
        io_share: seen.io_time.share(),
        job,
        ties: ties.collect(),
        notes: layout_lines(seen, servers, outcome),
        replays: outcome.replays,
    }
}

/// The files for which PSA cannot distinguish so many pairs of stripes; those with as many are told of together.
pub(super) fn ties_told(seen: &TraceSummary, outcome: &Outcome) -> Vec<(String, String)> {
    let mut by_pairs: BTreeMap<usize, (u32, usize)> = BTreeMap::new();
    for ties in &outcome.ties {
        by_pairs.entry(ties.pairs).or_insert((ties.file, 0)).1 += 1;
    }
    let told = by_pairs.into_iter().map(|(pairs, (file, count))| {
        let first = text::line(&String::from_utf8_lossy(seen.name(file)));
        let name = match count - 1 {
            0 => first,
            others => format!("{first} and {}", counted(others, "other file")),
        };
        (name, counted(pairs, "pair"))
    });
    told.collect()
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
    let has_ssds = servers.fast().next().is_some();
    let of_ssds = if has_ssds { format!(" {:>9}   SSDs full", "on SSDs") } else { String::new() };
    say!("{:<6} {:>12} {:>12} {:>9}{of_ssds}", "layout", "simulated", "predicted", "MB/s");
    for which in Name::ALL {
        match outcome.of(which) {
            Ok(judged) => print_row(which, judged, workload.bytes, has_ssds),
            Err(why) => say!("{:<6}   none: {why}", which.text()),
        }
    }
    say!("");
    for line in default_line(outcome).into_iter().chain(unanswered_lines(seen, outcome)) {
        say!("{line}");
    }
    for (name, pairs) in ties_told(seen, outcome) {
        say!("{name}: psa cannot tell {pairs} of stripes apart");
    }
    recommend(seen, servers, outcome, job);
    if outcome.chosen == Name::Def {
        return;
    }
    let alike = Alike::of(&workload.files, &outcome.choice().layouts);
    for group in alike.iter().take(SHOWN) {
        say!("{}", group.name(seen));
        for (_, part) in group.layout.parts_in(0, group.bytes) {
            say!("  from {}: {}", text::exact_bytes(part.begin), stripes(servers, part));
        }
    }
    let others = alike.iter().skip(SHOWN).map(|group| group.count).sum::<usize>();
    if others > 0 {
        say!("and {}", counted(others, "further file"));
    }
}

fn recommend(seen: &TraceSummary, servers: &Servers, outcome: &Outcome, job: Option<&Job>) {
    let best = percent(outcome.best_gain);
    let range = gains::range(outcome);
    match (outcome.chosen, job) {
        (Name::Def, None) => say!(
            "recommended: leave the layout alone; the best of the others gains {best}, {range}"
        ),
        (Name::Def, Some(job)) => {
            say!("recommended: leave the layout alone; {}", job.why_not());
            let what = outcome.best.text();
            say!("to the requests alone {what} would give {best} more throughput, {range}");
        }
        (chosen, _) => {
            say!("recommended: {}, with {best} more throughput than def, {range}", chosen.text());
        }
    }
    for line in gains::lines(outcome, job) {
        say!("{line}");
    }
    for line in order_lines(seen, outcome).into_iter().chain(job_lines(seen, outcome, job)) {
        say!("{line}");
    }
    for line in layout_lines(seen, servers, outcome) {
        say!("{line}");
    }
}

/// What the chosen layout does that stripes for each kind of server do not tell.
pub(super) fn layout_lines(
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
    lines
}

/// Which of two default layouts `def` is, where they differ.
pub(super) fn default_line(outcome: &Outcome) -> Option<String> {
    let RestOfDefault { rest, other } = outcome.rest.as_ref()?;
    let def = outcome.of(Name::Def).ok()?;
    Some(format!(
        "def is the faster of two default layouts: what not all servers have room for lies {}; {} it takes {} instead of {}",
        rest.told(),
        rest.other().told(),
        text::seconds(other.simulated_seconds),
        text::seconds(def.simulated_seconds)
    ))
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
            "{def} with def and {planned} with {}: it {} {}",
            outcome.best.text(),
            if job.gain < 0.0 { "loses" } else { "gains" },
            percent(job.gain.abs())
        ),
    ]
}

fn print_row(which: Name, judged: &Judged, bytes: u64, has_ssds: bool) {
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let rate = bytes as f64 / judged.simulated_seconds.max(1e-12) / 1e6;
    let full =
        judged.full_after_seconds.map_or("-".to_owned(), |s| format!("after {}", text::seconds(s)));
    let of_ssds = format!(" {:>9}   {full}", text::bytes(judged.ssd_bytes));
    say!(
        "{:<6} {:>12} {:>12} {:>9.1}{}",
        which.text(),
        text::seconds(judged.simulated_seconds),
        text::seconds(judged.predicted_seconds),
        rate,
        if has_ssds { of_ssds.as_str() } else { "" }
    );
}

/// Servers by their names, or of many the first and the last.
fn named(servers: &Servers, members: &[usize]) -> String {
    let name = |member: &usize| text::line(&servers.all()[*member].name);
    match members {
        [first, .., last] if members.len() > NAMED => {
            let are_adjacent = last - first + 1 == members.len();
            let word = if are_adjacent { "from" } else { "between" };
            let and = if are_adjacent { "to" } else { "and" };
            format!("{} servers {word} {} {and} {}", members.len(), name(first), name(last))
        }
        _ => members.iter().map(name).collect::<Vec<_>>().join(", "),
    }
}

/// The stripes of a part, class by class; servers with the same stripe are told of together.
pub(super) fn stripes(servers: &Servers, part: &Part) -> String {
    let stripes = servers.classes().iter().map(|class| {
        let mut by_width: BTreeMap<Reverse<u64>, Vec<usize>> = BTreeMap::new();
        for &member in &class.members {
            by_width.entry(Reverse(part.widths[member])).or_default().push(member);
        }
        let kinds = by_width.len();
        let one = |(Reverse(width), members): (&Reverse<u64>, &Vec<usize>)| {
            let names = named(servers, members);
            match (*width, members.len()) {
                (0, count) if kinds > 1 && count > NAMED => format!("nothing on {count} others"),
                (0, _) => format!("nothing on {names}"),
                (width, 1) => format!("{} on {names}", text::exact_bytes(width)),
                (width, _) => format!("{} on each of {names}", text::exact_bytes(width)),
            }
        };
        let mut told: Vec<String> = by_width.iter().take(WIDTHS_TOLD).map(one).collect();
        let left: usize = by_width.values().skip(WIDTHS_TOLD).map(Vec::len).sum();
        if left > 0 {
            told.push(format!("other stripes, or nothing, on {left} others"));
        }
        told.join(", ")
    });
    stripes.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use halocline_model::profile::DeviceProfile;

    use super::super::test_servers;
    use super::*;

    /// Regression: of a file on one of 48 disks the stripe of each was told, 47 times 0 B.
    #[test]
    fn servers_with_the_same_stripe_are_told_of_together() {
        let kinds = std::iter::repeat_n(("hdd", DeviceProfile::hdd_7200()), 48);
        let kinds = kinds.chain(std::iter::repeat_n(("ssd", DeviceProfile::ssd_generic()), 2));
        let name = |(index, (kind, profile))| (format!("{kind}{index}"), profile);
        let servers = test_servers::named(kinds.enumerate().map(name));
        let told = |width: &dyn Fn(usize) -> u64| {
            let widths = (0..50).map(width).collect();
            stripes(&servers, &Part { begin: 0, end: None, widths })
        };
        let one = told(&|server| if server == 3 { 65_536 } else { 0 });
        assert_eq!(one, "64.0 KiB on hdd3, nothing on 47 others; nothing on ssd48, ssd49");
        let even = told(&|server| if server < 48 { 0 } else { 4096 });
        assert_eq!(
            even,
            "nothing on 48 servers from hdd0 to hdd47; 4.00 KiB on each of ssd48, ssd49"
        );
        let halves = told(&|server| if server % 2 == 0 { 4096 } else { 8192 });
        let expected = "8.00 KiB on each of 24 servers between hdd1 and hdd47, 4.00 KiB on each of 24 servers between hdd0 and \
                        hdd46; 8.00 KiB on ssd49, 4.00 KiB on ssd48";
        assert_eq!(halves, expected);
        let all = told(&|server| 4096 * (server as u64 + 1));
        assert!(all.contains(", other stripes, or nothing, on 42 others; "), "{all}");
    }
}
