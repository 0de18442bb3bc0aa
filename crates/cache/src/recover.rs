//! What happens at mount before the first request: dirty files of earlier sessions are found again, and the bytes of
//! those that cannot be found are saved (I4, I9).

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use bon::Builder;
use parking_lot::Mutex;
use rustc_hash::FxHasher;

use super::path_lookup::origin_key;
use super::path_lookup::says_not_there;
use crate::extent::file::WHOLE;
use crate::extent::flush_handle::FlushHandles;
use crate::extent::store::ExtentStore;
use crate::external_changes::ExternalChanges;
use crate::known_files::KnownFiles;
use crate::mappings::Mappings;
use crate::modification_times::ModificationTimes;
use crate::origin_access::OriginAccess;
use crate::own_changes::OwnChanges;
use crate::status_notes::Notes;
use halocline_meta::{FileId, FileRecord, Removal, Stamp};
use halocline_os::clock::{Clock, Team, Work};
use halocline_os::counted::counted_with;
use halocline_os::error::{Error, Result};
use halocline_vfs::namespace::Namespace;
use halocline_vfs::namespace::Vnode;
use halocline_vfs::{DirEntry, Stat};

/// Files whose origin is synced at once at the end of a session.
const SYNCS_AT_ONCE: usize = 16;
/// After this time no further one is: half of what the end of a mount that leaves dirty data may take.
const SYNC_LIMIT: Duration = Duration::from_mins(1);

/// How often one search walks the tree if other nodes change names.
const WALKS: u32 = 4;
/// Longer than a tick of a file system's clock.
const TICK: Duration = Duration::from_millis(20);

/// What a search of the whole origin did not find.
#[derive(Debug, Default)]
pub(crate) struct Unfound {
    /// The files that were not found.
    files: Vec<FileRecord>,
    /// The first error that kept it from looking everywhere. If there is one, no file counts as gone.
    obstacle: Option<Error>,
    /// A sum over all directories, each with the time of its last change before it was read.
    directories: u64,
}

/// Finds dirty files that are not under their names.
#[derive(Debug, Builder)]
pub(crate) struct Recoverer {
    namespace: Arc<Namespace>,
    origin: Arc<OriginAccess>,
    store: Arc<ExtentStore>,
    flush_handles: Arc<FlushHandles>,
    notes: Arc<Notes>,
    known: Arc<KnownFiles>,
    times: Arc<ModificationTimes>,
    own: Arc<OwnChanges>,
    external: Arc<ExternalChanges>,
    mappings: Arc<Mappings>,
    clock: Clock,
    /// Whether other nodes use the origin, and change names.
    shared: bool,
}

impl Recoverer {
    /// Finds every file with dirty extents. A file that was renamed while unmounted, or just before the mount was
    /// killed, is searched for by its inode in the whole tree. A file that cannot be examined, or whose bytes cannot
    /// be saved, keeps them and does not block the mount.
    pub(crate) fn recover(&self) -> Result<()> {
        self.external.count_saved();
        self.forget_removed()?;
        let mut missing = Vec::new();
        for (id, _) in self.store.dmt.index().dirty_files() {
            match (self.known.file_by_id(id), self.store.dmt.files().record(id)) {
                (Ok(Some(file)), _) => self.keep_for_flush(&file, id),
                (Ok(None), Some(record)) => missing.push(record),
                (Err(error), Some(record)) => self.leave_dirty(&record, &error)?,
                (_, None) => {}
            }
        }
        let unfound = self.search_settled(missing, &|| true)?;
        for record in unfound.files {
            let left = match &unfound.obstacle {
                Some(obstacle) => self.leave_dirty(&record, &Self::perhaps_elsewhere(obstacle)),
                None => match self.rescue(&record) {
                    Err(error) => self.leave_dirty(&record, &error),
                    saved => saved,
                },
            };
            left?;
        }
        self.judge_the_rest()
    }

    /// Forgets what the last session had of files that programs had removed and still had open when it was killed.
    fn forget_removed(&self) -> Result<()> {
        let all = self.store.dmt.files().all();
        all.iter()
            .filter(|record| record.removal == Removal::Done)
            .try_for_each(|record| self.forget(record))
    }

