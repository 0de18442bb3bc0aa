//! Dirty files that a flush does not find under their names, until they are found or gone.
//!
//! A file that is being renamed or removed is not there for an instant, and its record follows a
//! moment later. Only what stays missing was moved or removed behind the mount.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::meta::FileId;

/// How long a name may be on its way, in milliseconds.
const GRACE_MS: u64 = 2_000;

/// When each of them was missed first, in milliseconds since the epoch.
#[derive(Debug, Default)]
pub(crate) struct Missing {
    since_ms: Mutex<HashMap<FileId, u64>>,
}

impl Missing {
    /// Notes that `id` was not found; whether it is missing for so long that a person should know.
    /// Says so once.
    pub(crate) fn note(&self, id: FileId, now_ms: u64) -> bool {
        let mut since_ms = self.since_ms.lock();
        let since = since_ms.entry(id).or_insert(now_ms);
        let told = *since == u64::MAX;
        let is_late = !told && now_ms.saturating_sub(*since) >= GRACE_MS;
        if is_late {
            *since = u64::MAX;
        }
        is_late
    }

    /// Forgets all but those of `dirty`, the files that are dirty now.
    pub(crate) fn keep_only(&self, dirty: &[(FileId, u64)]) {
        let mut since_ms = self.since_ms.lock();
        if !since_ms.is_empty() {
            since_ms.retain(|id, _| dirty.iter().any(|(dirty, _)| dirty == id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_missing_is_told_once() {
        let missing = Missing::default();
        let (gone, moving) = (FileId(1), FileId(2));
        assert!(!missing.note(gone, 1000) && !missing.note(moving, 2900));
        assert!(missing.note(gone, 3000) && !missing.note(moving, 3000), "only the first is late");
        assert!(!missing.note(gone, 9000), "it was told");
        missing.keep_only(&[(moving, 0)]);
        assert!(!missing.note(gone, 9000), "it was found meanwhile");
        assert!(missing.note(moving, 9000));
    }
}
