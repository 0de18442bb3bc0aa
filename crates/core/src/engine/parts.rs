//! The parts of the extent engine wired together: what identify, redirect and rebuild share.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use halocline_model::request::ByteRange;
use parking_lot::{Mutex, RwLock};

use crate::clock::Clock;
use crate::engine::changing::OwnChanges;
use crate::engine::counters::Counters;
use crate::engine::damage::Damage;
use crate::engine::degrade::Relief;
use crate::engine::fill::Fills;
use crate::engine::globs::Globs;
use crate::engine::health::Health;
use crate::engine::hints::Hints;
use crate::engine::identify::Identifier;
use crate::engine::rebuild::Missing;
use crate::engine::room::Room;
use crate::engine::space::OriginSpace;
use crate::engine::surroundings::Surroundings;
use crate::engine::warm::Warm;
use crate::error::{Error, Result};
use crate::extent::file::CachedFile;
use crate::extent::mover::Movers;
use crate::extent::store::ExtentStore;
use crate::extent::table::FileTable;
use crate::meta::{FileId, OriginKey, Stamp, Wanted};
use crate::namespace::{Namespace, Node};
use crate::volume::origin::{Origin, OriginFile};

/// Notes kept at most; the oldest go first.
pub(crate) const NOTES_MAX: usize = 100;

/// Everything that the extent engine's modules work on.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) namespace: Namespace,
    pub(crate) origin: Origin,
    pub(crate) store: ExtentStore,
    pub(crate) files: FileTable,
    pub(crate) identifier: Identifier,
    pub(crate) counters: Counters,
    pub(crate) health: Health,
    pub(crate) damage: Damage,
    pub(crate) room: Room,
    pub(crate) space: OriginSpace,
    pub(crate) fills: Fills,
    pub(crate) globs: RwLock<Globs>,
    pub(crate) around: Surroundings,
    pub(crate) clock: Clock,
    pub(crate) hints: Hints,
    pub(crate) warm: Warm,
    /// What a person should know of the two sides together.
    pub(crate) sides_note: OnceLock<&'static str>,
    /// What a person should know, newest last.
    pub(crate) notes: Mutex<Vec<String>>,
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
    /// When a program last used the origin, in milliseconds since the epoch.
    pub(crate) origin_used_ms: AtomicU64,
    /// When a program last wrote to the cache, in nanoseconds since the epoch.
    pub(crate) cache_written_ns: AtomicI64,
    /// Requests of programs under way on the origin.
    pub(crate) origin_busy: AtomicU64,
    /// Dirty files that a flush did not find.
    pub(crate) missing: Missing,
    pub(crate) relief: Relief,
    /// Files that can be flushed.
    pub(crate) movers: Arc<Movers>,
    /// What tells our own changes of the origin from those of others (I9).
    pub(crate) own: OwnChanges,
}

/// How a file of the origin looked, and what tells whether we changed it since.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    unwatched: u64,
    key: OriginKey,
    raw: libc::stat64,
}

impl Parts {
    /// Identity of `node` on the origin.
    pub(crate) fn key_of(&self, node: &Node) -> Result<(OriginKey, libc::stat64)> {
        let stat = self.namespace.stat(node)?;
        Ok((origin_key(&stat), stat.raw))
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
        let (key, raw) = self.key_of(node)?;
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
                let now = self.key_of(node)?;
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
                crate::engine::changes::check(self, &file, id, &raw)?;
            }
            Ok::<_, Option<Error>>(file)
        });
        let file = match found {
            Ok(file) => file,
            Err(None) => return Ok(None),
            Err(Some(error)) => return Err(error),
        };
        if known {
            crate::engine::changes::check_again(self, &file, &raw)?;
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
        let mount = self.mount_of(&node);
        let mut look = file.look.lock();
        if let Some(id) = file.id() {
            return Ok(id);
        }
        let id = self.store.dmt.register_on(mount, file.key, &path)?;
        self.files.identified(id, file);
        // The new record says that we change it, which must be put right though nobody writes.
        look.recorded = false;
        self.note_restless(&mut look, id);
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
        let open = Arc::new(self.open_origin(&node, libc::O_RDWR)?);
        *mover = Some(self.movers.keep(Arc::clone(&open)));
        Ok(open)
    }

    /// Whether the file may become dirty: it can be flushed, and so can all that are.
    pub(crate) fn may_become_dirty(&self, file: &CachedFile) -> bool {
        let refused = self.movers.are_all_kept() && file.mover.lock().is_none();
        !refused && self.mover_of(file).is_ok()
    }

    /// Opens the origin's data of a node; `flags` are `open(2)`'s.
    pub(crate) fn open_origin(&self, node: &Node, flags: i32) -> Result<OriginFile> {
        let descriptor = self.namespace.descriptor(node)?;
        Ok(self.origin.open_data(descriptor.as_fd(), flags)?)
    }

    /// Share of the cache that dirty bytes fill, 0 to 1.
    pub(crate) fn pressure(&self) -> f32 {
        let limit = self.store.dmt.limit().max(1);
        #[expect(clippy::cast_precision_loss, reason = "a share, not an amount")]
        let share = self.store.dmt.usage().dirty as f32 / limit as f32;
        share.min(1.0)
    }

    /// Runs a program's request on the origin, so that the rebuilder sees it is in use.
    pub(crate) fn on_origin<T>(&self, work: impl FnOnce() -> T) -> T {
        self.origin_busy.fetch_add(1, Ordering::Relaxed);
        let done = work();
        self.origin_busy.fetch_sub(1, Ordering::Relaxed);
        self.origin_used_ms.store(self.clock.now_ms(), Ordering::Relaxed);
        done
    }

    /// Unmaps `range` of a file and frees its blocks as soon as that is safe.
    pub(crate) fn drop_range(&self, id: FileId, range: ByteRange) -> Result<()> {
        self.store.dmt.unmap(id, range)?;
        self.damage.heal(id, range);
        self.store.dmt.drop_critical(id, range);
        Ok(())
    }

    /// Unmaps `range`, dirty bytes too, after the origin got what replaces them. Where those were
    /// promised to survive power loss the origin is synced first: else the unmapping could last
    /// and what it stands for be lost, and with it what was fsynced before (I4). If the sync
    /// fails they go nevertheless, because the origin has newer bytes (I1), and the error is told.
    pub(crate) fn let_old_go(
        &self,
        origin: &OriginFile,
        id: FileId,
        range: ByteRange,
    ) -> Result<()> {
        let promised = self.store.dmt.promised(id, range);
        let kept = if promised { self.on_origin(|| origin.sync(false)) } else { Ok(()) };
        self.let_go(id, range)?;
        Ok(kept?)
    }
}

/// Identity on the origin of what `stat` describes.
pub(crate) fn origin_key(stat: &crate::engine::Stat) -> OriginKey {
    let born_ns = stat
        .born
        .and_then(|born| born.duration_since(std::time::UNIX_EPOCH).ok())
        .map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(0));
    OriginKey { inode: stat.raw.st_ino, born_ns }
}

/// Nanoseconds in a second.
pub(crate) const NS: i64 = 1_000_000_000;

/// Modification time in nanoseconds since the epoch.
pub(crate) const fn mtime_ns(raw: &libc::stat64) -> i64 {
    crate::meta::in_nanoseconds(raw.st_mtime, raw.st_mtime_nsec)
}
