//! Changes behind the mount (I9): found when a file is opened, and before anything is written to the origin.
//!
//! Clean extents of a file whose size, mtime or ctime differs are dropped. If size or mtime differs, dirty ones are a
//! conflict: the origin's version is kept as the file, and the cache's bytes are saved in the cache directory and
//! reported. Neither is lost. A new ctime alone means a new name, owner or mode.

use std::fmt::Write as _;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bon::Builder;
use halocline_model::request::ByteRange;
use serde::{Deserialize, Serialize};

use crate::counters::Counters;
use crate::damage::{Damage, named};
use crate::extent::file::{CachedFile, WHOLE, tail};
use crate::extent::last_seen::LastSeen;
use crate::extent::store::ExtentStore;
use crate::judging::judge;
use crate::mappings::Mappings;
use crate::own_changes::OwnChanges;
use crate::saved_conflicts::SavedConflicts;
use crate::settings::Settings;
use crate::status_notes::Notes;
use halocline_api::control::Skipped;
use halocline_api::control::wire;
use halocline_meta::lease::{Evidence, Verdict};
use halocline_meta::{Extent, FileId, Removal, Stamp};
use halocline_os::clock::Clock;
use halocline_os::error::{Error, Result};
use halocline_os::private::{PrivateDir, Use};
use halocline_vfs::namespace::Namespace;

/// Directory inside the cache where dirty bytes of conflicts are saved.
pub(crate) const CONFLICTS: &str = "conflicts";

/// Description of a saved conflict, beside the sparse file with the bytes themselves.
#[derive(Debug, Serialize, Deserialize)]
struct Conflict {
    #[serde(with = "wire::path")]
    path: PathBuf,
    reason: String,
    /// Offset and length of each dirty extent, in bytes.
    extents: Vec<(u64, u64)>,
    /// The same for parts that fail their checksums: saved as they are.
    #[serde(default)]
    damaged: Vec<(u64, u64)>,
}

/// Makes saved conflicts private; earlier versions did not.
pub(crate) fn close_saved(cache_dir: &Path) {
    let dir = cache_dir.join(CONFLICTS);
    match PrivateDir::open(&dir).and_then(|dir| dir.check_below()) {
        Err(error) if error.errno() == libc::ENOENT => {}
        Err(error) => tracing::warn!("{error}"),
        Ok(()) => {}
    }
}

/// Deals with changes that others made behind the mount.
#[derive(Debug, Builder)]
pub(crate) struct ExternalChanges {
    namespace: Arc<Namespace>,
    store: Arc<ExtentStore>,
    own: Arc<OwnChanges>,
    mappings: Arc<Mappings>,
    damage: Arc<Damage>,
    counters: Arc<Counters>,
    notes: Arc<Notes>,
    settings: Arc<Settings>,
    clock: Clock,
    #[builder(skip)]
    saved: SavedConflicts,
    /// Whether other nodes use the origin: then tokens, not stamps, say what may be believed.
    shared: bool,
}

impl ExternalChanges {
    /// Takes the conflicts not yet reported, for a command that reports them.
    pub(crate) fn take_conflicts(&self) -> Vec<Skipped> {
        self.saved.take(&self.settings.cache_dir.join(CONFLICTS))
    }

    /// Counts the bytes saved from conflicts as part of the cache (I5), if they changed since they were last counted.
    pub(crate) fn count_saved(&self) {
        let dir = self.settings.cache_dir.join(CONFLICTS);
        if let Err(error) = self.saved.count(&dir, &self.store.dmt) {
            tracing::warn!("{error}");
        }
    }

