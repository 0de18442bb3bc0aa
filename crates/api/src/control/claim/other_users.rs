//! Claims of users without write permission to the directories that they claim.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::ancestors::Ancestor;
use super::claimant::{Claimant, read_answer};
use super::names::Kind;
use super::{ANSWER_TIMEOUT, DirectoryInUse, taken, write_permission};

/// How many claims of one user are asked.
const OTHER_USERS_MAX: usize = 64;

/// Claimants that may not write to the directory in their claim. They may use one below it that belongs to them.
///
/// All are asked at the same time, and waited for no longer than for one: a user who squats thousands of names must not
/// keep others from their origins. No more than [`OTHER_USERS_MAX`] claims of one user are asked: only that user's own
/// claims are lost by this.
#[derive(Default)]
pub(super) struct OtherUsers<'a> {
    listened_to: Vec<(&'a Ancestor, Claimant)>,
    /// By user: number of claims, one process, and the directory of one claim.
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

    pub(super) fn user_of_one_below(mut self, dir: &Path, cache: &Path) -> Option<DirectoryInUse> {
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