    /// The same for dirty files of a running mount. If programs changed names during the search, or `go_on` ended it,
    /// files that were not found may still exist. Returns why files are still missing, if known.
    pub(crate) fn search_missing(
        &self,
        ids: &[FileId],
        go_on: &dyn Fn() -> bool,
    ) -> Result<Option<Error>> {
        let begun = self.own.name_changes.begun();
        let settled = || !self.own.changes_names() && self.own.name_changes.begun() == begun;
        let is_missing = |id: &&FileId| matches!(self.known.file_by_id(**id), Ok(None));
        let missing =
            ids.iter().filter(is_missing).filter_map(|id| self.store.dmt.files().record(*id));
        let unfound = self.search_settled(missing.collect(), go_on)?;
        if let Some(obstacle) = unfound.obstacle {
            return Ok(Some(Self::perhaps_elsewhere(&obstacle)));
        }
        if !settled() || !go_on() {
            return Ok(None);
        }
        let _alone = self.store.forgetting.lock();
        let mut failed = None;
        for record in unfound.files {
            failed = failed.or(self.rescue(&record).err());
        }
        Ok(failed)
    }

    /// Why a file that was not found may still exist.
    fn perhaps_elsewhere(obstacle: &Error) -> Error {
        Error::invalid(
            format!("it is not under its name, and may be where nobody could look: {obstacle}"),
            "see to that, then flush or mount again",
        )
    }

    /// Keeps dirty bytes that cannot be dealt with now, and records what is known about the file, because the next
    /// session knows less.
    fn leave_dirty(&self, record: &FileRecord, why: &Error) -> Result<()> {
        // Not the stamp of `record`: a conflict that did not fit was recorded since that was read.
        let left = self.store.dmt.files().record(record.id).map_or(record.stamp, |now| now.stamp);
        let kept = self.own.evidence().kept(left);
        if kept != left {
            self.own.record(record.id, kept)?;
        }
        self.notes.note(format!(
            "{}: {why}; its {} dirty bytes stay on the cache",
            record.path.display(),
            self.store.dmt.index().dirty_bytes(record.id)
        ));
        Ok(())
    }

    /// Keeps a dirty file known, so that renames and evictions find its locks.
    fn keep_for_flush(&self, file: &Arc<crate::extent::file::CachedFile>, id: FileId) {
        if self.store.dmt.index().dirty(id, WHOLE, 1).is_empty() {
            // A conflict was found, and the bytes were saved.
            return;
        }
        // Beyond the limit of open files, a flush opens each file when its turn comes.
        if !self.flush_handles.are_all_kept()
            && let Err(error) = self.known.flush_handle_of(file)
        {
            let path = self.namespace.path_of(&file.vnode.read());
            self.notes.note(format!(
                "{} has dirty bytes and cannot be opened for writing: {error}; they stay on the \
                 cache",
                path.display(),
            ));
        }
    }

    /// As [`Self::search`]. If other nodes change names, a file can escape a walk by moving to a directory that the
    /// walk has already read. So no file counts as gone unless two walks in a row found the same directories, unchanged
    /// in between: then the file was in none of them when the first walk ended.
    fn search_settled(
        &self,
        mut missing: Vec<FileRecord>,
        go_on: &dyn Fn() -> bool,
    ) -> Result<Unfound> {
        let mut before = None;
        for _ in 0..WALKS {
            let unfound = self.search(missing, go_on)?;
            let settled = !self.shared || before == Some(unfound.directories);
            if settled || unfound.files.is_empty() || unfound.obstacle.is_some() || !go_on() {
                return Ok(unfound);
            }
            before = Some(unfound.directories);
            missing = unfound.files;
            // Two changes of a directory within one tick of the file system's clock look like one.
            self.clock.sleep(TICK);
        }
        let obstacle = Error::invalid("names on the origin change all the time", "");
        Ok(Unfound { files: missing, obstacle: Some(obstacle), directories: 0 })
    }

