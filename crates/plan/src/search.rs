//! Our planner: also searches layouts that the papers exclude, and relies on replays.
//! Candidates are widths for each class of servers, including none on the disks, wider stripes on the SSDs than on the disks,
//! whole requests on one server, and unequal splits. First the same stripes are tried for all files, hundreds of
//! them by a small part of the sample, and the best of these by more of it. The search goes on from the fastest, from the
//! papers' layouts and from what the cost model takes for the best: the widths of regions that are alike change together,
//! then those of each region by itself, and where replays are short, all widths in equal steps are tried. Regions get
//! space on the SSDs by traffic per byte, those that are alike each its share or one after the other, and continue without
//! SSDs where the space ends. Adjacent regions with the same widths become one, so that one layout for the whole file is among
//! the candidates. In the end come layouts that widths for each class cannot say: units on servers of their own, also beside
//! others in stripes, and the ends of files on the SSDs.

mod alone;
mod apart;
mod candidates;
mod choice;
mod finalists;
mod grid;
mod groups;
mod mixed;
mod others;
mod placement;
mod predicted;
mod rounds;
mod tails;
mod thinning;
mod uniform;
mod units;

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use halocline_trace::Request;

use crate::judge::{Judge, Layouts};
use crate::layout::DEFAULT_STRIPE;
use crate::paper::on_disks;
use crate::servers::Servers;
use crate::workload::Workload;
use alone::Alone;
use choice::{Choice, Replayed, Stretch, note, rank};
use finalists::{Finalists, choices_max};
use grid::Grid;
use groups::{Group, Item, groups, places};
use others::Others;
use placement::Placement;
use predicted::Predicted;
use rounds::best_of_rounds;
use thinning::{part_of, thinned};
use uniform::{Filling, Uniform};

/// Approximate limit of the requests in all replays of a search, but those of uniform layouts and equal steps.
const WORK: usize = 2_500_000;
/// Minimum and maximum number of replays of a search, whatever their length.
const REPLAYS: (usize, usize) = (300, 4000);
/// Approximate limit of the requests in the replays of widths in equal steps.
const GRID_WORK: usize = 600_000;
/// How many choices the search starts from.
const BEGINNINGS: usize = 3;
/// How many of the best layouts are found.
const BEST: usize = 6;
/// Minimum and maximum number of candidates of a region that are replayed.
const TRIED: (usize, usize) = (12, 400);
/// How many layouts with everything on one class of servers, or on one server, are found at most.
const ALONE: usize = 4;
/// How many regions, and groups of them, are improved by replays: those with the most traffic.
const IMPROVED: usize = 16;
/// Searches for one workload.
pub struct Search<'a> {
    servers: &'a Servers,
    items: Vec<Item<'a>>,
    groups: Vec<Group>,
    placement: Placement<'a>,
    /// Where not everything fits on the SSDs.
    filling: Option<Filling>,
    /// The items that are improved by replays, those with the most traffic first.
    busiest: Vec<usize>,
    requests: Vec<Request>,
    replays: usize,
    replays_max: usize,
    tried: usize,
    sample: &'a [Vec<Request>],
    finalists: Finalists,
    /// Seconds of the choices that were replayed, by their hash: with many files and servers, a choice takes megabytes.
    known: FxHashMap<u64, f64>,
}

impl std::fmt::Debug for Search<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Search").field("replays", &self.replays).finish_non_exhaustive()
    }
}

/// The best layouts found.
#[derive(Debug, Clone)]
pub struct SearchResult {
    /// Layouts, sorted by their time on the sample.
    pub best: Vec<Layouts>,
    /// Those with everything on one class of servers, or on one server, the fastest of each by the search's part of the
    /// sample.
    pub alone: Vec<Layouts>,
    /// The fastest of each kind that widths for each class cannot say, by the search's part of the sample.
    pub others: Vec<Layouts>,
    /// Number of replays.
    pub replays: usize,
}

