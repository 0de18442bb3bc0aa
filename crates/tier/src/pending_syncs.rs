//! Moves that are not durable yet.
//!
//! What must hold (I4): nothing of a file is reported durable before its last move is.

use std::collections::HashMap;

use parking_lot::Mutex;

use super::tiers::Tiers;
use halocline_os::error::Result;
use halocline_vfs::namespace::Vnode;

/// A directory that must be synced before anything of a file is durable, because the file's last move is not.
#[derive(Debug, Clone)]
struct Pending {
    dir: Vnode,
    /// Distinguishes this move from later ones into the same directory.
    move_number: u64,
}

/// The files whose last move is not durable, by number. Nobody needs to have them open meanwhile.
#[derive(Debug, Default)]
pub(super) struct PendingSyncs(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    moves: u64,
    files: HashMap<u64, Pending>,
}

impl PendingSyncs {
    /// Notes that the last move of file `number` is durable once `dir` is.
    pub(super) fn add(&self, number: u64, dir: Vnode) {
        let mut state = self.0.lock();
        state.moves += 1;
        let move_number = state.moves;
        state.files.insert(number, Pending { dir, move_number });
    }

    /// Makes the last move of file `number` durable, if it is not yet durable.
    pub(super) fn sync(&self, number: u64, tiers: &Tiers) -> Result<()> {
        self.sync_by(number, |dir| tiers.sync_directory(dir))
    }

    fn sync_by(&self, number: u64, sync: impl FnOnce(&Vnode) -> Result<()>) -> Result<()> {
        let pending = self.0.lock().files.get(&number).cloned();
        let Some(Pending { dir, move_number }) = pending else { return Ok(()) };
        sync(&dir)?;
        let files = &mut self.0.lock().files;
        // If the file has moved again meanwhile, the sync may have come before that move.
        if files.get(&number).is_some_and(|now| now.move_number == move_number) {
            files.remove(&number);
        }
        Ok(())
    }

    /// Notes that the last move of file `number`, in `dir`, is durable.
    pub(super) fn synced(&self, number: u64, dir: &Vnode) {
        let files = &mut self.0.lock().files;
        if files.get(&number).is_some_and(|pending| pending.dir == *dir) {
            files.remove(&number);
        }
    }

    /// Notes that file `number` no longer exists.
    pub(super) fn forget(&self, number: u64) {
        self.0.lock().files.remove(&number);
    }
}

#[cfg(test)]
mod tests {
    use halocline_vfs::namespace::Namespace;

    use super::*;

    /// Regression: the sync of one move made the next one, which came during it, count as durable.
    #[test]
    fn i4_a_move_during_the_sync_of_the_one_before_is_synced_too() {
        let scratch = tempfile::tempdir().unwrap();
        std::fs::create_dir(scratch.path().join("other")).unwrap();
        let tree = Namespace::open(scratch.path()).unwrap();
        let (other, _) = tree.lookup(&tree.root(), "other".as_ref()).unwrap();
        for next in [tree.root(), other] {
            let pending = PendingSyncs::default();
            pending.add(7, tree.root());
            let move_meanwhile = |_: &Vnode| {
                pending.add(7, next.clone());
                Ok(())
            };
            pending.sync_by(7, move_meanwhile).unwrap();
            let mut synced = Vec::new();
            for _ in 0..2 {
                let sync = |dir: &Vnode| {
                    synced.push(dir.clone());
                    Ok(())
                };
                pending.sync_by(7, sync).unwrap();
            }
            assert_eq!(synced, [next], "once");
        }
    }
}
