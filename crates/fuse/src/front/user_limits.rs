//! Limits how many files one user may have open on a mount, so that others can open theirs, and the engine can work.
//!
//! Each open file or directory takes a descriptor of the mount process, whose number is limited. What must hold: no
//! user takes the last ones. A user may have as many as are left for all others, so `n` greedy users leave a fraction
//! of `1 / (n + 1)`; and none of them may take any of the last sixteenth. Root and the mount's own user may have three
//! quarters, and the first half of that sixteenth, too. The rest is the engine's: without a descriptor it could neither
//! move files nor ask other nodes.

use std::sync::Arc;

use fuser::Errno;
use halocline_os::open_files;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use rustix::process::geteuid;

use super::{Answer, Refused};

/// What a user may have without a check of what is left, as long as every user has only a few.
const FEW: usize = 32;

/// Counts what users open on one mount.
#[derive(Debug)]
pub(super) struct UserLimits {
    users: Arc<Users>,
}

/// What is open, by user.
#[derive(Debug)]
struct Users {
    /// Descriptors that the process may have.
    limit: usize,
    own: u32,
    /// How many descriptors the process has.
    in_use: fn() -> usize,
    open: Mutex<OpenCounts>,
}

#[derive(Debug, Default)]
struct OpenCounts {
    by: FxHashMap<u32, usize>,
    all: usize,
}

/// One open file or directory of a user; dropping this releases it.
#[derive(Debug)]
pub(super) struct CountedOpen(Option<(Arc<Users>, u32)>);

#[cfg(test)]
impl CountedOpen {
    /// One that counts for no user.
    pub(super) const fn nobodys() -> Self {
        Self(None)
    }
}

impl UserLimits {
    /// Starts with nothing open.
    pub(super) fn new() -> Self {
        Self { users: Users::new() }
    }

    /// Counts a file or directory that a user is about to open.
    ///
    /// # Errors
    /// `ENFILE` if the user has too many.
    pub(super) fn take(&self, user: u32) -> Answer<CountedOpen> {
        self.users.take(user)
    }
}

impl Users {
    /// Starts with nothing open; the limit is the process's current one.
    fn new() -> Arc<Self> {
        Arc::new(Self {
            limit: open_files::limit(),
            own: geteuid().as_raw(),
            // If it is not known, none may be left.
            in_use: || open_files::in_use().unwrap_or(usize::MAX),
            open: Mutex::default(),
        })
    }

    /// Counts one more for a user.
    ///
    /// # Errors
    /// `ENFILE` if the user has too many.
    fn take(self: &Arc<Self>, user: u32) -> Answer<CountedOpen> {
        let mut open = self.open.lock();
        let own = open.by.get(&user).copied().unwrap_or(0);
        if own >= FEW || open.all >= self.limit / 16 {
            let left = self.limit.saturating_sub((self.in_use)());
            if !self.may_have_one_more(user, own, left) {
                tracing::debug!(user, open = own, left, "a user has too many files open");
                return Err(Refused(Errno::ENFILE));
            }
        }
        *open.by.entry(user).or_default() += 1;
        open.all += 1;
        Ok(CountedOpen(Some((self.clone(), user))))
    }

    /// Whether a user who has `own` may take one of the descriptors that are left.
    fn may_have_one_more(&self, user: u32, own: usize, left: usize) -> bool {
        if user == 0 || user == self.own {
            own < self.limit - self.limit / 4 && left >= self.limit / 32
        } else {
            own < left && left >= self.limit / 16
        }
    }
}

impl Drop for CountedOpen {
    fn drop(&mut self) {
        let Some((users, user)) = self.0.take() else { return };
        let mut open = users.open.lock();
        open.all -= 1;
        if let Some(own) = open.by.get_mut(&user) {
            *own -= 1;
            if *own == 0 {
                open.by.remove(&user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those of a process that has ten descriptors beside what is counted.
    fn users(limit: usize) -> Arc<Users> {
        Arc::new(Users { limit, own: 1, in_use: || 10, open: Mutex::default() })
    }

    #[test]
    fn a_user_leaves_as_many_as_are_taken() {
        // The files counted here are not really open.
        let users = users(1000);
        let many: Vec<_> = (0..1000).map_while(|_| users.take(7).ok()).collect();
        assert!((FEW..1000).contains(&many.len()), "{}", many.len());
        assert!(users.take(7).is_err());
        for other in [0, 1, 8] {
            assert!(users.take(other).is_ok(), "user {other}");
        }
        drop(many);
        // Regression: root, and the mount's own user, took all.
        for ours in [0, 1] {
            let many: Vec<_> = (0..1000).map_while(|_| users.take(ours).ok()).collect();
            assert_eq!(many.len(), 750, "user {ours}");
            assert!(users.take(8).is_ok());
        }
        assert!(users.take(7).is_ok());
        let open = users.open.lock();
        assert_eq!((open.all, open.by.len()), (0, 0));
    }

    #[test]
    fn the_last_ones_are_for_the_engine() {
        assert!(users(1).take(2).is_err());
        let users_of_free = users(16);
        let opens: Vec<_> = (2..100).map_while(|user| users_of_free.take(user).ok()).collect();
        assert_eq!(opens.len(), 98, "many users with one each, and all else is free");
        let users = users(320);
        for (left, is_for_others, is_for_ours) in
            [(20, true, true), (19, false, true), (10, false, true), (9, false, false)]
        {
            assert_eq!(users.may_have_one_more(2, 0, left), is_for_others, "{left}");
            assert_eq!(users.may_have_one_more(0, 0, left), is_for_ours, "{left}");
            assert_eq!(users.may_have_one_more(1, 0, left), is_for_ours, "{left}");
        }
    }
}
