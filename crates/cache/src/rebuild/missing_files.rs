//! Dirty files that a flush does not find under their names, until they are found or known to be gone.
//!
//! While a file is renamed or removed, its name is briefly missing, and its record follows a moment later. Only a file
//! that stays missing was moved or removed behind the mount, and is searched for.

use std::collections::{HashMap, HashSet};

use parking_lot::Mutex;

use halocline_meta::FileId;

/// How long a change of a name may take, in milliseconds.
const GRACE_MS: u64 = 2_000;

/// Pause between searches for a file that could neither be found nor given up, in milliseconds: a search walks the
/// whole tree.
const AGAIN_MS: u64 = 60_000;

/// When each missing file is to be searched for, in milliseconds since the epoch.
#[derive(Debug, Default)]
pub(crate) struct MissingFiles {
    due_ms: Mutex<HashMap<FileId, u64>>,
}

impl MissingFiles {
    /// Notes that `id` was not found; returns whether it has been missing long enough to be searched for now.
    pub(crate) fn note(&self, id: FileId, now_ms: u64) -> bool {
        let mut due_ms = self.due_ms.lock();
        let due = due_ms.entry(id).or_insert(now_ms.saturating_add(GRACE_MS));
        // Further in the future than any wait: the clock was set back.
        let is_due = *due <= now_ms || *due > now_ms.saturating_add(AGAIN_MS.max(GRACE_MS));
        if is_due {
            *due = now_ms.saturating_add(AGAIN_MS);
        }
        is_due
    }

    /// Forgets all files except those in `dirty`, which are dirty now.
    pub(crate) fn keep_only(&self, dirty: &[(FileId, u64)]) {
        let mut due_ms = self.due_ms.lock();
        if !due_ms.is_empty() {
            let dirty: HashSet<FileId> = dirty.iter().map(|(id, _)| *id).collect();
            due_ms.retain(|id, _| dirty.contains(id));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::fs;

    use tempfile::TempDir;

    use super::*;
    use crate::Decorations;
    use crate::engine::ExtentEngine;
    use crate::rebuild::{Reason, Signal};
    use halocline_api::config::Config;
    use halocline_api::control::Controlled;
    use halocline_os::clock::Clock;
    use halocline_vfs::{Caller, Engine, Maker};

    const ME: Caller = Caller { uid: 0, gid: 0, pid: 1 };

    #[test]
    fn what_stays_missing_is_searched_for_now_and_then() {
        let missing = MissingFiles::default();
        let (gone, moving) = (FileId(1), FileId(2));
        assert!(!missing.note(gone, 1000) && !missing.note(moving, 2900));
        assert!(missing.note(gone, 3000) && !missing.note(moving, 3000), "only the first is late");
        assert!(!missing.note(gone, 62_000), "that was a moment ago");
        assert!(missing.note(gone, 63_000));
        missing.keep_only(&[(moving, 0)]);
        assert!(!missing.note(gone, 200_000), "it was found meanwhile");
        assert!(missing.note(moving, 200_000));
    }

    /// An engine with 4 KiB of dirty bytes of `file`, which it must look up by name.
    fn engine(dirs: &[TempDir; 2]) -> ExtentEngine {
        let config = Config { policy: "always".to_owned(), rebuild: false, ..Config::default() };
        let around = Decorations { data_bytes: Some(1 << 20), ..Decorations::NONE };
        let [origin, cache] = dirs.each_ref().map(TempDir::path);
        let engine = ExtentEngine::open_decorated(origin, cache, &config, around).unwrap();
        let (root, by) = (engine.root(), Maker { caller: ME, umask: 0 });
        let made = engine.create((&root, OsStr::new("file")), 0o644, libc::O_RDWR, by);
        let (vnode, _, handle) = made.unwrap();
        engine.write(&handle, 0, &[7; 4096], ME).unwrap();
        let file = handle.file.clone();
        drop((vnode, handle));
        *file.flush_handle.lock() = None;
        file.let_mtime_go(None);
        engine.components.known.forget_idle(&file);
        assert!(engine.base.files.by_id(file.id().unwrap()).is_none());
        engine
    }

    /// Flushes as the rebuilder does, long after dirty files were first missed.
    fn pass(engine: &ExtentEngine) {
        for (id, _) in engine.base.store.dmt.index().dirty_files() {
            engine.components.rounds.missing.note(id, 0);
        }
        engine.components.rounds.flush_pass(&Signal::new(Clock::MACHINE), Reason::Short).unwrap();
    }

    /// Regression: only a flush or an unmount on request looked for them; `status` said that the next mount would.
    #[test]
    fn i9_what_others_removed_is_saved_while_the_mount_lives() {
        let dirs = [(); 2].map(|()| TempDir::new().unwrap());
        let engine = engine(&dirs);
        fs::remove_file(dirs[0].path().join("file")).unwrap();
        pass(&engine);
        let status = engine.status();
        assert_eq!(status.dirty_bytes, 0);
        let said = |note: &String| note.contains("is gone") && note.contains("4096 bytes");
        assert!(status.notes.iter().any(said), "{:?}", status.notes);
        assert_eq!(status.report.conflicts, 1);
    }

    #[test]
    fn i9_what_others_renamed_is_found_while_the_mount_lives() {
        let dirs = [(); 2].map(|()| TempDir::new().unwrap());
        let engine = engine(&dirs);
        fs::rename(dirs[0].path().join("file"), dirs[0].path().join("other")).unwrap();
        pass(&engine);
        pass(&engine);
        assert_eq!((engine.status().dirty_bytes, engine.status().notes), (0, Vec::new()));
        assert_eq!(fs::read(dirs[0].path().join("other")).unwrap(), [7; 4096]);
    }
}
