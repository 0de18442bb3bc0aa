//! The parts of the extent engine wired together: what identify, redirect and rebuild share.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::{Mutex, RwLock};

use crate::clock::Clock;
use crate::engine::counters::Counters;
use crate::engine::damage::Damage;
use crate::engine::degrade::Relief;
use crate::engine::external_changes::ExternalChanges;
use crate::engine::fill::Fills;
use crate::engine::foundation::Foundation;
use crate::engine::globs::Globs;
use crate::engine::health::Health;
use crate::engine::hints::Hints;
use crate::engine::identify::Identifier;
use crate::engine::mappings::Mappings;
use crate::engine::notes::Notes;
use crate::engine::origin_access::OriginAccess;
use crate::engine::own_changes::OwnChanges;
use crate::engine::pressure::Pressure;
use crate::engine::rebuild::Missing;
use crate::engine::repair::Repair;
use crate::engine::room::Room;
use crate::engine::settings::Settings;
use crate::engine::space::OriginSpace;
use crate::meta::lease::{Evidence, Lease};

use crate::engine::warm::Warm;
use crate::error::{Error, Result};
use crate::extent::file::CachedFile;
use crate::extent::mover::Movers;
use crate::extent::store::ExtentStore;
use crate::extent::table::FileTable;
use crate::meta::{FileId, OriginKey, Stamp, Wanted};
use crate::namespace::{Namespace, Node};
use crate::volume::origin::OriginFile;

/// Everything that the extent engine's modules work on.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) namespace: Arc<Namespace>,
    pub(crate) origin: Arc<OriginAccess>,
    pub(crate) store: Arc<ExtentStore>,
    pub(crate) files: Arc<FileTable>,
    pub(crate) identifier: Identifier,
    pub(crate) counters: Arc<Counters>,
    pub(crate) health: Arc<Health>,
    pub(crate) damage: Arc<Damage>,
    pub(crate) room: Room,
    pub(crate) space: OriginSpace,
    pub(crate) fills: Fills,
    pub(crate) globs: RwLock<Globs>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) clock: Clock,
    pub(crate) hints: Hints,
    pub(crate) warm: Warm,
    pub(crate) notes: Arc<Notes>,
    /// When the engine began.
    pub(crate) begun: Instant,
    /// Sum of the moving counters at the last barrier.
    pub(crate) barrier_mark: AtomicU64,
    /// What programs wanted and the CDT does not have yet.
    pub(crate) wants: Mutex<Vec<Wanted>>,
    /// Ranges that programs wanted so far.
    pub(crate) wants_noted: AtomicU64,
    /// `wants_noted` when fetching last ran out of room: until programs want more, fetching
    /// evicts nothing, or two halves of a working set would push each other out for ever.
    pub(crate) wants_without_room: AtomicU64,
    /// When a program last wrote to the cache, in nanoseconds since the epoch.
    pub(crate) cache_written_ns: AtomicI64,
    /// Dirty files that a flush did not find.
    pub(crate) missing: Missing,
    pub(crate) relief: Relief,
    /// Files that can be flushed.
    pub(crate) movers: Arc<Movers>,
    pub(crate) pressure: Arc<Pressure>,
    /// What tells our own changes of the origin from those of others (I9).
    pub(crate) mappings: Arc<Mappings>,
    pub(crate) repair: Arc<Repair>,
    pub(crate) external: Arc<ExternalChanges>,
    pub(crate) own: Arc<OwnChanges>,
}

/// How a file of the origin looked, and what tells whether we changed it since.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    unwatched: u64,
    key: OriginKey,
    raw: libc::stat64,
}

impl Parts {
    /// The parts over a foundation, before anything runs.
    pub(crate) fn new(
        base: Foundation,
        lease: (Lease, Evidence),
        identifier: Identifier,
        globs: Globs,
        (fills, warm): (Fills, Warm),
    ) -> Self {
        let mappings = Arc::new(Mappings::new(&base));
        let own = Arc::new(OwnChanges::tell(&base, &mappings, lease));
        let repair = Arc::new(Repair::new(&base, &mappings));
        let external = Arc::new(ExternalChanges::new(&base, &own, &mappings));
        Self {
            namespace: base.namespace,
            origin: base.origin,
            store: base.store,
            files: base.files,
            identifier,
            counters: base.counters,
            health: base.health,
            damage: base.damage,
            room: Room::default(),
            space: OriginSpace::default(),
            fills,
            globs: RwLock::new(globs),
            settings: base.settings,
            clock: base.clock,
            hints: Hints::default(),
            warm,
            notes: base.notes,
            begun: Instant::now(),
            barrier_mark: AtomicU64::new(0),
            wants: Mutex::default(),
            wants_noted: AtomicU64::new(1),
            wants_without_room: AtomicU64::new(0),
            cache_written_ns: AtomicI64::new(0),
            relief: Relief::default(),
            movers: base.movers,
            pressure: base.pressure,
            missing: Missing::default(),
            mappings,
            repair,
            external,
            own,
        }
    }

