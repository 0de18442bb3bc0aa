//! Options of servers and layouts.

use super::{OptionSpec, option};
use crate::config::bounds::{BLOCK, SERVERS, STRIPE};
use crate::config::scope::Scope;
use crate::config::units::{Kind, format_bytes};
use crate::config::values::{count, put, stripe, volume, volume_text};

const VOLUMES: &[&str] = &["plain", "striped"];

/// In the order of the documentation.
pub(super) const ROWS: &[OptionSpec] = &[
    option!(
        "origin_volume",
        Volumes,
        Kind::Word(VOLUMES),
        |c| volume_text(c.origin.kind).into(),
        |c, v| put(&mut c.origin.kind, volume(v)),
        "How the origin's servers are found. `plain`: one directory, a local disk or a mounted \
         parallel file system. `striped`: Halocline stripes over servers in sub-directories."
    ),
    option!(
        "origin_servers",
        Volumes,
        Kind::Count(SERVERS),
        |c| c.origin.servers.to_string(),
        |c, v| put(&mut c.origin.servers, count(v, SERVERS)),
        "Number of origin servers, M of the cost model. For a plain origin this is the server \
         count of the parallel file system mounted there."
    ),
    option!(
        "origin_stripe",
        Volumes,
        Kind::Bytes { bounds: STRIPE, step: BLOCK },
        |c| format_bytes(c.origin.stripe),
        |c, v| put(&mut c.origin.stripe, stripe(v)),
        "Stripe of the origin."
    ),
    option!(
        "cache_volume",
        Volumes,
        Kind::Word(VOLUMES),
        |c| volume_text(c.cache.kind).into(),
        |c, v| put(&mut c.cache.kind, volume(v)),
        "How the cache's servers are found. As for the origin."
    ),
    option!(
        "cache_servers",
        Volumes,
        Kind::Count(SERVERS),
        |c| c.cache.servers.to_string(),
        |c, v| put(&mut c.cache.servers, count(v, SERVERS)),
        "Number of cache servers, N of the cost model."
    ),
    option!(
        "cache_stripe",
        Volumes,
        Kind::Bytes { bounds: STRIPE, step: BLOCK },
        |c| format_bytes(c.cache.stripe),
        |c, v| put(&mut c.cache.stripe, stripe(v)),
        "Stripe of the cache."
    ),
    option!(
        "groups",
        Volumes,
        Kind::Count(SERVERS),
        |c| c.groups.to_string(),
        |c, v| put(&mut c.groups, count(v, SERVERS)),
        "Groups g of the 2-D layout. 2-D is a candidate only where g is more than 1, less than the \
         number of cache servers, and divides it."
    ),
];
