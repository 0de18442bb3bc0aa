//! PSA: the cost of varied stripes on disks and SSDs together, and the stripe pair with the lowest cost
//! (docs/ALGORITHMS.md, section 7; Tables 3 and 4 and Algorithm 1 of the paper, repaired).

use crate::exact::Exact;

/// Parameters of the cost model, Table 2 of the paper. Times in picoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Params {
    /// Client processes.
    pub p: u64,
    /// Processes on one client node.
    pub c: u64,
    /// `HServers`, at least 1.
    pub m: u64,
    /// `SServers`, at least 1.
    pub n: u64,
    /// Establishing one connection to an `HServer`. The paper has one e and one t for all servers.
    pub e_h_ps: u64,
    /// Network transfer of one byte to or from an `HServer`.
    pub t_h_ps_per_byte: u64,
    /// Establishing one connection to an `SServer`.
    pub e_s_ps: u64,
    /// Network transfer of one byte to or from an `SServer`.
    pub t_s_ps_per_byte: u64,
    /// Startup on an `HServer`.
    pub alpha_h_ps: u64,
    /// Transfer of one byte on an `HServer`.
    pub beta_h_ps_per_byte: u64,
    /// Startup on an `SServer`.
    pub alpha_s_ps: u64,
    /// Transfer of one byte on an `SServer`.
    pub beta_s_ps_per_byte: u64,
}

/// A stripe pair with its cost for the trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Stripe on an `HServer` in bytes.
    pub h: u64,
    /// Stripe on an `SServer` in bytes; 0 means that they are not used.
    pub s: u64,
    /// Number of heterogeneous requests.
    pub j: u64,
    /// Total cost of the trace in picoseconds.
    pub total_ps: Exact,
}

/// What is planned for: `k` requests of `size` bytes, one after another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Task {
    /// Size S of a request in bytes.
    pub size: u64,
    /// Number of requests k.
    pub k: u64,
    /// Bytes that one `SServer` can hold, `C_s`.
    pub sserver_bytes: u64,
    /// Stripes are multiples of this many bytes.
    pub step: u64,
}

/// How a request is distributed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// On both classes of servers.
    Heterogeneous,
    /// On `HServers` alone.
    Homogeneous,
    /// Its beginning on both classes, its end on `HServers` alone.
    Straddling,
}

/// Kind of the request at `offset` when the first `j` requests' worth of bytes is heterogeneous.
pub(crate) fn classify(offset: u64, length: u64, j: u64, size: u64) -> Kind {
    let border = u128::from(j) * u128::from(size);
    if u128::from(offset) + u128::from(length) <= border {
        Kind::Heterogeneous
    } else if u128::from(offset) >= border {
        Kind::Homogeneous
    } else {
        Kind::Straddling
    }
}

fn product<const N: usize>(factors: [u64; N]) -> i128 {
    factors.iter().map(|&factor| i128::from(factor)).product()
}

impl Params {
    /// Cost of a request of `size` bytes with stripes `h` and `s` (Table 3). A class with a zero
    /// stripe is charged nothing: no connection, no startup, no transfer.
    pub(crate) fn heterogeneous_ps(&self, size: u64, h: u64, s: u64) -> Exact {
        let (e_h, m) = if h > 0 { (self.e_h_ps, self.m) } else { (0, 0) };
        let (e_s, n) = if s > 0 { (self.e_s_ps, self.n) } else { (0, 0) };
        let by_client = product([self.c, m, e_h]) + product([self.c, n, e_s]);
        let connect = by_client.max(product([self.p, e_h.max(e_s)]));
        let network = self
            .client_ps(size, h, s)
            .max(product([self.p, h, self.t_h_ps_per_byte]))
            .max(product([self.p, s, self.t_s_ps_per_byte]));
        let on = |stripe, alpha, beta| match stripe {
            0 => 0,
            stripe => product([alpha]) + product([stripe, beta]),
        };
        let storage = on(h, self.alpha_h_ps, self.beta_h_ps_per_byte).max(on(
            s,
            self.alpha_s_ps,
            self.beta_s_ps_per_byte,
        ));
        Exact::whole(connect + network + product([self.p]) * storage)
    }

