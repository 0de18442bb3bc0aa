//! The keys of what commands answer that ask no mount.

use super::Metric;
use super::table::metric;

pub(super) const CLUSTER_NODES: &[Metric] = &[
    metric("[].session", "number", "One life of a node's mount; `recover` and `forget` end it."),
    metric("[].node", "text or null", "Its name; null where its entry cannot be read."),
    metric("[].cache", "path or null", "Its cache directory, as that node names it."),
    metric("[].cache_id", "text or null", "Which cache that is, whatever it is called elsewhere."),
    metric(
        "[].boot_id",
        "text or null",
        "The boot of the machine that its process runs, or ran, on.",
    ),
    metric(
        "[].life",
        "word or null",
        "`Live`, or `Gone` once another node needed something of it after its lease was over; null where the store knows nothing of it.",
    ),
    metric(
        "[].lease_ms",
        "milliseconds",
        "How long its lease still runs, by the store's clock; 0: it is gone.",
    ),
    metric(
        "[].is_known",
        "bool",
        "Whether it has said what it holds since the store may have forgotten it last.",
    ),
];

pub(super) const CLUSTER_STATUS: &[Metric] = &[
    metric("epoch", "number", "The life of the store: another after each start or failover."),
    metric(
        "grants",
        "bool",
        "Whether it grants new tokens: not until all sessions that are listed have said what they hold.",
    ),
    metric(
        "nodes[].session",
        "number",
        "One life of a node's mount; `recover` and `forget` end it.",
    ),
    metric("nodes[].node", "text or null", "Its name; null where its entry cannot be read."),
    metric("nodes[].cache", "path or null", "Its cache directory, as that node names it."),
    metric(
        "nodes[].cache_id",
        "text or null",
        "Which cache that is, whatever it is called elsewhere.",
    ),
    metric(
        "nodes[].boot_id",
        "text or null",
        "The boot of the machine that its process runs, or ran, on.",
    ),
    metric(
        "nodes[].life",
        "word or null",
        "`Live`, or `Gone` once another node needed something of it after its lease was over; null where the store knows nothing of it.",
    ),
    metric(
        "nodes[].lease_ms",
        "milliseconds",
        "How long its lease still runs, by the store's clock; 0: it is gone.",
    ),
    metric(
        "nodes[].is_known",
        "bool",
        "Whether it has said what it holds since the store may have forgotten it last.",
    ),
    metric("nodes[].tokens.files", "number", "Files of which it holds something."),
    metric("nodes[].tokens.shared", "number", "Tokens to read and cache, beside others."),
    metric("nodes[].tokens.exclusive", "number", "Tokens to read, write and cache, alone."),
    metric(
        "nodes[].tokens.direct",
        "number",
        "Tokens to read and write on the origin, and cache nothing.",
    ),
    metric("nodes[].tokens.waits", "number", "Files of which it waits for something."),
    metric("files", "number", "Files with tokens."),
    metric("all_files", "bool", "Whether these are all; only the first million are counted."),
    metric(
        "contended_files",
        "number",
        "Files with ranges that nobody caches, because they changed hands all the time.",
    ),
    metric(
        "working",
        "number",
        "Nodes that have low-priority work on the origin, of which each takes an equal part of what one alone would use; null where the store does not say.",
    ),
    metric("serving", "number", "Nodes whose programs use the origin; null likewise."),
    metric(
        "problems[].problem",
        "word",
        "`gone`, `unlisted`, `stray`, `conflict`, `unreadable`, `unsound` or `silent`; `stray` ends by itself.",
    ),
    metric("problems[].node", "text", "`gone`, `unreadable`: its name."),
    metric(
        "problems[].files",
        "number",
        "`gone`: files that it holds alone; dirty bytes may lie on its cache.",
    ),
    metric("problems[].session", "number", "`unlisted`, `stray`: the session."),
    metric("problems[].inode", "number", "`stray`, `conflict`, `unreadable`, `unsound`: the file."),
    metric(
        "problems[].bytes",
        "bytes",
        "`unreadable`: dirty bytes that a live node could not read from its cache when others wanted them.",
    ),
    metric("problems[].one", "number", "`conflict`: one of the sessions."),
    metric("problems[].other", "number", "`conflict`: the other one."),
    metric(
        "problems[].what",
        "text",
        "`unsound`: what is wrong with the value; `silent`: which partition of the store does not answer.",
    ),
];

