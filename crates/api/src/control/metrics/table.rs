//! The keys of what a mount answers, in the order of the page.

use super::Metric;

pub(super) const STATUS: &[Metric] = &[
    metric("version", "text", "Version of the mount process."),
    metric("pid", "number", "Process id of the mount process."),
    metric("origin", "path", "Origin directory; of a file tier the slowest tier."),
    metric("cache", "path", "Cache directory; of a file tier the SSD."),
    metric(
        "transport",
        "word",
        "How requests come from the kernel: `device` (/dev/fuse) or `io_uring`.",
    ),
    metric("mode", "word", "`write-back`, `write-through` or `read-only`."),
    metric("policy", "word", "Admission policy, or the file tier's policy."),
    metric("eviction", "word", "Eviction policy."),
    metric(
        "limit_bytes",
        "bytes, gauge",
        "Room for data on the cache: its size less what is set aside for records and the file system, and less what records take beyond that. Of a file tier `--ssd-limit`.",
    ),
    metric(
        "used_bytes",
        "bytes, gauge",
        "Blocks of the cache that data occupies, is about to, or that wait to be freed.",
    ),
    metric(
        "records_bytes",
        "bytes, gauge",
        "What the records of the cache take on disk, at most. 0 on a file tier.",
    ),
    metric("mapped_bytes", "bytes, gauge", "Bytes of files that are on the cache."),
    metric("dirty_bytes", "bytes, gauge", "Bytes of files that only the cache has."),
    metric(
        "oldest_dirty_age_ms",
        "milliseconds, gauge",
        "Since when the oldest dirty extent is dirty; null when nothing is.",
    ),
    metric("extents", "number, gauge", "Extents on the cache; of a file tier files on the SSD."),
    metric("dirty_extents", "number, gauge", "Extents that are dirty."),
    metric("wanted_ranges", "number, gauge", "Ranges that wait to be fetched (C_flag)."),
    metric(
        "damaged_bytes",
        "bytes, gauge",
        "Dirty bytes that are damaged on the cache, as far as that was found: neither read nor flushed.",
    ),
    metric(
        "repaired_bytes",
        "bytes, counter",
        "Bytes read from the origin because the cache's clean copy was damaged.",
    ),
    metric(
        "warm_opens",
        "number, counter",
        "Opens whose reads the kernel serves by itself (`warm_passthrough`).",
    ),
    metric(
        "detached",
        "text",
        "Which programs still use a mount that was taken out of sight; absent when none was.",
    ),
    metric(
        "health.state",
        "word",
        "`ok`; `degraded`: a device failed lately and nothing new is admitted; `full`: the cache's file system is nearly full and nothing new is admitted, or the origin's is and nothing that needs new space there; `silent`: a directory does not answer, because its device or server hangs.",
    ),
    metric("health.reason", "text", "What happened, and the remedy; absent when `ok`."),
    metric("rebuilder", "word", "`idle`, `waiting`, `flushing` or `fetching`."),
    metric("servers[].side", "word", "`origin` or `cache`."),
    metric("servers[].path", "path", "The server's directory."),
    metric(
        "servers[].profile",
        "text",
        "What the cost models take it for: `calibrated`, `emulated NAME`, or its kind.",
    ),
    metric("servers[].reads", "number, counter", "Read requests that the device ended."),
    metric("servers[].read_bytes", "bytes, counter", "Bytes read from the device."),
    metric("servers[].writes", "number, counter", "Write requests that the device ended."),
    metric("servers[].written_bytes", "bytes, counter", "Bytes written to the device."),
    metric("servers[].errors", "number, counter", "Requests of any kind that failed."),
    metric(
        "servers[].queued",
        "number, gauge",
        "Requests under way on the device, and parts of requests that wait for one of its workers.",
    ),
    metric(
        "servers[].slower",
        "ratio",
        "How many times as long as calibrated requests to the idle device take, the last 256 of one in eight; missing up to 1.5, and where it is not calibrated.",
    ),
    metric(
        "notes[]",
        "text",
        "What a person should know: conflicts, files that lost data, a cache that cannot help.",
    ),
];

