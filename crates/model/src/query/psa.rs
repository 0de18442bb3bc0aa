//! `psa.*`: varied stripes.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{PROCESSES_MAX, SIZE_MAX, TIME_MAX_PS, time, within};
use crate::psa::{self, Candidate, Kind, Task};

/// Limit of requests and stripes: 256 GiB. The totals of whole traces need tighter limits than the costs of single
/// requests.
const BYTES_MAX: u64 = 1 << 38;
/// Limit of the times of one byte: 16 microseconds.
const PER_BYTE_MAX_PS: u64 = 1 << 24;
/// Limit of the servers of one class.
const SERVERS_MAX: u64 = 1024;
/// Limit of the number of requests.
const REQUESTS_MAX: u64 = 1 << 20;
/// Limit of the candidates of one plan.
const CANDIDATES_MAX: u64 = 1 << 20;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    p: u64,
    c: u64,
    m: u64,
    n: u64,
    e_ps: u64,
    t_ps_per_byte: u64,
    alpha_h_ps: u64,
    beta_h_ps_per_byte: u64,
    alpha_s_ps: u64,
    beta_s_ps_per_byte: u64,
}

impl Params {
    fn checked(&self) -> Result<psa::Params, String> {
        let per_byte = |name, value| within(name, value, 0, PER_BYTE_MAX_PS);
        let time = |name, value| within(name, value, 0, TIME_MAX_PS);
        Ok(psa::Params {
            p: within("p", self.p, 1, PROCESSES_MAX)?,
            c: within("c", self.c, 0, PROCESSES_MAX)?,
            m: within("m", self.m, 1, SERVERS_MAX)?,
            n: within("n", self.n, 1, SERVERS_MAX)?,
            e_h_ps: time("e_ps", self.e_ps)?,
            t_h_ps_per_byte: per_byte("t_ps_per_byte", self.t_ps_per_byte)?,
            e_s_ps: self.e_ps,
            t_s_ps_per_byte: self.t_ps_per_byte,
            alpha_h_ps: time("alpha_h_ps", self.alpha_h_ps)?,
            beta_h_ps_per_byte: per_byte("beta_h_ps_per_byte", self.beta_h_ps_per_byte)?,
            alpha_s_ps: time("alpha_s_ps", self.alpha_s_ps)?,
            beta_s_ps_per_byte: per_byte("beta_s_ps_per_byte", self.beta_s_ps_per_byte)?,
        })
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Cell {
    params: Params,
    #[serde(rename = "S")]
    size: u64,
    h: u64,
    s: u64,
}

impl Cell {
    pub(super) fn answer(&self) -> Result<Value, String> {
        let params = self.params.checked()?;
        let size = within("S", self.size, 1, BYTES_MAX)?;
        let (h, s) = (within("h", self.h, 0, BYTES_MAX)?, within("s", self.s, 0, BYTES_MAX)?);
        Ok(json!({
            "T_het": time(params.heterogeneous_ps(size, h, s)),
            "T_hom": time(params.homogeneous_ps(size)),
        }))
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Plan {
    params: Params,
    #[serde(rename = "S")]
    size: u64,
    #[serde(rename = "Cs_per_sserver")]
    sserver_bytes: u64,
    k: u64,
    #[serde(default = "four_kib")]
    step: u64,
}

fn four_kib() -> u64 {
    4096
}

fn triple(candidate: &Candidate) -> Value {
    json!([candidate.h, candidate.s, candidate.j])
}

impl Plan {
    pub(super) fn answer(&self) -> Result<Value, String> {
        let params = self.params.checked()?;
        let task = Task {
            size: within("S", self.size, 1, BYTES_MAX)?,
            k: within("k", self.k, 0, REQUESTS_MAX)?,
            sserver_bytes: within("Cs_per_sserver", self.sserver_bytes, 0, SIZE_MAX)?,
            step: within("step", self.step, 1, BYTES_MAX)?,
        };
        within("S / (m * step)", task.size / params.m / task.step, 0, CANDIDATES_MAX)?;
        let candidates = params.candidates(&task);
        let ties = psa::ties(&candidates);
        let least = candidates.iter().map(|candidate| candidate.total_ps).min();
        let pa = |allow_zero| {
            params
                .performance_aware(&task, allow_zero)
                .map(|(h, s, cost)| json!({"h": h, "s": s, "T_het": time(cost)}))
        };
        Ok(json!({
            "candidates": candidates.len(),
            "best_total": least.map(time),
            "argmin_1e9": ties.iter().map(triple).collect::<Vec<_>>(),
            "choice_first": ties.first().map(triple),
            "choice_last": ties.last().map(triple),
            "T_hom": time(params.homogeneous_ps(task.size)),
            "pa_allow_zero": pa(true),
            "pa_no_zero": pa(false),
        }))
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    offset: u64,
    length: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Classify {
    #[serde(rename = "S")]
    size: u64,
    j: u64,
    requests: Vec<Request>,
}

impl Classify {
    pub(super) fn answer(&self) -> Result<Value, String> {
        let size = within("S", self.size, 1, SIZE_MAX)?;
        let kinds = self.requests.iter().map(|request| {
            match psa::classify(request.offset, request.length, self.j, size) {
                Kind::Heterogeneous => "het",
                Kind::Homogeneous => "hom",
                Kind::Straddling => "straddle",
            }
        });
        Ok(json!({"types": kinds.collect::<Vec<_>>()}))
    }
}
