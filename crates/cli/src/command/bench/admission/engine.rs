//! Some of the cases on the engine itself, beside what the simulator predicts for them.

use halocline_api::config::Emulation;
use std::collections::HashMap;
use std::time::Instant;

use halocline_os::counted::counted;
use serde::{Deserialize, Serialize};

use super::{Judgement, NEVER, OF_BEST, OF_NEVER, OURS, text_of};
use crate::command::bench::results_file::{ResultsFile, left};
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

/// What the engine did with a case of a seed under a policy, as it is kept.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Kept {
    seed: u64,
    number: u64,
    policy: String,
    engine: Outcome,
}

/// What the engine did with the cases of a seed: what was kept is not done again.
#[derive(Debug)]
struct Outcomes {
    seed: u64,
    known: HashMap<(u64, String), Outcome>,
    file: Option<ResultsFile<Kept>>,
}

impl Outcomes {
    /// With what is in the file, if there is one.
    fn new(seed: u64, file: Option<ResultsFile<Kept>>) -> Self {
        let kept = file.iter().flat_map(ResultsFile::results).filter(|kept| kept.seed == seed);
        let known = kept.map(|kept| ((kept.number, kept.policy.clone()), kept.engine)).collect();
        Self { seed, known, file }
    }

    /// Requests of a case under those of `policies` that are still to be run.
    fn requests_to_run(&self, judgement: &Judgement, policies: &[&'static str]) -> usize {
        let is_known =
            |policy: &&&str| self.known.contains_key(&(judgement.number, (**policy).to_owned()));
        let to_run = policies.iter().filter(|policy| !is_known(policy)).count();
        if to_run == 0 { 0 } else { to_run * judgement.case.requests().len() }
    }

    /// The outcome of a case under a policy: the known one, or that of `run`.
    fn of(
        &mut self,
        number: u64,
        policy: &str,
        run: impl FnOnce() -> Result<Outcome, Failure>,
    ) -> Result<Outcome, Failure> {
        if let Some(known) = self.known.get(&(number, policy.to_owned())) {
            return Ok(*known);
        }
        let engine = run()?;
        if let Some(file) = &mut self.file {
            file.add(Kept { seed: self.seed, number, policy: policy.to_owned(), engine })?;
        }
        Ok(engine)
    }
}

/// Each case of a seed under each policy, one after the other, because each uses all processors.
pub(super) fn run_all(
    (seed, cases): (u64, &[Judgement]),
    policies: &[&'static str],
    kept: Option<ResultsFile<Kept>>,
) -> Result<Vec<OnEngine>, Failure> {
    let mut outcomes = Outcomes::new(seed, kept);
    let to_run: Vec<usize> =
        cases.iter().map(|case| outcomes.requests_to_run(case, policies)).collect();
    let (begun, mut served, all) = (Instant::now(), 0, to_run.iter().sum());
    let mut done = Vec::new();
    for ((number, judgement), to_run) in (1..).zip(cases).zip(to_run) {
        let left = left(begun.elapsed().as_secs_f64(), served, all);
        let told = if to_run == 0 { "; as kept" } else { &left };
        tell!("on the engine: {number} of {}: {}{told}", cases.len(), text_of(judgement));
        let judged = judged(judgement, policies, &mut outcomes)?;
        served += to_run;
        done.push(OnEngine::new(judgement, judged));
    }
    Ok(done)
}

/// A case under each policy.
fn judged(
    judgement: &Judgement,
    policies: &[&'static str],
    outcomes: &mut Outcomes,
) -> Result<Vec<Judged>, Failure> {
    let case = &judgement.case;
    let devices = format!("{}xhdd+{}xssd", case.disks, case.ssds);
    let devices = Emulation::parse(&devices, |_| None).map_err(Failure::failed)?;
    let capacity = case.capacity().map_err(Failure::failed)?;
    let requests = case.requests();
    let simulated = case.judge(policies).map_err(Failure::failed)?;
    let judged = policies.iter().zip(simulated).map(|(policy, simulated)| {
        let setup = Setup {
            devices: &devices,
            capacity,
            policy,
            background: *policy != NEVER,
            think: true,
            placed: None,
        };
        let run = || Ok(timed_engine::run(&requests, &setup)?);
        let engine = outcomes.of(judgement.number, policy, run)?;
        Ok(Judged { policy, engine, simulated: Outcome::from(&simulated) })
    });
    judged.collect()
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