pub(super) const CLUSTER_TOKENS: &[Metric] = &[
    metric("inode", "number", "Inode number of the file."),
    metric("tokens[].node", "text", "Who holds it: a node's name, or a session's number."),
    metric("tokens[].mode", "word", "`shared`, `exclusive` or `direct`."),
    metric("tokens[].offset", "bytes", "Its first byte."),
    metric(
        "tokens[].end",
        "bytes or null",
        "Behind its last byte; null where it reaches to whatever end the file will have.",
    ),
    metric(
        "unreadable[].node",
        "text",
        "A node that could not read dirty bytes from its cache when others wanted them, which get an error.",
    ),
    metric("unreadable[].offset", "bytes", "The first of these bytes."),
    metric("unreadable[].end", "bytes", "Behind the last of them."),
    metric("waiting[]", "text", "Nodes that wait for something, the first one first."),
];

pub(super) const DOCTOR: &[Metric] = &[
    metric(
        "[].what",
        "text",
        "What was looked at: `FUSE device`, `kernel`, `cache space` and the like.",
    ),
    metric(
        "[].verdict",
        "word",
        "`ok`; `note`: works, with a loss that is named; `fail`: will not work.",
    ),
    metric("[].detail", "text", "What was found, and the remedy."),
];

pub(super) const FSCK: &[Metric] = &[
    metric(
        "origin",
        "path or null",
        "The origin that the cache belongs to; null where it was never used.",
    ),
    metric("files", "number", "Files that have bytes on the cache."),
    metric("extents", "number", "Ranges on the cache."),
    metric("mapped_bytes", "bytes", "Bytes of files that are on the cache."),
    metric("dirty_bytes", "bytes", "Those of them that only the cache has."),
    metric(
        "verified_bytes",
        "bytes",
        "Bytes that have a checksum and were compared with it. Of the others nobody knows whether they are right.",
    ),
    metric(
        "problems[].problem",
        "word",
        "`lost-at-power-loss`: a power loss took these bytes, and the next mount, or a repair, forgets them; `missing-data`: the records name bytes that are not there; `damaged-data`: bytes are not what was written; `lost-server`: a server of the cache holds nothing of it; `stray-object`: an object that no record names; `no-origin`: the origin has no such file any more; `not-reachable`: its file cannot be looked at; `conflict`: others changed the file under its dirty bytes; `copy`: the directory is a copy of a cache, with dirty bytes; `orphan-object`: an object of a striped origin that no file names; `leftover-object`: one that an interrupted move left; `misnamed-object`: one whose file is not found, and that others name; `unread-name`: a directory or file of the origin's tree cannot be read, so that no object is taken for one without a name; `unreadable-file`: the data of a file of a striped origin cannot be read, and programs get EIO; `other-tree`: the origin's names are not those of its objects; `uncounted`: more is in use than the records know of. Each has some of the keys below.",
    ),
    metric("problems[].path", "path", "The file that it is about, below the mount."),
    metric("problems[].offset", "bytes", "First byte of the range in the file."),
    metric("problems[].length", "bytes", "Length of the range."),
    metric("problems[].dirty", "true, false", "Whether only the cache had these bytes."),
    metric("problems[].saved", "path", "Where damaged dirty bytes were saved (`--repair`)."),
    metric(
        "problems[].dirty_bytes",
        "bytes",
        "Dirty bytes of the file, or of the whole cache (`copy`).",
    ),
    metric(
        "problems[].reason",
        "text",
        "Why the file, or the name, cannot be looked at, or the origin's names cannot be right.",
    ),
    metric("problems[].owner", "number", "The number of the file's owner."),
    metric("problems[].server", "path", "Directory of the server."),
    metric("problems[].file", "number", "Number of the file that the object was made for."),
    metric(
        "problems[].next_mount_removes",
        "true, false",
        "Whether the next mount removes the object.",
    ),
    metric("problems[].object", "text", "Name of the object."),
    metric("problems[].bytes", "bytes", "What the object takes."),
    metric(
        "problems[].removed",
        "true, false",
        "Whether the object without a name was removed (`--remove-unnamed`).",
    ),
    metric("problems[].named_by[].path", "path", "A file that names the object of another."),
    metric("problems[].named_by[].owner", "number", "The number of its owner."),
    metric("problems[].allocated_bytes", "bytes", "What is in use on the cache."),
    metric("problems[].counted_bytes", "bytes", "What the records know of."),
    metric("repaired", "true, false", "Whether it was mended (`--repair`)."),
    metric(
        "origin_unchecked",
        "text",
        "Why objects of a striped origin were not looked at, or that the origin is not there; absent otherwise. The status is 1 then.",
    ),
];

