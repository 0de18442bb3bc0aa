//! What the cost model takes for the best widths, and the candidates in its order.

use super::candidates;
use super::choice::Choice;
use super::groups::{Group, Item};
use super::placement::Placement;
use super::thinning::diverse;
use crate::judge::{Judge, Step};
use crate::layout::{DEFAULT_STRIPE, Part, Placer, assemble};
use crate::paper::on_disks;
use crate::predict::Cost;
use crate::servers::Servers;

/// Sorts candidates by the cost model.
#[derive(Debug)]
pub(super) struct Predicted<'a> {
    pub(super) servers: &'a Servers,
    pub(super) items: &'a [Item<'a>],
    pub(super) placement: &'a Placement<'a>,
    /// How many candidates of a region are replayed.
    pub(super) tried: usize,
    /// So many of the first groups keep their candidates.
    pub(super) kept: usize,
}

impl Predicted<'_> {
    /// The best choice by the cost model, group by group in the order in which they get space; sorts each group's
    /// candidates. `None` if the files do not fit.
    pub(super) fn choice(
        &self,
        judge: &mut dyn Judge,
        groups: &mut [Group],
        shared: bool,
    ) -> Option<Choice> {
        let room = self.servers.room();
        let mut placer = Placer::new(room);
        let none = vec![Vec::new(); self.items.len()];
        let mut choice = Choice { first: none.clone(), rest: none, shared };
        let mut done = 0;
        for number in self.in_order(groups) {
            let members = groups[number].members.clone();
            let item = &self.items[members[0]];
            let all = candidates::widths(self.servers, item.region.size);
            let only_slow =
                |widths: &Vec<u64>| self.servers.fast().all(|server| widths[server] == 0);
            let slow: Vec<_> = all.iter().filter(|widths| only_slow(widths)).cloned().collect();
            let endless = Placer::new(vec![u64::MAX; self.servers.count()]);
            let mut rest =
                self.sorted(item, slow, &endless, &on_disks(self.servers, item.region.size));
            rest.truncate(self.tried);
            let bytes = item.region.end - item.region.begin;
            let share = placer.share(self.servers.fast(), bytes, self.placement.bytes_of(number));
            let first = diverse(self.sorted(item, all, &share, &rest[0]), self.tried);
            let mut left = self.placement.bytes_of(number);
            for &index in &members {
                judge.advanced(Step::Candidates, done, self.items.len());
                done += 1;
                let region = self.items[index].region;
                let (range, bytes) = ((region.begin, region.end), region.end - region.begin);
                let wishes = [first[0].as_slice(), rest[0].as_slice()];
                placer.place_in_share(range, &wishes, self.servers.fast(), (bytes, left)).ok()?;
                left -= bytes;
                (choice.first[index], choice.rest[index]) = (first[0].clone(), rest[0].clone());
            }
            // Of thousands of regions on thousands of servers, the candidates of all took gigabytes.
            if number < self.kept {
                (groups[number].first, groups[number].rest) = (first, rest);
            }
        }
        Some(choice)
    }

    /// Groups in the order in which the first of their members gets space.
    fn in_order(&self, groups: &[Group]) -> Vec<usize> {
        let mut ranks = vec![0; self.items.len()];
        for (rank, &index) in self.placement.order().iter().enumerate() {
            ranks[index] = rank;
        }
        let mut numbers: Vec<usize> = (0..groups.len()).collect();
        let first = |number: &usize| groups[*number].members.iter().map(|i| ranks[*i]).min();
        numbers.sort_by_key(first);
        numbers
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
}
