//! `cost.*`: the papers' cost models.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::layout::{range, stripe};
use super::{PER_BYTE_MAX_PS, PROCESSES_MAX, TIME_MAX_PS, servers, time, whole, within};
use crate::cost::sla::{Formulas, Model, Server};
use crate::cost::{Cost, s4d};
use crate::layout::CacheGeometry;
use crate::striping::Striping;

fn terms(cost: &Cost) -> Value {
    json!({
        "m": cost.servers,
        "s": largest(cost),
        "a_ps": whole(cost.least_ps),
        "b_ps": whole(cost.greatest_ps),
        "T": time(cost.total_ps()),
    })
}

/// `s_m` as a number: 64 bits hold any that bounded inputs can give.
fn largest(cost: &Cost) -> Value {
    i64::try_from(cost.largest).map_or(Value::Null, Value::from)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Sla {
    #[serde(rename = "mode", default = "repaired")]
    formulas: Formulas,
    f: u64,
    r: u64,
    str: u64,
    #[serde(rename = "M")]
    origin: u64,
    #[serde(rename = "N")]
    cache: u64,
    p: u64,
    #[serde(default)]
    g: u64,
    #[serde(rename = "alpha_H_ps")]
    origin_startup_ps: u64,
    #[serde(rename = "beta_H_ps_per_byte")]
    origin_per_byte_ps: u64,
    #[serde(rename = "alpha_S_ps")]
    cache_startup_ps: u64,
    #[serde(rename = "beta_S_ps_per_byte")]
    cache_per_byte_ps: u64,
}

fn repaired() -> Formulas {
    Formulas::Repaired
}

impl Sla {
    fn model(&self) -> Result<Model, String> {
        let stripe = stripe(self.str)?;
        let groups = within("g", self.g, 0, super::SERVERS_MAX)?;
        let groups = u32::try_from(groups).map_err(|error| error.to_string())?;
        Ok(Model {
            formulas: self.formulas,
            origin: Striping::new(servers("M", self.origin)?, stripe),
            origin_server: Server {
                startup_ps: within("alpha_H_ps", self.origin_startup_ps, 0, TIME_MAX_PS)?,
                per_byte_ps: within(
                    "beta_H_ps_per_byte",
                    self.origin_per_byte_ps,
                    0,
                    PER_BYTE_MAX_PS,
                )?,
            },
            cache: CacheGeometry::new(servers("N", self.cache)?, stripe, groups),
            cache_server: Server {
                startup_ps: within("alpha_S_ps", self.cache_startup_ps, 0, TIME_MAX_PS)?,
                per_byte_ps: within(
                    "beta_S_ps_per_byte",
                    self.cache_per_byte_ps,
                    0,
                    PER_BYTE_MAX_PS,
                )?,
            },
        })
    }

    pub(super) fn answer(&self) -> Result<Value, String> {
        let processes = within("p", self.p, 0, PROCESSES_MAX)?;
        let processes = u32::try_from(processes).map_err(|error| error.to_string())?;
        let said = self.model()?.judge(range(self.f, self.r)?, processes);
        let least = said.best_cost().total_ps();
        let (mut costs, mut benefits, mut best_set) = (Map::new(), Map::new(), Vec::new());
        for (layout, cost) in said.candidates() {
            let benefit = said.origin.total_ps() - cost.total_ps();
            costs.insert(layout.name().to_owned(), terms(&cost));
            benefits.insert(layout.name().to_owned(), time(benefit));
            if cost.total_ps() == least {
                best_set.push(layout.name());
            }
        }
        Ok(json!({
            "H": terms(&said.origin),
            "S": costs,
            "B": benefits,
            "best_layout": said.best.name(),
            "best_set": best_set,
            "critical": said.critical(),
        }))
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct S4d {
    f: u64,
    r: u64,
    str: u64,
    #[serde(rename = "M")]
    origin: u64,
    #[serde(rename = "N")]
    cache: u64,
    /// Absent or null for the first request of a process.
    #[serde(rename = "F_d_ps", default)]
    seek_ps: Option<u64>,
    #[serde(rename = "R_ps")]
    rotation_ps: u64,
    #[serde(rename = "S_ps")]
    seek_max_ps: u64,
    #[serde(rename = "beta_D_ps_per_byte")]
    origin_per_byte_ps: u64,
    #[serde(rename = "beta_C_ps_per_byte")]
    cache_per_byte_ps: u64,
}

impl S4d {
    pub(super) fn answer(&self) -> Result<Value, String> {
        let stripe = stripe(self.str)?;
        let per_byte = |name, value| within(name, value, 0, PER_BYTE_MAX_PS);
        let model = s4d::Model {
            origin: Striping::new(servers("M", self.origin)?, stripe),
            cache: Striping::new(servers("N", self.cache)?, stripe),
            rotation_ps: within("R_ps", self.rotation_ps, 0, TIME_MAX_PS)?,
            seek_max_ps: within("S_ps", self.seek_max_ps, 0, TIME_MAX_PS)?,
            origin_per_byte_ps: per_byte("beta_D_ps_per_byte", self.origin_per_byte_ps)?,
            cache_per_byte_ps: per_byte("beta_C_ps_per_byte", self.cache_per_byte_ps)?,
        };
        let said = model.judge(range(self.f, self.r)?, self.seek_ps);
        Ok(json!({
            "m": said.origin.servers,
            "s_m": largest(&said.origin),
            "n": said.cache.servers,
            "s_n": largest(&said.cache),
            "a_ps": whole(said.origin.least_ps),
            "b_ps": whole(said.origin.greatest_ps),
            "T_D": time(said.origin.total_ps()),
            "T_C": time(said.cache.total_ps()),
            "B": time(said.benefit_ps()),
            "critical": said.critical(),
        }))
    }
}