pub(super) const FSCK_TIER: &[Metric] = &[
    metric("files[]", "number", "Regular files on each tier, the fastest first."),
    metric("ssd_bytes", "bytes", "Bytes of files on the SSD, on disk."),
    metric("adopted[]", "path", "Files on lower tiers that got a name (`--repair`)."),
    metric("copies", "number", "Files on the SSD that have a clean copy below."),
    metric("removed", "number", "Leftovers that were removed (`--repair`)."),
    metric(
        "problems[].problem",
        "word",
        "`conflict`: the SSD and a lower tier have something under one path, and programs see that on the SSD; `lost`: a name whose file is gone; `second-link`: a second name for a file, taken for a user's link; `strange-link`: a link that the mount did not make; `not-a-file`: no regular file on a lower tier; `leftover`: what a killed mount left; `unswitched`: a name that a killed mount did not get to; `unlinked`: a file on a lower tier without a name; `copy-gone`: a clean copy is gone; `copy-differs`: a file is not what it was when it got its copy; `many-names`: files with several names on a lower tier. Each has some of the keys below.",
    ),
    metric("problems[].path", "path", "The name that it is about, below the roots."),
    metric(
        "problems[].other",
        "path",
        "The other file: the one not seen, the copy, or what lies on the lower tier.",
    ),
    metric("problems[].place", "path", "Where the name says that its file is."),
    metric("problems[].names", "number", "Names of such files."),
];

pub(super) const RESCUE: &[Metric] = &[
    metric("dry_run", "true, false", "Whether nothing was changed."),
    metric(
        "damage",
        "text",
        "What is wrong with the records, of which `--salvage` took what can be read; absent where they are whole.",
    ),
    metric("rescued_bytes", "bytes", "Bytes that were saved, or would be."),
    metric("kept_bytes", "bytes", "Dirty bytes that stay on the cache."),
    metric("rescued[].path", "path", "The file, below the origin's root, as last seen."),
    metric("rescued[].bytes", "bytes", "What was saved of it."),
    metric("rescued[].saved", "text", "Name of the sparse file in DIR; missing in a dry run."),
    metric("rescued[].extents[].offset", "bytes", "First byte of a range that was saved."),
    metric("rescued[].extents[].length", "bytes", "Length of the range."),
    metric("kept[].path", "path", "The file, below the origin's root, as last seen."),
    metric("kept[].dirty_bytes", "bytes", "Dirty bytes of it that stay."),
    metric("kept[].reason", "text", "Why they stay, and what brings them elsewhere."),
    metric("lost_at_power_loss[].path", "path", "A file of which a power loss took dirty bytes."),
    metric("lost_at_power_loss[].dirty_bytes", "bytes", "How many."),
];

pub(super) const CALIBRATE: &[Metric] = &[
    metric("[].path", "path", "The directory, without symbolic links."),
    metric(
        "[].read.startup_sequential_ps",
        "picoseconds",
        "Startup of reads that continue a stream.",
    ),
    metric(
        "[].read.startup_random_ps",
        "picoseconds",
        "Startup of reads anywhere else: seek and rotation on a disk.",
    ),
    metric("[].read.per_byte_ps", "picoseconds a byte", "Transfer."),
    metric(
        "[].write.startup_sequential_ps",
        "picoseconds",
        "Startup of writes that continue a stream.",
    ),
    metric(
        "[].write.startup_random_ps",
        "picoseconds",
        "Startup of writes anywhere else: seek and rotation on a disk.",
    ),
    metric("[].write.per_byte_ps", "picoseconds a byte", "Transfer."),
    metric(
        "[].way.startup_ps",
        "picoseconds",
        "Of all that, what a request takes to another machine and back; missing where the directory is on this one.",
    ),
    metric("[].way.per_byte_ps", "picoseconds a byte", "The same of each byte."),
];

