//! A plan as a page for people: one HTML file that loads nothing.
//!
//! What must hold: names from traces and descriptions of servers are text and never markup ([`html::escaped`]); should
//! that ever fail, the page's own policy forbids scripts and all external resources.

mod figures;
mod html;
mod words;

use std::fmt::Write as _;
use std::path::Path;

use halocline_os::counted::counted;
use halocline_os::error::Error;
use halocline_plan::planner::{Judged, Name, Outcome};
use halocline_plan::servers::Servers;
use halocline_sim::ServerSet;
use halocline_sim::replay::ServerOutcome;

use super::alike::Alike;
use super::job::Job;
use super::picture::Picture;
use super::report;
use super::source::TraceSummary;
use crate::command::judge::{REPLAYED_MAX, Replay};
use crate::failure::Failure;
use crate::output;
use crate::text;
use html::{Cell, Figure, escaped, table};

/// Limit of the files in the table of the plan, of which those that lie alike are one.
const GROUPS_SHOWN: usize = 20;
const STYLE: &str = include_str!("page/page.css");

/// The load of the servers under a layout.
struct Load {
    name: Name,
    seconds: f64,
    servers: Vec<ServerOutcome>,
}

/// A server, or a class of them, under a layout.
struct Station {
    name: String,
    kind: String,
    is_fast: bool,
    /// Busy share of the replay.
    busy: f64,
    bytes: u64,
}

/// The contents of a page.
struct Page<'a> {
    trace: &'a Path,
    seen: &'a TraceSummary,
    picture: &'a Picture,
    set: &'a ServerSet,
    servers: &'a Servers,
    outcome: &'a Outcome,
    job: Option<&'a Job>,
    loads: Vec<Load>,
}

impl Page<'_> {
    /// The existing layouts.
    fn judged(&self) -> impl Iterator<Item = (Name, &Judged)> {
        Name::ALL.into_iter().filter_map(|name| Some((name, self.outcome.of(name).ok()?)))
    }
}

/// Writes the page for a plan to `file`, which appears under its name only once it is complete.
pub(super) fn write(
    file: &Path,
    (trace, seen): (&Path, &TraceSummary),
    (set, servers): (&ServerSet, &Servers),
    (outcome, job): (&Outcome, Option<&Job>),
) -> Result<(), Failure> {
    let Some(picture) = &seen.picture else { return Ok(()) };
    let loads = loads(seen, set, outcome)?;
    let page = Page { trace, seen, picture, set, servers, outcome, job, loads };
    let text = page.html()?;
    Ok(output::write(file, text).map_err(Error::at(file, "write the page"))?)
}

fn loads(seen: &TraceSummary, set: &ServerSet, outcome: &Outcome) -> Result<Vec<Load>, Failure> {
    let sample: Vec<_> = seen.workload.sample.iter().flatten().copied().collect();
    let mut loads = Vec::new();
    for name in Name::ALL {
        let Ok(judged) = outcome.of(name) else { continue };
        let replayed = Replay::new(set).outcome(&sample, &judged.layouts, &mut |_, _| {});
        let replayed = replayed.map_err(Failure::failed)?;
        loads.push(Load { name, seconds: replayed.seconds, servers: replayed.servers });
    }
    Ok(loads)
}

/// Servers under a layout, or classes of them if there are more than `most`.
fn stations(page: &Page<'_>, load: &Load, most: usize) -> Vec<Station> {
    let share = |server: &ServerOutcome| (server.busy_seconds / load.seconds.max(1e-12)).min(1.0);
    let bytes = |server: &ServerOutcome| server.read_bytes.saturating_add(server.written_bytes);
    let fast: Vec<usize> = page.servers.fast().collect();
    let kind = |index: usize| text::line(&page.set.servers()[index].profile_name);
    if load.servers.len() <= most {
        let station = |(index, server): (usize, &ServerOutcome)| Station {
            name: text::line(&server.name),
            kind: kind(index),
            is_fast: fast.contains(&index),
            busy: share(server),
            bytes: bytes(server),
        };
        return load.servers.iter().enumerate().map(station).collect();
    }
    let class = |class: &halocline_plan::servers::Class| {
        let of = || class.members.iter().map(|member| &load.servers[*member]);
        #[expect(clippy::cast_precision_loss, reason = "a mean")]
        let count = class.members.len() as f64;
        let first = class.members[0];
        Station {
            name: format!("{} servers", class.members.len()),
            kind: kind(first),
            is_fast: fast.contains(&first),
            busy: of().map(share).sum::<f64>() / count,
            bytes: of().map(bytes).fold(0, u64::saturating_add),
        }
    };
    page.servers.classes().iter().map(class).collect()
}

/// MB (10^6 bytes) a second.
#[expect(clippy::cast_precision_loss, reason = "for people")]
fn mb_per_s(bytes: u64, seconds: f64) -> f64 {
    bytes as f64 / seconds.max(1e-12) / 1e6
}

