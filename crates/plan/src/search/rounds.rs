//! Many candidates are judged by few requests, and the best of these by more.

use halocline_trace::Request;

use super::thinning::stretches_of;

/// What part of all requests judges the candidates, round by round.
const ROUNDS: [usize; 2] = [8, 2];
/// Fewer requests than this are not divided further.
const ROUND_MIN: usize = 1024;
/// One of so many candidates gets into the next round.
const KEPT_ONE_OF: usize = 5;
/// So few are not left out.
const KEPT_MIN: usize = 8;

/// The fastest of `all`, for a last round with so many `requests` of `sample`. The fastest of each class stays, if
/// `class` says that a candidate is of one. Those without `seconds` are left out.
pub(super) fn best_of_rounds<T>(
    mut all: Vec<T>,
    sample: &[Vec<Request>],
    requests: usize,
    class: impl Fn(&T) -> Option<usize>,
    mut seconds: impl FnMut(&[Request], &T) -> Option<f64>,
) -> Vec<T> {
    for divisor in ROUNDS {
        let wanted = requests / divisor;
        if wanted < ROUND_MIN || all.len() <= KEPT_MIN {
            continue;
        }
        let some = stretches_of(sample, wanted);
        let judge = |candidate| Some((seconds(&some, &candidate)?, candidate));
        let mut judged: Vec<(f64, T)> = all.into_iter().filter_map(judge).collect();
        judged.sort_by(|a, b| a.0.total_cmp(&b.0));
        let kept = (judged.len() / KEPT_ONE_OF).max(KEPT_MIN);
        let mut classes = Vec::new();
        let mut is_kept = |rank: usize, candidate: &T| {
            let of_class = class(candidate).filter(|class| !classes.contains(class));
            classes.extend(of_class);
            rank < kept || of_class.is_some()
        };
        let ranked = judged.into_iter().enumerate();
        let ranked = ranked.filter(|(rank, (_, candidate))| is_kept(*rank, candidate));
        all = ranked.map(|(_, (_, candidate))| candidate).collect();
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use halocline_trace::Op;

    fn sample(windows: u64) -> Vec<Vec<Request>> {
        let request = |n| Request {
            start_ns: n,
            duration_ns: None,
            process: 0,
            file: 0,
            op: Op::Read,
            offset: n,
            length: 1,
        };
        (0..windows).map(|window| (0..512).map(|n| request(window * 512 + n)).collect()).collect()
    }

    #[test]
    fn the_best_and_those_of_each_class_get_into_the_last_round() {
        let mut rounds = Vec::new();
        let seconds = |requests: &[Request], candidate: &u32| {
            if rounds.last().is_none_or(|(some, _)| *some != requests.len()) {
                rounds.push((requests.len(), 0));
            }
            if let Some((_, count)) = rounds.last_mut() {
                *count += 1;
            }
            // The first hundred do not fit.
            (*candidate >= 100).then(|| f64::from(*candidate))
        };
        // The slowest ten are of a class.
        let class = |candidate: &u32| (*candidate >= 990).then_some(7);
        let best = best_of_rounds((0..1000).rev().collect(), &sample(32), 8192, class, seconds);
        assert_eq!(rounds, [(1024, 1000), (4096, 181)]);
        assert_eq!(best, (100..136).chain([990]).collect::<Vec<_>>());
    }

    #[test]
    fn few_candidates_and_few_requests_have_no_rounds() {
        let never = |_: &[Request], _: &u32| -> Option<f64> { panic!("a replay") };
        for (candidates, requests) in [(8, 8192), (1000, 1024)] {
            let all: Vec<u32> = (0..candidates).collect();
            assert_eq!(best_of_rounds(all.clone(), &sample(16), requests, |_| None, never), all);
        }
    }
}
