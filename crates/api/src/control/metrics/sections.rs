//! Which commands answer with which keys, in the order of the page.

use super::Section;
use super::admission::{BENCH_ADMISSION, RATIOS, SECONDS, SERVED};
use super::advise::{ADVISE, ADVISED_USE};
use super::benched_advice::{BENCH_ADVISE, USES};
use super::benched_cluster::{BENCH_CLUSTER, CLUSTER_RUN};
use super::benched_metadata::BENCH_METADATA;
use super::cluster_fsck::{CLUSTER_FORGET, CLUSTER_FSCK, CLUSTER_FSCK_TIER, CLUSTER_RECOVER};
use super::offline::{
    BENCH_LAYOUT, BENCH_TIER, BENCHED_LAYOUT, CALIBRATE, CLUSTER_NODES, CLUSTER_STATUS,
    CLUSTER_TOKENS, DOCTOR, FSCK, FSCK_TIER, IOR, IOR_RUN, RESCUE,
};
use super::placement::{APPLY, UNSTRIPE, VERIFY};
use super::plan::{PLAN, PLANNED_LAYOUT};
use super::simulate::SIMULATE;
use super::table::{
    CACHED, EXPLAIN, EXPLAIN_FILE, FILES, JOB_PLACES, JOBS, MOVE, REPORT, RULES, STATUS, TIER,
    WHERE,
};
use super::tokens::TOKENS;
use super::trace::{CURVE, PLAYED, TRACE};

