//! The components of an extent engine, wired together from the bottom up.
//!
//! Each is given what it uses by name, and knows only those that are made before it: calls go one way. Its other state
//! is its own.

use std::sync::Arc;
use std::time::Instant;

use crate::attributes::Attributes;
use crate::backpressure::Backpressure;
use crate::barriers::Barriers;
use crate::bulk_operations::BulkOperations;
use crate::coherence::Coherence;
use crate::counters::Counters;
use crate::damage::Damage;
use crate::defects::Defects;
use crate::degraded_mode::DegradedMode;
use crate::dirty_pressure::DirtyPressure;
use crate::discard::Discards;
use crate::explain::Explainer;
use crate::extent::flush_handle::FlushHandles;
use crate::extent::store::ExtentStore;
use crate::extent::table::FileTable;
use crate::external_changes::ExternalChanges;
use crate::fetch::Fetcher;
use crate::fill::Fills;
use crate::flush::{Flusher, Snapshots, Sweeper};
use crate::glob_rules::GlobRules;
use crate::handle::Opener;
use crate::hang_detection::HangDetector;
use crate::health::Health;
use crate::identify::Identifier;
use crate::kernel_pages::KernelPages;
use crate::known_files::KnownFiles;
use crate::lifecycle::Lifecycle;
use crate::mappings::Mappings;
use crate::modification_times::ModificationTimes;
use crate::name_changes::NameChanges;
use crate::origin_access::OriginAccess;
use crate::origin_share::OriginShare;
use crate::origin_space::OriginSpace;
use crate::own_changes::OwnChanges;
use crate::page_cache_passthrough::{self, PageCachePassthrough};
use crate::peers::Peers;
use crate::permits::{OriginPages, Permits};
use crate::rebuild::Rounds;
use crate::recover::Recoverer;
use crate::redirect::{MissReader, Redirector};
use crate::repair::Repair;
use crate::resize::Resizer;
use crate::revocation::Revocation;
use crate::servers::{Meters, ServerStates};
use crate::session::Session;
use crate::settings::Settings;
use crate::status::StatusReporter;
use crate::status_notes::Notes;
use halocline_api::globs::Globs;
use halocline_meta::lease::{Evidence, Lease};
use halocline_os::clock::Clock;
use halocline_storage::volume::origin::Origin;
use halocline_vfs::namespace::Namespace;
use parking_lot::{Mutex, RwLock};

/// The lowest components, which know none of the others.
#[derive(Debug)]
pub(crate) struct Base {
    pub(crate) namespace: Arc<Namespace>,
    pub(crate) origin: Arc<OriginAccess>,
    pub(crate) store: Arc<ExtentStore>,
    pub(crate) files: Arc<FileTable>,
    /// Descriptors of dirty files that can be flushed.
    pub(crate) flush_handles: Arc<FlushHandles>,
    pub(crate) pressure: Arc<DirtyPressure>,
    /// Where writes wait for room.
    pub(crate) backpressure: Arc<Backpressure>,
    pub(crate) damage: Arc<Damage>,
    pub(crate) health: Arc<Health>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) notes: Arc<Notes>,
    pub(crate) defects: Arc<Defects>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) clock: Clock,
    /// The agent of this node, if other nodes cache the same origin.
    pub(crate) coherence: Option<Arc<dyn Coherence>>,
    /// Whether other nodes use the origin.
    pub(crate) shared: bool,
    /// When the engine began.
    pub(crate) begun: Instant,
}

impl Base {
    /// The lowest components over both sides, which were just opened.
    pub(crate) fn new(
        (namespace, origin): (Namespace, Origin),
        (store, flush_handles): (ExtentStore, Arc<FlushHandles>),
        settings: Settings,
        clock: &Clock,
        coherence: Option<&Arc<dyn Coherence>>,
    ) -> Self {
        let (namespace, store, settings) =
            (Arc::new(namespace), Arc::new(store), Arc::new(settings));
        let dir = &settings.origin_dir;
        let origin = OriginAccess::new(Arc::clone(&namespace), origin, dir, clock.clone());
        let health = Arc::new(Health::new(settings.config.health_retry));
        let notes = Arc::<Notes>::default();
        Self {
            namespace,
            origin: Arc::new(origin),
            files: Arc::default(),
            pressure: Arc::new(DirtyPressure::new(&store, &flush_handles, &settings)),
            backpressure: Arc::new(Backpressure::new(clock.clone())),
            damage: Arc::default(),
            counters: Arc::default(),
            defects: Arc::new(Defects::new(&health, &notes, clock.clone())),
            shared: coherence.is_some(),
            coherence: coherence.cloned(),
            begun: clock.instant(),
            clock: clock.clone(),
            store,
            flush_handles,
            settings,
            health,
            notes,
        }
    }
}