    /// Compares a file known to the cache with the origin's current one, before it is read.
    pub(crate) fn check(&self, file: &CachedFile, id: FileId, raw: &libc::stat64) -> Result<()> {
        let found = Stamp::of_stat(raw);
        if let Some(record) = self.store.dmt.files().record(id) {
            // The records of a store that refuses changes are out of date.
            let sick = self.store.dmt.changes().usable().is_err();
            let evidence = if sick { Evidence::Behind(i64::MAX) } else { self.own.evidence() };
            let vnode = file.vnode.read().clone();
            match judge(evidence, (record.stamp, found), (&self.namespace, &vnode)) {
                // Dirty bytes are under an exclusive token, so no other node has made the file shorter: the origin
                // has lost its end.
                _ if self.shared => {
                    let was_longer =
                        matches!(record.stamp, Stamp::Closed { size, .. } if size > file.size());
                    if was_longer || self.store.dmt.changes().promised(id, tail(file.size())) {
                        self.save_lost_end(file, id)?;
                    }
                }
                Verdict::Same => {}
                Verdict::Ours if sick || record.stamp == Stamp::Writing => {}
                Verdict::Ours | Verdict::Attributes => {
                    self.drop_clean(id)?;
                    if let (Evidence::Ended(_), Stamp::Closed { size, .. }) =
                        (evidence, record.stamp)
                        && size > file.size()
                    {
                        self.save_lost_end(file, id)?;
                    }
                }
                Verdict::Theirs => self.keep_origins_version(file, id)?,
            }
            if record.stamp != found {
                self.own.record(id, found)?;
            }
            // It has a name after all.
            if record.removal == Removal::Begun {
                let named = self.store.dmt.files().note_removal(id, Removal::None);
                self.mappings.advisory(named)?;
            }
        }
        let mut last_seen = file.last_seen.lock();
        last_seen.see(found);
        last_seen.set_recorded(true);
        // A crash between a truncate and its records leaves extents past the end.
        self.mappings.unmap(id, tail(file.size()))
    }

    /// Saves dirty bytes past the end of a file whose growth the origin lost. The last session promised that these
    /// bytes stay on the cache, so they are not dropped silently.
    fn save_lost_end(&self, file: &CachedFile, id: FileId) -> Result<()> {
        let lost = self.store.dmt.index().dirty(id, tail(file.size()), usize::MAX);
        if lost.is_empty() {
            return Ok(());
        }
        let path = self.namespace.path_of(&file.vnode.read());
        self.save(id, &path, &lost, "the origin lost the end of the file")
    }

    /// As [`Self::check`], for a file that stayed known and whose origin had the attributes `raw` just now. While
    /// changes by this mount are in progress, these attributes reveal nothing about others.
    pub(crate) fn check_again(&self, file: &CachedFile, raw: &libc::stat64) -> Result<()> {
        let differs = {
            let last_seen = file.last_seen.lock();
            !self.shared
                && (last_seen.is_external()
                    || !last_seen.is_hidden() && last_seen.stamp() != Stamp::of_stat(raw))
        };
        if differs { self.resolve(file) } else { Ok(()) }
    }

    /// Deals with changes by others to a known file, if there are any. The caller holds no lock of it.
    pub(crate) fn resolve(&self, file: &CachedFile) -> Result<()> {
        // Changes through us hold part of its range.
        let _range = file.range.exclusive(WHOLE);
        let _growth = file.growth.lock();
        let _writeback = file.writeback.exclusive(WHOLE);
        self.resolve_locked(file)
    }

    /// The same while the caller holds all of `range`, `growth` and all of `writeback`.
    pub(crate) fn resolve_locked(&self, file: &CachedFile) -> Result<()> {
        let mut last_seen = file.last_seen.lock();
        let raw = self.own.origin_stat(file, None)?;
        let found = Stamp::of_stat(&raw);
        let external = last_seen.is_external();
        let same_bytes = !external && last_seen.stamp().same_bytes(found);
        // Our own change of its names has not been examined yet.
        let is_ours = last_seen.is_hidden()
            || last_seen.stamp() == found
            || same_bytes && self.own.changes_names();
        if !external && is_ours {
            return Ok(());
        }
        let id = file.id().filter(|_| !file.forgotten.load(Ordering::Acquire));
        if !same_bytes {
            // Until that is dealt with: its dirty bytes may have to stay.
            last_seen.note_external();
        }
        if self.own.is_gone(file, &raw) {
            return self.handle_removal(file, &mut last_seen, found);
        }
        if let Some(id) = id {
            if same_bytes {
                self.drop_clean(id)?;
            } else {
                self.keep_origins_version(file, id)?;
                // The held time belongs to a write that is no longer in the file.
                file.let_mtime_go(None);
            }
            self.own.record(id, found)?;
            last_seen.set_recorded(true);
        }
        #[expect(clippy::cast_sign_loss, reason = "a regular file's size is not negative")]
        file.set_size(raw.st_size as u64);
        last_seen.see(found);
        Ok(())
    }

