//! `always` (the papers' NSCA) and `never`: baselines that look at nothing.

use super::adaptive::Adaptive;
use super::{Admission, Explanation, Query, Setting, Verdict};

/// A policy with one answer; its predictions are those of `adaptive`, for reports.
#[derive(Debug)]
pub struct Fixed {
    name: &'static str,
    critical: bool,
    model: Adaptive,
}

impl Fixed {
    /// Admits everything.
    pub fn always(setting: Setting) -> Self {
        Self { name: "always", critical: true, model: Adaptive::new(setting) }
    }

    /// Admits nothing.
    pub fn never(setting: Setting) -> Self {
        Self { name: "never", critical: false, model: Adaptive::new(setting) }
    }
}

impl Admission for Fixed {
    fn name(&self) -> &'static str {
        self.name
    }

    fn judge(&self, query: &Query) -> Verdict {
        Verdict { critical: self.critical, ..self.model.judge(query) }
    }

    fn explain(&self, query: &Query) -> Explanation {
        Explanation {
            policy: self.name.to_owned(),
            critical: self.critical,
            reason: format!(
                "policy {} admits {}",
                self.name,
                if self.critical { "all" } else { "nothing" }
            ),
            ..self.model.explain(query)
        }
    }
}