/// What serves a front end. Each component is reached by its own name only.
#[derive(Debug)]
pub(crate) struct Components {
    pub(crate) identifier: Arc<Identifier>,
    pub(crate) mappings: Arc<Mappings>,
    pub(crate) permits: Arc<Permits>,
    pub(crate) kernel_pages: Arc<KernelPages>,
    /// The caches of other nodes.
    pub(crate) peers: Arc<Peers>,
    /// Distinguishes our own changes of the origin from those of others (I9).
    pub(crate) own: Arc<OwnChanges>,
    pub(crate) repair: Arc<Repair>,
    pub(crate) external: Arc<ExternalChanges>,
    pub(crate) known: Arc<KnownFiles>,
    pub(crate) space: Arc<OriginSpace>,
    pub(crate) degraded_mode: Arc<DegradedMode>,
    pub(crate) sweeper: Arc<Sweeper>,
    pub(crate) discards: Arc<Discards>,
    pub(crate) barriers: Arc<Barriers>,
    pub(crate) revocation: Arc<Revocation>,
    pub(crate) fetcher: Arc<Fetcher>,
    pub(crate) fills: Arc<Fills>,
    pub(crate) recoverer: Arc<Recoverer>,
    pub(crate) rounds: Arc<Rounds>,
    pub(crate) resizer: Arc<Resizer>,
    pub(crate) redirector: Arc<Redirector>,
    pub(crate) page_cache_passthrough: Arc<PageCachePassthrough>,
    pub(crate) lifecycle: Arc<Lifecycle>,
    pub(crate) opener: Arc<Opener>,
    pub(crate) attributes: Arc<Attributes>,
    pub(crate) names: Arc<NameChanges>,
    pub(crate) session: Arc<Session>,
}

/// What serves commands.
#[derive(Debug)]
pub(crate) struct Controls {
    pub(crate) bulk: Arc<BulkOperations>,
    pub(crate) rules: Arc<GlobRules>,
    pub(crate) explainer: Arc<Explainer>,
    pub(crate) status: Arc<StatusReporter>,
}

/// Makes a component: clones the fields named from `base` and from the other components, and moves in the values after
/// the arrow.
macro_rules! wire {
    (
        $component:ty: $($below:ident { $($part:ident),+ })+
        $(; $($other:ident),+)? $(=> $($own:ident = $value:expr),+)?
    ) => {
        Arc::new(
            <$component>::builder()
                $($(.$part(Clone::clone(&$below.$part)))+)+
                $($(.$other(Clone::clone(&$other)))+)?
                $($(.$own($value))+)?
                .build(),
        )
    };
}

