//! The keys of `bench metadata`.

use super::Metric;
use super::table::metric;

pub(super) const BENCH_METADATA: &[Metric] = &[
    metric("benchmark", "text", "`metadata`."),
    metric("version", "text", "Version of the command."),
    metric(
        "own_store",
        "bool",
        "Whether the benchmark started the store itself, on a local socket.",
    ),
    metric("cpus", "number", "Processors of the machine, which clients and store share."),
    metric("files", "number", "Files of each client."),
    metric("repeat", "number", "Times each case was measured; the medians are told."),
    metric(
        "why_no_native",
        "text or null",
        "Why the server's own benchmark was not run, if it was not.",
    ),
    metric("rows[].clients", "number", "Clients at once, each with a connection."),
    metric(
        "rows[].operation",
        "word",
        "`create`; `stat`: look a name up, with attributes; `list`: entries in pages; `rename` in one directory; `move` to another one; `unlink`.",
    ),
    metric("rows[].directories", "word", "`own`: each client has its own; `shared`: all have one."),
    metric("rows[].operations", "number", "By all clients together; of `list`, entries."),
    metric("rows[].seconds", "seconds", "From the first to the last."),
    metric("rows[].per_second", "1/second", "Operations in a second."),
    metric("rows[].round_trips_per_operation", "number", "Requests to the store."),
    metric(
        "rows[].native_per_second",
        "1/second or null",
        "What the server's own benchmark reached with the script of a create and as many connections.",
    ),
    metric("rows[].ratio", "number or null", "`per_second` over that; the median of ratios."),
    metric(
        "large.entries",
        "number",
        "Entries of one directory; `large` is null without `--entries`.",
    ),
    metric("large.clients", "number", "Clients that made them at once."),
    metric("large.create_per_second", "1/second", "How fast."),
    metric(
        "large.own_create_per_second",
        "1/second or null",
        "What as many clients reached in own directories.",
    ),
    metric("large.ratio", "number or null", "The one over the other."),
    metric("large.list_seconds", "seconds", "How long one client took to list it."),
    metric("large.listed_per_second", "1/second", "Entries that it listed in a second."),
    metric("large.pages", "number", "In so many answers."),
    metric("large.resident_bytes_before", "bytes", "Memory of this process before it listed."),
    metric("large.resident_bytes_most", "bytes", "The most that it had while it listed."),
];
