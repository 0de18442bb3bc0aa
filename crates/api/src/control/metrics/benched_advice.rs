//! The keys of what `halocline bench advise` answers.

use super::Metric;
use super::table::metric;

pub(super) const BENCH_ADVISE: &[Metric] = &[
    metric("emulated", "bool", "Always true: the devices are emulated, in simulated time."),
    metric("quick", "bool", "Whether the workloads were sixteen times smaller (`--quick`)."),
    metric("agree", "number", "Workloads on which the advice is right."),
    metric("workloads[].name", "text", "Its name."),
    metric("workloads[].what", "text", "What its programs do."),
    metric("workloads[].requests", "number", "Requests of its trace."),
    metric("workloads[].bytes", "bytes", "What they read and write."),
    metric("workloads[].ssd_bytes", "bytes", "Space on the SSDs."),
    metric("workloads[].advised", "word", "The use that `advise` says: its `answer`."),
    metric("workloads[].stays", "share", "Share of its variants in which it says the same."),
    metric("workloads[].fastest", "word", "The use that is the fastest on emulated devices."),
    metric(
        "workloads[].lost",
        "share",
        "Throughput that the fastest gains over what was advised; below 0.01 it is a tie.",
    ),
    metric("workloads[].agrees", "bool", "Whether the advice is right, or as good."),
];

pub(super) const USES: &[Metric] = &[
    metric("none", "seconds", "With the disks alone."),
    metric("stripes", "seconds or null", "With the SSD as stripe target."),
    metric("cache", "seconds or null", "With the SSD as extent cache."),
    metric("tier", "seconds or null", "With the SSD as file tier."),
];