pub(super) const IOR: &[Metric] = &[
    metric("benchmark", "text", "`ior`."),
    metric("version", "text", "Version of Halocline."),
    metric(
        "emulated",
        "true, false",
        "Whether no real device was measured: no rate is one of hardware then.",
    ),
    metric("devices", "text or null", "The emulated devices, origin first."),
    metric(
        "cpus",
        "number",
        "Processors of the machine: they make the emulated devices' time, too.",
    ),
    metric("processes", "number", "Processes that share a file."),
    metric("seed", "number", "What made the random orders and the data."),
    metric("direct", "true, false", "Whether every read call reached the engine."),
    metric("concurrent", "true, false", "Whether the programs of a mix ran all at the same time."),
    metric("data_bytes", "bytes", "All files of a run together."),
];

pub(super) const IOR_RUN: &[Metric] = &[
    metric("pattern", "word", "`random`, `sequential` or `mix:PERCENT`."),
    metric("request_size", "bytes", "Bytes of a request."),
    metric(
        "setup",
        "word",
        "`bare`: the directory itself; `origin`: a mount that caches nothing; `cached`.",
    ),
    metric("policy", "word or null", "Admission policy; null for the bare directory."),
    metric("cache_limit", "text", "The limit as it was given: bytes, or a share of the data."),
    metric("cache_size", "bytes", "Room for data on the cache."),
    metric("repetition", "number", "Which one, from 0."),
    metric("data_bytes", "bytes", "All files of the run together."),
    metric(
        "verified_origin_bytes",
        "bytes",
        "Bytes of the origin that were compared after the mount was gone.",
    ),
    metric("phases[].name", "word", "`write`, `flush`, `first_read`, `fetch` or `read`."),
    metric("phases[].bytes", "bytes", "Bytes moved by the programs."),
    metric("phases[].requests", "number", "Their requests."),
    metric(
        "phases[].seconds",
        "seconds",
        "To the return of the last request of the slowest process.",
    ),
    metric("phases[].mb_per_s", "10^6 bytes a second", "Throughput."),
    metric("phases[].ratio", "number or null", "Throughput over that of the origin alone."),
    metric(
        "phases[].fsynced_seconds",
        "seconds or null",
        "Of writes, with the fsync at their end.",
    ),
    metric(
        "phases[].drained_seconds",
        "seconds or null",
        "Of writes, until everything was on the origin.",
    ),
    metric(
        "phases[].drained_mb_per_s",
        "10^6 bytes a second or null",
        "The throughput that makes.",
    ),
    metric("phases[].drained_ratio", "number or null", "That over the same of the origin alone."),
    metric(
        "phases[].cached_share_before",
        "0 to 1 or null",
        "Share of the data that was on the cache when the phase began.",
    ),
    metric(
        "phases[].allowed_mb_per_s",
        "10^6 bytes a second or null",
        "What a second run could reach with that share: its bytes as fast as where all are on the cache, the others as fast as the origin alone. Null where that was not measured.",
    ),
    metric(
        "phases[].sequential_mb_per_s",
        "10^6 bytes a second or null",
        "Throughput of the sequential programs of a mix.",
    ),
    metric(
        "phases[].random_mb_per_s",
        "10^6 bytes a second or null",
        "Throughput of its random programs.",
    ),
    metric(
        "phases[].served.requests",
        "number",
        "Requests that the engine counted; `served` is null for the bare directory.",
    ),
    metric("phases[].served.bytes", "bytes", "Their bytes."),
    metric("phases[].served.cache_requests", "number", "Those that the cache served whole."),
    metric("phases[].served.cache_bytes", "bytes", "Bytes that the cache served."),
    metric("phases[].ssd_bytes_written", "bytes", "Data written to the cache."),
];

