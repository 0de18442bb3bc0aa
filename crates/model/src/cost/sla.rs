//! SLA-Cache, equations 1 to 16: cost of a request on the origin and on the cache under each of
//! three layouts.

use serde::{Deserialize, Serialize};

use super::Cost;
use crate::exact::Exact;
use crate::layout::{CacheGeometry, Layout};
use crate::request::ByteRange;
use crate::striping::Striping;

/// Which form of the formulas of the paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Formulas {
    /// Repaired: docs/ALGORITHMS.md, section 2.1.
    #[serde(rename = "spec")]
    Repaired,
    /// The formulas as printed: E one too far, Table 2, floor instead of ceil, no clamp.
    #[serde(rename = "paper")]
    AsPrinted,
}

/// Startup and transfer of one kind of server: one alpha and one beta, as in the paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Server {
    /// alpha in picoseconds.
    pub startup_ps: u64,
    /// beta in picoseconds a byte.
    pub per_byte_ps: u64,
}

/// Both sides as the model sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Model {
    /// Which formulas.
    pub formulas: Formulas,
    /// Striping of the origin over its M servers.
    pub origin: Striping,
    /// Cost of an origin server.
    pub origin_server: Server,
    /// Layouts of the cache over its N servers.
    pub cache: CacheGeometry,
    /// Cost of a cache server.
    pub cache_server: Server,
}

/// What the model says of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Judgement {
    /// Cost on the origin, `T_H`.
    pub origin: Cost,
    /// Cost on the cache in each candidate layout, in tie-breaking order; 2-D may be missing.
    pub cache: [Option<(Layout, Cost)>; 3],
    /// First layout with the greatest benefit.
    pub best: Layout,
    /// Its benefit B.
    pub benefit_ps: Exact,
}

impl Judgement {
    /// Whether the request is critical: B > 0, strictly.
    pub fn critical(&self) -> bool {
        self.benefit_ps > Exact::ZERO
    }

    /// The candidate layouts with their cost.
    pub fn candidates(&self) -> impl Iterator<Item = (Layout, Cost)> {
        self.cache.into_iter().flatten()
    }

    /// Cost on the cache in the best layout.
    pub(crate) fn best_cost(&self) -> Cost {
        self.candidates()
            .find_map(|(layout, cost)| (layout == self.best).then_some(cost))
            .unwrap_or(self.origin)
    }
}

impl Model {
    /// Costs of `range` with `processes` processes, which the model takes for at least 1 except
    /// with the formulas as printed.
    pub fn judge(&self, range: ByteRange, processes: u32) -> Judgement {
        let p = match self.formulas {
            Formulas::Repaired => processes.max(1),
            Formulas::AsPrinted => processes,
        };
        let origin = self.cost(self.origin, range, i128::from(p), self.origin_server);
        let cache = Layout::ALL.map(|layout| self.cache_cost(layout, range, p));
        let mut best: Option<(Layout, Exact)> = None;
        for (layout, cost) in cache.iter().flatten() {
            let total = cost.total_ps();
            if best.is_none_or(|(_, least)| total < least) {
                best = Some((*layout, total));
            }
        }
        let (best, least) = best.unwrap_or((Layout::OneDh, origin.total_ps()));
        Judgement { origin, cache, best, benefit_ps: origin.total_ps() - least }
    }

    fn cache_cost(&self, layout: Layout, range: ByteRange, p: u32) -> Option<(Layout, Cost)> {
        let (servers, stripe) = (self.cache.servers(), self.cache.stripe());
        let (over, share) = match layout {
            Layout::OneDh => (servers, i128::from(p)),
            Layout::OneDv => (1, self.share(p, servers)),
            Layout::TwoD => {
                let groups = self.cache.groups()?;
                (servers / groups, self.share(p, groups))
            }
        };
        if layout == Layout::OneDv && !range.is_empty() {
            // m = 1 and s = r whatever the stripe.
            let alpha = i128::from(self.cache_server.startup_ps);
            let size = i128::from(range.len());
            let per_byte = self.cache_server.per_byte_ps;
            return Some((layout, Cost::new(1, size, alpha, share * alpha, per_byte)));
        }
        let striping = Striping::new(over, stripe);
        Some((layout, self.cost(striping, range, share, self.cache_server)))
    }

    /// Processes on one of `places`: rounded up, or down as printed.
    fn share(&self, p: u32, places: u32) -> i128 {
        i128::from(match self.formulas {
            Formulas::Repaired => p.div_ceil(places),
            Formulas::AsPrinted => p / places,
        })
    }

    fn cost(&self, striping: Striping, range: ByteRange, share: i128, server: Server) -> Cost {
        let (servers, largest) = match self.formulas {
            Formulas::Repaired => {
                let touched = striping.shape(range);
                (u64::from(touched.servers), i128::from(touched.largest))
            }
            Formulas::AsPrinted => striping.shape_as_printed(range),
        };
        let alpha = i128::from(server.startup_ps);
        Cost::new(servers, largest, alpha, share * alpha, server.per_byte_ps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(formulas: Formulas) -> Model {
        Model {
            formulas,
            origin: Striping::new(8, 65536),
            origin_server: Server { startup_ps: 1000, per_byte_ps: 2 },
            cache: CacheGeometry::new(4, 65536, 2),
            cache_server: Server { startup_ps: 10, per_byte_ps: 1 },
        }
    }

    #[test]
    fn a_small_request_by_hand() {
        let said = model(Formulas::Repaired).judge(ByteRange::at(0, 8192), 1);
        assert_eq!(said.origin.total_ps(), Exact::whole(1000 + 2 * 8192));
        assert_eq!(said.best_cost().total_ps(), Exact::whole(10 + 8192));
        assert_eq!((said.best, said.critical()), (Layout::OneDh, true));
        assert_eq!(said.candidates().count(), 3);
    }

    #[test]
    fn many_processes_make_one_server_each_the_best_layout() {
        // 1-DH: 10 + 4/5*(640-10) + 65536; 1-DV: 10 + 1/2*(160-10) + 262144; 2-D: 10 +
        // 2/3*(320-10) + 131072.
        let range = ByteRange::at(0, 4 * 65536);
        let said = model(Formulas::Repaired).judge(range, 64);
        let totals: Vec<String> =
            said.candidates().map(|(_, cost)| cost.total_ps().to_string()).collect();
        assert_eq!(totals, ["66050/1", "262229/1", "393866/3"]);
        assert_eq!(said.best, Layout::OneDh);
        let small = model(Formulas::Repaired).judge(ByteRange::at(0, 100), 64);
        assert_eq!(small.best, Layout::OneDv);
    }

    #[test]
    fn the_printed_floor_makes_startup_vanish() {
        // p = 1 on 4 servers: floor(1/4) = 0, so b = 0 < a and half of a single startup is gone.
        let range = ByteRange::at(0, 8192);
        let cost = |formulas| {
            let said = model(formulas).judge(range, 1);
            said.cache[1].expect("1-DV").1.total_ps().to_string()
        };
        assert_eq!(
            (cost(Formulas::Repaired), cost(Formulas::AsPrinted)),
            ("8202/1".into(), "8197/1".into())
        );
    }

    #[test]
    fn nothing_costs_nothing_and_is_not_critical() {
        let said = model(Formulas::Repaired).judge(ByteRange::at(7, 0), 9);
        assert_eq!(said.origin.total_ps(), Exact::ZERO);
        assert!(!said.critical());
        assert_eq!(said.best, Layout::OneDh);
    }
}
