//! The paper's section 7.5: files of random sizes, used round robin, over an SSD of several sizes; and small cases in
//! random order, for which the optimum can be computed.

use halocline_model::tier::{POLICIES, Trace, by_name, optimum, replay};
use serde::Serialize;

use super::random::Random;
use crate::print::say;

/// Files of the workload, and times each is used.
const FILES: usize = 100;
const ROUNDS: usize = 10;
/// The paper's sizes, 6 to 250 MB.
const SIZES: (u64, u64) = (6, 250);
/// Bytes of the working set over bytes of the SSD, in hundredths.
const RATIOS: [u64; 6] = [103, 125, 150, 200, 400, 800];
/// Small cases, and files and references of each.
const SMALL_CASES: usize = 40;
const SMALL_FILES: usize = 6;
const SMALL_REFERENCES: usize = 24;

/// What the policies moved over one workload.
#[derive(Debug, Serialize)]
pub(super) struct Line {
    pub(super) workload: String,
    /// Working set over SSD.
    pub(super) ratio: f64,
    /// Bytes read from the disk and written back to it, in the workload's unit (MB).
    pub(super) moved: Vec<(String, u64)>,
    /// The least possible, on small cases.
    pub(super) optimum: Option<u64>,
}

fn file_sizes(random: &mut Random, count: usize) -> Vec<u64> {
    (0..count).map(|_| SIZES.0 + random.below(SIZES.1 - SIZES.0 + 1)).collect()
}

fn trace(sizes: Vec<u64>, refs: Vec<usize>, ratio: u64) -> Trace {
    let total: u64 = sizes.iter().sum();
    let names = (0..sizes.len()).map(|file| format!("F{file:03}")).collect();
    Trace { capacity: total * 100 / ratio, names, sizes, refs }
}

fn moved(trace: &Trace) -> Vec<(String, u64)> {
    POLICIES
        .iter()
        .filter_map(|policy| {
            let done = replay(trace, by_name(policy.name).ok()?.as_mut());
            Some((policy.name.to_owned(), done.read + done.evicted))
        })
        .collect()
}

pub(super) fn measure() -> Vec<Line> {
    let mut random = Random::new(0x5DEE_CE66_D153_7A1B);
    let sizes = file_sizes(&mut random, FILES);
    let refs: Vec<usize> = (0..FILES * ROUNDS).map(|at| at % FILES).collect();
    let mut lines: Vec<Line> = RATIOS
        .iter()
        .map(|ratio| {
            let trace = trace(sizes.clone(), refs.clone(), *ratio);
            line("round robin, 100 files, 10 rounds", *ratio, moved(&trace), None)
        })
        .collect();
    for ratio in RATIOS {
        let (mut sums, mut best) = (Vec::new(), 0);
        for _ in 0..SMALL_CASES {
            let sizes = file_sizes(&mut random, SMALL_FILES);
            let refs = (0..SMALL_REFERENCES)
                .map(|_| usize::try_from(random.below(SMALL_FILES as u64)).expect("small"))
                .collect();
            let trace = trace(sizes, refs, ratio);
            best += optimum::moved(&trace);
            let moved = moved(&trace);
            if sums.is_empty() {
                sums = moved;
            } else {
                for (sum, (_, bytes)) in sums.iter_mut().zip(moved) {
                    sum.1 += bytes;
                }
            }
        }
        lines.push(line("random order, 40 cases of 6 files", ratio, sums, Some(best)));
    }
    lines
}

fn line(workload: &str, ratio: u64, moved: Vec<(String, u64)>, optimum: Option<u64>) -> Line {
    #[expect(clippy::cast_precision_loss, reason = "small")]
    let ratio = ratio as f64 / 100.0;
    Line { workload: workload.to_owned(), ratio, moved, optimum }
}

pub(super) fn tell(lines: &[Line]) {
    let Some(first) = lines.first() else { return };
    say!("");
    say!("MB read from the disk and written back to it, by policy");
    let names: Vec<_> = first.moved.iter().map(|(name, _)| format!(" {name:>10}")).collect();
    let names = names.concat();
    say!("{:<36} {:>6}{names} {:>10}", "workload", "ratio", "optimum");
    for line in lines {
        let moved: Vec<_> = line.moved.iter().map(|(_, bytes)| format!(" {bytes:>10}")).collect();
        let moved = moved.concat();
        let optimum = line.optimum.map_or_else(String::new, |best| best.to_string());
        say!("{:<36} {:>6.2}{moved} {optimum:>10}", line.workload, line.ratio);
    }
}
