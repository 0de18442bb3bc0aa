//! The end of a search: the fastest of the layouts that gain in each placement, found by more replays than the search makes.
//!
//! A search replays in one placement of the files. Of what it found, a layout that gains in each placement is better than one
//! that gains more in most and loses in another, which would not be recommended
//! (docs/decisions/0110-some-files-alone-and-gains-in-each-placement-first.md).

use crate::comparison::Comparison;
use crate::judge::{Judge, Layouts};
use crate::placed::{Placed, Replayed, WORK_OF_ALL};
use crate::planner::{Judged, Name, judged};
use crate::search::SearchResult;
use crate::{tails, used};

/// So many times as slow in the sample, a layout is not replayed with all requests: the gaps of a sample do not cost as much.
const HOPELESS: f64 = 4.0;

/// Of the layouts that are nearly as fast in the sample, more than the fastest are replayed with all requests, as far as
/// [`WORK_OF_ALL`] allows; one that is so many times as slow is not.
const NEAR: f64 = 1.5;

/// At most so many times as slow, a layout that leaves out servers on which nothing is read or written is preferred.
const AS_FAST: f64 = 1.001;

/// The fastest of up to so many kinds are replayed with all requests, as far as [`WORK_OF_ALL`] allows.
const KINDS: usize = 4;

/// What was found.
#[derive(Debug)]
pub(crate) struct Found {
    /// Which is the best: the fastest of those that gain in each placement, or the fastest if none does.
    pub(crate) best: Name,
    /// The best of all, or what is the best of the search's if that is nothing.
    pub(crate) ours: Option<Judged>,
}

/// The best of what our search has found, or one of the paper's layouts if that is better. Layouts with everything on one
/// class of servers, or on one server, are judged by all requests, too: nobody should find one of these to be faster.
pub(crate) fn found(
    comparison: &Comparison<'_>,
    judge: &mut dyn Judge,
    found: SearchResult,
    papers: &[Result<Judged, String>],
) -> Found {
    let placed = comparison.placed;
    let last = last(placed, judge, found).into_iter();
    let searched = last.map(|layouts| (placed.replayed(judge, &layouts), layouts));
    let searched: Vec<(Replayed, Layouts)> = searched.collect();
    // The paper's first: if several are equal, theirs are named.
    let mut all: Vec<Candidate<'_>> = Vec::new();
    for (name, paper) in Name::ALL.into_iter().zip(papers) {
        all.extend(paper.as_ref().ok().map(|paper| Candidate::Paper(name, paper)));
    }
    all.extend(searched.iter().map(|(replayed, layouts)| Candidate::Searched(replayed, layouts)));
    all.sort_by(|a, b| a.seconds().total_cmp(&b.seconds()));
    let gains =
        |it: &&Candidate<'_>| !it.is_default() && comparison.gains_in_each(it.by_placement());
    let gaining = all.iter().find(gains);
    let is_gaining = gaining.is_some();
    match gaining.or(all.first()) {
        None => Found { best: Name::Def, ours: None },
        Some(Candidate::Paper(name, paper)) => Found { best: *name, ours: Some((*paper).clone()) },
        Some(Candidate::Searched(fastest, layouts)) => {
            let best = spared(comparison, judge, (fastest, layouts), is_gaining);
            Found { best: Name::Ours, ours: Some(judged(placed, judge, best)) }
        }
    }
}

/// A layout with its replays.
#[derive(Debug)]
enum Candidate<'a> {
    Paper(Name, &'a Judged),
    Searched(&'a Replayed, &'a Layouts),
}

impl Candidate<'_> {
    fn seconds(&self) -> f64 {
        match self {
            Self::Paper(_, judged) => judged.simulated_seconds,
            Self::Searched(replayed, _) => replayed.seconds,
        }
    }

    fn by_placement(&self) -> &[f64] {
        match self {
            Self::Paper(_, judged) => &judged.seconds_by_placement,
            Self::Searched(replayed, _) => &replayed.by_placement,
        }
    }

    const fn is_default(&self) -> bool {
        matches!(self, Self::Paper(Name::Def, _))
    }
}

/// What is replayed with all requests of what a search has found: by the sample, because replays of long traces take long.
fn last(placed: Placed<'_>, judge: &mut dyn Judge, found: SearchResult) -> Vec<Layouts> {
    let Placed { servers, workload, sample, .. } = placed;
    let best = found.best.into_iter().map(|layouts| (0, layouts));
    let best = best.chain((1..).zip(found.others));
    let in_sample = |(kind, layouts)| (placed.seconds(judge, sample, &layouts), kind, layouts);
    let mut in_sample: Vec<(f64, usize, Layouts)> = best.map(in_sample).collect();
    in_sample.sort_by(|a, b| a.0.total_cmp(&b.0));
    let least = in_sample.first().map_or(f64::INFINITY, |(seconds, ..)| *seconds);
    let requests = workload.requests.max(1);
    let most = usize::try_from(WORK_OF_ALL / requests).unwrap_or(usize::MAX);
    let kinds_max = most.min(KINDS);
    let most = if placed.is_whole() { 1 } else { most.max(1) };
    let (mut kinds, mut all) = (Vec::new(), Vec::new());
    for (rank, (seconds, kind, layouts)) in in_sample.into_iter().enumerate() {
        let is_near = seconds <= least * NEAR;
        let is_first = !kinds.contains(&kind);
        // Of a long trace, the fastest with widths for each class and of all others: the gaps of a sample cost them
        // differently.
        let is_first_of_both =
            !kinds.iter().any(|other| (*other == 0) == (kind == 0)) && !placed.is_whole();
        let is_of_kinds = is_first && kinds.len() < kinds_max && seconds <= least * HOPELESS;
        if is_first {
            kinds.push(kind);
        }
        if is_near && (rank < most || is_first_of_both) || is_of_kinds {
            all.push(layouts);
        }
    }
    // By the sample alone, a layout without SSDs may seem faster than the same one with them.
    let behind: Vec<Layouts> =
        all.iter().filter_map(|layouts| tails::behind(servers, workload, layouts)).collect();
    all.extend(behind.into_iter().take(2));
    for alone in found.alone {
        if !all.contains(&alone) && placed.seconds(judge, sample, &alone) <= least * HOPELESS {
            all.push(alone);
        }
    }
    all
}

/// The layout without servers on which nothing is read or written, if it is as fast, and gains in each placement if that does.
fn spared(
    comparison: &Comparison<'_>,
    judge: &mut dyn Judge,
    (fastest, layouts): (&Replayed, &Layouts),
    is_gaining: bool,
) -> (Layouts, Replayed) {
    let Placed { servers, workload, sample, .. } = comparison.placed;
    let spared = used::without_idle_servers(servers, workload, sample, layouts)
        .map(|spared| (comparison.placed.replayed(judge, &spared), spared))
        .filter(|(other, _)| other.seconds <= fastest.seconds * AS_FAST)
        .filter(|(other, _)| !is_gaining || comparison.gains_in_each(&other.by_placement));
    let (replayed, layouts) = spared.unwrap_or_else(|| (fastest.clone(), layouts.clone()));
    (layouts, replayed)
}
