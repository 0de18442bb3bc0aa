//! The keys of `cluster fsck`.

use super::Metric;
use super::table::metric;

pub(super) const CLUSTER_FSCK: &[Metric] = &[
    metric(
        "[].problem",
        "word",
        "`gone`, `unlisted`, `stray`, `conflict`, `unreadable`, `unsound` or `silent`; `stray` ends by itself.",
    ),
    metric("[].node", "text", "`gone`, `unreadable`: its name."),
    metric(
        "[].files",
        "number",
        "`gone`: files that it holds alone; dirty bytes may lie on its cache.",
    ),
    metric("[].session", "number", "`unlisted`, `stray`: the session."),
    metric("[].inode", "number", "`stray`, `conflict`, `unreadable`, `unsound`: the file."),
    metric(
        "[].bytes",
        "bytes",
        "`unreadable`: dirty bytes that a live node could not read from its cache when others wanted them.",
    ),
    metric("[].one", "number", "`conflict`: one of the sessions."),
    metric("[].other", "number", "`conflict`: the other one."),
    metric(
        "[].what",
        "text",
        "`unsound`: what is wrong with the value; `silent`: which partition of the store does not answer.",
    ),
];

pub(super) const CLUSTER_FSCK_TIER: &[Metric] = &[
    metric("repaired", "bool", "Whether it was put in order (`--repair`), not only looked at."),
    metric(
        "rebuilt",
        "bool",
        "Whether the names come from the disks, because the store has none or may have forgotten some.",
    ),
    metric("named_directories", "number", "Directories that get a name in the store."),
    metric("named_files", "number", "Files that get a name in the store."),
    metric(
        "named_others",
        "number",
        "Symbolic links and special files that get a name in the store.",
    ),
    metric("missing_nodes[].node", "text", "A node whose SSD is not reached."),
    metric("missing_nodes[].why", "text", "Why it is not."),
    metric("unreached_files", "number", "Files in the store on such nodes; they keep their names."),
    metric("lost", "list", "Paths of files in the store whose bytes are not where they should be."),
    metric(
        "remade",
        "list",
        "Directories of the store that are missing on the shared disk, or elsewhere there; links, pipes and devices that are \
         not there as the store has them: of another kind, device or target, or names of one where the store has two, or the \
         reverse.",
    ),
    metric(
        "left_copies",
        "list",
        "Copies that moves left, and second places that renames left, which are removed.",
    ),
    metric(
        "left_directories",
        "list",
        "Empty directories on the shared disk that the store does not know, which are removed.",
    ),
    metric(
        "relisted",
        "list",
        "Files with which other names are listed on the disk than the store has, and directories on SSDs without the number that they have in the store; both are recorded anew.",
    ),
    metric(
        "attributes",
        "list",
        "Files and directories whose mode, owner, extended attributes, size or time in the store are not those of the disk, and what differs; the store gets the disk's.",
    ),
    metric(
        "older",
        "list",
        "Files of which the disk has an older version than the store knows, and what differs: the newer one is gone, and the store gets the older one. The status is 1 where there are some.",
    ),
    metric(
        "set_aside",
        "list",
        "Files to which no name leads, which go to `.halocline/leftovers`.",
    ),
    metric(
        "conflicts",
        "list",
        "Files that get a name with their number behind it, because something else has theirs. The status is 1 where there are some.",
    ),
    metric(
        "not_rebuilt",
        "list",
        "Names of files that a rebuild does not give back, because more users than the owner of their directory may write to the file; and files and directories with more extended attributes than the kernel lists, of which it does not give back those of programs. The status of a rebuild is 1 where there are some.",
    ),
    metric(
        "told",
        "list",
        "What does not fit together, or could not be read, and is left as it is.",
    ),
    metric(
        "may_be_older",
        "bool",
        "Whether the store may have lost its last changes without knowing it.",
    ),
    metric(
        "under_way",
        "number",
        "Differences that nodes which are mounted have yet to complete, as names that an SSD has missed; they are not told.",
    ),
    metric(
        "changed_meanwhile",
        "number",
        "Differences that were not there, or not the same, when it looked again, because nodes were at work; they are not told.",
    ),
];

pub(super) const CLUSTER_RECOVER: &[Metric] = &[
    metric("[].session", "number", "The life of the node's mount that is ended."),
    metric("[].node", "text", "The node's name."),
    metric("[].is_ended", "bool", "Whether it is ended now; false with `--dry-run`."),
    metric("[].cache", "path", "Where its cache was found."),
    metric("[].bytes", "bytes", "What was brought to the origin; 0 with `--dry-run`."),
];

pub(super) const CLUSTER_FORGET: &[Metric] = &[
    metric("[].session", "number", "The life of the node's mount that is ended."),
    metric("[].node", "text", "The node's name."),
    metric("[].is_ended", "bool", "Whether it is ended now; false with `--dry-run`."),
    metric(
        "[].files[]",
        "path",
        "A file to which it may have written last: those writes are lost. `inode NUMBER` where no name is found.",
    ),
    metric("[].is_complete", "bool", "Whether no other files can have lost any."),
];
