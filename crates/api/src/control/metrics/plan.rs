//! The keys of what `halocline plan` answers.

use super::Metric;
use super::table::metric;

pub(super) const PLAN: &[Metric] = &[
    metric("requests", "number", "Requests of the trace."),
    metric(
        "sampled_requests",
        "number",
        "Those that the search replayed on simulated servers, again and again.",
    ),
    metric("partial", "yes or no", "The trace is not whole, so less can be said."),
    metric("chosen", "text", "The recommended layout; `def` where nothing is to be gained."),
    metric(
        "gain_over_def",
        "share",
        "Throughput of the requests under the chosen layout over that under `def`, less one: by the mean of the times of each in \
         all placements of the files on the disks.",
    ),
    metric(
        "def_rest",
        "word or null",
        "Where not all servers have room for the default stripes: how the rest lies under `def`. `paper`: on the slowest servers in stripes of S/m; `default`: in default stripes on the servers that have room. The faster of both is taken; null where all have room, or both are the same.",
    ),
    metric(
        "other_def_seconds",
        "seconds or null",
        "Time of a replay on simulated servers under the default layout in the other way.",
    ),
    metric("best_gain", "share", "The same of the best layout, also where it is not recommended."),
    metric(
        "spread",
        "share",
        "Half the distance between `least_gain` and `most_gain`, at least 0.01, and more for a trace that is not whole.",
    ),
    metric(
        "least_gain",
        "share",
        "The least gain of the best layout, in all of the trace, in four parts of it and in each placement of its files; of a trace \
         that is not whole its distance from `best_gain` counts more.",
    ),
    metric("most_gain", "share", "The largest, alike."),
    metric(
        "sure_gain",
        "share",
        "The gain of all parts together if there were four times as much of those that gain at most 0.01, or what the best layout gains \
         in the placement in which it gains the least, or `best_gain`, whichever is the least: where it is not above 0.01, nothing \
         is recommended; of a trace that is not whole as `least_gain`.",
    ),
    metric(
        "parts[].def_seconds",
        "seconds",
        "Time of a part of the sample on simulated servers under `def`.",
    ),
    metric("parts[].seconds", "seconds", "The same under the best layout."),
    metric("parts[].gain", "share", "What it gains; less than 0 if it loses."),
    metric(
        "placements[].def_seconds",
        "seconds",
        "Time of the trace under `def` in a placement of its files on the disks. The first is the one in which the search \
         replayed; where nothing depends on it, as of one file, there is no other.",
    ),
    metric("placements[].seconds", "seconds", "The same under the best layout."),
    metric("placements[].gain", "share", "What it gains there; less than 0 if it loses."),
    metric(
        "few_requests",
        "yes or no",
        "There are fewer than 64 requests: hardly anything can be said of others.",
    ),
    metric(
        "io_share",
        "share or null",
        "Share of the trace's time in which a request was under way; null where not all requests have a duration.",
    ),
    metric(
        "job.def_seconds",
        "seconds",
        "Time of the whole trace on simulated servers under `def`, each process going on after the time that it computed \
         between its requests. `job` is null where no layout has a sure gain, or requests have no durations.",
    ),
    metric("job.seconds", "seconds", "The same under the layout that is best for the requests."),
    metric(
        "job.gain",
        "share",
        "How much faster the job is, less one; below 0.01 `def` is chosen.",
    ),
    metric(
        "ties[].file",
        "text",
        "A file for which `psa` finds several stripe pairs equally good.",
    ),
    metric(
        "ties[].candidates[][]",
        "bytes, bytes, number",
        "Stripe on disks, stripe on SSDs, rounds.",
    ),
    metric(
        "notes[]",
        "text",
        "What the chosen layout does that stripes for each kind of server do not tell, such as a server for each file.",
    ),
    metric("replays", "number", "Layouts that were judged by a replay."),
];

/// Of each of the four layouts.
pub(super) const PLANNED_LAYOUT: &[Metric] = &[
    metric(
        "simulated_seconds",
        "seconds or null",
        "Time of a replay on simulated servers: the mean of those in all placements of the files.",
    ),
    metric("predicted_seconds", "seconds or null", "Time by the cost model."),
    metric(
        "ssd_bytes",
        "bytes or null",
        "Bytes of the files on servers that are not of the slowest class.",
    ),
    metric(
        "ssd_traffic",
        "share or null",
        "Of the bytes that requests of the sample read and write, the share on these servers: less where gaps between \
         requests lie there.",
    ),
    metric(
        "full_after_seconds",
        "seconds or null",
        "When, in the simulated time, the last of the bytes that lie there was read or written for the first time, if the SSDs have no room for another stripe and some bytes lie beside them; null where there is room for all.",
    ),
    metric("stripes[].file", "text", "A file."),
    metric("stripes[].parts[].begin", "bytes", "Where a part of it begins."),
    metric("stripes[].parts[].end", "bytes", "Where it ends; absent of the last."),
    metric("stripes[].parts[].widths[]", "bytes", "Stripe of each server there; 0 leaves it out."),
    metric(
        "default_files",
        "number",
        "Files for which the paper has no such stripes; they lie as under `def`.",
    ),
    metric("unavailable", "text", "Why there is no such layout; absent where there is one."),
];
