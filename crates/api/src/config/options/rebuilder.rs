//! Options of background transfers.

use super::{OptionSpec, option};
use crate::config::bounds::{RATE, SERVERS};
use crate::config::scope::Scope;
use crate::config::units::{Kind, format_bytes, format_duration, parse_bytes, parse_duration};
use crate::config::values::{count, hours, percent, put};

/// In the order of the documentation.
pub(super) const ROWS: &[OptionSpec] = &[
    option!(
        "rebuild",
        Rebuilder,
        Kind::Bool,
        |c| c.rebuild.to_string(),
        |c, v| put(&mut c.rebuild, v.parse().ok()),
        "Flush and fetch in the background. Without it dirty data is flushed by `halocline flush` \
         and at unmount only."
    ),
    option!(
        "fill",
        Rebuilder,
        Kind::Bool,
        |c| c.fill.to_string(),
        |c, v| put(&mut c.fill, v.parse().ok()),
        "Put what programs read again on the cache, from the bytes they were given: it costs the \
         origin nothing, however busy it is. Only what the policy admits; where something else has \
         to leave for it, only what is read more often, and not more than an eighth of what is read."
    ),
    option!(
        "max_dirty_age",
        Rebuilder,
        Kind::Duration,
        |c| format_duration(c.max_dirty_age),
        |c, v| put(&mut c.max_dirty_age, parse_duration(v)),
        "Age at which dirty data is flushed, oldest first, whatever programs do."
    ),
    option!(
        "dirty_high",
        Rebuilder,
        Kind::Percent,
        |c| format!("{}%", c.dirty_high),
        |c, v| put(&mut c.dirty_high, percent(v)),
        "Share of the cache above which dirty data is flushed at once."
    ),
    option!(
        "flush_window",
        Rebuilder,
        Kind::Hours,
        |c| c.flush_window.map_or_else(|| "always".into(), |hours| hours.to_string()),
        |c, v| hours(&mut c.flush_window, v),
        "Hours of the local day in which dirty data is flushed. Outside them only what passes \
         `max_dirty_age` or `dirty_high` is."
    ),
    option!(
        "rebuild_rate",
        Rebuilder,
        Kind::Bytes { bounds: RATE, step: 1 },
        |c| format_bytes(c.rebuild_rate),
        |c, v| put(&mut c.rebuild_rate, parse_bytes(v)),
        "Bytes a second the rebuilder moves while programs use the origin. 0 is no limit: it then \
         only yields to programs."
    ),
    option!(
        "flush_workers",
        Rebuilder,
        Kind::Count(SERVERS),
        |c| c.flush_workers.to_string(),
        |c, v| put(&mut c.flush_workers, count(v, SERVERS)),
        "Regions of the origin that are flushed at the same time."
    ),
];
