//! Moves that are not durable yet.
//!
//! What must hold (I4): nothing of a file is reported durable before its last move is.

use std::collections::HashMap;

use parking_lot::Mutex;

use super::tiers::Tiers;
use halocline_os::error::Result;
use halocline_vfs::namespace::Node;

/// For each file number, a directory that must be synced before anything of the file is durable, because its last move
/// is not. Nobody needs to have the file open meanwhile.
#[derive(Debug, Default)]
pub(super) struct PendingSyncs(Mutex<HashMap<u64, Node>>);

impl PendingSyncs {
    /// Notes that the last move of file `number` is durable once `dir` is.
    pub(super) fn add(&self, number: u64, dir: Node) {
        self.0.lock().insert(number, dir);
    }

    /// Makes the last move of file `number` durable, if it is not yet durable.
    pub(super) fn sync(&self, number: u64, tiers: &Tiers) -> Result<()> {
        let pending = self.0.lock().get(&number).cloned();
        if let Some(dir) = pending {
            tiers.sync_directory(&dir)?;
            self.0.lock().remove(&number);
        }
        Ok(())
    }

    /// Notes that the last move of file `number`, in `dir`, is durable.
    pub(super) fn synced(&self, number: u64, dir: &Node) {
        let mut pending = self.0.lock();
        if pending.get(&number) == Some(dir) {
            pending.remove(&number);
        }
    }

    /// Notes that file `number` no longer exists.
    pub(super) fn forget(&self, number: u64) {
        self.0.lock().remove(&number);
    }
}
