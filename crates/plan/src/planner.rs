//! Computes DEF, PA, PSA and ours, and chooses among them.

use halocline_model::file_layout::BLOCK_BYTES;
use halocline_trace::Request;
use rustc_hash::FxHashMap;

use crate::Error;
use crate::comparison::{Comparison, Gains};
use crate::default_layout::{self, Rest};
use crate::ending::{self, Found};
use crate::gain_range::{GainRange, PartSeconds};
use crate::judge::{Judge, Layouts, Step};
use crate::judged::judged;
pub use crate::judged::{Judged, Name};
use crate::layout::{DEFAULT_STRIPE, Layout, Part, Placer};
use crate::paper::{self, Scheme, Ties, Unanswered};
use crate::placed::Placed;
use crate::search::Search;
use crate::servers::Servers;
use crate::shared::SharedLayouts;
use crate::unplanned::{Beside, Unplanned};
use crate::workload::{File, Workload};

/// How the default lies where not all servers have room for its stripes.
#[derive(Debug, Clone)]
pub struct RestOfDefault {
    /// The faster way, which is that of [`Name::Def`].
    pub rest: Rest,
    /// The default in the other way.
    pub other: Judged,
}

/// All layouts, and the choice.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Each layout, or why there is none, in the order of [`Name::ALL`].
    pub layouts: [Result<Judged, String>; 4],
    /// The choice; the default if there is nothing to gain.
    pub chosen: Name,
    /// The fastest of those that gain in each placement, or the fastest if none does, whether it was chosen or not.
    pub best: Name,
    /// Gain of throughput of the choice, relative to the default.
    pub gain_over_def: f64,
    /// What the default is beyond the room for its stripes, and what it might have been; `None` where there is room for all.
    pub rest: Option<RestOfDefault>,
    /// What the best layout gains in parts of the trace, and in each placement of the files.
    pub gains: GainRange,
    /// These parts.
    pub parts: Vec<PartSeconds>,
    /// The whole trace in each placement, that of the search first.
    pub placements: Vec<PartSeconds>,
    /// What the best layout gains if there were more of the parts that gain nothing, or in the placement in which it gains
    /// the least if that is less: if that counts, it is recommended.
    pub sure_gain: f64,
    /// The gain of the best layout, whether it was chosen or not.
    pub best_gain: f64,
    /// Stripes that PSA cannot distinguish.
    pub ties: Vec<Ties>,
    /// Files for which a layout of the paper has no stripes.
    pub unanswered: Vec<Unanswered>,
    /// Number of replays in the search.
    pub replays: usize,
}

impl Outcome {
    /// A layout.
    pub fn of(&self, name: Name) -> Result<&Judged, &String> {
        let [def, pa, psa, ours] = &self.layouts;
        match name {
            Name::Def => def.as_ref(),
            Name::Pa => pa.as_ref(),
            Name::Psa => psa.as_ref(),
            Name::Ours => ours.as_ref(),
        }
    }

    /// The default of the paper, which may be slower than that of [`Name::Def`].
    pub fn default_of_paper(&self) -> Result<&Judged, &String> {
        match &self.rest {
            Some(RestOfDefault { rest: Rest::Default, other }) => Ok(other),
            _ => self.of(Name::Def),
        }
    }

    /// Recommends the default after all, because what the best one gains is worth nothing to its job.
    pub const fn leave_alone(&mut self) {
        (self.chosen, self.gain_over_def) = (Name::Def, 0.0);
    }

    /// The layout that was chosen.
    pub fn choice(&self) -> &Judged {
        self.of(self.chosen).expect("what was chosen is there")
    }
}

/// Plans for a workload. `weight`, from 0 to 1, says how much its trace can be trusted.
pub fn plan(
    servers: &Servers,
    workload: &Workload,
    judge: &mut dyn Judge,
    weight: f64,
) -> Result<Outcome, Error> {
    if workload.requests == 0 || workload.files.is_empty() {
        return Err(Error::Empty);
    }
    let default = vec![DEFAULT_STRIPE; servers.count()];
    let unplanned = Unplanned::place(servers, &workload.other_files, &default)?;
    let servers = &unplanned.servers;
    let judge: &mut dyn Judge = &mut Beside { judge, layouts: &unplanned.layouts };
    let sample: Vec<Request> = workload.sample.iter().flatten().copied().collect();
    let (mut ties, mut unanswered) = (Vec::new(), Vec::new());
    let placements = judge.placements(workload.files.len() + workload.other_files.len());
    let placed = Placed { servers, workload, sample: &sample, placements };
    let (def, rest) = default_layout(placed, judge)?;
    let mut papers = vec![Ok(def)];
    // The default needs no layouts.
    let servers = &beside_layouts(servers, workload.files.len());
    let placed = Placed { servers, ..placed };
    for scheme in [Scheme::Pa, Scheme::Psa] {
        papers.push(match paper::lay_out(scheme, servers, workload, judge) {
            Ok(Ok(laid_out)) => {
                ties.extend(laid_out.ties);
                unanswered.extend(laid_out.unanswered);
                Ok(measured(placed, judge, laid_out.layouts))
            }
            Ok(Err(why)) => Err(why),
            // As they lie the files fit, as was seen.
            Err(why @ Error::NoSpace { .. }) => Err(why.to_string()),
            Err(error) => return Err(error),
        });
    }
    let found = Search::new(servers, workload).run(judge, &starts(&papers));
    let replays = found.replays;
    let Ok(def) = &papers[0] else { return Err(Error::Empty) };
    let comparison = Comparison::new(placed, judge, def, weight);
    let Found { best, ours } = ending::found(&comparison, judge, found, &papers);
    let [def, pa, psa] = papers.try_into().expect("three schemes");
    let layouts = [def, pa, psa, ours.ok_or_else(|| "nothing fits".to_owned())];
    let at = Name::ALL.into_iter().position(|name| name == best).unwrap_or_default();
    let Ok(fastest) = &layouts[at] else { return Err(Error::Empty) };
    let Gains { whole: best_gain, parts, placements, range: gains, sure } =
        comparison.gains(judge, &fastest.layouts, &fastest.seconds_by_placement);
    let is_worth_it = best != Name::Def && sure.is_sure();
    let (chosen, gain_over_def) = if is_worth_it { (best, best_gain) } else { (Name::Def, 0.0) };
    Ok(Outcome {
        layouts,
        chosen,
        best,
        gain_over_def,
        rest,
        gains,
        parts,
        placements,
        sure_gain: sure.least,
        best_gain,
        ties,
        unanswered,
        replays,
    })
}

