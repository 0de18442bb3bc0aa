//! What low-priority work may use of the origin, which programs and other nodes use, too.
//!
//! For flushes that nobody waits for, and for fetches. What must be on the origin before somebody can go on (bytes that
//! another node wants, room for programs, a flush that was asked for) asks nothing here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bon::Builder;
use halocline_model::background::{Share, Use};

use crate::coherence::Coherence;
use crate::origin_access::OriginAccess;

/// Decides how long low-priority work rests.
#[derive(Debug, Builder)]
pub(crate) struct OriginShare {
    origin: Arc<OriginAccess>,
    #[builder(required)]
    coherence: Option<Arc<dyn Coherence>>,
    /// Whether there is such work.
    #[builder(skip)]
    works: AtomicBool,
}

impl OriginShare {
    /// Notes whether there is low-priority work, for the other nodes.
    pub(crate) fn note(&self, works: bool) {
        self.works.store(works, Ordering::Relaxed);
        let _ = self.now();
    }

    fn now(&self) -> Share {
        let Some(coherence) = &self.coherence else { return Share::WHOLE };
        let (works, serves) = (self.works.load(Ordering::Relaxed), !self.origin.is_idle());
        coherence.share(Use { works, serves })
    }

    /// Whether no program uses the origin, here or, as far as is known, on other nodes.
    pub(crate) fn is_idle(&self) -> bool {
        self.origin.is_idle() && !self.now().others_serve
    }

    /// How long one of `workers` rests after having `worked` so long.
    pub(crate) fn rest(&self, worked: Duration, workers: u32) -> Duration {
        self.now().rest(worked, workers, !self.origin.is_idle())
    }

    /// After how long work that gets one part in `of_time` of the origin's time goes on.
    pub(crate) fn pause(&self, worked: Duration, of_time: u32) -> Duration {
        self.now().pause(worked, of_time)
    }
}
