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
        "rows[].client_us_per_operation",
        "microseconds",
        "Processor time of the clients for an operation.",
    ),
    metric(
        "rows[].server_us_per_operation",
        "microseconds or null",
        "That of the server's thread; null if the benchmark did not start the server, or the system does not say.",
    ),
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
    metric(
        "simulation.client_us",
        "microseconds",
        "Processor time of a client for a create with the most clients that were measured, as in the rows; `simulation` is null without `--simulate`.",
    ),
    metric("simulation.master_us", "microseconds", "That of the server."),
    metric(
        "simulation.wake_us",
        "microseconds",
        "Until a thread runs that was asleep: from the fewest clients' creates.",
    ),
    metric(
        "simulation.network_us",
        "microseconds",
        "A round trip of the simulated network (`--network-us`).",
    ),
    metric("simulation.points[].clients", "number", "Clients of a case that was measured."),
    metric(
        "simulation.points[].client_us",
        "microseconds",
        "Processor time of a client for a create in it.",
    ),
    metric("simulation.points[].master_us", "microseconds", "That of the server."),
    metric("simulation.points[].measured_per_second", "1/second", "Creates in own directories."),
    metric("simulation.points[].simulated_per_second", "1/second", "The same case simulated."),
    metric("simulation.deviation", "share", "How far the farthest point is from the measured one."),
    metric(
        "simulation.is_met",
        "bool",
        "Whether that is at most a tenth; otherwise the rows are not backed.",
    ),
    metric("simulation.rows[].nodes", "number", "Nodes with a processor each; one client on each."),
    metric("simulation.rows[].masters", "number", "Masters of the store with a processor each."),
    metric(
        "simulation.rows[].directories",
        "word",
        "`own`: each node has its own; `one`: all create in one directory.",
    ),
    metric("simulation.rows[].per_second", "1/second", "Creates in a second."),
    metric("simulation.rows[].mean_ms", "milliseconds", "The mean time of a create."),
    metric(
        "simulation.rows[].busiest_master",
        "share",
        "The share of time in which the busiest master works.",
    ),
];
