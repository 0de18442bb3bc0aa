//! The keys of `bench cluster`.

use super::Metric;
use super::table::metric;

pub(super) const BENCH_CLUSTER: &[Metric] = &[
    metric("benchmark", "text", "`cluster`."),
    metric("version", "text", "Version of the command."),
    metric("emulated", "bool", "Whether no real device was measured."),
    metric("devices", "text or null", "Emulated devices of the whole system, origin first."),
    metric("shared", "text", "What all nodes have in common, and what each has a part of."),
    metric(
        "own_store",
        "bool",
        "Whether the benchmark started the store itself, on a local socket.",
    ),
    metric("cpus", "number", "Processors of the machine, which nodes, ranks and store share."),
    metric("processes", "number", "Ranks on all nodes together."),
    metric("request_size", "bytes", "Bytes of a request."),
    metric("data_bytes", "bytes", "All files of a run together."),
    metric("seed", "number", "What made the orders and the data."),
    metric("direct", "bool", "Whether every read call reached an engine."),
    metric("comparisons[].pattern", "word", "As in `runs`."),
    metric("comparisons[].nodes", "number", "Nodes of the cluster that is compared."),
    metric(
        "comparisons[].phase",
        "word",
        "`write`; `drained`: a write until everything is on the origin; `read`; `shifted_read`.",
    ),
    metric(
        "comparisons[].what",
        "text",
        "Which ratio. Speeds are those of the cluster over those of the setup that is named.",
    ),
    metric("comparisons[].value", "number", "The ratio, of medians."),
    metric("comparisons[].target.at_least", "number", "What it is to be; null without a target."),
    metric("comparisons[].target.below", "number", "What it is to be below."),
    metric("comparisons[].is_met", "bool or null", "Whether it is so."),
    metric(
        "simulation.request_us",
        "microseconds",
        "The server's time for a change of a file's tokens; `simulation` is null without `--simulate`.",
    ),
    metric("simulation.token_us", "microseconds", "The same for each further token of the file."),
    metric("simulation.renewal_us", "microseconds", "The same for the renewal of a lease."),
    metric("simulation.points[].pattern", "word", "A case that was measured."),
    metric("simulation.points[].nodes", "number", "Its nodes."),
    metric(
        "simulation.points[].measured_per_request",
        "number",
        "Requests to the store for a write, with those of leases.",
    ),
    metric(
        "simulation.points[].simulated_per_request",
        "number",
        "The fewest that the rules of tokens make, without those of leases.",
    ),
    metric("simulation.rows[].pattern", "word", "What the nodes write, one rank on each."),
    metric("simulation.rows[].nodes", "number", "Nodes."),
    metric(
        "simulation.rows[].store_requests_per_node",
        "number",
        "Requests to the store for four writes of each node.",
    ),
    metric(
        "simulation.rows[].handovers",
        "number",
        "Ranges that were given up because others wanted them.",
    ),
    metric("simulation.rows[].cached", "share", "Writes under a token that lets the node cache."),
    metric("simulation.rows[].tokens", "number", "Tokens of the file at the end."),
    metric(
        "simulation.rows[].opening_seconds",
        "seconds",
        "How long the busiest master works until each node has its first token.",
    ),
    metric(
        "simulation.rows[].lease_share",
        "share",
        "The share of one master's time that all leases take.",
    ),
];

pub(super) const CLUSTER_RUN: &[Metric] = &[
    metric(
        "pattern",
        "word",
        "`file-per-process`, `segmented` (a part each of one file) or `strided` (every n-th request, of n ranks, of one file).",
    ),
    metric(
        "setup",
        "word",
        "`origin`: one mount that caches nothing; `single`: one with a cache; `private`: without a cluster, each over an origin directory of its own; `cluster`.",
    ),
    metric("nodes", "number", "Mounts."),
    metric("repetition", "number", "Which one, from 0."),
    metric(
        "ssd_bytes_written",
        "bytes",
        "Written to the devices of all caches from mount to unmount.",
    ),
    metric(
        "verified_origin_bytes",
        "bytes",
        "Bytes of the origins that were compared after the mounts were gone.",
    ),
    metric(
        "phases[].name",
        "word",
        "`write`, `flush`, `read`, or `shifted_read`: by ranks that are on the next node.",
    ),
    metric("phases[].bytes", "bytes", "Bytes moved by the ranks."),
    metric("phases[].requests", "number", "Their requests."),
    metric("phases[].seconds", "seconds", "To the return of the last request of the slowest rank."),
    metric("phases[].mb_per_s", "10^6 bytes a second", "Throughput."),
    metric(
        "phases[].drained_seconds",
        "seconds or null",
        "A write's seconds until everything was on the origin, too.",
    ),
    metric("phases[].cache_bytes", "bytes", "What the nodes' own caches served, or took."),
    metric("phases[].peer_bytes", "bytes", "What the caches of other nodes served."),
    metric("phases[].hit_bytes", "bytes", "Both together."),
    metric(
        "phases[].store_operations",
        "number",
        "Requests to the store of tokens; those of leases, too.",
    ),
    metric(
        "phases[].store_operations_per_request",
        "number",
        "The same for each request of a rank.",
    ),
    metric("phases[].waits", "number", "Requests that waited for another node."),
    metric("phases[].waited_seconds", "seconds", "How long, all together."),
    metric("phases[].handovers", "number", "Ranges that were given up because others wanted them."),
    metric(
        "phases[].contended",
        "number",
        "Tokens that were granted for contended ranges, where nothing is cached.",
    ),
];
