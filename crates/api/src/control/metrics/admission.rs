//! The keys of what `halocline bench admission` answers.

use halocline_model::admit::COMPARED;

use super::Metric;
use super::table::metric;

pub(super) const BENCH_ADMISSION: &[Metric] = &[
    metric("seed", "number", "Which random workloads these are."),
    metric("policies[].policy", "word", "An admission policy."),
    metric(
        "policies[].below_never",
        "number",
        "Workloads on which it is below 0.97 of the speed of `never`.",
    ),
    metric(
        "policies[].below_best",
        "number",
        "Workloads on which it is below 0.9 of the speed of the best policy for it, `adaptive` left out.",
    ),
    metric("cases[].number", "number", "Which of the seed's workloads."),
    metric("cases[].workload.processes", "number", "Processes, each with a request at a time."),
    metric("cases[].workload.request", "bytes", "Length of each request."),
    metric("cases[].workload.steps", "number", "Requests of each process in a pass."),
    metric("cases[].workload.passes", "number", "How often the file is gone over."),
    metric("cases[].workload.order", "word", "`sequential`, `strided` or `random`."),
    metric("cases[].workload.read_percent", "percent", "Requests that read; the others write."),
    metric("cases[].workload.seed", "number", "Where files lie, and the order of what is random."),
    metric("cases[].disks", "number", "Disks of the origin."),
    metric("cases[].ssds", "number", "SSDs of the cache."),
    metric("cases[].cache_percent", "percent", "Space on the cache, of the file's bytes."),
    metric(
        "cases[].think_us",
        "microseconds",
        "What a process computes between two requests: from 0 to twice as much.",
    ),
    metric("engine[].number", "number", "Which of the seed's workloads ran on the engine too."),
    metric("engine[].what", "text", "What it is, for people."),
    metric("engine[].policies[].policy", "word", "An admission policy."),
    metric("engine[].of_never", "ratio", "Speed of `adaptive` on the engine, of that of `never`."),
    metric(
        "engine[].of_best",
        "ratio",
        "The same of the best policy for the workload, `adaptive` left out.",
    ),
];

/// A workload under one policy, on the engine or simulated.
pub(super) const SERVED: &[Metric] = &[
    metric("foreground_seconds", "seconds", "From the first issue to the last completion."),
    metric("total_seconds", "seconds", "The same with all dirty bytes written back."),
    metric("cache_read_bytes", "bytes", "Bytes that reads got from the cache."),
    metric("cache_written_bytes", "bytes", "Bytes that writes put on the cache."),
    metric("origin_read_bytes", "bytes", "Bytes that reads got from the origin."),
    metric("origin_written_bytes", "bytes", "Bytes that writes put on the origin."),
];

/// Ratios over all workloads.
pub(super) const RATIOS: &[Metric] = &[
    metric("least", "ratio", "The least of all workloads."),
    metric("p1", "ratio", "1 % of the workloads are below."),
    metric("p5", "ratio", "5 % are below."),
    metric("p10", "ratio", "10 % are below."),
    metric("median", "ratio", "Half of them are below."),
    metric("p90", "ratio", "90 % are below."),
    metric("most", "ratio", "The most of all workloads."),
];

/// Times under each policy that is compared.
pub(super) const SECONDS: &[Metric] = &seconds();

const fn seconds() -> [Metric; COMPARED.len()] {
    let meaning = "Until everything is on the origin, with this policy.";
    let mut all = [metric("", "seconds", meaning); COMPARED.len()];
    let mut at = 0;
    while at < all.len() {
        all[at].key = COMPARED[at];
        at += 1;
    }
    all
}