    /// Keeps the origin's version as the file: dirty bytes are saved elsewhere, and nothing stays cached.
    fn keep_origins_version(&self, file: &CachedFile, id: FileId) -> Result<()> {
        let path = self.namespace.path_of(&file.vnode.read());
        let dirty = self.store.dmt.index().dirty(id, WHOLE, usize::MAX);
        if !dirty.is_empty() {
            let reason = "the origin's file was changed behind the mount";
            if let Err(error) = self.save(id, &path, &dirty, reason) {
                if self.saved.is_refused(id) {
                    // This file cannot be flushed, and others need a handle.
                    *file.flush_handle.lock() = None;
                }
                return Err(error);
            }
        } else if !self.store.dmt.index().extents(id).is_empty() {
            tracing::warn!(
                "{}: changed behind the mount; its cached bytes are dropped",
                path.display()
            );
        }
        self.let_go(id, &dirty)
    }

    /// Drops what is cached of a file that others changed, of whose dirty bytes these are `saved`.
    fn let_go(&self, id: FileId, saved: &[Extent]) -> Result<()> {
        self.check_saved(id, bytes_of(saved));
        self.mappings.unmap(id, WHOLE)?;
        self.check_saved(id, 0);
        Ok(())
    }

    /// # Panics
    /// If more of a file is dirty than `saved`: the rest would be lost, or go over what others wrote.
    fn check_saved(&self, id: FileId, saved: u64) {
        let dirty = self.store.dmt.index().dirty_bytes(id);
        assert!(dirty <= saved, "I9: {} dirty bytes are not saved", dirty - saved);
    }

    /// Others removed the file's last name. Programs that have it open can use it until they close it, as usual; its
    /// dirty bytes are saved now.
    fn handle_removal(
        &self,
        file: &CachedFile,
        last_seen: &mut LastSeen,
        found: Stamp,
    ) -> Result<()> {
        if let Some(id) = file.id() {
            let dirty = self.store.dmt.index().dirty(id, WHOLE, usize::MAX);
            if !dirty.is_empty() {
                let path = self.namespace.path_of(&file.vnode.read());
                self.save(id, &path, &dirty, "the origin's file was removed or replaced")?;
            }
            if !file.is_open() {
                self.let_go(id, &dirty)?;
            }
        }
        file.unlinked.store(true, Ordering::SeqCst);
        last_seen.see(found);
        Ok(())
    }

    /// Drops clean bytes that may be older than the origin's.
    fn drop_clean(&self, id: FileId) -> Result<()> {
        self.mappings.unmap_clean(id, WHOLE)
    }

    /// Saves the dirty extents of a file that was changed or removed on the origin, durably, and notes it. If that
    /// fails nothing of them is left in `conflicts`, and the caller keeps them.
    pub(crate) fn save(
        &self,
        id: FileId,
        path: &Path,
        dirty: &[Extent],
        reason: &str,
    ) -> Result<()> {
        let dir = self.settings.cache_dir.join(CONFLICTS);
        // Private, as the file that they come from may be.
        let private = PrivateDir::make(&dir)?;
        let places = (&private, &self.store.dmt);
        let (name, damaged) = self.saved.within_room(
            places,
            (id, path, dirty),
            || self.record_conflict(id),
            || {
                let (name, file) = create(&private, id, self.clock.now_ms())?;
                match self.fill_saved((&private, &name, &file), (id, path, dirty), reason) {
                    Ok(damaged) => Ok((name, damaged)),
                    Err(error) => {
                        private.remove(&name)?;
                        private.remove(format!("{name}.json.new"))?;
                        Err(error)
                    }
                }
            },
        )?;
        let dirty_bytes = bytes_of(dirty);
        let mut reason = format!(
            "{reason}; {dirty_bytes} bytes that only the cache had are saved in {}",
            dir.join(name).display()
        );
        if !damaged.is_empty() {
            let _ = write!(reason, ", of which {} were damaged on the cache", named(&damaged));
        }
        self.notes.note(format!("{}: {reason}", path.display()));
        self.counters.conflict();
        self.saved.note(Skipped { path: path.to_owned(), reason });
        Ok(())
    }