    /// Walks the whole tree, skipping what cannot be read, until every file in `missing` was seen or `go_on` returns
    /// `false`. Without recursion: trees may be arbitrarily deep.
    fn search(&self, missing: Vec<FileRecord>, go_on: &dyn Fn() -> bool) -> Result<Unfound> {
        let mut missing: HashMap<_, _> =
            missing.into_iter().map(|record| (record.key, record)).collect();
        let mut obstacle = None;
        if !missing.is_empty() {
            let files = counted_with(missing.len(), "cached file", ("is", "are"));
            tracing::warn!("{files} not where expected; searching");
        }
        let mut directories = 0_u64;
        let mut left = vec![self.namespace.root()];
        while let Some(dir) = left.pop().filter(|_| !missing.is_empty() && go_on()) {
            let read = self.namespace.stat(&dir).and_then(|stat| {
                directories = directories.wrapping_add(fingerprint(&stat));
                self.namespace.entries(&dir)
            });
            let entries = match read {
                Ok(entries) => entries,
                // It was removed, and its contents before it or with it.
                Err(error) if says_not_there(&error) => continue,
                Err(error) => {
                    let path = self.namespace.path_of(&dir);
                    obstacle.get_or_insert_with(|| self.origin.cannot_look(&path, &error));
                    continue;
                }
            };
            for DirEntry { name, kind, .. } in entries {
                if !go_on() {
                    break;
                }
                if ![libc::DT_DIR, libc::DT_REG, libc::DT_UNKNOWN].contains(&kind) {
                    continue;
                }
                let (vnode, stat) = match self.namespace.lookup(&dir, &name) {
                    Ok(found) => found,
                    Err(error) if says_not_there(&error) => continue,
                    Err(error) => {
                        let path = self.namespace.path_of(&dir).join(&name);
                        obstacle.get_or_insert_with(|| self.origin.cannot_look(&path, &error));
                        continue;
                    }
                };
                if stat.kind() == libc::S_IFDIR {
                    left.push(vnode);
                } else if let Some(record) = missing.remove(&origin_key(&stat)) {
                    self.found_again(&record, &vnode)?;
                }
            }
        }
        Ok(Unfound { files: missing.into_values().collect(), obstacle, directories })
    }

    fn found_again(&self, record: &FileRecord, vnode: &Vnode) -> Result<()> {
        self.store.dmt.files().rename(&record.path, &self.namespace.path_of(vnode))?;
        match self.known.file_of(vnode) {
            Ok(file) => {
                self.keep_for_flush(&file, record.id);
                Ok(())
            }
            Err(error) => self.leave_dirty(record, &error),
        }
    }