pub(super) const REPORT: &[Metric] = &[
    metric("policy", "word", "Admission policy."),
    metric("elapsed_s", "seconds", "Time since the mount began."),
    metric(
        "exit_status",
        "number",
        "Exit status of the command that `run` started; null for other mounts.",
    ),
    metric(
        "read.requests",
        "number, counter",
        "Read requests that reached Halocline. What the kernel's page cache answers does not.",
    ),
    metric("read.bytes", "bytes, counter", "Bytes they asked for and got."),
    metric("read.cache_requests", "number, counter", "Those that the cache answered whole."),
    metric(
        "read.cache_bytes",
        "bytes, counter",
        "Bytes that the cache answered, of other requests too.",
    ),
    metric("write.requests", "number, counter", "Write requests."),
    metric("write.bytes", "bytes, counter", "Bytes written."),
    metric("write.cache_requests", "number, counter", "Those that the cache took whole."),
    metric(
        "write.cache_bytes",
        "bytes, counter",
        "Bytes that the cache took, of other requests too.",
    ),
    metric("admitted.requests", "number, counter", "Parts of writes that were new on the cache."),
    metric("admitted.bytes", "bytes, counter", "Their bytes."),
    metric(
        "layouts.1dh",
        "bytes, counter",
        "Bytes admitted or fetched that are striped over all servers of the cache.",
    ),
    metric("layouts.1dv", "bytes, counter", "The same, whole on the server of the process."),
    metric("layouts.2d", "bytes, counter", "The same, striped in the group of the process."),
    metric(
        "ssd_bytes_written",
        "bytes, counter",
        "Bytes of data written to the cache, by writes and by fetches; records are not in them.",
    ),
    metric(
        "filled_bytes",
        "bytes, counter",
        "Those of them that were filled from what a program was just given, because it had missed them before.",
    ),
    metric(
        "flush.bytes",
        "bytes, counter",
        "Dirty bytes written to the origin, in the background too.",
    ),
    metric(
        "flush.seconds",
        "seconds, counter",
        "Time of flushes that somebody waited for: `flush`, `umount`, the end of `run`.",
    ),
    metric("dirty_bytes_left", "bytes, gauge", "Bytes that only the cache has."),
    metric(
        "left_files",
        "number",
        "Files that the flush at the end of `run` left dirty; 0 for a mount.",
    ),
    metric("left[].path", "path", "The first 100 of them, below the mount's root."),
    metric("left[].reason", "text", "Why the file is dirty still, and what to do about it."),
    metric(
        "conflicts",
        "number, counter",
        "Files that others changed on the origin while they had dirty bytes: their version stayed, the bytes are saved in `conflicts` in the cache directory.",
    ),
    metric(
        "hit_ratio",
        "0 to 1",
        "Bytes of reads and writes that the cache served over all, 0 when there were none.",
    ),
    metric(
        "emulated",
        "text or null",
        "The emulated devices, origin first; null where all devices are real. No rate of an emulation is one of the hardware.",
    ),
];

