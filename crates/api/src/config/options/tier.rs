//! Options of file tiers.

use super::{OptionSpec, option};
use crate::config::scope::Scope;
use crate::config::units::{Kind, format_duration, parse_duration};
use crate::config::values::{copies, copies_text, percent, put, size, size_text, tiers};

const COPIES: &[&str] = &["none", "keep", "archive"];

/// In the order of the documentation.
pub(super) const ROWS: &[OptionSpec] = &[
    option!(
        "ssd_limit",
        Tier,
        Kind::Size(1),
        |c| size_text(c.ssd_limit),
        |c, v| put(&mut c.ssd_limit, size(v, 1)),
        "Limit of the files on the SSD. Bytes on disk, or a share of its file system. Writes that \
         do not fit go to the next tier."
    ),
    option!(
        "tier_high",
        Tier,
        Kind::Percent,
        |c| format!("{}%", c.tier_high),
        |c, v| put(&mut c.tier_high, percent(v)),
        "Share of the limit above which files are demoted in the background."
    ),
    option!(
        "tier_low",
        Tier,
        Kind::Percent,
        |c| format!("{}%", c.tier_low),
        |c, v| put(&mut c.tier_low, percent(v)),
        "Share of the limit down to which files are demoted in the background."
    ),
    option!(
        "tier_attr_timeout",
        Tier,
        Kind::Duration,
        |c| format_duration(c.tier_attr_timeout),
        |c, v| put(&mut c.tier_attr_timeout, parse_duration(v)),
        "How long the kernel may keep names and attributes of a file tier. Only the mount changes \
         them. 0s where the directories are also changed behind it."
    ),
    option!(
        "tiers",
        Tier,
        Kind::Names,
        |c| c.tiers.join("\n"),
        |c, v| tiers(&mut c.tiers, v),
        "Names of the tiers' directories below the root, fastest first. The first holds the tree \
         of names."
    ),
    option!(
        "copies",
        Tier,
        Kind::Word(COPIES),
        |c| copies_text(c.copies).into(),
        |c, v| put(&mut c.copies, copies(v)),
        "Which copies of files on the SSD are kept on the disk. `none`: a file is on one tier. \
         `keep`: what is promoted keeps the disk's copy until it is changed, and a demote of it \
         moves no bytes. `archive`: besides, what is new or changed is copied in the background, \
         so that the loss of the SSD loses only what was changed last. Copies give way where the \
         disk is full. A tier that nodes share takes `none` and `archive`."
    ),
    option!(
        "archive_after",
        Tier,
        Kind::Duration,
        |c| format_duration(c.archive_after),
        |c, v| put(&mut c.archive_after, parse_duration(v)),
        "With `copies = archive`: how long a file is left alone by writers before it is copied."
    ),
    option!(
        "passthrough",
        Tier,
        Kind::Bool,
        |c| c.passthrough.to_string(),
        |c, v| put(&mut c.passthrough, v.parse().ok()),
        "Let the kernel serve open files on the SSD by itself. It needs root and Linux 6.9; \
         otherwise, and where the SSD lacks room, the mount process serves them."
    ),
    option!(
        "passthrough_writes",
        Tier,
        Kind::Bool,
        |c| c.passthrough_writes.to_string(),
        |c, v| put(&mut c.passthrough_writes, v.parse().ok()),
        "Let the kernel also serve files that are opened for writing, while the SSD has ample \
         room: overwrites in place are faster. A file that grows nevertheless may pass the SSD's \
         limit, and fails with ENOSPC where the SSD is full."
    ),
];