    /// The one [`CachedFile`] of `node`. What the store maps beyond the file's end (a crash
    /// between a truncate and its records) is dropped here, before anybody can read it. The caller
    /// holds no lock of a file.
    pub(crate) fn file_of(&self, node: &Node) -> Result<Arc<CachedFile>> {
        self.file_and_stat(node).map(|(file, _)| file)
    }

    /// The same with the origin's attributes of a moment ago.
    pub(crate) fn file_and_stat(&self, node: &Node) -> Result<(Arc<CachedFile>, libc::stat64)> {
        loop {
            if let Some(found) = self.file_seen(node, self.see(node)?)? {
                return Ok(found);
            }
        }
    }

    /// How `node` looks before its [`CachedFile`] is searched.
    pub(crate) fn see(&self, node: &Node) -> Result<Seen> {
        let unwatched = self.files.unwatched();
        let (key, raw) = self.origin.key_of(node)?;
        Ok(Seen { unwatched, key, raw })
    }

    /// The one [`CachedFile`] of a node that was seen just now; `None` if it became another file.
    ///
    /// A new one begins with what was seen. If we changed the file between the look and now, and let
    /// go of it again, that is of the past: the size would be wrong (I1), and our own change would
    /// be taken for one of others later (I9).
    pub(crate) fn file_seen(
        &self,
        node: &Node,
        Seen { unwatched, key, mut raw }: Seen,
    ) -> Result<Option<(Arc<CachedFile>, libc::stat64)>> {
        let mut known = true;
        let found = self.files.get_or_insert(key, || {
            known = false;
            if self.files.unwatched() != unwatched {
                let now = self.origin.key_of(node)?;
                if now.0 != key {
                    return Err(None);
                }
                raw = now.1;
            }
            let id = self.store.dmt.find(key);
            #[expect(clippy::cast_sign_loss, reason = "a regular file's size is not negative")]
            let look = (raw.st_size as u64, Stamp::of_stat(&raw));
            let file = CachedFile::new(key, id, look, node.clone());
            if let Some(id) = id {
                self.external.check(&file, id, &raw)?;
            }
            Ok::<_, Option<Error>>(file)
        });
        let file = match found {
            Ok(file) => file,
            Err(None) => return Ok(None),
            Err(Some(error)) => return Err(error),
        };
        if known {
            self.external.check_again(&file, &raw)?;
        }
        if !file.is_open() {
            self.apply_globs(&file);
        }
        Ok(Some((file, raw)))
    }

    /// The file's identity in the cache, given to it now if it has none.
    pub(crate) fn id_of(&self, file: &Arc<CachedFile>) -> Result<FileId> {
        if let Some(id) = file.id() {
            return Ok(id);
        }
        let node = file.node.read().clone();
        let path = self.namespace.path_of(&node);
        let mount = self.origin.mount_of(&node);
        let mut look = file.look.lock();
        if let Some(id) = file.id() {
            return Ok(id);
        }
        let id = self.store.dmt.register_on(mount, file.key, &path)?;
        self.files.identified(id, file);
        // The new record says that we change it, which must be put right though nobody writes.
        look.recorded = false;
        self.own.note_restless(&mut look, id);
        drop(look);
        self.apply_globs(file);
        Ok(id)
    }

    /// Applies the pin and exclude globs to a file.
    pub(crate) fn apply_globs(&self, file: &CachedFile) {
        let globs = self.globs.read();
        if globs.is_empty() {
            return;
        }
        let path = self.namespace.path_of(&file.node.read());
        file.excluded.store(globs.excludes(&path), Ordering::Relaxed);
        if let Some(id) = file.id() {
            self.store.dmt.pin(id, globs.pins(&path));
        }
    }

    /// A descriptor that can flush the file, kept until its last dirty byte is home.
    pub(crate) fn mover_of(&self, file: &CachedFile) -> Result<Arc<OriginFile>> {
        let mut mover = file.mover.lock();
        if let Some(open) = mover.as_ref() {
            return Ok(Arc::clone(&open.origin));
        }
        let node = file.node.read().clone();
        let open = Arc::new(self.origin.open(&node, libc::O_RDWR)?);
        *mover = Some(self.movers.keep(Arc::clone(&open)));
        Ok(open)
    }

    /// Whether the file may become dirty: it can be flushed, and so can all that are.
    pub(crate) fn may_become_dirty(&self, file: &CachedFile) -> bool {
        let refused = self.movers.are_all_kept() && file.mover.lock().is_none();
        !refused && self.mover_of(file).is_ok()
    }
}

/// Nanoseconds in a second.
pub(crate) const NS: i64 = 1_000_000_000;

/// Modification time in nanoseconds since the epoch.
pub(crate) const fn mtime_ns(raw: &libc::stat64) -> i64 {
    crate::meta::in_nanoseconds(raw.st_mtime, raw.st_mtime_nsec)
}