pub(super) const TIER: &[Metric] = &[
    metric("tiers[].path", "path", "Directory of the tier, the fastest first."),
    metric("tiers[].name", "text", "Its name."),
    metric(
        "tiers[].free_bytes",
        "bytes, gauge",
        "What its file system has free; null where it does not answer.",
    ),
    metric("ssd_files", "number, gauge", "Files on the SSD."),
    metric("high_bytes", "bytes", "Above this files are demoted in the background,"),
    metric("low_bytes", "bytes", "down to this."),
    metric("waiting_bytes", "bytes, gauge", "Bytes that are to be demoted and have not been yet."),
    metric("promoted.files", "number, counter", "Files brought to the SSD."),
    metric("promoted.bytes", "bytes, counter", "Their bytes."),
    metric("demoted.files", "number, counter", "Files moved to lower tiers, spilled ones too."),
    metric("demoted.bytes", "bytes, counter", "Their bytes."),
    metric("copies.kept", "word", "Which copies of files on the SSD are kept (`copies`)."),
    metric("copies.clean.files", "number, gauge", "Files on the SSD that have a clean copy below."),
    metric("copies.clean.bytes", "bytes, gauge", "Their bytes on the SSD."),
    metric("copies.disk_bytes", "bytes, gauge", "Bytes of copies, which give way on a full disk."),
    metric("copies.demoted.files", "number, counter", "Demoted files of which nothing was copied."),
    metric("copies.demoted.bytes", "bytes, counter", "Their bytes."),
    metric("copies.archived.files", "number, counter", "Copies made in the background."),
    metric("copies.archived.bytes", "bytes, counter", "Their bytes."),
    metric("copies.waiting.files", "number, gauge", "Files that are still to be archived."),
    metric("copies.waiting.bytes", "bytes, gauge", "Their bytes."),
    metric("copies.waiting_ms", "milliseconds, gauge", "How long the oldest has waited, or null."),
    metric("copies.trouble", "text", "Why a file was not archived last, or null."),
    metric("opens.hits", "number, counter", "Opens of files that were on the SSD."),
    metric("opens.promoted", "number, counter", "Opens for which a file was brought to the SSD."),
    metric("opens.in_place", "number, counter", "Opens of files that were served on a lower tier."),
    metric(
        "moving[].path",
        "path",
        "A file that moves between tiers now, the longest under way first; a hundred at most.",
    ),
    metric("moving[].from", "number", "The tier that it leaves, 0 the fastest,"),
    metric("moving[].to", "number", "and the one that it goes to."),
    metric("moving[].done_bytes", "bytes, gauge", "Copied so far."),
    metric("moving[].total_bytes", "bytes", "Its data; holes do not count."),
    metric("moving[].seconds", "seconds, gauge", "Time since the move began."),
    metric(
        "moving_rate",
        "bytes a second, gauge",
        "Copied between tiers, the mean over the last five seconds.",
    ),
    metric(
        "requests.on_ssd.reads",
        "number, counter",
        "Reads of files on the SSD that the mount process served. Here and below: what the kernel serves by itself (passthrough), or has in its page cache, is not seen.",
    ),
    metric("requests.on_ssd.read_bytes", "bytes, counter", "What they returned."),
    metric("requests.on_ssd.writes", "number, counter", "Writes to such files,"),
    metric("requests.on_ssd.written_bytes", "bytes, counter", "and their bytes."),
    metric(
        "requests.in_place.reads",
        "number, counter",
        "Reads of files on lower tiers, served there.",
    ),
    metric("requests.in_place.read_bytes", "bytes, counter", "What they returned."),
    metric("requests.in_place.writes", "number, counter", "Writes to such files,"),
    metric("requests.in_place.written_bytes", "bytes, counter", "and their bytes."),
    metric(
        "passthrough.works",
        "true, false",
        "Whether the kernel takes open files to serve them by itself; null while that is unknown.",
    ),
    metric("passthrough.reason", "text", "Why not; null where it does."),
    metric("passthrough.files[]", "path", "Open files that the kernel serves by itself."),
    metric(
        "passthrough.refused[][]",
        "text, number",
        "Reasons for which opens were not passed through, each with their number (counter).",
    ),
];

pub(super) const JOBS: &[Metric] = &[
    metric("[].name", "text", "An announced job."),
    metric("[].references", "number", "References of this node in it."),
    metric("[].position", "number, gauge", "References seen so far, or skipped."),
    metric("[].files", "number", "Distinct files in it."),
    metric(
        "[].state",
        "word",
        "`waiting`, `running`, `stopped`, `done` or `deviated`; `elsewhere` where nodes share a tier and only others have references.",
    ),
];

