//! The policies that ignore the request: `always` (the papers' NSCA: everything is critical and striped over all cache
//! servers) and `never` (programs run on the origin; bytes that are already cached are still used).

use super::forecast::Forecast;
use super::{Admission, Explanation, Query, Setting, Verdict, benefit_ps};
use crate::layout::Layout;

/// Either of the two policies.
#[derive(Debug)]
pub(crate) struct Unconditional {
    setting: Setting,
    admits: bool,
}

impl Unconditional {
    /// `always`. Only what it explains depends on `setting`.
    pub(crate) fn always(setting: &Setting) -> Self {
        Self { setting: setting.clone(), admits: true }
    }

    /// `never`. Only what it explains depends on `setting`.
    pub(crate) fn never(setting: &Setting) -> Self {
        Self { setting: setting.clone(), admits: false }
    }

    fn forecasts(&self, query: &Query) -> (Forecast, Forecast) {
        let cache = Forecast::cache(&self.setting.cache, Layout::OneDh, query);
        (Forecast::origin(&self.setting.origin, query), cache.unwrap_or_default())
    }
}

impl Admission for Unconditional {
    fn name(&self) -> &'static str {
        if self.admits { "always" } else { "never" }
    }

    fn judge(&self, query: &Query) -> Verdict {
        Verdict {
            critical: self.admits && !query.range.is_empty(),
            layout: Layout::OneDh,
            origin_ps: 0,
            cache_ps: 0,
        }
    }

    fn explain(&self, query: &Query) -> Explanation {
        let (origin, cache) = self.forecasts(query);
        let Verdict { critical, layout, .. } = self.judge(query);
        let what = if self.admits { "everything" } else { "nothing" };
        Explanation {
            policy: self.name().to_owned(),
            processes: query.processes,
            critical,
            reason: format!("this policy admits {what}"),
            layout: Some(layout),
            costs: vec![origin.terms(None, 1.0), cache.terms(Some(layout), 1.0)],
            benefit_ps: benefit_ps(origin.total_ps(1.0), cache.total_ps(1.0)),
        }
    }
}
