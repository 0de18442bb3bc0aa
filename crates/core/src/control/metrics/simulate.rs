//! The keys of what `halocline simulate` answers.

use super::Metric;
use super::table::metric;

pub(super) const SIMULATE: &[Metric] = &[
    metric("stripes[]", "bytes", "Stripe of each server; 0 leaves it out."),
    metric("trace_weight", "0 to 1", "How much the trace may be trusted, as `trace show` says it."),
    metric("seconds", "seconds", "From the first issue to the last completion."),
    metric("requests", "number", "Requests."),
    metric("bytes", "bytes", "Bytes of all requests."),
    metric("mb_per_s", "MB/s", "All bytes (10^6) over `seconds`."),
    metric("read.requests", "number", "Reads."),
    metric("read.bytes", "bytes", "Bytes read."),
    metric("read.mean_seconds", "seconds", "Mean time of a read."),
    metric("read.longest_seconds", "seconds", "Longest time of a read."),
    metric("read.mb_per_s", "MB/s", "Bytes read (10^6) over the whole time."),
    metric("write.requests", "number", "Writes."),
    metric("write.bytes", "bytes", "Bytes written."),
    metric("write.mean_seconds", "seconds", "Mean time of a write."),
    metric("write.longest_seconds", "seconds", "Longest time of a write."),
    metric("write.mb_per_s", "MB/s", "Bytes written (10^6) over the whole time."),
    metric("servers[].name", "text", "A server."),
    metric("servers[].requests", "number", "Parts of requests that it served."),
    metric("servers[].read_bytes", "bytes", "Bytes that it read."),
    metric("servers[].written_bytes", "bytes", "Bytes that it wrote."),
    metric("servers[].busy_seconds", "seconds", "Time in which its device had something to do."),
    metric(
        "servers[].held_bytes",
        "bytes",
        "Bytes that it holds at the end: of each file, all up to the last one touched.",
    ),
    metric(
        "servers[].full_at_seconds",
        "seconds or null",
        "When that became more than its capacity; null if it did not.",
    ),
];
