//! Turns a policy's terms into the answer of `explain`.

use halocline_model::admit;

use crate::control::{CostTerms, Explanation, Side};

/// Picoseconds as seconds.
#[expect(clippy::cast_precision_loss, reason = "a number for people")]
fn seconds(picoseconds: u64) -> f64 {
    picoseconds as f64 / 1e12
}

/// The answer to a question whose request has `cached_bytes` on the cache already.
pub(super) fn explanation(terms: &admit::Explanation, cached_bytes: u64) -> Explanation {
    #[expect(clippy::cast_precision_loss, reason = "a number for people")]
    let benefit_s = terms.benefit_ps as f64 / 1e12;
    Explanation {
        policy: terms.policy.clone(),
        processes: terms.processes,
        cached_bytes,
        decision: if terms.critical { Side::Cache } else { Side::Origin },
        reason: terms.reason.clone(),
        layout: terms.layout,
        costs: terms.costs.iter().map(cost).collect(),
        benefit_s,
    }
}

fn cost(terms: &admit::CostTerms) -> CostTerms {
    CostTerms {
        side: if terms.on_cache { Side::Cache } else { Side::Origin },
        layout: terms.layout,
        servers: terms.servers,
        largest_part_bytes: terms.largest_part_bytes,
        startup_s: seconds(terms.startup_ps),
        transfer_s: seconds(terms.transfer_ps),
        total_s: seconds(terms.total_ps),
    }
}
