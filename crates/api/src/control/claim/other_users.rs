//! Claims of users without write permission to the directories that they claim.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::ancestors::Ancestor;
use super::claimant::{Claimant, read_answer};
use super::names::Kind;
use super::{ANSWER_TIMEOUT, Taken, taken, write_permission};

/// Claims of one user listened to.
const OTHER_USERS_MAX: usize = 64;

/// Claimants that may not write to the directory that their claim is about. They may use one below
/// it that is theirs.
///
/// All say so at the same time, and nobody waits for them longer than for one: who squats names by
/// the thousand must not keep others from their origins. More of one user than [`OTHER_USERS_MAX`]
/// are not listened to: only that user's own claims are lost by it.
#[derive(Default)]
pub(super) struct OtherUsers<'a> {
    listened_to: Vec<(&'a Ancestor, Claimant)>,
    /// By user: claims, one process, and what one is about.
    users: BTreeMap<u32, (usize, i32, PathBuf)>,
}

impl<'a> OtherUsers<'a> {
    pub(super) fn add(&mut self, kind: Kind, meets: &'a Ancestor, claimant: Claimant) {
        let pid = claimant.peer.pid.as_raw_nonzero().get();
        let user = self.users.entry(claimant.peer.uid.as_raw());
        let (count, ..) = user.or_insert_with(|| (0, pid, meets.path.clone()));
        *count += 1;
        if kind == Kind::Below && *count <= OTHER_USERS_MAX {
            self.listened_to.push((meets, claimant));
        }
    }

    pub(super) fn user_of_one_below(mut self, dir: &Path, cache: &Path) -> Option<Taken> {
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        let mut found = None;
        for (meets, Claimant { peer, stream }) in self.listened_to {
            let told = read_answer(stream, deadline);
            let inside = told.as_ref().map_or(Path::new(""), |told| &told.inside);
            if write_permission::may_write_below(&peer, &meets.path, inside) {
                self.users.remove(&peer.uid.as_raw());
                found = found.or_else(|| Some(taken((dir, cache), &peer, told)));
            }
        }
        for (uid, (count, pid, path)) in self.users {
            tracing::warn!(
                "user {uid} (process {pid}) claims {} or a directory of it, and may not write \
                 there: {count} claims ignored",
                path.display()
            );
        }
        found
    }
}
