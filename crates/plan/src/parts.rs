//! Parts of a sample, each of which stands for all of it, so that their gains say how sure a gain is.

use halocline_trace::Request;

use crate::workload::WINDOW;

/// How many there are.
const PARTS: usize = 4;
/// How many stretches each of them has at least.
const STRETCHES_MIN: usize = 8;

/// Orders of the parts for each four stretches, one after the other. Each part is at each place equally often.
const ORDERS: [[usize; PARTS]; 8] = [
    [0, 1, 2, 3],
    [2, 3, 0, 1],
    [1, 0, 3, 2],
    [3, 2, 1, 0],
    [1, 3, 0, 2],
    [0, 2, 1, 3],
    [3, 1, 2, 0],
    [2, 0, 3, 1],
];

/// Stretches of consecutive requests of each phase of the trace, in an order that has no period of a few stretches: with
/// every fourth one, or the same quarter of each window, all of a part may be what a round of stripes has on the same
/// servers.
pub(crate) fn parts(sample: &[Vec<Request>]) -> Vec<Vec<Request>> {
    let sampled: usize = sample.iter().map(Vec::len).sum();
    let length = (sampled / (PARTS * STRETCHES_MIN)).clamp(1, WINDOW);
    let mut parts: Vec<Vec<Request>> = vec![Vec::new(); PARTS];
    let stretches = sample.iter().flat_map(|window| window.chunks(length));
    for (number, stretch) in stretches.enumerate() {
        let order = ORDERS[number / PARTS % ORDERS.len()];
        parts[order[number % PARTS]].extend_from_slice(stretch);
    }
    parts.retain(|part| !part.is_empty());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Workload;
    use halocline_trace::Op;

    fn request(n: u64, processes: u64) -> Request {
        let (process, step) = (n % processes, n / processes);
        Request {
            start_ns: step,
            duration_ns: None,
            process: u32::try_from(process).expect("few"),
            file: 0,
            op: Op::Write,
            offset: (process << 28) + (step << 16),
            length: 1 << 16,
        }
    }

    /// Regression: of 16 processes with 64 KiB each, the last quarter of each window was on the last quarter of the servers,
    /// which were the SSDs. There the default stripes were 16 times as fast as a plan that gained 130 %, and nothing was
    /// recommended.
    #[test]
    fn each_part_has_all_servers_of_a_round() {
        for count in [512, 1024, 4096, 20_000, 70_000] {
            let requests: Vec<_> = (0..count).map(|n| request(n, 16)).collect();
            let sample = Workload::of(&requests, 1).sample;
            let parts = parts(&sample);
            assert_eq!(parts.len(), PARTS);
            for part in &parts {
                let on_ssds = part.iter().filter(|r| (r.offset >> 16) % 32 >= 24).count();
                let of_all = part.len() / 4;
                assert!(
                    on_ssds * 2 >= of_all && on_ssds <= of_all * 2,
                    "{count}: {on_ssds} {of_all}"
                );
            }
            let sizes = parts.iter().map(Vec::len);
            assert!(sizes.clone().min() >= sizes.max().map(|most| most * 3 / 4), "{count}");
        }
    }

    #[test]
    fn each_request_is_in_one_part_and_each_phase_in_all() {
        let requests: Vec<_> = (0..3000).map(|n| request(n, 3)).collect();
        let parts = parts(&Workload::of(&requests, 1).sample);
        assert_eq!(parts.iter().map(Vec::len).sum::<usize>(), 3000);
        for phase in 0..4 {
            let of = |r: &&Request| r.start_ns / 250 == phase;
            let there = parts.iter().map(|part| part.iter().filter(of).count());
            assert!(
                there.clone().all(|count| count > 0),
                "{phase}: {:?}",
                there.collect::<Vec<_>>()
            );
        }
        for few in 1..20 {
            let parts = super::parts(&[requests[..few].to_vec()]);
            assert_eq!(parts.len(), few.min(PARTS));
            assert_eq!(parts.iter().map(Vec::len).sum::<usize>(), few);
        }
    }
}