impl Page<'_> {
    fn html(&self) -> Result<String, Failure> {
        let [compared, maps, loads] = figures::all(self)?;
        let (headline, sentence) = words::verdict(self);
        let trace = escaped(&text::path(self.trace));
        let reasons: Vec<String> =
            words::reasons(self).iter().map(|reason| escaped(reason)).collect();
        let reasons = reasons.join("</li>\n<li>");
        let together = |figures: &[Figure]| -> String {
            let all: String = figures.iter().map(Figure::html).collect();
            format!("<div class=\"figures\">\n{all}</div>\n")
        };
        let sampled = self.sampled();
        let colours = match self.servers.classes().len() {
            1 => "All servers are of one kind.",
            _ => "Orange are the servers of the slowest class, blue all others.",
        };
        let shown = format!(
            "All requests to the {} with the most bytes, of {}.",
            counted(self.picture.maps.len(), "file"),
            counted(self.picture.files, "file")
        );
        Ok([
            format!(
                "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">\n<link rel=\"icon\" href=\"data:,\">\n<title>Plan for {trace}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n"
            ),
            format!("<header><h1>Stripes for {trace}</h1>\n<p class=\"soft\">{sampled}</p></header>\n<main>\n"),
            format!(
                "<section class=\"verdict\" aria-label=\"Recommendation\"><strong>{}</strong>{}</section>\n",
                escaped(&headline),
                escaped(&sentence)
            ),
            format!("<section><h2>Why</h2>\n<ul>\n<li>{reasons}</li>\n</ul></section>\n"),
            format!("<section><h2>Layouts compared</h2>\n{}</section>\n", together(&compared)),
            format!("<section><h2>Load of each server</h2>\n<p class=\"soft\">SIMULATED, in {}. {colours}</p>\n{}</section>\n", self.replay_of_loads(), together(&loads)),
            format!("<section><h2>What was asked for, and when</h2>\n<p class=\"soft\">{shown}</p>\n{}</section>\n", together(&maps)),
            format!("<section><h2>The plan</h2>\n{}</section>\n", self.plan()),
            format!("<section><h2>The servers</h2>\n{}</section>\n", self.servers_table()),
            format!(
                "</main>\n<footer><p class=\"soft\">halocline {}. Digest of the trace: <code>{}</code>.</p></footer>\n</body>\n</html>\n",
                env!("CARGO_PKG_VERSION"),
                escaped(&self.seen.digest)
            ),
        ]
        .concat())
    }

    /// Of which replay the loads are: the search's alone.
    fn replay_of_loads(&self) -> String {
        match self.outcome.placements.len() {
            ..=1 => "the replay".to_owned(),
            count => {
                format!("the replay in the first of {count} placements of the files on the disks")
            }
        }
    }

    fn sampled(&self) -> String {
        let workload = &self.seen.workload;
        let (all, sampled) = (workload.requests, workload.sampled() as u64);
        let requests = counted(all, "request");
        if sampled < all && all > REPLAYED_MAX {
            format!(
                "{requests}; {sampled} of them, evenly over the trace, were replayed and the time scaled."
            )
        } else if sampled < all {
            format!(
                "{requests}; the search replayed {sampled} of them, evenly over the trace, and the times are those of all."
            )
        } else {
            format!("{requests}, all of them replayed.")
        }
    }

    fn plan(&self) -> String {
        let workload = &self.seen.workload;
        let alike = Alike::of(&workload.files, &self.outcome.choice().layouts);
        let mut rows = Vec::new();
        for group in alike.iter().take(GROUPS_SHOWN) {
            for (_, part) in group.layout.parts_in(0, group.bytes) {
                let end = part.end.unwrap_or(u64::MAX).min(group.bytes);
                rows.push(vec![
                    Cell::Text(group.name(self.seen)),
                    Cell::Number(text::exact_bytes(part.begin)),
                    Cell::Number(text::exact_bytes(end)),
                    Cell::Text(report::stripes(self.servers, part)),
                ]);
            }
        }
        let caption = format!("Layout {}", self.outcome.chosen.text());
        let mut out = table(&caption, &["File", "From", "To", "Stripes"], &rows, None);
        let others = alike.iter().skip(GROUPS_SHOWN).map(|group| group.count).sum::<usize>();
        if others > 0 {
            let _ = writeln!(
                out,
                "<p class=\"soft\">And {}; the plan's file has all.</p>",
                counted(others, "further file")
            );
        }
        if workload.requests_of_other_files > 0 {
            let count = counted(workload.requests_of_other_files, "request");
            let _ = writeln!(
                out,
                "<p class=\"soft\">{count} to files beyond those that are planned, which keep the default layout.</p>"
            );
        }
        out
    }

    fn servers_table(&self) -> String {
        let rows: Vec<Vec<Cell>> = self
            .servers
            .classes()
            .iter()
            .map(|class| {
                let first = &self.set.servers()[class.members[0]];
                let names: Vec<&str> = class
                    .members
                    .iter()
                    .map(|m| self.set.servers()[*m].name.as_str())
                    .take(12)
                    .collect();
                let more = if class.members.len() > 12 { " and others" } else { "" };
                let space = class
                    .members
                    .iter()
                    .fold(0u64, |sum, m| sum.saturating_add(self.set.servers()[*m].capacity));
                vec![
                    Cell::Text(first.profile_name.clone()),
                    Cell::Text(format!("{}{more}", names.join(", "))),
                    Cell::Number(text::bytes(space)),
                ]
            })
            .collect();
        table(
            "From the slowest class to the fastest",
            &["Kind", "Servers", "Space together"],
            &rows,
            None,
        )
    }
}
