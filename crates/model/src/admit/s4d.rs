//! S4D-Cache as an admission policy: critical iff the origin, with a seek by distance, costs more
//! than the cache's transfer. Decided exactly once F(d) is rounded to a picosecond.

use super::{Admission, Explanation, Query, Setting, Verdict, benefit_ps, terms_of};
use crate::cost::s4d::{Judgement, Model};
use crate::layout::Layout;
use crate::request::Direction;
use crate::striping::Striping;

/// Bytes over which the longest seek goes: the papers' disk.
const SURFACE_BYTES: f64 = 250e9;

/// The policy. Seek and rotation follow from the random startup alpha (ours; a profile has no
/// seek curve): a third of it is rotation R, the rest the mean seek, and with a seek that grows
/// with the root of the distance the longest one S is 15/8 of the mean.
#[derive(Debug)]
pub(crate) struct S4d {
    read: Model,
    write: Model,
}

impl S4d {
    /// The policy for `setting`.
    pub(crate) fn new(setting: &Setting) -> Self {
        let geometry = setting.cache.geometry;
        let model = |direction| {
            let origin = setting.origin.profile.of(direction);
            let rotation_ps = origin.startup_random_ps / 3;
            Model {
                origin: setting.origin.striping(),
                cache: Striping::new(geometry.servers(), geometry.stripe()),
                rotation_ps,
                seek_max_ps: (origin.startup_random_ps - rotation_ps) / 8 * 15,
                origin_per_byte_ps: origin.per_byte_ps,
                cache_per_byte_ps: setting.cache.profile.of(direction).per_byte_ps,
            }
        };
        Self { read: model(Direction::Read), write: model(Direction::Write) }
    }

    fn ask(&self, query: &Query) -> Judgement {
        let model = match query.direction {
            Direction::Read => &self.read,
            Direction::Write => &self.write,
        };
        model.judge(query.range, query.distance.map(|d| seek_ps(d, model.seek_max_ps)))
    }
}

/// F(d): the seek over `distance` bytes.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a seek curve is an estimate; the result lies between 0 and the longest seek"
)]
fn seek_ps(distance: u64, longest_ps: u64) -> u64 {
    (longest_ps as f64 * (distance as f64 / SURFACE_BYTES).sqrt().min(1.0)) as u64
}

fn verdict(said: &Judgement, query: &Query) -> Verdict {
    Verdict {
        critical: said.critical() && !query.range.is_empty(),
        layout: Layout::OneDh,
        origin_ps: said.origin.total_ps().to_ps(),
        cache_ps: said.cache.total_ps().to_ps(),
    }
}

impl Admission for S4d {
    fn name(&self) -> &'static str {
        "s4d"
    }

    fn judge(&self, query: &Query) -> Verdict {
        verdict(&self.ask(query), query)
    }

    fn explain(&self, query: &Query) -> Explanation {
        let said = self.ask(query);
        let Verdict { critical, layout, origin_ps, cache_ps } = verdict(&said, query);
        let relation = if critical { "longer" } else { "no longer" };
        Explanation {
            policy: self.name().to_owned(),
            processes: query.processes,
            critical,
            reason: format!(
                "the origin takes {relation} than the cache: seek and rotation there, transfer alone here"
            ),
            layout: Some(layout),
            costs: vec![terms_of(&said.origin, None), terms_of(&said.cache, Some(layout))],
            benefit_ps: benefit_ps(origin_ps, cache_ps),
        }
    }
}