pub(super) const JOB_PLACES: &[Metric] = &[
    metric("nodes[].node", "text", "The node, or null for the disk that all nodes share."),
    metric("nodes[].files", "number", "Files of the job on its SSD."),
    metric("nodes[].bytes", "bytes", "Their bytes; the node with the most is first."),
    metric("missing_files", "number", "Files of the job that are not there."),
];

pub(super) const RULES: &[Metric] = &[
    metric("pin[]", "glob", "Files that are never evicted."),
    metric("exclude[]", "glob", "Files that are never admitted."),
];

pub(super) const MOVE: &[Metric] = &[
    metric(
        "bytes",
        "bytes",
        "Moved: written to the origin, fetched, freed on the cache, or moved between tiers; with `--dry-run` what would be.",
    ),
    metric("files", "number", "Files that had such bytes."),
    metric("already_files", "number", "Files with nothing to move: they were there already."),
    metric("seconds", "seconds", "Time it took."),
    metric("clean_bytes", "bytes", "What had a clean copy where it went: nothing was copied."),
    metric("left_bytes", "bytes", "What should have moved and did not."),
    metric("skipped[].path", "path", "A file of which something stayed."),
    metric("skipped[].reason", "text", "Why, and what to do about it."),
    metric(
        "conflicts[].path",
        "path",
        "A file that others had changed on the origin while it had dirty bytes; each is told once.",
    ),
    metric("conflicts[].reason", "text", "What they did, and where the bytes are saved."),
];

pub(super) const WHERE: &[Metric] = &[
    metric("[].offset", "bytes", "First byte of a range with one location."),
    metric("[].length", "bytes", "Its length."),
    metric("[].side", "word", "`origin` or `cache`: who answers a read."),
    metric("[].layout", "word", "`1dh`, `1dv` or `2d` on the cache; null on the origin."),
    metric("[].group", "number", "Server (`1dv`) or group (`2d`), else 0."),
    metric("[].dirty", "true, false", "Whether only the cache has the newest bytes."),
    metric(
        "[].last_use_ms",
        "milliseconds since 1970",
        "Last read, write or fill; null on the origin.",
    ),
    metric(
        "[].dirty_since_ms",
        "milliseconds since 1970",
        "Since when it is dirty; null when clean.",
    ),
];

pub(super) const CACHED: &[Metric] = &[
    metric("files[].path", "path", "A file that has bytes on the cache, below the mount."),
    metric("files[].cached_bytes", "bytes", "Its bytes on the cache."),
    metric("files[].dirty_bytes", "bytes", "Those of them that only the cache has."),
    metric("files[].extents", "number", "Ranges on the cache."),
    metric("cached_bytes", "bytes", "Sum over the files."),
    metric("dirty_bytes", "bytes", "Sum over the files."),
];

pub(super) const FILES: &[Metric] = &[
    metric("[].path", "path", "A file, below the mount."),
    metric("[].tier", "number", "The tier that holds it, 0 the fastest."),
    metric("[].tier_name", "text", "Its name."),
    metric("[].place", "path", "Where the file is below all mounts."),
    metric("[].size_bytes", "bytes", "Size."),
    metric("[].disk_bytes", "bytes", "What it occupies."),
    metric("[].pinned", "true, false", "A pin keeps it on the SSD."),
    metric("[].excluded", "true, false", "An exclude keeps it off the SSD."),
    metric("[].passed_through", "true, false", "The kernel serves it by itself now."),
    metric(
        "[].lost",
        "true, false",
        "It is gone from its tier: restore it there, or remove the name. Always false on a tier that nodes share, where `cluster fsck` tells of such files.",
    ),
    metric(
        "[].clean_copy",
        "text",
        "Name of the tier that has a clean copy of it, null where none has.",
    ),
];

