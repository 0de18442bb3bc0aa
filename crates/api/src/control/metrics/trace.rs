//! The keys of what `halocline trace show` answers.

use super::Metric;
use super::table::metric;

pub(super) const TRACE: &[Metric] = &[
    metric(
        "source.kind",
        "word",
        "What made the trace: `generated`, `csv`, `dxt_text`, `darshan_log`, `mount` or `mount_direct`.",
    ),
    metric("source.name", "path", "Name of what was imported or mounted; may be empty."),
    metric("source.resolution_ns", "nanoseconds", "Steps of its times; 0 if unknown."),
    metric("completeness.partial", "true, false", "Whether something is missing."),
    metric(
        "completeness.weight",
        "0 to 1",
        "How much a plan may trust the trace: the share of the requests that it has, at most 0.5 where nobody knows that.",
    ),
    metric("completeness.lost", "number", "Requests that are known to be missing."),
    metric(
        "completeness.incomplete_source",
        "true, false",
        "Whether the source lacked some and did not say how many.",
    ),
    metric(
        "completeness.cut",
        "text or null",
        "Where and how the file is cut off or damaged; null if it is whole.",
    ),
    metric("notes[]", "text", "What whoever reads such a trace must know."),
    metric("requests", "number", "Requests."),
    metric("reads", "number", "Those that read."),
    metric("writes", "number", "Those that write."),
    metric("read_bytes", "bytes", "Bytes of the reads."),
    metric("write_bytes", "bytes", "Bytes of the writes."),
    metric("begin_ns", "nanoseconds", "Start of the first request."),
    metric("end_ns", "nanoseconds", "End of the last request."),
    metric("processes", "number", "Processes with requests (p)."),
    metric(
        "processes_per_node_max",
        "number or null",
        "Processes on the node that has the most (c); null where nodes are unknown.",
    ),
    metric(
        "in_flight_max",
        "number or null",
        "Requests in flight at most; null where durations are unknown.",
    ),
    metric(
        "in_flight_mean",
        "number or null",
        "Requests in flight when one starts, itself among them, on average.",
    ),
    metric("streams.sequential", "number", "Streams (a process in a file) without gaps."),
    metric("streams.strided", "number", "Streams with one gap."),
    metric(
        "streams.nested_strided",
        "number",
        "Streams of runs with one gap, and another between.",
    ),
    metric("streams.random", "number", "Other streams."),
    metric("streams.short", "number", "Streams of fewer than three requests."),
    metric("sizes[].from_bytes", "bytes", "Requests from this length to below its double."),
    metric("sizes[].reads", "number", "Reads of such lengths."),
    metric("sizes[].writes", "number", "Writes of such lengths."),
    metric("file_count", "number", "Files of the trace."),
    metric(
        "requests_of_other_files",
        "number",
        "Requests of files beyond the first 16384, which `files` leaves out.",
    ),
    metric(
        "requests_of_other_streams",
        "number",
        "Requests of streams beyond the first 262144, which no pattern counts.",
    ),
    metric("files[].name", "path", "Files, the one with the most bytes first."),
    metric("files[].requests", "number", "Its requests."),
    metric("files[].reads", "number", "Its reads."),
    metric("files[].writes", "number", "Its writes."),
    metric("files[].read_bytes", "bytes", "Bytes of its reads."),
    metric("files[].write_bytes", "bytes", "Bytes of its writes."),
    metric("files[].end", "bytes", "One past the last byte that was read or written."),
    metric("files[].processes", "number", "Processes that used it."),
    metric(
        "files[].pattern",
        "word",
        "Pattern of all its requests together: `sequential`, `strided`, `nested_strided`, `random` or `short`.",
    ),
    metric("files[].streams.sequential", "number", "As `streams`, of this file."),
    metric("files[].streams.strided", "number", "As `streams`, of this file."),
    metric("files[].streams.nested_strided", "number", "As `streams`, of this file."),
    metric("files[].streams.random", "number", "As `streams`, of this file."),
    metric("files[].streams.short", "number", "As `streams`, of this file."),
    metric("files[].phases[].begin_ns", "nanoseconds", "Start of the phase's first request."),
    metric("files[].phases[].end_ns", "nanoseconds", "Start of its last request."),
    metric("files[].phases[].reads", "number", "Its reads."),
    metric("files[].phases[].writes", "number", "Its writes."),
    metric("files[].phases[].read_bytes", "bytes", "Bytes of its reads."),
    metric("files[].phases[].write_bytes", "bytes", "Bytes of its writes."),
    metric(
        "files[].phases[].sequential",
        "number",
        "Requests that begin where the last of the same process ended.",
    ),
    metric("files[].phases[].bursts", "number", "Stretches without a pause of a second."),
    metric("files[].regions[].offset", "bytes", "First byte of the region."),
    metric(
        "files[].regions[].length",
        "bytes",
        "Its length: to where its last request ends, or the next region begins.",
    ),
    metric("files[].regions[].reads", "number", "Reads that begin in it."),
    metric("files[].regions[].writes", "number", "Writes that begin in it."),
    metric("files[].regions[].read_bytes", "bytes", "Bytes of these reads."),
    metric("files[].regions[].write_bytes", "bytes", "Bytes of these writes."),
];

/// What caches would have missed of a trace.
pub(super) const CURVE: &[Metric] = &[
    metric("block_bytes", "bytes", "Block in which caches are thought."),
    metric(
        "accesses",
        "number",
        "Accesses to blocks: of each request, one for each block that it touches.",
    ),
    metric(
        "footprint_bytes",
        "bytes",
        "Bytes of the different blocks; an estimate where blocks were sampled.",
    ),
    metric("sampled_share", "0 to 1", "Share of the blocks that was looked at; 1 is exact."),
    metric("policy", "word", "The eviction policy that `ours` is."),
    metric("points[].cache_bytes", "bytes", "Size of the cache."),
    metric("points[].lru", "0 to 1", "Share of the accesses that misses in it with LRU."),
    metric("points[].s3fifo", "0 to 1", "The same with S3-FIFO as published."),
    metric("points[].ours", "0 to 1", "The same with the engine's eviction policy."),
    metric("points[].optimum", "0 to 1", "The least possible."),
    metric("points[].error", "0 to 1", "Standard error of `lru` from the sampling."),
];

/// What `halocline trace play` answers.
pub(super) const PLAYED: &[Metric] = &[
    metric("requests", "number", "Requests of the trace."),
    metric("processes", "number", "Processes that issue them, each a real one."),
    metric("files", "number", "Files that they read and write."),
    metric("prepared_bytes", "bytes", "Written first, so that there is something to read."),
    metric("read_bytes", "bytes", "Bytes of the reads."),
    metric("written_bytes", "bytes", "Bytes of the writes."),
    metric(
        "seconds",
        "seconds",
        "From the start of all processes to the end of the slowest one's last request, without the time in which it made and checked bytes; 0 with `--prepare`.",
    ),
    metric("mb_per_s", "MB/s", "All bytes, in units of 10^6, over that time."),
];
