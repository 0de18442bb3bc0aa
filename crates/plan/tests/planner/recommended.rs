//! What is recommended, on random workloads: it is faster by all requests, also where only a sample was replayed, and mostly in
//! another run of the same program.

use std::io::{self, Write};

use super::*;

/// Numbers from a seed.
struct Numbers(u64);

impl Numbers {
    fn of(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::try_from(self.below(all.len() as u64)).expect("few")]
    }
}

/// A random workload, as a run of it, which is another one for each `run`: processes that read and write stretches of one or two
/// request lengths, in order, in strides or at random, in a shared file or one for each, in one or two phases.
fn workload(seed: u64, run: u64, count: u64) -> (Servers, Vec<Request>) {
    let mut numbers = Numbers::of(seed);
    let processes = 1 << numbers.below(6);
    let is_shared = numbers.below(2) == 0;
    let sizes = [(); 2].map(|()| (4 * K) << numbers.below(7));
    let orders = [(); 2].map(|()| numbers.below(3));
    let writes = [(); 2].map(|()| numbers.one_of(&[0, 30, 100]));
    let has_phases = numbers.below(2) == 0;
    let mixes = numbers.one_of(&[0, 10, 50]);
    let (disks, ssds) = (1 + numbers.below(8), 1 + numbers.below(4));
    let room = numbers.one_of(&[10, 30, 60, 150]);
    let steps = (count / processes).max(1);
    let space = steps * sizes.iter().max().expect("two");
    let mut chance = Numbers::of(seed * 1009 + run + 1);
    let mut requests = Vec::new();
    for step in 0..steps {
        for process in 0..processes {
            let kind = usize::from(has_phases && step * 2 >= steps);
            let kind = if chance.below(100) < mixes { 1 - kind } else { kind };
            let (size, slots) = (sizes[kind], space / sizes[kind]);
            let at = match orders[kind] {
                0 => step % slots,
                1 => step * 5 % slots,
                _ => chance.below(slots),
            };
            let base = if is_shared { process * space } else { 0 };
            let is_write = chance.below(100) < writes[kind];
            requests.push(Request {
                start_ns: requests.len() as u64 * 1000,
                duration_ns: None,
                process: u32::try_from(process).expect("few"),
                file: if is_shared { 0 } else { u32::try_from(process).expect("few") },
                op: if is_write { Op::Write } else { Op::Read },
                offset: base + at * size,
                length: size,
            });
        }
    }
    let ssd_bytes = (processes * space * room / 100 / ssds).max(1 << 20);
    (hybrid(disks, ssds, ssd_bytes), requests)
}

/// `HALOCLINE_PLANNER_CASES=200` for more and longer ones, in a release build; it says how many gains were withheld.
#[test]
fn what_is_recommended_is_faster_by_all_requests_and_mostly_in_another_run() {
    let cases = std::env::var("HALOCLINE_PLANNER_CASES");
    let is_long = cases.is_ok();
    let cases: u64 = cases.map_or(8, |cases| cases.parse().expect("a number of cases"));
    let (mut recommended, mut lossy, mut withheld, mut strict, mut slower) = (0, 0, 0, 0, [0, 0]);
    let mut told = io::stderr();
    for case in 0..cases {
        let count = match case % 20 {
            // Of more requests than a sample has the planner sees that alone.
            _ if !is_long => 1500,
            0 => 40_000,
            rest => 800 + rest % 4 * 1000,
        };
        let (servers, requests) = workload(case, 0, count);
        let planned = plan(&servers, &seen(&requests), &mut Queues::new(&servers), 1.0);
        let outcome = planned.expect("a plan");
        let best = outcome.of(outcome.best).expect("the best");
        let def = outcome.of(Name::Def).expect("def");
        let gain_of = |requests: &[Request]| {
            let seconds = |of: &Judged| Queues::new(&servers).seconds(requests, &of.layouts);
            gain(seconds(def), seconds(best))
        };
        let other = gain_of(&workload(case, 1, count).1);
        let all = gain_of(&requests);
        strict += u64::from(outcome.gains.is_sure() && outcome.best != Name::Def);
        let (least, sure) = (outcome.gains.least, outcome.sure_gain);
        if outcome.chosen == Name::Def {
            if all > 0.01 {
                withheld += 1;
                writeln!(told, "case {case}: {all:.3} withheld, least {least:.3}, sure {sure:.3}, other run {other:.3}").unwrap();
            }
            continue;
        }
        recommended += 1;
        lossy += u64::from(!outcome.gains.is_sure());
        if !outcome.gains.is_sure() || all <= 0.0 || other <= 0.0 {
            writeln!(told, "case {case}: {all:.3} recommended, least {least:.3}, sure {sure:.3}, other run {other:.3}").unwrap();
        }
        slower[0] += u64::from(all <= 0.0);
        slower[1] += u64::from(other <= 0.0);
        assert!(
            all > 0.0,
            "case {case}: recommended by the sample, and slower by all requests: {all}"
        );
    }
    writeln!(
        told,
        "{cases} cases: {recommended} recommended, {lossy} of them though a part gains nothing ({strict} where each part gains); {withheld} gains withheld; {} recommended ones slower in another run",
        slower[1]
    )
    .unwrap();
    assert!(slower[1] * 20 <= recommended, "{slower:?} of {recommended}");
}
