//! The keys of what a node had to do with others.

use super::Metric;
use super::table::metric;

pub(super) const TOKENS: &[Metric] = &[
    metric("tokens", "number, gauge", "Tokens that this node holds."),
    metric("files", "number, gauge", "Files of which it holds some."),
    metric(
        "contended_files",
        "number, gauge",
        "Those with ranges that change hands all the time: they are used on the origin, and nothing is cached there.",
    ),
    metric("waiting", "number, gauge", "Requests that wait for a token now."),
    metric("waits", "number, counter", "Requests that waited for another node."),
    metric("waited_us", "microseconds, counter", "How long, together."),
    metric("longest_wait_us", "microseconds", "The longest of these waits."),
    metric("asked", "number, counter", "Tokens that were asked for, also in vain."),
    metric(
        "handovers",
        "number, counter",
        "Ranges that were taken away: given up because other nodes wanted them.",
    ),
    metric(
        "given_back",
        "number, counter",
        "Files that rested, of which it gave back all tokens because it had those of too many files.",
    ),
    metric("direct", "number, counter", "Grants of contended ranges."),
    metric(
        "refused",
        "number, counter",
        "Requests that were answered EIO: they waited too long, or only a node that is gone has the bytes.",
    ),
    metric("lapses", "number, counter", "How often the lease of the node ran out."),
    metric(
        "epochs",
        "number, counter",
        "How often the node had to say what it holds, because the store may have forgotten it.",
    ),
    metric("round_trips", "number, counter", "Requests to the store."),
    metric(
        "lease_left_ms",
        "milliseconds, gauge",
        "How long the lease runs, less what is set aside for the longest system call: 0 where nothing begins.",
    ),
    metric(
        "lease_least_ms",
        "milliseconds",
        "The least that was left when it was renewed: near 0 the store is too slow, or not to be reached for too long.",
    ),
    metric(
        "share_parts",
        "number, gauge",
        "Low-priority work of the node (flushes that nobody waits for, fetches) takes one part in so many of what one node alone would use of the origin.",
    ),
    metric(
        "others_use_origin",
        "0 or 1, gauge",
        "1 where programs of other nodes use the origin, as far as is known: low-priority work rests for them, too.",
    ),
    metric(
        "peer_requests",
        "number, counter",
        "Reads of which the caches of other nodes served some bytes, with `--peers`.",
    ),
    metric(
        "peer_bytes",
        "bytes, counter",
        "Those bytes: neither this node's cache nor the origin was asked for them.",
    ),
    metric(
        "peer_failures",
        "number, counter",
        "Reads of other nodes' caches in vain: evicted or damaged there, not reached, too slow. The bytes came from the origin.",
    ),
];
