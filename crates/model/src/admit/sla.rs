//! SLA-Cache as an admission policy: critical iff the best layout's benefit is positive. Decided
//! exactly.

use super::{Admission, Explanation, Query, Setting, Verdict, benefit_ps, terms_of};
use crate::cost::sla::{Formulas, Judgement, Model, Server};
use crate::profile::{DeviceProfile, ServiceProfile};
use crate::request::Direction;

/// The policy, with one of the two forms of the formulas. Its alphas are the random startups: the model has one
/// startup a server.
#[derive(Debug)]
pub(crate) struct Sla {
    read: Model,
    write: Model,
}

impl Sla {
    /// The policy for `setting`.
    pub(crate) fn new(setting: &Setting, formulas: Formulas) -> Self {
        let server = |profile: &DeviceProfile, direction| {
            let ServiceProfile { startup_random_ps, per_byte_ps, .. } = *profile.of(direction);
            Server { startup_ps: startup_random_ps, per_byte_ps }
        };
        let model = |direction| Model {
            formulas,
            origin: setting.origin.striping(),
            origin_server: server(&setting.origin.profile, direction),
            cache: setting.cache.geometry,
            cache_server: server(&setting.cache.profile, direction),
        };
        Self { read: model(Direction::Read), write: model(Direction::Write) }
    }

    fn ask(&self, query: &Query) -> Judgement {
        let model = match query.direction {
            Direction::Read => &self.read,
            Direction::Write => &self.write,
        };
        model.judge(query.range, query.processes)
    }
}

fn verdict(said: &Judgement, query: &Query) -> Verdict {
    Verdict {
        critical: said.critical() && !query.range.is_empty(),
        layout: said.best,
        origin_ps: said.origin.total_ps().to_ps(),
        cache_ps: said.best_cost().total_ps().to_ps(),
    }
}

impl Admission for Sla {
    fn name(&self) -> &'static str {
        match self.read.formulas {
            Formulas::Repaired => "sla",
            Formulas::AsPrinted => "sla-paper",
        }
    }

    fn judge(&self, query: &Query) -> Verdict {
        verdict(&self.ask(query), query)
    }

    fn explain(&self, query: &Query) -> Explanation {
        let said = self.ask(query);
        let Verdict { critical, layout, origin_ps, cache_ps } = verdict(&said, query);
        let relation = if critical { "less" } else { "no less" };
        let mut costs = vec![terms_of(&said.origin, None)];
        costs.extend(said.candidates().map(|(layout, cost)| terms_of(&cost, Some(layout))));
        Explanation {
            policy: self.name().to_owned(),
            processes: query.processes,
            critical,
            reason: format!(
                "the cache costs {relation} than the origin: its best layout is {}",
                layout.title()
            ),
            layout: Some(layout),
            costs,
            benefit_ps: benefit_ps(origin_ps, cache_ps),
        }
    }
}
