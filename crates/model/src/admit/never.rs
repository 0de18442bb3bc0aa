//! Nothing is critical: programs run on the origin, what is cached already is still used.

use super::forecast::Forecast;
use super::{Admission, Explanation, Query, Setting, Verdict, benefit_ps};
use crate::layout::Layout;

/// The policy.
#[derive(Debug)]
pub struct Never {
    setting: Setting,
}

impl Never {
    /// The policy for `setting`, which only its predictions depend on.
    pub fn new(setting: &Setting) -> Self {
        Self { setting: setting.clone() }
    }

    fn forecasts(&self, query: &Query) -> (Forecast, Forecast) {
        let cache = Forecast::cache(&self.setting.cache, Layout::OneDh, query);
        (Forecast::origin(&self.setting.origin, query), cache.unwrap_or_default())
    }
}

impl Admission for Never {
    fn name(&self) -> &'static str {
        "never"
    }

    fn judge(&self, query: &Query) -> Verdict {
        let (origin, cache) = self.forecasts(query);
        Verdict {
            critical: false,
            layout: Layout::OneDh,
            origin_ps: origin.total_ps(1.0),
            cache_ps: cache.total_ps(1.0),
        }
    }

    fn explain(&self, query: &Query) -> Explanation {
        let (origin, cache) = self.forecasts(query);
        let Verdict { critical, layout, origin_ps, cache_ps } = self.judge(query);
        Explanation {
            policy: self.name().to_owned(),
            processes: query.processes,
            critical,
            reason: "this policy admits nothing".to_owned(),
            layout: Some(layout),
            costs: vec![origin.terms(None, 1.0), cache.terms(Some(layout), 1.0)],
            benefit_ps: benefit_ps(origin_ps, cache_ps),
        }
    }
}
