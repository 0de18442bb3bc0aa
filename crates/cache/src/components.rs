//! The components of an extent engine, wired together from the bottom up.
//!
//! Each knows only those that are made before it: calls go one way.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Instant;

use crate::barriers::Barriers;
use crate::degrade::Relief;
use crate::discard::Discards;
use crate::external_changes::ExternalChanges;
use crate::fetch::Fetcher;
use crate::fill::Fills;
use crate::flush::Flusher;
use crate::flush::Sweeper;
use crate::foundation::Foundation;
use crate::globs::Globs;
use crate::handle::Opener;
use crate::identify::Identifier;
use crate::known_files::KnownFiles;
use crate::lifecycle::Lifecycle;
use crate::mappings::Mappings;
use crate::own_changes::OwnChanges;
use crate::page_cache_passthrough::PageCachePassthrough;
use crate::permits::Permits;
use crate::rebuild::Rounds;
use crate::recover::Recoverer;
use crate::redirect::Redirector;
use crate::repair::Repair;
use crate::resize::Resizer;
use crate::space::OriginSpace;
use crate::times::Times;
use crate::yields::Yields;
use halocline_meta::lease::{Evidence, Lease};

/// The components that a front end and commands call, over their foundation.
#[derive(Debug)]
pub(crate) struct Components {
    base: Foundation,
    pub(crate) identifier: Arc<Identifier>,
    pub(crate) mappings: Arc<Mappings>,
    /// What tells our own changes of the origin from those of others (I9).
    pub(crate) own: Arc<OwnChanges>,
    pub(crate) external: Arc<ExternalChanges>,
    pub(crate) repair: Arc<Repair>,
    pub(crate) known: Arc<KnownFiles>,
    pub(crate) space: Arc<OriginSpace>,
    pub(crate) times: Arc<Times>,
    pub(crate) relief: Arc<Relief>,
    pub(crate) sweeper: Arc<Sweeper>,
    pub(crate) discards: Arc<Discards>,
    pub(crate) barriers: Arc<Barriers>,
    pub(crate) fetcher: Arc<Fetcher>,
    pub(crate) fills: Arc<Fills>,
    pub(crate) recoverer: Arc<Recoverer>,
    pub(crate) rounds: Arc<Rounds>,
    pub(crate) resizer: Arc<Resizer>,
    pub(crate) redirector: Redirector,
    pub(crate) warm: Arc<PageCachePassthrough>,
    pub(crate) lifecycle: Arc<Lifecycle>,
    pub(crate) opener: Opener,
    /// What other nodes leave us to do, and what gives up what they want.
    pub(crate) permits: Arc<Permits>,
    pub(crate) yields: Arc<Yields>,
    /// When the engine began.
    pub(crate) begun: Instant,
}

impl Deref for Components {
    type Target = Foundation;

    fn deref(&self) -> &Foundation {
        &self.base
    }
}

impl Components {
    /// The components over a foundation, before anything runs.
    pub(crate) fn new(
        base: Foundation,
        lease: (Lease, Evidence),
        identifier: Identifier,
        globs: Globs,
    ) -> Self {
        let (identifier, begun) = (Arc::new(identifier), base.clock.instant());
        let mappings = Arc::new(Mappings::new(&base));
        let permits = Arc::new(Permits::new(&base, &mappings));
        let own = Arc::new(OwnChanges::tell(&base, &mappings, lease));
        let repair = Arc::new(Repair::new(&base, &mappings));
        let external = Arc::new(ExternalChanges::new(&base, &own, &mappings));
        let known = Arc::new(KnownFiles::new(&base, &own, &external, globs));
        let space = Arc::new(OriginSpace::new(&base));
        let times = Arc::new(Times::new(&base, &own));
        let (known_files, changes) = ((&known, &times), (&own, &external));
        let relief = Relief::new(&base, (&mappings, &repair), changes, &known, &times);
        let relief = Arc::new(relief);
        let flusher = Flusher::new(&base, known_files, (&own, &space), &repair, &mappings);
        let flusher = Arc::new(flusher);
        let flushing = (&relief, &flusher);
        let sweeper = Sweeper::new(&base, &mappings, changes, known_files, &space, flushing);
        let sweeper = Arc::new(sweeper);
        let discards = Arc::new(Discards::new(&base));
        let barriers = Barriers::new(&base, &mappings, &known, &relief, &sweeper, &discards);
        let barriers = Arc::new(barriers);
        let yields = Arc::new(Yields::new(&base, known_files, &sweeper, &mappings));
        let fetcher = Arc::new(Fetcher::new(&base, known_files, &mappings, &permits));
        let fills = Arc::new(Fills::new(&base, &known, &fetcher));
        let recoverer = Arc::new(Recoverer::new(&base, known_files, changes, &mappings));
        let rounds = Arc::new(Rounds::new(
            &base,
            (&known, &own),
            (&repair, &space),
            (&relief, &sweeper),
            (&discards, &barriers),
            (&fetcher, &recoverer),
        ));
        let resizer = Arc::new(Resizer::new(&base, &own, &mappings, &space));
        let redirector = Redirector::new(
            &base,
            (&mappings, &own),
            (&repair, &space),
            (&known, &resizer),
            (&fills, &identifier),
            &permits,
        );
        let warm = Arc::new(PageCachePassthrough::new(&base, &known, &mappings));
        let lifecycle = Lifecycle::new(&base, changes, known_files, &mappings, (&relief, &warm));
        let lifecycle = Arc::new(lifecycle);
        let opener = Opener::new(&base, &known, &warm, &lifecycle);
        #[rustfmt::skip]
        let parts = Self {
            base, identifier, mappings, own, external, repair, known, space, times, relief, sweeper,
            discards, barriers, fetcher, fills, recoverer, rounds, resizer, redirector, warm,
            lifecycle, opener, permits, yields, begun,
        };
        parts
    }
}
