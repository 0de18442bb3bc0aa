//! Our planner: also searches layouts that the papers exclude, and relies on replays.
//!
//! Each region of each file is planned separately. Candidates are widths for each class of servers, including none on
//! the disks, wider stripes on the SSDs than on the disks, whole requests on one server, and unequal splits. The cost
//! model sorts them; the best are replayed, then their neighbours, and where replays are short, all widths in equal
//! steps. Regions get space on the SSDs by traffic per byte, and continue without SSDs where the space ends. Where
//! adjacent regions get the same widths, their rounds go on over the border, so that one layout for the whole file is
//! among the candidates.

mod alone;
mod candidates;
mod finalists;
mod grid;
mod thinning;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use rustc_hash::FxHashMap;

use halocline_trace::Request;

use crate::judge::{Judge, Layouts, Step};
use crate::layout::{DEFAULT_STRIPE, Layout, Part, Placer, assemble};
use crate::paper::on_disks;
use crate::predict::Cost;
use crate::servers::Servers;
use crate::workload::{Region, Weighted, Workload};
use alone::Alone;
use finalists::{Finalists, choices_max};
use grid::Grid;
use thinning::{diverse, part_of, thinned};

/// Approximate limit of the requests in all replays of a search.
const WORK: usize = 4_000_000;
/// Minimum and maximum number of replays of a search, whatever their length.
const REPLAYS: (usize, usize) = (300, 4000);
/// Approximate limit of the requests in the replays of widths in equal steps.
const GRID_WORK: usize = 300_000;
/// How many choices the search starts from.
const BEGINNINGS: usize = 3;
/// Minimum and maximum number of candidates of a region that are replayed.
const TRIED: (usize, usize) = (12, 400);
/// How many layouts with everything on one class of servers, or on one server, are found at most.
const ALONE: usize = 4;
/// Approximate limit of the requests in the replays of these.
const ALONE_WORK: usize = 400_000;
/// How many regions are improved by replays: those with the most traffic.
const IMPROVED: usize = 16;

/// A region, with its file and candidates.
#[derive(Debug)]
struct Item<'a> {
    file: u32,
    processes: u64,
    region: &'a Region,
    requests: Vec<Weighted>,
    /// Candidates for its first part, sorted by the cost model.
    first: Vec<Vec<u64>>,
    /// Candidates for the rest, where the SSDs have no more space.
    rest: Vec<Vec<u64>>,
}

/// Widths for each item: with and without space on SSDs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Choice {
    first: Vec<Vec<u64>>,
    rest: Vec<Vec<u64>>,
}

impl Choice {
    /// The same in each run; a few thousand choices do not meet by chance.
    fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        Hash::hash(self, &mut hasher);
        hasher.finish()
    }

    /// The widths of each item where it has space on SSDs, or where it has none.
    const fn widths(&mut self, of: Stretch) -> &mut Vec<Vec<u64>> {
        match of {
            Stretch::First => &mut self.first,
            Stretch::Rest => &mut self.rest,
        }
    }
}

/// Which widths of an item are meant.
#[derive(Debug, Clone, Copy)]
enum Stretch {
    /// Those with space on SSDs.
    First,
    /// Those without.
    Rest,
}

/// A choice, and the seconds that its replay takes.
#[derive(Debug, Clone)]
struct Replayed {
    seconds: f64,
    choice: Choice,
}

/// The fastest first.
fn rank(replayed: &mut [Replayed]) {
    replayed.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
}

/// Searches for one workload.
pub struct Search<'a> {
    servers: &'a Servers,
    items: Vec<Item<'a>>,
    /// Items in the order in which they get space.
    order: Vec<usize>,
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
    /// Number of replays.
    pub replays: usize,
}

impl<'a> Search<'a> {
    /// A search over the files of `workload`.
    pub fn new(servers: &'a Servers, workload: &'a Workload) -> Self {
        let mut items = Vec::new();
        for file in &workload.files {
            for region in &file.regions {
                let requests = thinned(&region.requests);
                let (number, processes) = (file.number, file.processes);
                let (first, rest) = (Vec::new(), Vec::new());
                items.push(Item { file: number, processes, region, requests, first, rest });
            }
        }
        #[expect(clippy::cast_precision_loss, reason = "compared only")]
        let heat = |item: &Item<'_>| {
            item.region.traffic / (item.region.end - item.region.begin).max(1) as f64
        };
        let order = most_first(&items, heat);
        let mut busiest = most_first(&items, |item| item.region.traffic);
        busiest.truncate(IMPROVED);
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
            order,
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

