//! The keys of what `halocline apply`, `halocline verify` and `halocline unstripe` answer.

use super::Metric;
use super::table::metric;

pub(super) const APPLY: &[Metric] = &[
    metric("dry_run", "yes or no", "Nothing was moved."),
    metric(
        "cleared",
        "yes or no",
        "What an earlier move that was interrupted had left was removed.",
    ),
    metric(
        "left",
        "number",
        "Moves that left what still takes space: their files were not found, or a server cannot be changed. Of a dry run, objects that would be removed first.",
    ),
    metric(
        "left_alone",
        "yes or no",
        "The plan leaves the layout alone, and `--to-default` is not given: nothing is moved, and `planned` is how files lie.",
    ),
    metric("bytes", "bytes", "Data that was moved, or would be, without holes."),
    metric("files[].path", "text", "A file of the plan, below the mount."),
    metric("files[].state", "word", "`moved`, `to move` of a dry run, or `in place`."),
    metric(
        "files[].detour",
        "yes or no",
        "It moves twice, because its copy does not fit beside it, or another file needs its room: first to the servers that have space.",
    ),
    metric("files[].bytes", "bytes", "Its data without holes."),
    metric("files[].before[].begin", "bytes", "Where a part of it began before."),
    metric("files[].before[].widths[]", "bytes", "Stripe of each server there; 0 leaves it out."),
    metric("files[].planned[].begin", "bytes", "Where a part of it begins by the plan."),
    metric("files[].planned[].widths[]", "bytes", "Stripe of each server there; 0 leaves it out."),
    metric("missing[]", "text", "A file of the plan that is not there, with `--skip-missing`."),
    metric(
        "outside[]",
        "text",
        "A path of the plan that is not below that of `--below`, and left out, with `--skip-missing`.",
    ),
    metric(
        "failed[].path",
        "text",
        "A file of the plan that could not be moved, or is another name of one that is; it is not among `files`.",
    ),
    metric("failed[].error", "text", "Why, and what to do."),
    metric("servers[].name", "text", "A server of the plan."),
    metric("servers[].directory", "path", "Its directory in the volume."),
    metric(
        "servers[].planned_bytes",
        "bytes",
        "What it has of these files by the plan and their sizes, holes included.",
    ),
    metric("servers[].hole_bytes", "bytes", "Holes of that."),
    metric("servers[].used_bytes", "bytes", "Blocks that these files use on it now."),
    metric(
        "servers[].absent_bytes",
        "bytes",
        "What it has by the present layouts of files of which it has no data at all: holes, unless the data is lost.",
    ),
];

pub(super) const UNSTRIPE: &[Metric] = &[
    metric("dry_run", "yes or no", "Nothing was copied."),
    metric(
        "copy",
        "path",
        "The copy; its name ends in `.incomplete` if it lacks anything of the tree.",
    ),
    metric("bytes", "bytes", "What was copied, or would be: sizes of files, with holes."),
    metric("lacking[]", "text", "What the copy lacks of the tree, why, and what to do."),
    metric(
        "unnamed[].object",
        "text",
        "Of a whole tree: data that no file names, and that the copy does not have. If there is any, the exit status is 1.",
    ),
    metric("unnamed[].bytes", "bytes", "Blocks that it uses on all servers."),
    metric("unnamed[].files[]", "path", "Where it is."),
    metric(
        "unnamed[].left_by_move",
        "yes or no",
        "A move to another layout that was ended seems to have left it: its file has other data.",
    ),
    metric("unnamed_bytes", "bytes", "Blocks that all of it uses."),
    metric(
        "unnamed_unknown",
        "text or null",
        "Why it is not known whether there is such data, for example because names changed meanwhile.",
    ),
];

pub(super) const VERIFY: &[Metric] = &[
    metric(
        "agrees",
        "yes or no",
        "All files lie as planned. The exit status is 1 also where a file has `absent_bytes`, unless `--known` is given.",
    ),
    metric(
        "left_alone",
        "yes or no",
        "The plan leaves the layout alone, and `--to-default` is not given: files lie as planned however they lie.",
    ),
    metric(
        "none_there",
        "text",
        "Why none of the plan's files was found, and what to do; only then.",
    ),
    metric("files[].path", "text", "A file of the plan, below the mount."),
    metric("files[].agrees", "yes or no", "It lies as planned."),
    metric("files[].missing", "yes or no", "There is no such file."),
    metric(
        "files[].same_as",
        "text",
        "The name under which the same file comes before, if there is one: what it has is counted there.",
    ),
    metric("files[].error", "text", "Why it cannot be looked at, where it cannot, and what to do."),
    metric("files[].planned[].begin", "bytes", "Where a part of it begins by the plan."),
    metric("files[].planned[].widths[]", "bytes", "Stripe of each server there; 0 leaves it out."),
    metric("files[].actual[].begin", "bytes", "Where a part of it begins."),
    metric("files[].actual[].widths[]", "bytes", "Stripe of each server there; 0 leaves it out."),
    metric(
        "files[].absent_bytes",
        "bytes",
        "What it has by its present layout on servers where nothing of it is: holes, unless the data is lost.",
    ),
    metric(
        "outside[]",
        "text",
        "A path of the plan that is not below that of `--below`, and left out, with `--skip-missing`.",
    ),
    metric("servers[].name", "text", "A server of the plan."),
    metric("servers[].directory", "path", "Its directory in the volume."),
    metric(
        "servers[].planned_bytes",
        "bytes",
        "What it has of these files by the plan and their sizes, holes included.",
    ),
    metric("servers[].hole_bytes", "bytes", "Holes of that."),
    metric("servers[].used_bytes", "bytes", "Blocks that these files use on it."),
    metric(
        "servers[].absent_bytes",
        "bytes",
        "What it has by the present layouts of files of which it has no data at all: holes, unless the data is lost.",
    ),
    metric("measured[].name", "text", "A server, with `--trace`."),
    metric(
        "measured[].requests",
        "number",
        "Requests of the trace that waited for it longest by prediction, without those of `from_memory`.",
    ),
    metric(
        "measured[].from_memory",
        "number",
        "Further ones that took less than half of the least time that the server needs, or less than an eighth of the predicted one: answered from memory, and not judged.",
    ),
    metric(
        "measured[].predicted_seconds",
        "seconds",
        "What they take on idle servers of the plan.",
    ),
    metric(
        "measured[].measured_seconds",
        "seconds",
        "What they took, waiting for each other included.",
    ),
    metric("measured[].ratio", "ratio or null", "Measured over predicted; null below 32 requests."),
    metric("measured[].drifted", "yes or no", "The ratio is above 1.5 or below its inverse."),
    metric(
        "trace_weight",
        "0 to 1",
        "How much the trace may be trusted, as `trace show` says it; only with `--trace`.",
    ),
];