impl Components {
    /// Wires the components over the lowest ones, before any thread runs.
    pub(crate) fn wire(
        base: &Base,
        lease: (Lease, Evidence),
        identifier: Identifier,
        globs: Globs,
    ) -> Self {
        let identifier = Arc::new(identifier);
        let mappings = wire!(Mappings: base { store, damage, origin, health, counters, clock });
        let pages = wire!(OriginPages: base { origin, clock });
        let permits = wire!(Permits: base { coherence, origin, store }; mappings, pages);
        let share = wire!(OriginShare: base { origin, coherence });
        let peers = wire!(Peers: base { coherence, store, settings, clock });
        let (lease, evidence) = lease;
        let own = wire!(OwnChanges: base { namespace, store, files, clock, coherence, shared }; mappings => lease = lease,
            evidence = Mutex::new(evidence));
        let repair = wire!(Repair: base { store, files, damage, origin, namespace, counters, notes, settings };
            mappings);
        let external = wire!(ExternalChanges: base { namespace, store, damage, counters, notes, settings, clock,
            shared }; own, mappings);
        let known = wire!(KnownFiles: base { namespace, origin, store, files, flush_handles }; own, external => globs
            = RwLock::new(globs));
        let space = wire!(OriginSpace: base { health, store, files, origin, namespace, notes, settings, clock });
        let times = wire!(ModificationTimes: base { namespace, store }; own);
        let degraded_mode = wire!(DegradedMode: base { store, damage, counters, notes, settings }; mappings, repair, own,
            external, known, times);
        let snapshots = wire!(Snapshots: base { store, damage, clock });
        let flusher = wire!(Flusher: base { store, origin, pressure, settings, counters, backpressure }; permits,
            known, times, own, space, repair, mappings, snapshots);
        let sweeper = wire!(Sweeper: base { store, damage, pressure, origin, backpressure, settings,
            defects, clock }; mappings, own, external, known, times, space, degraded_mode, flusher, share);
        let discards = wire!(Discards: base { store, files });
        let barriers = wire!(Barriers: base { store, counters, namespace }; mappings, known, degraded_mode, sweeper,
            discards);
        let fetcher = wire!(Fetcher: base { store, files, counters, namespace }; permits, known, times, mappings);
        let fills = wire!(Fills: base { store, counters, health, defects, namespace, clock }; known, fetcher =>
            enabled = base.settings.config.fill);
        let recoverer = wire!(Recoverer: base { namespace, origin, store, flush_handles, notes, clock, shared };
            known, times, own, external, mappings);
        let kernel_pages = Arc::<KernelPages>::default();
        let revocation = wire!(Revocation: base { store, files, clock }; known, times, sweeper, mappings, recoverer,
            kernel_pages);
        let rounds = wire!(Rounds: base { namespace, store, files, flush_handles, pressure, origin, backpressure,
            damage, health, counters, notes, defects, settings, clock }; known, own, external, repair, space, degraded_mode,
            sweeper, discards, barriers, fetcher, recoverer, share);
        let resizer = wire!(Resizer: base { store, origin, clock }; own, known, mappings, space);
        let misses = wire!(MissReader: base { origin }; identifier, peers);
        let redirector = wire!(Redirector: base { store, files, origin, damage, counters, health, pressure,
            backpressure, settings, clock }; mappings, own, repair, space, known, resizer, fills, identifier, permits,
            peers, misses);
        let page_cache_passthrough = wire!(PageCachePassthrough: base { store, notes, origin }; known, mappings =>
            wanted = page_cache_passthrough::is_wanted(&base.settings.config, &base.origin).into());
        let lifecycle = wire!(Lifecycle: base { namespace, origin, store, files }; own, external, known, times,
            mappings, degraded_mode, page_cache_passthrough);
        let opener = wire!(Opener: base { namespace, origin, settings, shared }; known, page_cache_passthrough, lifecycle);
        let attributes = wire!(Attributes: base { namespace, origin, store, files }; own, permits, known, times,
            degraded_mode, resizer, lifecycle);
        let names = wire!(NameChanges: base { namespace, origin, store, files }; mappings, own, permits, known,
            space, degraded_mode, sweeper, lifecycle);
        let session = wire!(Session: base { store, notes, settings }; own, permits, space, degraded_mode, discards,
            barriers, fetcher, recoverer, mappings);
        #[rustfmt::skip]
        let components = Self {
            identifier, mappings, permits, kernel_pages, peers, own, repair, external, known, space, degraded_mode, sweeper,
            discards, barriers, revocation, fetcher, fills, recoverer, rounds, resizer, redirector,
            page_cache_passthrough, lifecycle, opener, attributes, names, session,
        };
        components
    }
}

impl Controls {
    /// Wires what serves commands, over the components of the same engine.
    pub(crate) fn wire(base: &Base, below: &Components, meters: Meters) -> Self {
        let bulk = wire!(BulkOperations: base { namespace, origin, store, counters, notes, defects, clock } below {
            mappings, external, repair, known, sweeper, discards, barriers, fetcher, recoverer });
        let rules = wire!(GlobRules: base { store, files, settings } below { known }; bulk);
        let explainer = wire!(Explainer: base { namespace, origin, store, health, notes, settings, clock } below {
            identifier, known, fetcher, fills, permits });
        let hangs = wire!(HangDetector: base { namespace, origin, store, settings });
        let origin = base.origin.data.servers();
        let cache = base.store.objects.volume().servers();
        let servers = Arc::new(ServerStates::new(meters, &base.settings.config, origin, cache));
        let status = wire!(StatusReporter: base { origin, store, damage, health, counters, notes, settings, clock,
            begun } below { identifier, fetcher, fills, page_cache_passthrough, permits, peers };
            servers, hangs);
        Self { bulk, rules, explainer, status }
    }
}