    /// Searches, starting from the best choice by the cost model and from `starts`, widths for all files.
    pub fn run(mut self, judge: &mut dyn Judge, starts: &[Vec<u64>]) -> SearchResult {
        let Some(predicted) = self.by_prediction(judge) else {
            return SearchResult { best: Vec::new(), alone: Vec::new(), replays: 0 };
        };
        let mut tried = vec![predicted];
        for widths in starts {
            tried.push(self.everywhere(|_| widths.clone()));
        }
        let mut ranked: Vec<Replayed> = Vec::new();
        for choice in tried {
            let seconds = self.replay(judge, &choice);
            ranked.push(Replayed { seconds, choice });
        }
        rank(&mut ranked);
        let all_replays = self.replays_max;
        // From several starts, because a better choice may be separated by worse ones.
        for (start, mut best) in ranked.clone().into_iter().take(BEGINNINGS).enumerate() {
            self.replays_max = all_replays * (start + 1) / BEGINNINGS;
            self.improve_until_none_is_better(judge, &mut best);
            ranked.push(best);
        }
        rank(&mut ranked);
        let mut on_grid = ranked[0].clone();
        self.replays_max = self.replays + GRID_WORK / self.requests.len().max(1);
        self.try_grids(judge, &mut on_grid);
        let alone = self.alone(judge);
        for mut better in alone.first().cloned().into_iter().chain([on_grid]) {
            if better.seconds < ranked[0].seconds {
                self.replays_max = self.replays + all_replays / BEGINNINGS;
                self.improve_until_none_is_better(judge, &mut better);
                ranked.insert(0, better);
            }
        }
        ranked.truncate(BEGINNINGS);
        let ranked = self.by_all_of_the_sample(judge, ranked);
        let layouts = |ranked: Vec<Replayed>| {
            ranked.iter().filter_map(|best| self.realise(&best.choice)).collect()
        };
        SearchResult { best: layouts(ranked), alone: layouts(alone), replays: self.replays }
    }

    /// The same for all items, given the usual length of their requests, and their rest on the slowest servers.
    fn everywhere(&self, widths: impl Fn(u64) -> Vec<u64>) -> Choice {
        let sizes = || self.items.iter().map(|item| item.region.size);
        Choice {
            first: sizes().map(widths).collect(),
            rest: sizes().map(|size| on_disks(self.servers, size)).collect(),
        }
    }