pub(super) const BENCH_TIER: &[Metric] = &[
    metric("version", "text", "Version of Halocline."),
    metric("command", "text", "The command that measured."),
    metric("cpus", "number", "Processors of the machine."),
    metric("rows[].part", "word", "The part: `metadata`, `files`, `moves` and so on (`--part`)."),
    metric("rows[].what", "text", "What was done."),
    metric("rows[].unit", "text", "Unit of the next two."),
    metric("rows[].tier", "number", "Median on the file tier."),
    metric("rows[].baseline", "number", "Median of what it is compared with."),
    metric("rows[].baseline_name", "text", "What that is."),
    metric("rows[].ratio", "number", "`tier` over `baseline`."),
    metric(
        "rows[].mergerfs_ratio",
        "number or null",
        "mergerfs over `baseline`; null where mergerfs took no part.",
    ),
    metric("policies[].workload", "text", "Which files are used, and in what order."),
    metric("policies[].ratio", "number", "Working set over room on the SSD."),
    metric(
        "policies[].moved[][]",
        "text, number",
        "Each policy, and what it read from the disk and wrote back to it, in MB.",
    ),
    metric(
        "policies[].optimum",
        "number or null",
        "The least possible, in MB; on small cases only.",
    ),
    metric("figures.emulated", "true, false", "Whether no real device was measured."),
    metric("figures.hdd.seek_ms_min", "milliseconds", "Shortest seek of the emulated disk."),
    metric("figures.hdd.seek_ms_max", "milliseconds", "Seek over its whole surface."),
    metric("figures.hdd.rpm", "1 a minute", "Its revolutions."),
    metric("figures.hdd.mb_per_s", "10^6 bytes a second", "Its transfer."),
    metric("figures.hdd.capacity_gb", "10^9 bytes", "Its surface."),
    metric("figures.ssd.read_startup_us", "microseconds", "Startup of a read on the emulated SSD."),
    metric("figures.ssd.write_startup_us", "microseconds", "Startup of a write."),
    metric("figures.ssd.read_mb_per_s", "10^6 bytes a second", "Its reading."),
    metric("figures.ssd.write_mb_per_s", "10^6 bytes a second", "Its writing."),
    metric("figures.ssd.channels", "number", "Requests in service at once."),
    metric("figures.lines[].figure", "text", "Figure or table of the paper."),
    metric("figures.lines[].random", "true, false", "Whether offsets are random."),
    metric("figures.lines[].write", "true, false", "Whether it writes."),
    metric("figures.lines[].request_bytes", "bytes", "Bytes of a request."),
    metric("figures.lines[].processes", "number", "Processes."),
    metric("figures.lines[].paper_ratio", "number or null", "What the paper has for `ratio`."),
    metric("figures.lines[].unit", "text", "Unit of the next three."),
    metric("figures.lines[].tier", "number", "Median on the file tier."),
    metric("figures.lines[].ssd_alone", "number", "Median on the emulated SSD."),
    metric("figures.lines[].hdd_alone", "number", "Median on the emulated disk."),
    metric("figures.lines[].ratio", "number", "`tier` over `hdd_alone`."),
    metric("figures.lines[].of_ssd", "number", "`tier` over `ssd_alone`."),
];

pub(super) const BENCH_LAYOUT: &[Metric] = &[
    metric("benchmark", "word", "`layout`."),
    metric("version", "text", "Version of Halocline."),
    metric("emulated", "true, false", "Whether no real device was measured; always true."),
    metric("cpus", "number", "Processors of the machine."),
    metric("workload", "word", "Whose requests (`--workload`)."),
    metric("processes", "number", "Its processes."),
    metric("requests", "number", "Requests of all."),
    metric("bytes", "bytes", "Their bytes."),
    metric("hdds", "number", "Disks."),
    metric("ssds", "number", "SSDs."),
    metric("ssd_share", "share", "Part of the file that the SSDs hold together."),
    metric("chosen", "text", "The layout that `plan` would recommend."),
    metric(
        "def_rest",
        "word or null",
        "How the rest lies under `def` where the SSDs have no room for it, `paper` or `default`, as `plan` says it.",
    ),
    metric(
        "def_of_paper_seconds",
        "seconds or null",
        "Time of a replay on simulated servers under the paper's DEF.",
    ),
];

/// Of each of the four layouts.
pub(super) const BENCHED_LAYOUT: &[Metric] = &[
    metric("stripes[]", "bytes", "Stripe of each server at the beginning of the file."),
    metric("parts", "number", "Parts of the file with stripes of their own."),
    metric("ssd_bytes", "bytes or null", "Bytes of the file on SSDs."),
    metric("predicted_seconds", "seconds or null", "Time by the cost model."),
    metric("simulated_seconds", "seconds or null", "Time of a replay on simulated servers."),
    metric(
        "measured_seconds",
        "seconds or null",
        "Time of real I/O on files behind emulated devices; null with `--no-measure`.",
    ),
    metric("predicted_ratio", "number or null", "Throughput over that of `def`, predicted."),
    metric("simulated_ratio", "number or null", "The same, simulated."),
    metric("measured_ratio", "number or null", "The same, measured."),
    metric("unavailable", "text", "Why there is no such layout; absent where there is one."),
];
