//! What could be had on workloads of `halocline bench admission` by policies that know more than `adaptive` does:
//!
//! ```text
//! halocline bench admission --seed 1 --json > all.json      # numbers of the workloads that miss a goal
//! cargo run --release -p halocline-sim --example admission_hindsight -- SEED NUMBER...
//! ```
//!
//! For each workload, in columns: the speed of `adaptive` as a ratio to the origin alone and to the best of the policies;
//! then the least of both in units of the goals (0.97 and 0.9), so that 1 is a goal that is just met,
//! - of `adaptive`;
//! - of the best policy of a family, by the workload alone: one that knows the end (hindsight);
//! - of the best of them by the workload and by its first 64th, 32nd, 16th, and each number of eighths: one that would be
//!   right whenever the program ends.
//!
//! The family: each policy alone, and each two of `never`, `always` and `adaptive`, one for the first n sixteenths of the
//! requests, the other for the rest. Last, of 16 runs of the same program with other pauses between its requests, how
//! many miss a goal, and the mean speed of `adaptive` in these, as ratios to the origin alone and to the best.

use std::sync::atomic::{AtomicUsize, Ordering};

use halocline_model::admit::{self, Admission, Explanation, Observation, Query, Setting, Verdict};
use halocline_sim::study::Case;
use halocline_sim::{Options, Pace, replay_cached_by};
use halocline_trace::Request;

const GOALS: (f64, f64) = (0.97, 0.9);
/// The parts of a workload after which a program may end, in 64ths: all of it is the last.
const PREFIXES: [usize; 11] = [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64];
const SWITCHES: usize = 16;
const RUNS: u64 = 16;
/// Policies that are switched between.
const SWITCHED: [&str; 3] = ["never", "always", "adaptive"];

/// One policy until it has judged so many requests, then another.
#[derive(Debug)]
struct Switching {
    first: Box<dyn Admission>,
    then: Box<dyn Admission>,
    after: usize,
    judged: AtomicUsize,
}

impl Switching {
    fn now(&self) -> &dyn Admission {
        let is_first = self.judged.load(Ordering::Relaxed) <= self.after;
        if is_first { &*self.first } else { &*self.then }
    }
}

impl Admission for Switching {
    fn name(&self) -> &'static str {
        "switching"
    }

    fn judge(&self, query: &Query) -> Verdict {
        self.judged.fetch_add(1, Ordering::Relaxed);
        self.now().judge(query)
    }

    fn explain(&self, query: &Query) -> Explanation {
        self.now().explain(query)
    }

    fn wait_limit_ps(&self, verdict: &Verdict) -> u64 {
        self.now().wait_limit_ps(verdict)
    }

    fn learns(&self) -> bool {
        true
    }

    fn observe(&self, seen: &Observation) {
        self.first.observe(seen);
        self.then.observe(seen);
    }
}

/// A member of the family.
#[derive(Debug, Clone, Copy)]
struct Member {
    first: &'static str,
    then: &'static str,
    after: usize,
}

impl Member {
    const fn alone(name: &'static str) -> Self {
        Self { first: name, then: name, after: usize::MAX }
    }