pub(super) const EXPLAIN: &[Metric] = &[
    metric("policy", "word", "Admission policy that decided."),
    metric("processes", "number", "Processes p that the model used."),
    metric("cached_bytes", "bytes", "Of the request, on the cache already."),
    metric("decision", "word", "`origin` or `cache`: who would serve the rest."),
    metric("reason", "text", "Why, in a sentence."),
    metric(
        "now",
        "text",
        "Why bytes that belong on the cache are not there now; null where they are.",
    ),
    metric(
        "note",
        "text or null",
        "What a person should know of the two sides: that they lie on one device.",
    ),
    metric("layout", "word", "The best layout; null where the cache is not a candidate."),
    metric(
        "nodes",
        "text or null",
        "Why it waits for a token of another node, or goes to the origin because of one; null otherwise, and without `--cluster`.",
    ),
    metric("costs[].side", "word", "`origin` or `cache`."),
    metric("costs[].layout", "word", "Layout on the cache; null on the origin."),
    metric("costs[].servers", "number", "Servers touched, m."),
    metric("costs[].largest_part_bytes", "bytes", "Most bytes on one of them, s_m."),
    metric("costs[].startup_s", "seconds", "Startup T_s."),
    metric("costs[].transfer_s", "seconds", "Transfer."),
    metric(
        "costs[].total_s",
        "seconds",
        "Their sum, corrected by measured times where the policy does so.",
    ),
    metric(
        "benefit_s",
        "seconds",
        "Time on the origin less the least on the cache; negative where the origin is faster.",
    ),
];

pub(super) const EXPLAIN_FILE: &[Metric] = &[
    metric("path", "path", "A file, below the mount."),
    metric("tier", "number", "The tier that holds it, 0 the fastest."),
    metric("tier_name", "text", "Its name."),
    metric("place", "path", "Where the file is below all mounts."),
    metric("size_bytes", "bytes", "Size."),
    metric("disk_bytes", "bytes", "What it occupies."),
    metric("pinned", "true, false", "A pin keeps it on the SSD."),
    metric("excluded", "true, false", "An exclude keeps it off the SSD."),
    metric("passed_through", "true, false", "The kernel serves it by itself now."),
    metric(
        "lost",
        "true, false",
        "It is gone from its tier: restore it there, or remove the name. Always false on a tier that nodes share, where `cluster fsck` tells of such files.",
    ),
    metric(
        "clean_copy",
        "text",
        "Name of the tier that has a clean copy of it, null where none has.",
    ),
    metric("policy", "word", "The file tier's policy."),
    metric("ssd_limit_bytes", "bytes", "Most that files may have on the SSD."),
    metric("ssd_free_bytes", "bytes, gauge", "What is left of that, and on its file system."),
    metric(
        "opens",
        "number",
        "Opens of the file that were seen since the mount began; the oldest are forgotten after very many files.",
    ),
    metric(
        "last_open_ms",
        "milliseconds since 1970",
        "The last of them; null where none is known.",
    ),
    metric(
        "leaves_after",
        "number, gauge",
        "Files that would leave the SSD before it; null where it is not there, is pinned or has no data.",
    ),
    metric("may_leave", "number, gauge", "Files that may leave the SSD, itself included."),
    metric("jobs[].name", "text", "A job that names it and is believed."),
    metric("jobs[].coming", "number, gauge", "References to it that are still to come."),
    metric(
        "jobs[].next",
        "number, gauge",
        "How many references from now the next one is, 1 the very next; null where none is to come.",
    ),
    metric("handles", "number, gauge", "Open handles."),
    metric("passed_handles", "number, gauge", "Those that the kernel serves by itself."),
    metric("hard_links", "number", "Its names."),
    metric(
        "known_names",
        "number",
        "Those that move together; where they are fewer than its names, it does not move.",
    ),
    metric("too_large", "true, false", "It does not fit below the SSD's limit at all."),
    metric(
        "stayed_ms",
        "milliseconds since 1970",
        "When it was to move last and stayed; null where it did not.",
    ),
    metric("stayed", "text", "Why it stayed then."),
    metric("reasons[]", "text", "Why it is where it is."),
    metric("remedies[]", "text", "What would change that."),
];

pub(super) const fn metric(key: &'static str, unit: &'static str, meaning: &'static str) -> Metric {
    Metric { key, unit, meaning }
}
