//! `tier.replay`: whole-file policies over a sequence of references.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{SIZE_MAX, within};
use crate::tier::{self, Step, Trace};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Replay {
    policy: String,
    /// Whether the policy knows the references to come.
    #[serde(default = "announced")]
    announced: bool,
    capacity: u64,
    sizes: BTreeMap<String, u64>,
    refs: Vec<String>,
}

const fn announced() -> bool {
    true
}

impl Replay {
    fn trace(&self) -> Result<Trace, String> {
        let names: Vec<String> = self.sizes.keys().cloned().collect();
        let mut total = 0u64;
        for (name, size) in &self.sizes {
            total =
                total.saturating_add(within(&format!("the size of {name}"), *size, 0, SIZE_MAX)?);
        }
        let passes = u64::try_from(self.refs.len()).unwrap_or(u64::MAX);
        within(
            "the size of all files times the number of references",
            total.saturating_mul(passes),
            0,
            u64::MAX - 1,
        )?;
        let find = |name: &String| {
            names.binary_search(name).map_err(|_| format!("the file {name} has no size"))
        };
        Ok(Trace {
            capacity: within("capacity", self.capacity, 0, SIZE_MAX)?,
            sizes: self.sizes.values().copied().collect(),
            refs: self.refs.iter().map(find).collect::<Result<_, _>>()?,
            names,
        })
    }

    pub(super) fn answer(&self) -> Result<Value, String> {
        let mut policy = tier::by_name(&self.policy).map_err(|unknown| unknown.to_string())?;
        let trace = self.trace()?;
        let done = tier::replay_with(&trace, self.announced, policy.as_mut());
        let name = |file: &usize| trace.names[*file].as_str();
        let steps = done.steps.iter().map(|step| match step {
            Step::Hit(file) => json!(["hit", name(file), []]),
            Step::Bypass(file) => json!(["bypass", name(file), []]),
            Step::Admit(file, leaving) => {
                json!(["admit", name(file), leaving.iter().map(name).collect::<Vec<_>>()])
            }
        });
        Ok(json!({
            "read": done.read,
            "evicted": done.evicted,
            "hits": done.hits,
            "steps": steps.collect::<Vec<_>>(),
            "final": done.cached.iter().map(name).collect::<Vec<_>>(),
        }))
    }
}