/// The servers without the room that putting a plan of so many files in place takes: of the layout of each file and the note about a
/// move, on the first server that has it, as `apply` writes them.
fn beside_layouts(servers: &Servers, files: usize) -> Servers {
    let mut blocks = u64::try_from(files).unwrap_or(u64::MAX).saturating_add(1);
    let mut room = servers.room();
    for room in &mut room {
        let taken = blocks.min(*room / BLOCK_BYTES);
        (*room, blocks) = (*room - taken * BLOCK_BYTES, blocks - taken);
    }
    servers.with_room(&room)
}

/// What users have without a plan: the faster of the default layouts, and the other one if they differ.
fn default_layout(
    placed: Placed<'_>,
    judge: &mut dyn Judge,
) -> Result<(Judged, Option<RestOfDefault>), Error> {
    let Placed { servers, workload, .. } = placed;
    let mut found: Vec<(Rest, Judged)> = Vec::new();
    let files: Vec<&File> = workload.files.iter().collect();
    let stripes = vec![DEFAULT_STRIPE; servers.count()];
    let empty = Placer::new(servers.room());
    let told = |done| judge.advanced(Step::PaperLayouts, done, files.len());
    for (rest, layouts) in default_layout::both(servers, &files, &stripes, &empty, told)? {
        found.push((rest, measured(placed, judge, layouts)));
    }
    found.sort_by(|a, b| a.1.simulated_seconds.total_cmp(&b.1.simulated_seconds));
    let mut found = found.into_iter();
    let (rest, def) = found.next().ok_or(Error::Empty)?;
    Ok((def, found.next().map(|(_, other)| RestOfDefault { rest, other })))
}

/// Widths of the first parts of the paper's layouts.
fn starts(papers: &[Result<Judged, String>]) -> Vec<Vec<u64>> {
    let mut starts: Vec<Vec<u64>> = Vec::new();
    for judged in papers.iter().flatten() {
        let mut files: Vec<_> = judged.layouts.files.iter().collect();
        files.sort_by_key(|(number, _)| **number);
        for (_, layout) in files.into_iter().take(4) {
            let widths = layout.parts()[0].widths.clone();
            if !starts.contains(&widths) {
                starts.push(widths);
            }
        }
    }
    starts
}

fn measured(placed: Placed<'_>, judge: &mut dyn Judge, layouts: Layouts) -> Judged {
    let replayed = placed.replayed(judge, &layouts);
    judged(placed, judge, (layouts, replayed))
}

/// What layouts gain that are not quite those of a plan: such as a file system has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GainAsMade {
    /// Of the whole trace.
    pub gain: f64,
    /// The least of the whole trace, its parts, and the placements of its files.
    pub least: f64,
    /// Whether it would be recommended.
    pub is_sure: bool,
}

/// What the files of `workload` gain with layouts of these `parts` each, over the default of `outcome`.
///
/// # Errors
/// What has no layout does not fit.
pub fn gain_as_made(
    (servers, workload): (&Servers, &Workload),
    judge: &mut dyn Judge,
    outcome: &Outcome,
    parts: Vec<Vec<Part>>,
    weight: f64,
) -> Result<GainAsMade, Error> {
    let Ok(def) = outcome.of(Name::Def) else { return Err(Error::Empty) };
    let count = servers.count();
    let default = vec![DEFAULT_STRIPE; count];
    let unplanned = Unplanned::place(servers, &workload.other_files, &default)?;
    let servers = &unplanned.servers;
    let judge: &mut dyn Judge = &mut Beside { judge, layouts: &unplanned.layouts };
    let sample: Vec<Request> = workload.sample.iter().flatten().copied().collect();
    let placements = judge.placements(workload.files.len() + workload.other_files.len());
    let placed = Placed { servers, workload, sample: &sample, placements };
    let mut shared = SharedLayouts::default();
    let mut layouts = Layouts { files: FxHashMap::default(), default: Layout::simple(default) };
    for (file, parts) in workload.files.iter().zip(parts) {
        let layout = shared.of(parts, count).map_err(Error::NotAPlan)?;
        layouts.files.insert(file.number, layout);
    }
    let replayed = placed.replayed(judge, &layouts);
    let comparison = Comparison::new(placed, judge, def, weight);
    let gains = comparison.gains(judge, &layouts, &replayed.by_placement);
    Ok(GainAsMade { gain: gains.whole, least: gains.range.least, is_sure: gains.sure.is_sure() })
}
