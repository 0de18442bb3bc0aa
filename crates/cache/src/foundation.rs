//! What all components of an extent engine stand on: the two sides, the tables, and where they count and tell.

use std::sync::Arc;

use super::counters::Counters;
use super::damage::Damage;
use super::defects::Defects;
use super::health::Health;
use super::notes::Notes;
use super::origin_access::OriginAccess;
use super::pressure::Pressure;
use super::room::Room;
use super::settings::Settings;
use crate::coherence::Coherence;
use crate::extent::flush_handle::FlushHandles;
use crate::extent::store::ExtentStore;
use crate::extent::table::FileTable;
use halocline_os::clock::Clock;
use halocline_storage::volume::origin::Origin;
use halocline_vfs::namespace::Namespace;

/// The lowest components. Each other component is handed this once, when it is made, and keeps of it what it
/// needs.
#[derive(Debug)]
pub(crate) struct Foundation {
    pub(crate) namespace: Arc<Namespace>,
    pub(crate) origin: Arc<OriginAccess>,
    pub(crate) store: Arc<ExtentStore>,
    pub(crate) files: Arc<FileTable>,
    /// Files that can be flushed.
    pub(crate) flush_handles: Arc<FlushHandles>,
    pub(crate) pressure: Arc<Pressure>,
    /// Where writes wait for room.
    pub(crate) room: Arc<Room>,
    pub(crate) damage: Arc<Damage>,
    pub(crate) health: Arc<Health>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) notes: Arc<Notes>,
    pub(crate) defects: Arc<Defects>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) clock: Clock,
    /// The agent of this node, where other nodes cache the same origin.
    pub(crate) coherence: Option<Arc<dyn Coherence>>,
}

impl Foundation {
    /// Both sides, which were just opened.
    pub(crate) fn new(
        (namespace, origin): (Namespace, Origin),
        store: ExtentStore,
        flush_handles: Arc<FlushHandles>,
        settings: Settings,
        clock: &Clock,
        coherence: Option<&Arc<dyn Coherence>>,
    ) -> Self {
        let (namespace, clock) = (Arc::new(namespace), clock.clone());
        let (store, settings) = (Arc::new(store), Arc::new(settings));
        let dir = &settings.origin_dir;
        let origin = OriginAccess::new(Arc::clone(&namespace), origin, dir, clock.clone());
        let health = Arc::new(Health::new(settings.config.health_retry));
        let notes = Arc::<Notes>::default();
        let origin = Arc::new(origin);
        Self {
            namespace,
            coherence: coherence.cloned(),
            origin,
            pressure: Arc::new(Pressure::new(&store, &flush_handles, &settings)),
            store,
            files: Arc::default(),
            flush_handles,
            room: Arc::new(Room::new(clock.clone())),
            damage: Arc::default(),
            defects: Arc::new(Defects::new(&health, &notes, clock.clone())),
            health,
            counters: Arc::default(),
            notes,
            settings,
            clock,
        }
    }
}
