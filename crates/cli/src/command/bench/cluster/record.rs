//! Results as they are printed with `--json`, and what they are compared with. The keys are an interface.

use clap::ValueEnum;
use serde::Serialize;

use super::super::record;

/// Which ranks access which bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Pattern {
    /// Each rank has a file of its own, in random order
    FilePerProcess,
    /// Each rank has a part of one shared file, in random order
    Segmented,
    /// Each rank has every n-th request of one shared file, n being the number of ranks, in ascending order
    Strided,
}

impl Pattern {
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::FilePerProcess => "file-per-process",
            Self::Segmented => "segmented",
            Self::Strided => "strided",
        }
    }
}

/// What serves the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Setup {
    /// One mount that caches nothing.
    Origin,
    /// One mount with a cache, without a cluster.
    Single,
    /// As many mounts as nodes, without a cluster, each over an origin directory of its own.
    Private,
    /// The nodes of a cluster over one origin.
    Cluster,
}

impl Setup {
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Origin => "origin alone",
            Self::Single => "single mount",
            Self::Private => "private",
            Self::Cluster => "cluster",
        }
    }
}

/// The parameters of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Key {
    pub(super) pattern: Pattern,
    pub(super) setup: Setup,
    pub(super) nodes: u32,
}

/// Everything that one benchmark measured.
#[derive(Debug, Serialize)]
pub(super) struct Results<S> {
    pub(super) benchmark: &'static str,
    pub(super) version: &'static str,
    /// True when no real device was measured.
    pub(super) emulated: bool,
    /// The emulated devices of the whole system, origin first.
    pub(super) devices: Option<String>,
    /// What all nodes have in common, and what each has a share of.
    pub(super) shared: String,
    /// Whether the store was a server that the benchmark itself started, on a local socket.
    pub(super) own_store: bool,
    pub(super) cpus: usize,
    pub(super) processes: u32,
    pub(super) request_size: u64,
    pub(super) data_bytes: u64,
    pub(super) seed: u64,
    /// Whether every read call reached an engine.
    pub(super) direct: bool,
    /// Every run, in the order in which it was made.
    pub(super) runs: Vec<Run>,
    /// Each case once: every phase as it was in the repetition of median duration.
    pub(super) medians: Vec<Run>,
    /// What is compared, by the medians.
    pub(super) comparisons: Vec<Comparison>,
    /// Nodes that were not measured.
    pub(super) simulation: Option<S>,
}

/// One case, once.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Run {
    #[serde(flatten)]
    pub(super) key: Key,
    /// Counts from 0.
    pub(super) repetition: u32,
    /// In their order.
    pub(super) phases: Vec<Phase>,
    /// Bytes written to the SSDs from mount to unmount.
    pub(super) ssd_bytes_written: u64,
    /// Bytes of the origins that were compared after the mounts were gone.
    pub(super) verified_origin_bytes: u64,
}

impl Run {
    pub(super) fn phase(&self, name: &str) -> Option<&Phase> {
        self.phases.iter().find(|phase| phase.name == name)
    }

    fn seconds(&self, what: &str) -> Option<f64> {
        match what {
            "drained" => self.phase("write")?.drained_seconds,
            name => Some(self.phase(name)?.seconds),
        }
    }
}

/// One part of a run, all nodes together.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Phase {
    /// `write`, `flush`, `read`, or `shifted_read` by ranks that are on the next node.
    pub(super) name: &'static str,
    pub(super) bytes: u64,
    pub(super) requests: u64,
    /// From the start to the return of the last request of the slowest rank.
    pub(super) seconds: f64,
    /// 10^6 bytes a second.
    pub(super) mb_per_s: f64,
    /// Seconds of a write including the time until everything was on the origin.
    pub(super) drained_seconds: Option<f64>,
    /// Bytes that the nodes' own caches served.
    pub(super) cache_bytes: u64,
    /// Bytes that came from the caches of other nodes.
    pub(super) peer_bytes: u64,
    /// Both together.
    pub(super) hit_bytes: u64,
    /// Requests to the store of tokens, including those for leases.
    pub(super) store_operations: u64,
    pub(super) store_operations_per_request: f64,
    /// Requests that waited for another node, and their total waiting time.
    pub(super) waits: u64,
    pub(super) waited_seconds: f64,
    /// Ranges that were given up because others wanted them.
    pub(super) handovers: u64,
    /// Tokens that were granted for contended ranges, where nothing is cached.
    pub(super) contended: u64,
}

impl Phase {
    pub(super) fn new(name: &'static str, (bytes, requests): (u64, u64), seconds: f64) -> Self {
        let mb_per_s = record::rate(bytes, seconds);
        Self { name, bytes, requests, seconds, mb_per_s, ..Self::default() }
    }
}