    /// Records durably that others changed a file, whatever a later session can tell of its own changes.
    fn record_conflict(&self, id: FileId) -> Result<()> {
        self.store.dmt.files().stamp(id, Stamp::Unjudged { until_ns: i64::MIN })?;
        self.store.barrier()
    }

    /// Whether a file has a conflict that did not fit beside the cache, so that it cannot be flushed.
    pub(crate) fn is_refused(&self, id: FileId) -> bool {
        self.saved.is_refused(id)
    }

    /// Undamaged dirty bytes of all such files.
    pub(crate) fn refused_bytes(&self) -> u64 {
        self.saved.refused_bytes(|id| {
            let dirty = self.store.dmt.index().dirty_bytes(id);
            let damaged: u64 = self.damage.of(id, WHOLE).iter().map(|range| range.len()).sum();
            (dirty > 0).then_some(dirty.saturating_sub(damaged))
        })
    }

    /// Writes the dirty extents and their description, durably; returns what of them is damaged.
    fn fill_saved(
        &self,
        (private, name, saved): (&PrivateDir, &str, &File),
        (id, path, dirty): (FileId, &Path, &[Extent]),
        reason: &str,
    ) -> Result<Vec<ByteRange>> {
        let bytes = private.path().join(name);
        let (mut buf, mut damaged) = (Vec::new(), Vec::new());
        for extent in dirty {
            let range = extent.range;
            buf.resize(usize::try_from(range.len()).expect("an extent fits in memory"), 0);
            let found = self.store.read_checked(id, extent.placement, range.start, &mut buf)?;
            damaged.extend(found.iter().filter_map(|bad| bad.intersect(range)));
            damaged.extend(self.damage.of(id, range));
            saved.write_all_at(&buf, extent.range.start).map_err(Error::at(&bytes, "write"))?;
        }
        let damaged = merged(damaged);
        saved.sync_all().map_err(Error::at(&bytes, "sync"))?;
        let conflict = Conflict {
            path: path.to_owned(),
            reason: reason.to_owned(),
            extents: dirty.iter().map(|e| (e.range.start, e.range.len())).collect(),
            damaged: damaged.iter().map(|range| (range.start, range.len())).collect(),
        };
        let json = serde_json::to_vec_pretty(&conflict).expect("a conflict is plain data");
        private.replace(&format!("{name}.json"), &json)?;
        Ok(damaged)
    }
}

/// Merges overlapping and adjacent ranges.
fn merged(mut ranges: Vec<ByteRange>) -> Vec<ByteRange> {
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|range, last| {
        let joins = range.start <= last.end;
        if joins {
            last.end = last.end.max(range.end);
        }
        joins
    });
    ranges
}

/// Creates a new file for saved bytes; earlier ones of the same file may exist.
fn create(dir: &PrivateDir, id: FileId, now_ms: u64) -> Result<(String, File)> {
    let mut at = now_ms;
    loop {
        let name = format!("{:016x}-{at}", id.0);
        match dir.file(&name, Use::New) {
            Err(error) if error.errno() == libc::EEXIST => at += 1,
            made => return Ok((name, made?)),
        }
    }
}

fn bytes_of(extents: &[Extent]) -> u64 {
    extents.iter().map(|extent| extent.range.len()).sum()
}

#[cfg(test)]
mod tests {
    use crate::test_engine::one_dirty_file;

    #[test]
    #[should_panic(expected = "I9: 4096 dirty bytes are not saved")]
    fn i9_bytes_that_are_not_saved_are_not_dropped() {
        let (engine, id, _dirs) = one_dirty_file();
        drop(engine.components.external.let_go(id, &[]));
    }

    #[test]
    #[should_panic(expected = "I9: 4096 dirty bytes are not saved")]
    fn i9_a_byte_that_is_dirty_after_all_were_saved_is_seen() {
        let (engine, id, _dirs) = one_dirty_file();
        let saved = engine.base.store.dmt.index().dirty_bytes(id);
        engine.components.external.check_saved(id, saved);
        engine.components.external.check_saved(id, 0);
    }
}
