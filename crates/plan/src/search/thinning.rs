//! Fewer of what there is too much of for a search: candidates, requests that predict, and requests that are replayed.

use halocline_trace::Request;

use crate::workload::Weighted;

/// Limit of the requests in one replay of the search.
const REPLAYED: usize = 8192;
/// The shortest stretch of a window: shorter ones are mostly their first requests, before which nothing waits.
const STRETCH_MIN: usize = 128;
/// Limit of the requests by which a candidate is predicted.
const PREDICTED: usize = 128;

/// The best candidates, then increasingly distant ones: neighbours in the ranking are often similar.
pub(super) fn diverse(sorted: Vec<Vec<u64>>, tried: usize) -> Vec<Vec<u64>> {
    let mut kept = Vec::new();
    for (rank, widths) in sorted.into_iter().enumerate() {
        let sparse = kept.len() >= tried * 3 / 4 && !(rank + 1).is_power_of_two();
        if !sparse {
            kept.push(widths);
        }
        if kept.len() == tried {
            break;
        }
    }
    kept
}

#[expect(clippy::cast_precision_loss, reason = "weights")]
pub(super) fn thinned(requests: &[Weighted]) -> Vec<Weighted> {
    let every = requests.len().div_ceil(PREDICTED).max(1);
    let scaled = |r: &Weighted| Weighted { weight: r.weight * every as f64, ..*r };
    requests.iter().step_by(every).map(scaled).collect()
}

/// Windows of a sample, evenly distributed, with few enough requests for many replays.
pub(super) fn part_of(sample: &[Vec<Request>]) -> Vec<Request> {
    let all: usize = sample.iter().map(Vec::len).sum();
    let every = all.div_ceil(REPLAYED).max(1);
    sample.iter().step_by(every).flatten().copied().collect()
}

/// About `wanted` requests of a sample: of evenly distributed windows, a stretch of each that begins anywhere in it, because
/// windows that all begin at multiples of a round say little of the rest of it.
pub(super) fn stretches_of(sample: &[Vec<Request>], wanted: usize) -> Vec<Request> {
    let stretch = (wanted / sample.len().max(1)).max(STRETCH_MIN);
    let every = (sample.len() * stretch).div_ceil(wanted.max(1)).max(1);
    let of = |(number, window): (usize, &Vec<Request>)| {
        let spare = window.len().saturating_sub(stretch);
        // Multiples of the golden ratio are spread evenly.
        let place = number.wrapping_mul(0x9E37_79B9) % (1 << 16);
        let begin = (spare * place) >> 16;
        window[begin..window.len().min(begin + stretch)].to_vec()
    };
    sample.iter().step_by(every).enumerate().flat_map(of).collect()
}
