//! Creates and removes names as the caller: sets file-system ids and umask of the calling thread, and restores them on
//! drop.
//!
//! The kernel then decides owner, group (set-group-id directories), mode and default ACL as it does for the program
//! itself. Permissions were already checked above, with supplementary groups that we do not have here, so a privileged
//! daemon keeps its capabilities meanwhile; but whoever removes something acts for no other owner.

use std::cell::Cell;
use std::marker::PhantomData;

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::{getegid, geteuid, umask};
use rustix::thread::{CapabilitySet, UnshareFlags, capabilities, set_capabilities, unshare_unsafe};

use crate::{Caller, Maker};
use halocline_os::error::Result;

thread_local! {
    /// Whether this thread has its own umask.
    static OWN_UMASK: Cell<bool> = const { Cell::new(false) };
}

/// While this lives, the calling thread creates files as another user.
pub(super) struct ActAs {
    umask: Mode,
    /// The caller's.
    set: Mode,
    _ids: Ids,
}

impl ActAs {
    /// Switches to the caller's ids and umask. An unprivileged daemon keeps its own ids.
    pub(super) fn new(by: Maker) -> Result<Self> {
        let Maker { caller, umask: mask } = by;
        own_umask()?;
        let ids = Ids::of(caller, CapabilitySet::empty())?;
        let set = Mode::from_raw_mode(mask & 0o777);
        Ok(Self { umask: umask(set), set, _ids: ids })
    }
}

impl Drop for ActAs {
    fn drop(&mut self) {
        let found = umask(self.umask);
        debug_assert_eq!(found, self.set, "one thread creates files for one caller at a time");
    }
}

/// While this lives, the calling thread has the ids of another user.
pub(super) struct Ids {
    /// Whether the ids were switched and must be switched back.
    switched: bool,
    /// The ids belong to the thread, so the guard must not leave it.
    not_send: PhantomData<*const ()>,
}

impl Ids {
    /// Switches to the caller's ids. A privileged daemon keeps all its capabilities but these, which it has again when
    /// the guard is dropped; an unprivileged one keeps its own ids.
    pub(super) fn of(caller: Caller, without: CapabilitySet) -> Result<Self> {
        let mut ids = Self { switched: false, not_send: PhantomData };
        let own = (geteuid().as_raw(), getegid().as_raw());
        if own.0 == 0 && own != (caller.uid, caller.gid) {
            ids.switched = true;
            switch_to(caller.uid, caller.gid)?;
            let mut sets = capabilities(None)?;
            sets.effective = sets.permitted.difference(without);
            set_capabilities(None, sets)?;
        }
        Ok(ids)
    }
}

impl Drop for Ids {
    fn drop(&mut self) {
        if self.switched {
            // Switching back to the daemon's own ids cannot fail; if it did, files would get a wrong owner from here
            // on, which is worse than stopping.
            switch_to(geteuid().as_raw(), getegid().as_raw())
                .expect("the daemon's own file-system ids can always be set");
        }
    }
}

/// Gives the thread its own umask (and working directory), separate from the process's.
fn own_umask() -> Result<()> {
    if !OWN_UMASK.get() {
        // SAFETY: CLONE_FS concerns umask, root and working directory only; no descriptor table
        // is split, and nothing here relies on a working directory shared between threads.
        unsafe { unshare_unsafe(UnshareFlags::FS) }?;
        OWN_UMASK.set(true);
    }
    Ok(())
}

/// Sets the file-system ids of this thread and checks that they took effect, because the calls themselves report
/// nothing.
fn switch_to(uid: u32, gid: u32) -> Result<()> {
    // SAFETY: these system calls take plain numbers and change the calling thread only.
    let now = unsafe {
        libc::syscall(libc::SYS_setfsgid, gid);
        libc::syscall(libc::SYS_setfsuid, uid);
        (libc::syscall(libc::SYS_setfsuid, -1), libc::syscall(libc::SYS_setfsgid, -1))
    };
    if now == (i64::from(uid), i64::from(gid)) { Ok(()) } else { Err(Errno::PERM.into()) }
}
