//! Layouts that widths for each class of servers cannot say.

use halocline_trace::Request;

use super::apart::Apart;
use super::groups::Item;
use super::mixed::Mixed;
use super::{tails, units};
use crate::judge::{Judge, Layouts};
use crate::servers::Servers;

/// Finds them for these regions.
#[derive(Debug)]
pub(super) struct Others<'a> {
    pub(super) servers: &'a Servers,
    pub(super) items: &'a [Item<'a>],
    pub(super) sample: &'a [Vec<Request>],
    /// They judge.
    pub(super) requests: &'a [Request],
}

impl Others<'_> {
    /// Units on servers of their own, some of them with the others in stripes, and the ends of files on the SSDs behind such `stripes` on the disks: the fastest of
    /// each, the fastest first, and the number of replays.
    pub(super) fn fastest(
        &self,
        judge: &mut dyn Judge,
        stripes: impl Iterator<Item = Vec<u64>>,
    ) -> (Vec<Layouts>, usize) {
        let files = units::files(self.items, self.sample);
        let shares = units::shares(self.items, self.sample);
        let is_other = shares.len() > files.len();
        let placements = judge.placements(files.len());
        let (mut found, mut replays) = (Vec::new(), 0);
        for units in [Some(files), is_other.then_some(shares)].into_iter().flatten() {
            let mut mixed = Mixed::new(self.servers, &units, self.requests, placements);
            found.extend(mixed.best(judge));
            replays += mixed.replays;
            let mut apart = Apart::new(self.servers, units, self.requests);
            found.extend(apart.best(judge));
            replays += apart.replays;
        }
        let heads = tails::heads(self.servers, stripes);
        let tried = tails::best((self.servers, self.items), &heads, self.requests, judge);
        found.extend(tried.0);
        found.sort_by(|a, b| a.0.total_cmp(&b.0));
        (found.into_iter().map(|(_, layouts)| layouts).collect(), replays + tried.1)
    }
}
