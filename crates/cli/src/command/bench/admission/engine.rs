//! Some of the cases on the engine itself, beside what the simulator predicts for them.

use halocline_api::config::Emulation;
use halocline_os::counted::counted;
use serde::Serialize;

use super::{Judgement, NEVER, OF_BEST, OF_NEVER, OURS, text_of};
use crate::command::bench::timed_engine::{self, Outcome, Setup};
use crate::failure::Failure;
use crate::print::{say, tell};

/// A case on the engine and in the simulator, by policy.
#[derive(Debug, Serialize)]
pub(super) struct OnEngine {
    number: u64,
    what: String,
    policies: Vec<Judged>,
    /// Time of `never` divided by that of `adaptive`.
    of_never: f64,
    /// Time of the best of the other policies divided by that of `adaptive`.
    of_best: f64,
}

/// One policy.
#[derive(Debug, Serialize)]
struct Judged {
    policy: &'static str,
    engine: Outcome,
    simulated: Outcome,
}

/// Each case under each policy, one after the other, because each uses all processors.
pub(super) fn run_all(
    cases: &[Judgement],
    policies: &[&'static str],
) -> Result<Vec<OnEngine>, Failure> {
    let mut done = Vec::new();
    for (number, judgement) in (1..).zip(cases) {
        tell!("on the engine: {number} of {}: {}", cases.len(), text_of(judgement));
        let case = &judgement.case;
        let devices = format!("{}xhdd+{}xssd", case.disks, case.ssds);
        let devices = Emulation::parse(&devices, |_| None).map_err(Failure::failed)?;
        let capacity = case.capacity().map_err(Failure::failed)?;
        let requests = case.requests();
        let mut outcomes = Vec::new();
        for (policy, simulated) in
            policies.iter().zip(case.judge(policies).map_err(Failure::failed)?)
        {
            let background = *policy != NEVER;
            let setup = Setup {
                devices: &devices,
                capacity,
                policy,
                background,
                think: true,
                placed: None,
            };
            let engine = timed_engine::run(&requests, &setup)?;
            outcomes.push(Judged { policy, engine, simulated: Outcome::from(&simulated) });
        }
        done.push(OnEngine::new(judgement, outcomes));
    }
    Ok(done)
}

impl OnEngine {
    fn new(judgement: &Judgement, policies: Vec<Judged>) -> Self {
        let seconds = |name: &str| {
            let found = policies.iter().find(|policy| policy.policy == name);
            found.map_or(f64::INFINITY, |policy| policy.engine.total_seconds)
        };
        let others = policies.iter().filter(|policy| policy.policy != OURS);
        let others = others.map(|policy| policy.engine.total_seconds);
        let best = others.fold(f64::INFINITY, f64::min);
        Self {
            number: judgement.number,
            what: text_of(judgement),
            of_never: seconds(NEVER) / seconds(OURS),
            of_best: best / seconds(OURS),
            policies,
        }
    }
}

/// Reports their results, if there are any.
pub(super) fn tell_of(cases: &[OnEngine]) {
    if cases.is_empty() {
        return;
    }
    let count = counted(cases.len(), "workload");
    say!(
        "THE ENGINE ITSELF, on EMULATED devices in simulated time: {count}, engine over simulator"
    );
    for case in cases {
        let ratios = case.policies.iter().map(|Judged { policy, engine, simulated }| {
            format!("{policy} {:.2}", engine.total_seconds / simulated.total_seconds)
        });
        say!("  {}", case.what);
        let ratios = ratios.collect::<Vec<_>>().join(", ");
        say!(
            "    {ratios}; {OURS}: {:.3} of never, {:.3} of the best",
            case.of_never,
            case.of_best
        );
    }
    let below = |ratio: fn(&OnEngine) -> f64, least| {
        cases.iter().filter(|case| ratio(case) < least).count()
    };
    say!(
        "{OURS}: {} below {OF_NEVER} of never, {} below {OF_BEST} of the best",
        below(|case| case.of_never, OF_NEVER),
        below(|case| case.of_best, OF_BEST),
    );
}
