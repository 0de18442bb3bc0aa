//! How much of the origin low-priority work may use, because programs and other nodes use it, too.
//!
//! This limits fetches, and flushes that nobody waits for. It does not limit flushes that somebody waits for: of bytes
//! that another node wants, for room for programs, or on request.

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

    /// How long one of `workers` rests after it `worked` for this long.
    pub(crate) fn rest(&self, worked: Duration, workers: u32) -> Duration {
        self.now().rest(worked, workers, !self.origin.is_idle())
    }

    /// How long work that gets one part in `of_time` of the origin's time pauses after it `worked` for this long.
    pub(crate) fn pause(&self, worked: Duration, of_time: u32) -> Duration {
        self.now().pause(worked, of_time)
    }
}
