//! `layout.*`: which servers a request touches.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{SIZE_MAX, servers, within};
use crate::layout::{CacheGeometry, Layout};
use crate::request::ByteRange;
use crate::striping::{Striping, VariedStriping};

/// A checked request of `r` bytes at `f`.
pub(super) fn range(f: u64, r: u64) -> Result<ByteRange, String> {
    Ok(ByteRange::at(within("f", f, 0, SIZE_MAX)?, within("r", r, 0, SIZE_MAX)?))
}

/// A checked stripe.
pub(super) fn stripe(str: u64) -> Result<u64, String> {
    within("str", str, 1, SIZE_MAX)
}

/// The parts of a request that are not empty, numbered from `first`.
fn per_server(first: u64, parts: impl Iterator<Item = ByteRange>) -> Vec<Value> {
    (first..)
        .zip(parts)
        .filter(|(_, part)| !part.is_empty())
        .map(|(server, part)| {
            json!({"server": server, "local_offset": part.start, "length": part.len()})
        })
        .collect()
}

fn uniform_parts(first: u32, striping: Striping, range: ByteRange) -> Vec<Value> {
    let parts = (0..striping.servers()).map(|server| striping.local_range(server, range));
    per_server(u64::from(first), parts)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Uniform {
    f: u64,
    r: u64,
    str: u64,
    #[serde(rename = "M")]
    servers: u64,
}

impl Uniform {
    pub(super) fn answer(&self) -> Result<Value, String> {
        let striping = Striping::new(servers("M", self.servers)?, stripe(self.str)?);
        let range = range(self.f, self.r)?;
        let shape = striping.shape(range);
        let parts = uniform_parts(0, striping, range);
        Ok(json!({"m": shape.servers, "s_m": shape.largest, "per_server": parts}))
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Varied {
    widths: Vec<u64>,
    f: u64,
    r: u64,
}

impl Varied {
    pub(super) fn answer(self) -> Result<Value, String> {
        let range = range(self.f, self.r)?;
        let striping = VariedStriping::new(self.widths)
            .ok_or("the widths are all 0, or their sum is too large")?;
        let parts = (0..striping.servers()).map(|server| striping.local_range(server, range));
        let parts = per_server(0, parts);
        Ok(json!({"touched": parts.len(), "per_server": parts}))
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Grouped {
    #[serde(rename = "N")]
    servers: u64,
    g: u64,
    owner: u32,
    str: u64,
    f: u64,
    r: u64,
}

impl Grouped {
    pub(super) fn answer(&self) -> Result<Value, String> {
        let (count, groups) = (servers("N", self.servers)?, servers("g", self.g)?);
        let geometry = CacheGeometry::new(count, stripe(self.str)?, groups);
        if geometry.groups().is_none() {
            return Err(format!(
                "g is {groups}: it must divide N, {count}, and lie between 1 and N"
            ));
        }
        let placement = geometry.place(Layout::TwoD, self.owner);
        let (first, striping) = geometry.resolve(placement);
        let range = range(self.f, self.r)?;
        let shape = striping.shape(range);
        let members: Vec<u32> = (first..first + striping.servers()).collect();
        Ok(json!({
            "group": placement.group,
            "group_servers": members,
            "m": shape.servers,
            "s_m": shape.largest,
            "per_server": uniform_parts(first, striping, range),
        }))
    }
}