/// Every key that commands give.
pub static SECTIONS: &[Section] = &[
    Section {
        commands: "`halocline status PATH --json`",
        about: "State of a mount; without PATH a list of them. `report` is what has been served since the mount began, `rules` are the globs in force, `tier` is there on a file tier only: the sections below say what is in them.",
        metrics: STATUS,
        within: &[
            ("report.", REPORT),
            ("report.cluster.", TOKENS),
            ("rules.", RULES),
            ("tier.", TIER),
            ("tier.jobs", JOBS),
        ],
    },
    Section {
        commands: "`halocline run --report FILE`",
        about: "What was served and by whom, written when the command has ended and everything is flushed; with `--trace` also `curve`, unless the trace failed. In the status of a file tier, whose files the kernel may serve by itself, all is 0 but `policy` and `elapsed_s`.",
        metrics: REPORT,
        within: &[("cluster.", TOKENS), ("curve.", CURVE)],
    },
    Section {
        commands: "`cluster` of a report, with `--cluster`",
        about: "What a node had to do with others that cache the same origin; see [CLUSTER.md](CLUSTER.md).",
        metrics: TOKENS,
        within: &[],
    },
    Section {
        commands: "`tier` of a file tier's status",
        about: "What only a file tier has. `jobs` is a list of what `halocline jobs --json` shows.",
        metrics: TIER,
        within: &[],
    },
    Section {
        commands: "`halocline jobs --json`",
        about: "Announced jobs.",
        metrics: JOBS,
        within: &[],
    },
    Section {
        commands: "`halocline pin|unpin|exclude --json`",
        about: "The globs in force, from the configuration and from commands.",
        metrics: RULES,
        within: &[],
    },
    Section {
        commands: "`halocline flush|warm|evict|demote --json`",
        about: "What was moved.",
        metrics: MOVE,
        within: &[],
    },
    Section {
        commands: "`halocline where FILE --json`",
        about: "Ranges of a file in order.",
        metrics: WHERE,
        within: &[],
    },
    Section {
        commands: "`halocline where DIR --json` on a cache",
        about: "What is on the cache of the files below a directory, from its records.",
        metrics: CACHED,
        within: &[],
    },
    Section {
        commands: "`halocline where PATH --json` on a file tier",
        about: "One entry a file.",
        metrics: FILES,
        within: &[],
    },
    Section {
        commands: "`halocline where PATH --job JOB.json --json`",
        about: "On which nodes the files of a job are, on a tier that nodes share; see [SHARED_TIER.md](SHARED_TIER.md).",
        metrics: JOB_PLACES,
        within: &[],
    },
    Section {
        commands: "`halocline explain PATH OFFSET LENGTH --json`",
        about: "What would happen with a request, and why; see [ALGORITHMS.md](ALGORITHMS.md).",
        metrics: EXPLAIN,
        within: &[],
    },
    Section {
        commands: "`halocline explain FILE --json` on a file tier",
        about: "Why a file is where it is: what `where` says of it, and more; see [TIER.md](TIER.md).",
        metrics: EXPLAIN_FILE,
        within: &[],
    },
    Section {
        commands: "`halocline doctor --json`",
        about: "What was looked at, in the order of the text. The status is 1 where something will not work.",
        metrics: DOCTOR,
        within: &[],
    },
    Section {
        commands: "`halocline cluster nodes ORIGIN --json`",
        about: "The sessions of an origin: those that its list has, and those that the store knows (docs/CLUSTER.md).",
        metrics: CLUSTER_NODES,
        within: &[],
    },
    Section {
        commands: "`halocline cluster status ORIGIN --json`",
        about: "What the store of tokens and the list of sessions say together (docs/CLUSTER.md).",
        metrics: CLUSTER_STATUS,
        within: &[],
    },
    Section {
        commands: "`halocline cluster tokens ORIGIN FILE --json`",
        about: "Who holds and who waits for which bytes of a file.",
        metrics: CLUSTER_TOKENS,
        within: &[],
    },
    Section {
        commands: "`halocline cluster recover ORIGIN NODE --json`",
        about: "Each session of the node that was brought to its end.",
        metrics: CLUSTER_RECOVER,
        within: &[],
    },
    Section {
        commands: "`halocline cluster forget ORIGIN NODE --json`",
        about: "Each session of the node that was given up.",
        metrics: CLUSTER_FORGET,
        within: &[],
    },
    Section {
        commands: "`halocline cluster fsck ORIGIN --json`",
        about: "What does not fit together. The status is 1 where something does not end by itself.",
        metrics: CLUSTER_FSCK,
        within: &[],
    },
    Section {
        commands: "`halocline cluster fsck --tier ROOT --json`",
        about: "What the names in the store and the disks of a shared tier do not agree on (docs/SHARED_TIER.md). The status is 1 where they differ.",
        metrics: CLUSTER_FSCK_TIER,
        within: &[],
    },
    Section {
        commands: "`halocline cluster drain NODE MOUNT --json`",
        about: "What was moved to the shared disk. The status is 1 where files stay.",
        metrics: MOVE,
        within: &[],
    },
    Section {
        commands: "`halocline fsck CACHE --json`",
        about: "What is on a cache that is not mounted, and what is wrong with it. The status is 1 where something is wrong that the next mount does not mend by itself.",
        metrics: FSCK,
        within: &[],
    },
    Section {
        commands: "`halocline fsck ROOT --json` on a file tier",
        about: "What is on the tiers, and what does not fit together.",
        metrics: FSCK_TIER,
        within: &[],
    },
    Section {
        commands: "`halocline rescue CACHE --json`",
        about: "Dirty bytes that were saved and dropped, or would be, and those that stay. The manifest beside each saved file has `origin`, and `path` and `extents` as here.",
        metrics: RESCUE,
        within: &[],
    },
    Section {
        commands: "`halocline calibrate DIR --json`",
        about: "What was measured, one entry a directory; the same numbers go into the configuration file.",
        metrics: CALIBRATE,
        within: &[],
    },
    Section {
        commands: "`halocline trace show FILE --json`",
        about: "What is in a trace; [TRACES.md](TRACES.md) says what a trace is, ALGORITHMS.md in section 9 how patterns, phases and regions are told. `curve` is null without `--cache-sizes` and `--plot`.",
        metrics: TRACE,
        within: &[("curve.", CURVE)],
    },
    Section {
        commands: "`curve` of `trace show`, and of a report with `--trace`",
        about: "What caches would have missed of the trace; [ALGORITHMS.md](ALGORITHMS.md), section 10.",
        metrics: CURVE,
        within: &[],
    },
    Section {
        commands: "`halocline trace play FILE DIR --json`",
        about: "The requests of a trace, issued by real processes; [TRACES.md](TRACES.md) says how.",
        metrics: PLAYED,
        within: &[],
    },
    Section {
        commands: "`halocline simulate FILE --json`",
        about: "How long the requests of a trace take on simulated servers; [SIMULATOR.md](SIMULATOR.md) says what is modelled.",
        metrics: SIMULATE,
        within: &[],
    },
    Section {
        commands: "`halocline advise FILE --json`",
        about: "What an SSD is best used for; [PLANNING.md](PLANNING.md) says what is compared. `uses` has `none`, `stripes`, `cache` and `tier`: the next section says what is in each.",
        metrics: ADVISE,
        within: &[
            ("uses.none.", ADVISED_USE),
            ("uses.stripes.", ADVISED_USE),
            ("uses.cache.", ADVISED_USE),
            ("uses.tier.", ADVISED_USE),
        ],
    },
    Section {
        commands: "`uses` of `halocline advise FILE --json`",
        about: "One use, simulated on the servers as they are described.",
        metrics: ADVISED_USE,
        within: &[],
    },
    Section {
        commands: "`halocline apply PLAN DIR --json`",
        about: "Files that were moved to the layouts of a plan, and what each server has of them; [PLANNING.md](PLANNING.md) says how.",
        metrics: APPLY,
        within: &[],
    },
    Section {
        commands: "`halocline verify PLAN DIR --json`",
        about: "Whether files lie as a plan says; [PLANNING.md](PLANNING.md) says what is compared. `planned` and `actual` are null of a missing file.",
        metrics: VERIFY,
        within: &[],
    },
    Section {
        commands: "`halocline unstripe DIR [PATH] OUT --json`",
        about: "What was copied from a striped origin to plain files.",
        metrics: UNSTRIPE,
        within: &[],
    },
    Section {
        commands: "`halocline plan FILE --json`",
        about: "What stripes would serve a trace best; [PLANNING.md](PLANNING.md) says what is compared. `layouts` has `def`, `pa`, `psa` and `ours`: the next section says what is in each.",
        metrics: PLAN,
        within: &[
            ("layouts.def.", PLANNED_LAYOUT),
            ("layouts.pa.", PLANNED_LAYOUT),
            ("layouts.psa.", PLANNED_LAYOUT),
            ("layouts.ours.", PLANNED_LAYOUT),
        ],
    },
    Section {
        commands: "`layouts` of `halocline plan FILE --json`",
        about: "One layout; one that could not be planned has nulls, no stripes, and the reason.",
        metrics: PLANNED_LAYOUT,
        within: &[],
    },
    Section {
        commands: "`halocline bench ior --json FILE`",
        about: "What was measured; [BENCH.md](BENCH.md) says how. `runs` has every run in the order in which it was made, `medians` each case once: the next section says what is in them. Their `report` is what `halocline run --report FILE` writes, null for the bare directory.",
        metrics: IOR,
        within: &[
            ("runs[].", IOR_RUN),
            ("runs[].report.", REPORT),
            ("medians[].", IOR_RUN),
            ("medians[].report.", REPORT),
        ],
    },
    Section {
        commands: "`runs` and `medians` of `bench ior`",
        about: "One case, once; in `medians` each phase is the one of median duration.",
        metrics: IOR_RUN,
        within: &[],
    },
    Section {
        commands: "`halocline bench cluster --json`",
        about: "Several nodes that cache one origin, each a mount on one machine; [BENCH.md](BENCH.md) says what is measured. `runs` has every run in the order in which it was made, `medians` each case once: the next section says what is in them.",
        metrics: BENCH_CLUSTER,
        within: &[("runs[].", CLUSTER_RUN), ("medians[].", CLUSTER_RUN)],
    },
    Section {
        commands: "`runs` and `medians` of `bench cluster`",
        about: "One case, once; in `medians` each phase is the one of median duration.",
        metrics: CLUSTER_RUN,
        within: &[],
    },
    Section {
        commands: "`halocline bench metadata --json`",
        about: "Operations on the names of a shared file tier in their store; [BENCH.md](BENCH.md) says what is measured.",
        metrics: BENCH_METADATA,
        within: &[],
    },
    Section {
        commands: "`halocline bench tier --json`",
        about: "What was measured; [BENCH.md](BENCH.md) says how. Parts that were not asked for are empty lists, or null.",
        metrics: BENCH_TIER,
        within: &[],
    },
    Section {
        commands: "`halocline bench advise --json`",
        about: "What `advise` says of workloads of different kinds, and what the engines do with each on EMULATED devices in simulated time; see [PLANNING.md](PLANNING.md).",
        metrics: BENCH_ADVISE,
        within: &[
            ("workloads[].simulated_seconds.", USES),
            ("workloads[].emulated_seconds.", USES),
        ],
    },
    Section {
        commands: "`halocline bench admission --json`",
        about: "The admission policies on random workloads, simulated; [SIMULATOR.md](SIMULATOR.md) says what is modelled. Speeds are those until everything is on the origin.",
        metrics: BENCH_ADMISSION,
        within: &[
            ("policies[].of_never.", RATIOS),
            ("policies[].of_best.", RATIOS),
            ("cases[].seconds.", SECONDS),
            ("cases[].adaptive.", SERVED),
            ("engine[].policies[].engine.", SERVED),
            ("engine[].policies[].simulated.", SERVED),
        ],
    },
    Section {
        commands: "`adaptive`, `engine` and `simulated` of `bench admission`",
        about: "A workload under one policy: by the simulator (of each case, under `adaptive`), and on the engine itself, on emulated devices in simulated time.",
        metrics: SERVED,
        within: &[],
    },
    Section {
        commands: "`of_never` and `of_best` of `bench admission`",
        about: "Speed as a ratio to that of `never`, or of the best policy for the workload, `adaptive` left out.",
        metrics: RATIOS,
        within: &[],
    },
    Section {
        commands: "`seconds` of `bench admission`",
        about: "Seconds that a workload takes with each policy.",
        metrics: SECONDS,
        within: &[],
    },
    Section {
        commands: "`halocline bench layout --json`",
        about: "Layouts on disks and SSDs; [BENCH.md](BENCH.md) says how. `layouts` has `def`, `pa`, `psa` and `ours`: the next section says what is in each.",
        metrics: BENCH_LAYOUT,
        within: &[
            ("layouts.def.", BENCHED_LAYOUT),
            ("layouts.pa.", BENCHED_LAYOUT),
            ("layouts.psa.", BENCHED_LAYOUT),
            ("layouts.ours.", BENCHED_LAYOUT),
        ],
    },
    Section {
        commands: "`layouts` of `bench layout`",
        about: "One layout; one that cannot be planned has nulls and the reason.",
        metrics: BENCHED_LAYOUT,
        within: &[],
    },
];