impl<'a> Search<'a> {
    /// A search over the files of `workload`.
    pub fn new(servers: &'a Servers, workload: &'a Workload) -> Self {
        let mut items = Vec::new();
        for file in &workload.files {
            for region in file.regions.iter() {
                let requests = thinned(&region.requests);
                let (number, processes) = (file.number, file.processes);
                items.push(Item { file: number, processes, region, requests });
            }
        }
        #[expect(clippy::cast_precision_loss, reason = "compared only")]
        let heat = |item: &Item<'_>| {
            item.region.traffic / (item.region.end - item.region.begin).max(1) as f64
        };
        let mut busiest = most_first(&items, |item| item.region.traffic);
        let groups = groups(&items, &busiest);
        busiest.truncate(IMPROVED);
        let placement = Placement::new(servers, places(&items, &groups), most_first(&items, heat));
        let filling = Filling::new(servers, placement.bytes());
        let sample = &workload.sample;
        let (requests, known) = (part_of(sample), FxHashMap::default());
        let replays_max = (WORK / requests.len().max(1)).clamp(REPLAYS.0, REPLAYS.1);
        // A third for each start; of that, half for the first widths of an item.
        let share = replays_max / (2 * BEGINNINGS * items.len().clamp(1, IMPROVED));
        let tried = share.clamp(TRIED.0, TRIED.1);
        let finalists = Finalists::new(items.len(), servers.count());
        Self {
            servers,
            items,
            groups,
            placement,
            filling,
            busiest,
            requests,
            replays: 0,
            replays_max,
            tried,
            sample,
            finalists,
            known,
        }
    }

    /// Searches, starting from the best choice by the cost model, from `starts`, widths for all files, and from the best
    /// of uniform layouts.
    pub fn run(mut self, judge: &mut dyn Judge, starts: &[Vec<u64>]) -> SearchResult {
        let shared = self.is_shared();
        let Self { servers, items, placement, tried, groups, .. } = &mut self;
        let (items, placement) = (items.as_slice(), &*placement);
        let cost_model = Predicted { servers, items, placement, tried: *tried, kept: IMPROVED };
        let Some(predicted) = cost_model.choice(judge, groups, shared) else {
            let none = Vec::new;
            return SearchResult { best: none(), alone: none(), others: none(), replays: 0 };
        };
        let all_replays = self.replays_max;
        let mut alone = BTreeMap::new();
        let mut ranked = self.uniform(judge, &mut alone);
        self.allow(starts.len() + 2);
        let starts = starts.iter().map(|widths| self.everywhere(|_| Some(widths.clone())));
        let mut starts: Vec<Choice> = starts.flatten().collect();
        let default = starts.first().filter(|_| self.filling.is_some());
        starts.extend(default.map(|it| it.with_rest(&self.servers.widths(&[DEFAULT_STRIPE]))));
        for choice in starts.into_iter().chain([predicted]) {
            let seconds = self.replay(judge, &choice);
            ranked.push(Replayed { seconds, choice });
        }
        rank(&mut ranked);
        let mut left = all_replays;
        // From several starts, because a better choice may be separated by worse ones.
        for (start, mut best) in ranked.clone().into_iter().take(BEGINNINGS).enumerate() {
            let before = self.replays;
            self.allow(left / (BEGINNINGS - start));
            self.improve_until_none_is_better(judge, &mut best);
            left -= left.min(self.replays - before);
            ranked.push(best);
        }
        rank(&mut ranked);
        let mut on_grid = ranked[0].clone();
        self.allow(GRID_WORK / self.requests.len().max(1));
        self.try_grids(judge, &mut on_grid);
        let alone = self.alone(judge, alone);
        for mut better in alone.first().cloned().into_iter().chain([on_grid]) {
            if better.seconds < ranked[0].seconds {
                self.allow(all_replays / BEGINNINGS);
                self.improve_until_none_is_better(judge, &mut better);
                ranked.insert(0, better);
            }
        }
        ranked.truncate(BEST);
        let Self { servers, items, sample, requests, .. } = &self;
        let others = Others { servers, items, sample, requests };
        let busiest = self.busiest.first().copied().unwrap_or(0);
        let of =
            |one: &Replayed| [&one.choice.first, &one.choice.rest].map(|it| it[busiest].clone());
        let (others, replays) = others.fastest(judge, ranked.iter().flat_map(of));
        self.replays += replays;
        let ranked = self.by_all_of_the_sample(judge, ranked);
        let layouts = |ranked: Vec<Replayed>| {
            ranked.iter().filter_map(|best| self.placement.realise(&best.choice)).collect()
        };
        let (best, alone) = (layouts(ranked), layouts(alone));
        SearchResult { best, alone, others, replays: self.replays }
    }

    /// Allows so many more replays, and no others.
    const fn allow(&mut self, replays: usize) {
        self.replays_max = self.replays + replays;
    }

    /// Whether regions that are alike have to share what the SSDs have.
    fn is_shared(&self) -> bool {
        self.filling.is_some() && self.groups.iter().any(|group| group.members.len() > 1)
    }

    /// The same for all items, given the usual length of their requests, and their rest on the slowest servers.
    fn everywhere(&self, widths: impl Fn(u64) -> Option<Vec<u64>>) -> Option<Choice> {
        let sizes = || self.items.iter().map(|item| item.region.size);
        Some(Choice {
            first: sizes().map(widths).collect::<Option<_>>()?,
            rest: sizes().map(|size| on_disks(self.servers, size)).collect(),
            shared: false,
        })
    }

    /// The fastest of the layouts with the same stripes for all files, one of each kind. The fastest of those with
    /// everything on one class are noted in `alone`.
    fn uniform(
        &mut self,
        judge: &mut dyn Judge,
        alone: &mut BTreeMap<Option<usize>, Replayed>,
    ) -> Vec<Replayed> {
        let sizes = self.usual_sizes();
        let all = Uniform::all(self.servers, self.items.len(), &sizes, self.filling);
        let both: &[bool] = if self.is_shared() { &[false, true] } else { &[false] };
        let with = |uniform: Uniform| both.iter().map(move |shared| (uniform.clone(), *shared));
        let mut left: Vec<(Uniform, bool)> = all.into_iter().flat_map(with).collect();
        let mut replays = 0;
        let seconds = |requests: &[Request], (uniform, shared): &(Uniform, bool)| {
            let layouts = self.placement.realise(&self.choice(uniform, *shared)?)?;
            replays += 1;
            Some(judge.seconds(requests, &layouts))
        };
        let class = |(uniform, _): &(Uniform, bool)| uniform.class();
        left = best_of_rounds(left, self.sample, self.requests.len(), class, seconds);
        self.replays += replays;
        self.allow(left.len());
        let mut ranked: Vec<Replayed> = Vec::new();
        for (uniform, shared) in left {
            let Some(choice) = self.choice(&uniform, shared) else { continue };
            let seconds = self.replay(judge, &choice);
            let replayed = Replayed { seconds, choice };
            if let Some(class) = uniform.class() {
                note(alone, Some(class), &replayed);
            }
            ranked.push(replayed);
        }
        rank(&mut ranked);
        ranked.truncate(BEGINNINGS);
        ranked
    }

    /// A uniform layout as a choice.
    fn choice(&self, uniform: &Uniform, shared: bool) -> Option<Choice> {
        let choice = self.everywhere(|size| uniform.widths(self.servers, self.filling, size))?;
        Some(Choice { shared, ..choice })
    }

    /// Replays everything on each class of servers, and on each server. The fastest of each class, and the fastest server,
    /// the fastest of these first; some are known already.
    fn alone(
        &mut self,
        judge: &mut dyn Judge,
        mut fastest: BTreeMap<Option<usize>, Replayed>,
    ) -> Vec<Replayed> {
        let (items, servers) = (self.items.len(), self.servers.count());
        let kept = choices_max(items, servers).clamp(1, ALONE);
        for alone in Alone::all(self.servers, items) {
            let choice = self.everywhere(|size| Some(alone.widths(servers, size)));
            let Some(choice) = choice else { continue };
            self.allow(1);
            let seconds = self.replay(judge, &choice);
            note(&mut fastest, alone.class, &Replayed { seconds, choice });
            if fastest.len() > kept {
                let by_seconds =
                    |a: &(_, &Replayed), b: &(_, &Replayed)| a.1.seconds.total_cmp(&b.1.seconds);
                let slowest = fastest.iter().max_by(by_seconds).map(|(class, _)| *class);
                slowest.and_then(|class| fastest.remove(&class));
            }
        }
        let mut ranked: Vec<Replayed> = fastest.into_values().collect();
        rank(&mut ranked);
        ranked
    }

    /// The usual lengths of the requests to the items with the most traffic, each once.
    fn usual_sizes(&self) -> Vec<u64> {
        let mut sizes = Vec::new();
        for size in self.busiest.iter().map(|index| self.items[*index].region.size) {
            if !sizes.contains(&size) {
                sizes.push(size);
            }
        }
        sizes
    }

    /// Changes what is alike together, then each region by itself, for as long as that is faster.
    fn improve_until_none_is_better(&mut self, judge: &mut dyn Judge, best: &mut Replayed) {
        let moves = |of: &mut Self| {
            let groups = of.groups.iter().take(IMPROVED).enumerate();
            let groups = groups.map(|(number, group)| (number, group.members.clone())).collect();
            [groups, of.single_items()]
        };
        for moves in moves(self) {
            loop {
                let before = best.seconds;
                for (group, members) in &moves {
                    self.improve(judge, best, *group, members);
                }
                // Not better, even where no request takes any time.
                if best.seconds >= before * 0.9999 || self.replays >= self.replays_max {
                    break;
                }
            }
        }
    }

    /// The items with the most traffic that are not a group by themselves, with their groups.
    fn single_items(&self) -> Vec<(usize, Vec<usize>)> {
        let mut items = Vec::new();
        for &index in &self.busiest {
            let of = |group: &Group| group.members.len() > 1 && group.members.contains(&index);
            let group = self.groups.iter().take(IMPROVED).position(of);
            items.extend(group.map(|group| (group, vec![index])));
        }
        items
    }

    /// The fastest choices by all of the sample, the fastest first, of `ranked` and of those of other kinds.
    fn by_all_of_the_sample(
        &mut self,
        judge: &mut dyn Judge,
        ranked: Vec<Replayed>,
    ) -> Vec<Replayed> {
        if self.requests.len() == self.sample.iter().map(Vec::len).sum::<usize>() {
            return ranked;
        }
        let finalists = std::mem::take(&mut self.finalists);
        let ranked = ranked.into_iter().map(|one| one.choice);
        let all: Vec<Choice> = ranked.chain(finalists.into_choices()).collect();
        self.requests = self.sample.iter().flatten().copied().collect();
        self.known.clear();
        self.allow(all.len());
        let replayed = |choice| Replayed { seconds: self.replay(judge, &choice), choice };
        let mut all: Vec<Replayed> = all.into_iter().map(replayed).collect();
        rank(&mut all);
        all.truncate(BEST);
        all
    }

    /// Tries all widths in equal steps for the groups with the most traffic, one after another, if replays are short enough.
    fn try_grids(&mut self, judge: &mut dyn Judge, best: &mut Replayed) {
        let groups = self.groups.iter().take(IMPROVED);
        let groups: Vec<Vec<usize>> = groups.map(|group| group.members.clone()).collect();
        for (done, members) in groups.iter().enumerate() {
            let left = self.replays_max.saturating_sub(self.replays) / (groups.len() - done);
            let size = self.items[members[0]].region.size;
            let Some(grid) = Grid::new(self.servers, size, left as u64) else { continue };
            if !grid.all_pairs {
                for _ in 0..2 {
                    self.try_each(judge, best, (members, Stretch::First), grid.first.clone());
                    self.try_each(judge, best, (members, Stretch::Rest), grid.rest.clone());
                }
                continue;
            }
            let base = best.choice.clone();
            for first in grid.first {
                let mut last = None;
                for rest in &grid.rest {
                    let mut choice = base.clone();
                    for &index in members {
                        (choice.first[index], choice.rest[index]) = (first.clone(), rest.clone());
                    }
                    let layouts = self.placement.realise(&choice);
                    if layouts.is_none() || layouts == last {
                        // All of it fits, so that the rest does not matter, or nothing of it does.
                        break;
                    }
                    last = layouts;
                    self.try_one(judge, best, choice);
                }
            }
        }
    }

    /// Tries other widths for `members` of a group, the same for each.
    fn improve(
        &mut self,
        judge: &mut dyn Judge,
        best: &mut Replayed,
        group: usize,
        members: &[usize],
    ) {
        if self.is_shared() {
            let choice = Choice { shared: !best.choice.shared, ..best.choice.clone() };
            self.try_one(judge, best, choice);
        }
        self.try_ssds_first(judge, best, members);
        let Group { first, rest, .. } = &self.groups[group];
        let rest = rest.iter().take((self.tried / 3).max(4)).cloned().collect();
        for (stretch, widths) in [(Stretch::First, first.clone()), (Stretch::Rest, rest)] {
            self.try_each(judge, best, (members, stretch), widths);
            let now = best.choice.widths(stretch)[members[0]].clone();
            let mut near = candidates::neighbours(self.servers, &now);
            if let (Stretch::First, Some(filling)) = (stretch, self.filling) {
                near.extend(filling.near(self.servers, &now));
            }
            self.try_each(judge, best, (members, stretch), near);
        }
    }

    /// Where `members` have nothing on the SSDs: tries these as far as they have room, and then the stripes as they are now.
    /// With the rest in other stripes, what is on the SSDs may gain less than these cost.
    fn try_ssds_first(&mut self, judge: &mut dyn Judge, best: &mut Replayed, members: &[usize]) {
        let now = &best.choice.first[members[0]];
        let mut on_ssds = vec![0; now.len()];
        self.servers.fast().for_each(|server| on_ssds[server] = DEFAULT_STRIPE);
        let has_none = self.servers.fast().all(|server| now[server] == 0);
        if !has_none || self.filling.is_none() || self.replays >= self.replays_max {
            return;
        }
        let mut choice = best.choice.clone();
        for &index in members {
            let now = std::mem::replace(&mut choice.first[index], on_ssds.clone());
            choice.rest[index] = now;
        }
        self.try_one(judge, best, choice);
    }

    /// Tries widths for some items, each instead of those of the best choice by then.
    fn try_each(
        &mut self,
        judge: &mut dyn Judge,
        best: &mut Replayed,
        (members, stretch): (&[usize], Stretch),
        widths: Vec<Vec<u64>>,
    ) {
        for widths in widths {
            if self.replays >= self.replays_max {
                return;
            }
            let mut choice = best.choice.clone();
            for &index in members {
                choice.widths(stretch)[index].clone_from(&widths);
            }
            self.try_one(judge, best, choice);
        }
    }

    /// Replays a choice, which is the best one from then on if it is faster.
    fn try_one(&mut self, judge: &mut dyn Judge, best: &mut Replayed, choice: Choice) {
        let seconds = self.replay(judge, &choice);
        if seconds < best.seconds {
            *best = Replayed { seconds, choice };
        }
    }

    /// Seconds that a choice takes; infinite if the files do not fit or the search has made enough replays.
    fn replay(&mut self, judge: &mut dyn Judge, choice: &Choice) -> f64 {
        let hash = choice.hash();
        if let Some(seconds) = self.known.get(&hash) {
            return *seconds;
        }
        if self.replays >= self.replays_max {
            return f64::INFINITY;
        }
        let Some(layouts) = self.placement.realise(choice) else { return f64::INFINITY };
        self.replays += 1;
        let seconds = judge.seconds(&self.requests, &layouts);
        self.known.insert(hash, seconds);
        if let Some(&busiest) = self.busiest.first() {
            self.finalists.note(self.servers, busiest, choice, seconds);
        }
        seconds
    }
}

/// Places of the items, those with the most of `what` first.
fn most_first(items: &[Item<'_>], what: impl Fn(&Item<'_>) -> f64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_by(|a, b| what(&items[*b]).total_cmp(&what(&items[*a])).then(a.cmp(b)));
    order
}