    /// Replays everything on each class of servers, and on each server. The fastest of each class, and the fastest server,
    /// the fastest of these first.
    fn alone(&mut self, judge: &mut dyn Judge) -> Vec<Replayed> {
        let (items, servers) = (self.items.len(), self.servers.count());
        let kept = choices_max(items, servers).clamp(1, ALONE);
        let mut fastest: BTreeMap<Option<usize>, Replayed> = BTreeMap::new();
        let replays = ALONE_WORK / self.requests.len().max(1);
        for alone in Alone::all(self.servers, items, &self.usual_sizes(), replays) {
            let choice = self.everywhere(|size| alone.widths(servers, size));
            self.replays_max = self.replays + 1;
            let seconds = self.replay(judge, &choice);
            if fastest.get(&alone.class).is_none_or(|known| seconds < known.seconds) {
                fastest.insert(alone.class, Replayed { seconds, choice });
            }
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

    fn improve_until_none_is_better(&mut self, judge: &mut dyn Judge, best: &mut Replayed) {
        loop {
            let before = best.seconds;
            self.improve(judge, best);
            // Not better, even where no request takes any time.
            if best.seconds >= before * 0.9999 || self.replays >= self.replays_max {
                return;
            }
        }
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
        self.replays_max = self.replays + all.len();
        let replayed = |choice| Replayed { seconds: self.replay(judge, &choice), choice };
        let mut all: Vec<Replayed> = all.into_iter().map(replayed).collect();
        rank(&mut all);
        all.truncate(BEGINNINGS);
        all
    }

    /// Tries all widths in equal steps for the items with the most traffic, one after another, if replays are short enough.
    fn try_grids(&mut self, judge: &mut dyn Judge, best: &mut Replayed) {
        let busiest = self.busiest.clone();
        for (done, &index) in busiest.iter().enumerate() {
            let left = self.replays_max.saturating_sub(self.replays) / (busiest.len() - done);
            let size = self.items[index].region.size;
            let Some(grid) = Grid::new(self.servers, size, left as u64) else { continue };
            if !grid.all_pairs {
                for _ in 0..2 {
                    self.try_each(judge, best, (index, Stretch::First), grid.first.clone());
                    self.try_each(judge, best, (index, Stretch::Rest), grid.rest.clone());
                }
                continue;
            }
            let base = best.choice.clone();
            for first in grid.first {
                let mut last = None;
                for rest in &grid.rest {
                    let mut choice = base.clone();
                    (choice.first[index], choice.rest[index]) = (first.clone(), rest.clone());
                    let layouts = self.realise(&choice);
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

    /// The best choice by the cost model, item by item in the order in which they get space; sorts each item's
    /// candidates. `None` if the files do not fit.
    fn by_prediction(&mut self, judge: &mut dyn Judge) -> Option<Choice> {
        let mut placer = Placer::new(self.servers.room());
        let none = vec![Vec::new(); self.items.len()];
        let mut choice = Choice { first: none.clone(), rest: none };
        for (done, index) in self.order.clone().into_iter().enumerate() {
            judge.advanced(Step::Candidates, done, self.items.len());
            let item = &self.items[index];
            let all = candidates::widths(self.servers, item.region.size);
            let only_slow =
                |widths: &Vec<u64>| self.servers.fast().all(|server| widths[server] == 0);
            let slow: Vec<_> = all.iter().filter(|widths| only_slow(widths)).cloned().collect();
            let endless = Placer::new(vec![u64::MAX; self.servers.count()]);
            let mut rest =
                self.sorted(item, slow, &endless, &on_disks(self.servers, item.region.size));
            rest.truncate(self.tried);
            let mut first = self.sorted(item, all, &placer, &rest[0]);
            first = diverse(first, self.tried);
            let (begin, end) = (item.region.begin, item.region.end);
            placer.place(begin, end, &[&first[0], &rest[0]]).ok()?;
            (choice.first[index], choice.rest[index]) = (first[0].clone(), rest[0].clone());
            // Of thousands of regions on thousands of servers, the candidates of all took gigabytes.
            if self.busiest.contains(&index) {
                (self.items[index].first, self.items[index].rest) = (first, rest);
            }
        }
        Some(choice)
    }

    /// Candidates sorted by predicted seconds.
    fn sorted(
        &self,
        item: &Item<'_>,
        candidates: Vec<Vec<u64>>,
        placer: &Placer,
        rest: &[u64],
    ) -> Vec<Vec<u64>> {
        let (begin, end) = (item.region.begin, item.region.end);
        let mut judged: Vec<(f64, Vec<u64>)> = Vec::new();
        for widths in candidates {
            let Ok(mut parts) = placer.clone().place(begin, end, &[&widths, rest]) else {
                continue;
            };
            if begin > 0 {
                parts.push(Part { begin: 0, end: Some(begin), widths: rest.to_vec() });
            }
            let mut cost = Cost::none(self.servers.count());
            cost.add(self.servers, &assemble(parts), &item.requests);
            judged.push((cost.seconds(item.processes), widths));
        }
        judged.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
        let mut sorted: Vec<_> = judged.into_iter().map(|(_, widths)| widths).collect();
        if sorted.is_empty() {
            sorted.push(vec![DEFAULT_STRIPE; self.servers.count()]);
        }
        sorted
    }

    /// Tries other widths for the items with the most traffic, one after another.
    fn improve(&mut self, judge: &mut dyn Judge, best: &mut Replayed) {
        for index in self.busiest.clone() {
            let first = self.items[index].first.clone();
            let rest =
                self.items[index].rest.iter().take((self.tried / 3).max(4)).cloned().collect();
            for (stretch, widths) in [(Stretch::First, first), (Stretch::Rest, rest)] {
                self.try_each(judge, best, (index, stretch), widths);
                let near =
                    candidates::neighbours(self.servers, &best.choice.widths(stretch)[index]);
                self.try_each(judge, best, (index, stretch), near);
            }
        }
    }

    /// Tries widths for one item, each instead of those of the best choice by then.
    fn try_each(
        &mut self,
        judge: &mut dyn Judge,
        best: &mut Replayed,
        (index, stretch): (usize, Stretch),
        widths: Vec<Vec<u64>>,
    ) {
        for widths in widths {
            let mut choice = best.choice.clone();
            choice.widths(stretch)[index] = widths;
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
        let Some(layouts) = self.realise(choice) else { return f64::INFINITY };
        self.replays += 1;
        let seconds = judge.seconds(&self.requests, &layouts);
        self.known.insert(hash, seconds);
        if let Some(&busiest) = self.busiest.first() {
            self.finalists.note(self.servers, busiest, choice, seconds);
        }
        seconds
    }

    /// The layouts of a choice, within the available space.
    fn realise(&self, choice: &Choice) -> Option<Layouts> {
        let mut placer = Placer::new(self.servers.room());
        let mut parts: FxHashMap<u32, Vec<Part>> = FxHashMap::default();
        for &index in &self.order {
            let item = &self.items[index];
            let wishes = [choice.first[index].as_slice(), choice.rest[index].as_slice()];
            let there = placer.place(item.region.begin, item.region.end, &wishes).ok()?;
            parts.entry(item.file).or_default().extend(there);
        }
        let files = parts.into_iter().map(|(file, parts)| (file, assemble(parts))).collect();
        let default = Layout::simple(vec![DEFAULT_STRIPE; self.servers.count()]);
        let mut layouts = Layouts { files, default };
        self.join_regions(&mut layouts, placer);
        Some(layouts)
    }

    /// Lets rounds go on over the borders of regions with the same widths, as far as what `placer` has left allows that.
    /// Rounds that begin anew in each region leave more on the first servers than on the last.
    fn join_regions(&self, layouts: &mut Layouts, mut placer: Placer) {
        for regions in self.items.chunk_by(|one, next| one.file == next.file) {
            let [.., last] = regions else { continue };
            let Some(layout) = layouts.files.get_mut(&last.file) else { continue };
            let Some(joined) = layout.without_restarts() else { continue };
            let size = last.region.end;
            if placer.exchange(&layout.bytes(size), &joined.bytes(size)) {
                *layout = joined;
            }
        }
    }
}

/// Places of the items, those with the most of `what` first.
fn most_first(items: &[Item<'_>], what: impl Fn(&Item<'_>) -> f64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_by(|a, b| what(&items[*b]).total_cmp(&what(&items[*a])).then(a.cmp(b)));
    order
}