/// A ratio and its target.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Comparison {
    pub(super) pattern: Pattern,
    pub(super) nodes: u32,
    /// The phase: `write`, `drained` (a write until everything is on the origin), `read` or `shifted_read`.
    pub(super) phase: &'static str,
    /// Which ratio.
    pub(super) what: &'static str,
    pub(super) value: f64,
    pub(super) target: Option<Target>,
    pub(super) is_met: Option<bool>,
}

/// The target of a ratio.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Target {
    AtLeast(f64),
    Below(f64),
}

impl Target {
    fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtLeast(least) => value >= least,
            Self::Below(limit) => value < limit,
        }
    }
}

/// Each case once.
pub(super) fn medians(runs: &[Run]) -> Vec<Run> {
    let first = runs.iter().filter(|run| run.repetition == 0);
    let median = |run: &Run| {
        let same: Vec<&Run> = runs.iter().filter(|other| other.key == run.key).collect();
        let phases = run.phases.iter().filter_map(|phase| median(&same, phase.name)).collect();
        Run { phases, ..run.clone() }
    };
    first.map(median).collect()
}

fn median(runs: &[&Run], name: &str) -> Option<Phase> {
    let phases = runs.iter().filter_map(|run| run.phase(name));
    record::of_median_duration(phases, |phase| phase.seconds).cloned()
}

/// The ratios of the runs of clusters to the other runs.
pub(super) fn compare(runs: &[Run]) -> Vec<Comparison> {
    let of_clusters = runs.iter().filter(|run| run.key.setup == Setup::Cluster);
    of_clusters.flat_map(|run| compare_one(run, runs)).collect()
}

/// Parts of a run that are compared.
const TIMES: [&str; 3] = ["write", "drained", "read"];

fn compare_one(run: &Run, others: &[Run]) -> Vec<Comparison> {
    let Key { pattern, nodes, .. } = run.key;
    let other = |pattern, setup, nodes| {
        others.iter().find(|other| other.key == Key { pattern, setup, nodes })
    };
    let mut all = Vec::new();
    let mut add = |phase, what, value: Option<f64>, target: Option<Target>| {
        let Some(value) = value else { return };
        let is_met = target.map(|target| target.is_met(value));
        all.push(Comparison { pattern, nodes, phase, what, value, target, is_met });
    };
    let speed = |base: Option<&Run>, part| Some(base?.seconds(part)? / run.seconds(part)?);
    let (origin, single) = (other(pattern, Setup::Origin, 1), other(pattern, Setup::Single, 1));
    let private = other(pattern, Setup::Private, nodes);
    let at_least = |least| Some(Target::AtLeast(least));
    for part in TIMES {
        add(part, "speed of private mounts", speed(private, part), at_least(0.95));
        let of_origin = at_least(0.95).filter(|_| pattern == Pattern::Strided);
        add(part, "speed of the origin alone", speed(origin, part), of_origin);
        let of_single = at_least(0.85).filter(|_| part != "read");
        add(part, "gain of a single mount", speed(single, part), of_single);
    }
    for part in ["write", "read"] {
        let per_request = run.phase(part).map(|phase| phase.store_operations_per_request);
        let few = Some(Target::Below(0.01)).filter(|_| pattern != Pattern::Strided);
        add(part, "store operations per request", per_request, few);
    }
    let hits = |name| Some(run.phase(name)?.hit_bytes).filter(|bytes| *bytes > 0);
    let shifted = run.phase("shifted_read").map(|phase| phase.hit_bytes);
    let shifted = shifted.zip(hits("read")).map(|(shifted, own)| share(shifted, own));
    add("shifted_read", "hits of the unshifted run", shifted, at_least(0.8));
    all
}

#[expect(clippy::cast_precision_loss, reason = "a share for people")]
pub(super) fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(setup: Setup, nodes: u32, repetition: u32, seconds: f64) -> Run {
        let key = Key { pattern: Pattern::Segmented, setup, nodes };
        let mut write = Phase::new("write", (1_000_000, 100), seconds);
        write.drained_seconds = Some(2.0 * seconds);
        write.store_operations_per_request = 0.02;
        Run { key, repetition, phases: vec![write], ssd_bytes_written: 0, verified_origin_bytes: 0 }
    }

    #[test]
    fn a_cluster_is_compared_with_the_medians_of_the_others() {
        let mut runs = Vec::new();
        for (repetition, seconds) in [(0, 9.0), (1, 1.0), (2, 2.0)] {
            runs.push(run(Setup::Private, 4, repetition, seconds));
            runs.push(run(Setup::Cluster, 4, repetition, 2.0 * seconds));
        }
        runs.push(run(Setup::Private, 2, 0, 100.0));
        let all = compare(&medians(&runs));
        let found = all.iter().find(|one| one.what == "speed of private mounts").unwrap();
        assert_eq!((found.phase, found.nodes, found.value), ("write", 4, 0.5));
        assert_eq!((found.target, found.is_met), (Some(Target::AtLeast(0.95)), Some(false)));
        let store = all.iter().find(|one| one.what == "store operations per request").unwrap();
        assert_eq!((store.value, store.is_met), (0.02, Some(false)));
    }
}