    /// Judges the files without dirty bytes that the last session was changing when it ended, while the time of that
    /// end is known.
    fn judge_the_rest(&self) -> Result<()> {
        for record in self.store.dmt.files().all() {
            if record.stamp != Stamp::Writing {
                continue;
            }
            match self.known.file_by_id(record.id) {
                Ok(Some(file)) => self.known.forget_idle(&file),
                // Clean bytes of a file that has moved are not worth a search.
                _ if self.store.dmt.index().dirty(record.id, WHOLE, 1).is_empty() => {
                    self.mappings.unmap(record.id, WHOLE)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// At the end of a session: records the stamps of origin files with dirty bytes on the cache, so that the next
    /// session detects changes behind the mount (I9). After a kill it cannot.
    pub(crate) fn stamp_dirty_files(&self) {
        for (id, _) in self.store.dmt.index().dirty_files() {
            // As far as this session knows, a file that cannot be examined is unchanged.
            let Ok(Some(file)) = self.known.file_by_id(id) else { continue };
            let met =
                if self.own.is_external(&file) { self.external.resolve(&file) } else { Ok(()) };
            let stamped =
                met.and_then(|()| self.times.give_time(&file)).and_then(|()| self.own.rest(&file));
            if let Err(error) = stamped {
                let path = self.namespace.path_of(&file.vnode.read());
                self.notes.note(format!(
                    "{}: {error}; changes behind the mount will not be noticed",
                    path.display()
                ));
            }
        }
    }

    /// Then makes the origin's state just recorded durable; returns whether all of it is. If not, a file that is older
    /// at the next mount may be due to loss by the origin's disk. Syncs several files at once, because their syncs are
    /// one commit of the origin's journal, for at most [`SYNC_LIMIT`]: the user who leaves dirty data waits for this.
    pub(crate) fn sync_dirty_files(&self) -> bool {
        let left = self.store.dmt.index().dirty_files();
        let threads = left.len().clamp(1, SYNCS_AT_ONCE);
        let (left, begun) = (Mutex::new(left.into_iter()), self.clock.instant());
        let (team, mut works) = Team::new(&self.clock, threads);
        let durable = AtomicBool::new(true);
        let sync = |work: Work| {
            let working = work.begin();
            loop {
                let Some((id, _)) = left.lock().next() else { break };
                let is_late = self.clock.elapsed(begun) >= SYNC_LIMIT;
                if is_late || !self.sync_dirty_file(id) {
                    durable.store(false, Ordering::Relaxed);
                }
                if is_late {
                    break;
                }
            }
            team.leave(working);
        };
        thread::scope(|scope| {
            let own = works.pop();
            for work in works {
                scope.spawn(|| sync(work));
            }
            own.into_iter().for_each(sync);
        });
        drop(team);
        durable.into_inner()
    }

    fn sync_dirty_file(&self, id: FileId) -> bool {
        let synced = match self.known.file_by_id(id) {
            Ok(Some(file)) => self.known.reader_of(&file).and_then(|open| Ok(open.sync(false)?)),
            // It is unknown which file that is.
            Ok(None) => return false,
            Err(error) => Err(error),
        };
        if let Err(error) = &synced {
            tracing::debug!(
                ?id,
                "{error}; what the origin has under dirty data may not be durable"
            );
        }
        synced.is_ok()
    }

    /// Forgets a file that is no longer on the origin. Its dirty bytes are saved, unless a program was removing it when the
    /// session was killed.
    fn rescue(&self, record: &FileRecord) -> Result<()> {
        if record.removal == Removal::None {
            let dirty = self.store.dmt.index().dirty(record.id, WHOLE, usize::MAX);
            self.external.save(record.id, &record.path, &dirty, "the origin's file is gone")?;
        }
        self.forget(record)
    }

    fn forget(&self, record: &FileRecord) -> Result<()> {
        self.store.dmt.changes().unmap(record.id, WHOLE)?;
        self.store.dmt.critical().drop_range(record.id, WHOLE);
        self.store.dmt.files().forget(record.id)
    }
}

/// A hash of a directory's identity and the time of its last change.
fn fingerprint(stat: &Stat) -> u64 {
    let mut hasher = FxHasher::default();
    (stat.key(), stat.raw.st_ctime, stat.raw.st_ctime_nsec).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::engine::ExtentEngine;
    use crate::test_engine::{one_dirty_file, open};
    use halocline_api::control::Controlled;

    /// A session that was killed before it could remove the name of its only file, which it had recorded, after `others`
    /// did something.
    fn after_a_kill(others: impl FnOnce(&Path)) -> (ExtentEngine, [tempfile::TempDir; 2]) {
        let (engine, id, dirs) = one_dirty_file();
        engine.base.store.dmt.files().note_removal(id, Removal::Begun).unwrap();
        drop(engine);
        others(&dirs[0].path().join("file"));
        (open(&dirs), dirs)
    }

    fn flush(engine: &ExtentEngine) {
        Controlled::flush(engine, None, false, &mut |_| std::ops::ControlFlow::Continue(()))
            .unwrap();
    }

    #[test]
    fn i9_a_file_whose_removal_only_began_keeps_its_bytes_wherever_it_is() {
        for name in ["file", "other"] {
            let (engine, dirs) = after_a_kill(|path| {
                fs::rename(path, path.with_file_name(name)).unwrap();
            });
            assert_eq!(engine.status().notes, Vec::<String>::new());
            let [record] = &engine.base.store.dmt.files().all()[..] else { panic!("one file") };
            assert_eq!((record.removal, record.path.as_path()), (Removal::None, Path::new(name)));
            if name == "file" {
                flush(&engine);
                assert_eq!(fs::read(dirs[0].path().join(name)).unwrap(), [1; 4096]);
                continue;
            }
            drop(engine);
            fs::remove_file(dirs[0].path().join(name)).unwrap();
            let engine = open(&dirs);
            assert_eq!(engine.status().report.conflicts, 1, "its removal by others is told");
        }
    }

    #[test]
    fn i9_a_file_whose_removal_began_and_that_others_changed_is_told() {
        let (engine, dirs) = after_a_kill(|path| fs::write(path, [2; 500]).unwrap());
        let status = engine.status();
        assert_eq!(status.report.conflicts, 1, "{:?}", status.notes);
        assert_eq!(fs::read(dirs[0].path().join("file")).unwrap(), [2; 500]);
    }

    #[test]
    fn i9_a_file_that_is_gone_after_its_removal_began_is_no_conflict() {
        let (engine, _dirs) = after_a_kill(|path| fs::remove_file(path).unwrap());
        let status = engine.status();
        assert_eq!((status.notes, status.report.conflicts), (Vec::new(), 0));
        assert_eq!((status.dirty_bytes, engine.base.store.dmt.files().all().len()), (0, 0));
    }
}