    fn text(&self, requests: usize) -> String {
        if self.after == usize::MAX {
            return self.first.to_owned();
        }
        format!("{} for {:.2}, then {}", self.first, share(self.after, requests), self.then)
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share for people")]
fn share(part: usize, all: usize) -> f64 {
    part as f64 / all as f64
}

/// All of them for a workload of so many requests.
fn family(requests: usize) -> Vec<Member> {
    let mut all: Vec<_> = admit::COMPARED.into_iter().map(Member::alone).collect();
    for first in SWITCHED {
        for then in SWITCHED.into_iter().filter(|then| *then != first) {
            let after = (1..SWITCHES).map(|part| requests * part / SWITCHES);
            all.extend(after.map(|after| Member { first, then, after }));
        }
    }
    all
}

/// Seconds until all is on the origin.
fn seconds(case: &Case, requests: &[Request], member: Member) -> Result<f64, String> {
    let make = |setting: &Setting| -> Result<Box<dyn Admission>, String> {
        let named = |name| admit::by_name(name, setting).map_err(|error| error.to_string());
        let (first, then) = (named(member.first)?, named(member.then)?);
        if member.after == usize::MAX {
            return Ok(first);
        }
        Ok(Box::new(Switching { first, then, after: member.after, judged: AtomicUsize::new(0) }))
    };
    let options = Options { seed: case.workload.seed, pace: Pace::ClosedLoop { think: true } };
    let capacity = case.capacity()?;
    let requests = requests.iter().copied();
    Ok(replay_cached_by(requests, &case.servers(), capacity, &make, &options)?.total_seconds)
}

/// The time of the origin alone and of the best of the policies but `adaptive`.
fn compared(case: &Case, requests: &[Request]) -> Result<(f64, f64), String> {
    let others = admit::COMPARED.into_iter().filter(|name| *name != "adaptive");
    let times = others.map(|name| seconds(case, requests, Member::alone(name)));
    let best = times.collect::<Result<Vec<_>, _>>()?.into_iter().fold(f64::INFINITY, f64::min);
    Ok((seconds(case, requests, Member::alone("never"))?, best))
}

/// The least of both ratios, in units of the goals.
fn margin((never, best): (f64, f64), seconds: f64) -> f64 {
    (never / seconds / GOALS.0).min(best / seconds / GOALS.1)
}

/// How many of some runs with other pauses miss a goal, and the mean ratios.
fn other_runs(case: &Case) -> Result<(u64, f64, f64), String> {
    let (mut missed, mut logs) = (0, (0.0, 0.0));
    for run in 0..RUNS {
        let requests = case.requests_with_pauses(case.workload.seed ^ (run + 1));
        let (never, best) = compared(case, &requests)?;
        let ours = seconds(case, &requests, Member::alone("adaptive"))?;
        missed += u64::from(margin((never, best), ours) < 1.0);
        logs = (logs.0 + (never / ours).ln(), logs.1 + (best / ours).ln());
    }
    #[expect(clippy::cast_precision_loss, reason = "a few runs")]
    let runs = RUNS as f64;
    Ok((missed, (logs.0 / runs).exp(), (logs.1 / runs).exp()))
}

fn report(seed: u64, number: u64) -> Result<(), String> {
    let case = Case::random(seed, number);
    let requests = case.requests();
    let prefixes: Vec<_> =
        PREFIXES.iter().map(|part| &requests[..requests.len() * part / 64]).collect();
    let to_compare: Vec<_> =
        prefixes.iter().map(|prefix| compared(&case, prefix)).collect::<Result<_, _>>()?;
    let whole = to_compare[PREFIXES.len() - 1];
    let ours = seconds(&case, &requests, Member::alone("adaptive"))?;
    let (mut of_whole, mut of_all) = ((0.0, Member::alone("")), (0.0, Member::alone("")));
    for member in family(requests.len()) {
        let with_hindsight = margin(whole, seconds(&case, &requests, member)?);
        if with_hindsight > of_whole.0 {
            of_whole = (with_hindsight, member);
        }
        let mut least = with_hindsight;
        for (prefix, others) in prefixes.iter().zip(&to_compare).rev().skip(1) {
            if least <= of_all.0 {
                break;
            }
            least = least.min(margin(*others, seconds(&case, prefix, member)?));
        }
        if least > of_all.0 {
            of_all = (least, member);
        }
    }
    let (missed, of_never, of_best) = other_runs(&case)?;
    println!(
        "| {seed} {number} | {:.3} | {:.3} | {:.3} | {:.3} ({}) | {:.3} ({}) | {missed} of {RUNS} | {of_never:.3} | {of_best:.3} |",
        whole.0 / ours,
        whole.1 / ours,
        margin(whole, ours),
        of_whole.0,
        of_whole.1.text(requests.len()),
        of_all.0,
        of_all.1.text(requests.len()),
    );
    Ok(())
}

fn main() -> Result<(), String> {
    let numbers: Result<Vec<u64>, _> = std::env::args().skip(1).map(|text| text.parse()).collect();
    let numbers = numbers.map_err(|error| error.to_string())?;
    let (seed, numbers) = numbers.split_first().ok_or("SEED NUMBER...")?;
    println!(
        "| workload | of never | of the best | adaptive | with hindsight | whenever it ends | other runs | of never | of the best |"
    );
    numbers.iter().try_for_each(|number| report(*seed, *number))
}
