//! The keys of what `halocline advise` answers.

use super::Metric;
use super::table::metric;

pub(super) const ADVISE: &[Metric] = &[
    metric("requests", "number", "Requests of the trace."),
    metric("bytes", "bytes", "Their bytes."),
    metric("size", "bytes", "Bytes of the SSD as cache or tier."),
    metric("trace_weight", "0 to 1", "How much the trace may be trusted, as `trace show` says it."),
    metric(
        "answer",
        "word",
        "What is advised: `stripes`, `cache`, `tier`, or `none` where `least_gain` is not above 0.01.",
    ),
    metric("best", "word", "The use with the least `seconds`, whether it is advised or not."),
    metric("gain", "share", "Throughput that `best` gains over `none`."),
    metric("gain_over_next", "share", "Throughput that `best` gains over the next best."),
    metric(
        "spread",
        "share",
        "Half the distance between `least_gain` and `most_gain`, at least 0.01, and more for a trace that is not whole.",
    ),
    metric(
        "least_gain",
        "share",
        "The least gain of `best`, as described and in all variants; of a trace that is not whole its distance from `gain` \
         counts more.",
    ),
    metric("most_gain", "share", "The largest, alike."),
    metric("ties[]", "word", "A use within 0.01 of `best`."),
    metric("stays", "0 to 1", "Share of the variants in which the same use is the fastest."),
    metric(
        "variant_requests",
        "number",
        "Requests from the beginning of the trace that the variants are judged by.",
    ),
    metric(
        "variants[].disk_times",
        "share",
        "Times of the slowest servers' devices, as a share of those described.",
    ),
    metric("variants[].ssd_times", "share", "The same of all other servers."),
    metric("variants[].seed", "number", "Where files lie on the disks."),
    metric("variants[].answer", "word", "The fastest use there, or `none`."),
];

/// Of each of the four uses.
pub(super) const ADVISED_USE: &[Metric] = &[
    metric(
        "foreground_seconds",
        "seconds or null",
        "From the first issue to the last completion; null where the use is not possible.",
    ),
    metric(
        "seconds",
        "seconds or null",
        "The same with dirty bytes written back and moves of files ended.",
    ),
    metric("gain", "share or null", "Throughput that it gains over `none`, by `seconds`."),
    metric("unavailable", "text", "Why it is not possible; absent where it is."),
];