    /// Network transfer of the bytes of the requests of one client node: what is not on `HServers` is on `SServers`.
    fn client_ps(&self, size: u64, h: u64, s: u64) -> i128 {
        if s == 0 {
            return product([self.c, size, self.t_h_ps_per_byte]);
        }
        let more = i128::from(self.t_h_ps_per_byte) - i128::from(self.t_s_ps_per_byte);
        product([self.c, size, self.t_s_ps_per_byte]) + product([self.c, self.m, h]) * more
    }

    /// Cost of a request of `size` bytes on `HServers` alone with stripe `size / m` (Table 4).
    pub(crate) fn homogeneous_ps(&self, size: u64) -> Exact {
        let connect = product([self.e_h_ps]) * product([self.c, self.m]).max(product([self.p]));
        let all = Exact::whole(product([self.c, size, self.t_h_ps_per_byte]));
        let part = Exact::new(product([self.p, size, self.t_h_ps_per_byte]), product([self.m]));
        let transfer =
            Exact::new(product([self.p, size, self.beta_h_ps_per_byte]), product([self.m]));
        let startup = product([self.p, self.alpha_h_ps]);
        Exact::whole(connect + startup) + all.max(part) + transfer
    }

    /// The candidates of Algorithm 1 in ascending order of h, with their totals.
    pub fn candidates(&self, task: &Task) -> Vec<Candidate> {
        let first = task.size.div_ceil(self.m + self.n).next_multiple_of(task.step);
        let mut pairs: Vec<(u64, u64)> = self.pairs(task, first).collect();
        if task.size.is_multiple_of(self.m) {
            pairs.push((task.size / self.m, 0));
        }
        let homogeneous_ps = self.homogeneous_ps(task.size);
        pairs.into_iter().map(|(h, s)| self.candidate(task, (h, s), homogeneous_ps)).collect()
    }

    /// Stripe pairs with h from `first` up in steps and s > 0 whole.
    fn pairs(&self, task: &Task, first: u64) -> impl Iterator<Item = (u64, u64)> {
        let (size, m, n, step) = (task.size, self.m, self.n, task.step);
        (0..)
            .map(move |index| first + index * step)
            .take_while(move |h| h * m < size)
            .filter(move |h| (size - h * m).is_multiple_of(n))
            .map(move |h| (h, (size - h * m) / n))
    }

    fn candidate(&self, task: &Task, (h, s): (u64, u64), homogeneous_ps: Exact) -> Candidate {
        let j = task.sserver_bytes.checked_div(s).unwrap_or(0).min(task.k);
        let total_ps = Exact::whole(i128::from(j)) * self.heterogeneous_ps(task.size, h, s)
            + Exact::whole(i128::from(task.k - j)) * homogeneous_ps;
        Candidate { h, s, j, total_ps }
    }

    /// PA: the stripe pair with the least heterogeneous cost over h <= S/(m+n), with or without h = 0; if several tie,
    /// the one with the largest h. `None` if no pair divides the request.
    pub fn performance_aware(&self, task: &Task, allow_zero: bool) -> Option<(u64, u64, Exact)> {
        let first = if allow_zero { 0 } else { task.step };
        self.pairs(task, first)
            .take_while(|(h, _)| h * (self.m + self.n) <= task.size)
            .map(|(h, s)| (h, s, self.heterogeneous_ps(task.size, h, s)))
            .reduce(|best, next| if next.2 <= best.2 { next } else { best })
    }
}

/// The candidates whose total is within a relative 1e-9 of the least: ties, in ascending order
/// of h. The last one is the choice.
pub fn ties(candidates: &[Candidate]) -> Vec<Candidate> {
    let Some(best) = candidates.iter().map(|candidate| candidate.total_ps).min() else {
        return Vec::new();
    };
    let near =
        |candidate: &&Candidate| (candidate.total_ps - best).to_f64() <= best.to_f64() * 1e-9;
    candidates.iter().filter(near).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: u64 = 1024;

    fn params() -> Params {
        Params {
            p: 16,
            c: 2,
            m: 8,
            n: 8,
            e_h_ps: 100_000_000,
            t_h_ps_per_byte: 8_000,
            e_s_ps: 100_000_000,
            t_s_ps_per_byte: 8_000,
            alpha_h_ps: 10_000_000_000,
            beta_h_ps_per_byte: 10_000,
            alpha_s_ps: 100_000_000,
            beta_s_ps_per_byte: 2_000,
        }
    }

    fn task() -> Task {
        Task { size: 1024 * K, k: 1000, sserver_bytes: 1 << 30, step: 4 * K }
    }

    #[test]
    fn the_papers_grid_has_17_candidates() {
        let candidates = params().candidates(&task());
        assert_eq!(candidates.len(), 17);
        assert_eq!((candidates[0].h, candidates[0].s), (64 * K, 64 * K));
        assert_eq!((candidates[14].h, candidates[14].s), (120 * K, 8 * K));
        assert_eq!((candidates[16].h, candidates[16].s, candidates[16].j), (128 * K, 0, 0));
    }

    #[test]
    fn one_cell_by_hand() {
        // T_E = 0.1 ms * max(2*16, 16); T_X = max(2*1 MiB, 16*120 KiB, 16*8 KiB) * 8 ns;
        // T_STO = 16 * max(10 ms + 120 KiB * 10 ns, 0.1 ms + 8 KiB * 2 ns).
        let by_hand =
            32 * 100_000_000 + 2 * 1_048_576 * 8_000 + 16 * (10_000_000_000 + 122_880 * 10_000);
        let cost = params().heterogeneous_ps(1024 * K, 120 * K, 8 * K);
        assert_eq!(cost, Exact::whole(by_hand));
    }

    #[test]
    fn without_sservers_both_tables_agree() {
        let task = task();
        let near_ssds = Params { e_s_ps: 1_000_000, t_s_ps_per_byte: 100, ..params() };
        for params in [params(), near_ssds] {
            let hom = params.homogeneous_ps(task.size);
            assert_eq!(params.heterogeneous_ps(task.size, 128 * K, 0), hom);
        }
    }

    /// Regression: the slowest network of all servers was that of each.
    #[test]
    fn sservers_that_are_near_do_not_wait_for_the_network_of_the_others() {
        let near_ssds = Params { e_s_ps: 1_000_000, t_s_ps_per_byte: 100, ..params() };
        // T_E = max(2*8 * 1 us, 16 * 1 us); T_X = max(2 * 1 MiB, 16 * 128 KiB) * 0.1 ns, which are equal.
        let by_hand = 16 * 1_000_000 + 2 * 1_048_576 * 100 + 16 * (100_000_000 + 131_072 * 2_000);
        assert_eq!(near_ssds.heterogeneous_ps(1024 * K, 0, 128 * K), Exact::whole(by_hand));
        // T_E = max(2*8 * (0.1 ms + 1 us), 16 * 0.1 ms); T_X = max(2 * 8 * (120 KiB * 8 ns + 8 KiB * 0.1 ns), ...).
        let by_hand = 16 * 101_000_000
            + 16 * (122_880 * 8_000 + 8_192 * 100)
            + 16 * (10_000_000_000 + 122_880 * 10_000);
        assert_eq!(near_ssds.heterogeneous_ps(1024 * K, 120 * K, 8 * K), Exact::whole(by_hand));
    }

    #[test]
    fn all_layouts_that_fill_the_ssds_tie() {
        // Known weakness: if disks are the bottleneck and the network is free, a smaller SSD stripe saves less each
        // time but proportionally more often. 720720 blocks fill an SServer evenly with any of the 16 stripes; the 17th
        // candidate uses no SServer.
        let network_free =
            Params { e_h_ps: 0, t_h_ps_per_byte: 0, e_s_ps: 0, t_s_ps_per_byte: 0, ..params() };
        let full = Task { k: 1 << 20, sserver_bytes: 720_720 * 4 * K, ..task() };
        let ties = ties(&network_free.candidates(&full));
        assert_eq!(ties.len(), 16);
        assert_eq!(ties.last().map(|choice| (choice.h, choice.s)), Some((124 * K, 4 * K)));
    }

    #[test]
    fn straddling_requests_are_neither() {
        assert_eq!(classify(0, 100, 1, 100), Kind::Heterogeneous);
        assert_eq!(classify(100, 1, 1, 100), Kind::Homogeneous);
        assert_eq!(classify(50, 100, 1, 100), Kind::Straddling);
    }

    #[test]
    fn pa_with_zero_leaves_the_disks_out() {
        let (h, s, cost) = params().performance_aware(&task(), true).expect("a pair");
        assert_eq!((h, s), (0, 128 * K));
        let (h, _, more) = params().performance_aware(&task(), false).expect("a pair");
        assert!(h > 0 && more > cost);
    }
}
