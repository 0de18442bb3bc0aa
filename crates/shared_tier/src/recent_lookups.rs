//! What was just looked up under a contested name, which is kept usable until the kernel's next requests about it.
//!
//! On one machine, a program that has looked a name up can open what it found, although the name is taken away in
//! between. Here the kernel looks up and opens by two requests, and another node that takes the name away removes the
//! bytes. So where that has just happened ([`crate::contested_names`]), the look-up itself opens the file, as a program
//! would: others leave an open file where it is, and it stays usable without a name. Of links, devices and directories
//! the attributes are kept.
//!
//! What must hold: what is kept is closed a second later, before the session ends, and there is a limit to it.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use halocline_cluster::names::attributes::Kind;
use halocline_os::catch_panic::caught;
use halocline_os::clock::Clock;
use halocline_os::error::Result;
use halocline_vfs::Stat;
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::base::Base;
use crate::entry_names::entry_name;
use crate::files::{Files, Handle};
use crate::inodes::Vnode;
use crate::lookup::Lookup;

/// How long something is kept.
const KEPT: Duration = Duration::from_secs(1);
/// How often it is seen whether that is over.
const PAUSE: Duration = Duration::from_millis(200);
/// The most that is kept: each file takes a descriptor.
const KEPT_MAX: usize = 32;
/// How often a name is looked up that others make and remove all the time.
const TRIES: usize = 64;

/// Looks names up, and keeps what contested ones lead to.
#[derive(Debug)]
pub(crate) struct RecentLookups {
    base: Arc<Base>,
    lookup: Arc<Lookup>,
    files: Arc<Files>,
    kept: Mutex<KeptInodes>,
}

#[derive(Debug, Default)]
struct KeptInodes {
    /// Since when, the earliest first.
    inodes: VecDeque<(Instant, KeptInode)>,
    has_thread: bool,
}

/// An inode that is kept. Dropping it may ask the store.
#[derive(Debug)]
enum KeptInode {
    File(Handle),
    Other(Vnode),
}

impl KeptInode {
    fn vnode(&self) -> &Vnode {
        match self {
            Self::File(handle) => handle.vnode(),
            Self::Other(vnode) => vnode,
        }
    }
}

impl Drop for KeptInode {
    fn drop(&mut self) {
        // Those of a directory are known for longer.
        if let Self::Other(vnode) = self
            && !vnode.0.is_directory
        {
            vnode.0.without_name.lock().last = None;
        }
    }
}

impl RecentLookups {
    pub(crate) fn new(base: &Arc<Base>, lookup: &Arc<Lookup>, files: &Arc<Files>) -> Self {
        Self {
            base: Arc::clone(base),
            lookup: Arc::clone(lookup),
            files: Arc::clone(files),
            kept: Mutex::default(),
        }
    }

    /// What a name leads to.
    ///
    /// # Errors
    /// `ENOENT`.
    pub(crate) fn lookup(self: &Arc<Self>, parent: &Vnode, name: &OsStr) -> Result<(Vnode, Stat)> {
        let mut found = self.lookup.lookup(&parent.0, name)?;
        if !self.base.contested.has_any() {
            return Ok(found);
        }
        let at = entry_name(parent.0.number, name);
        for _ in 0..TRIES {
            if !self.base.contested.has(&at, self.base.clock.instant()) || self.keep(&found.0) {
                break;
            }
            // It was taken away meanwhile.
            found = self.lookup.lookup(&parent.0, name)?;
        }
        Ok(found)
    }

    /// Keeps an inode; `false` if it is gone. One whose bytes are not reached is not kept.
    fn keep(self: &Arc<Self>, vnode: &Vnode) -> bool {
        if self.is_kept(vnode) {
            return true;
        }
        match self.kept_inode(vnode) {
            Ok(kept) => self.insert(kept),
            Err(error) if error.errno() == libc::ESTALE => return false,
            Err(error) => tracing::debug!(%error, "what a contested name leads to is not kept"),
        }
        true
    }

    fn kept_inode(&self, vnode: &Vnode) -> Result<KeptInode> {
        let found = self.lookup.find(&vnode.0)?.ok_or(Errno::STALE)?.stored.attributes;
        if found.kind == Kind::File {
            let kept = KeptInode::File(self.files.open_for_later(vnode)?);
            let noting = vnode.0.noting.lock();
            vnode.0.without_name.lock().is_only_looked_up = noting.handles == 1;
            return Ok(kept);
        }
        vnode.0.without_name.lock().last = Some(found);
        Ok(KeptInode::Other(vnode.clone()))
    }

    /// Whether it is kept; then it is so for longer.
    fn is_kept(&self, vnode: &Vnode) -> bool {
        let mut kept = self.kept.lock();
        let at = kept.inodes.iter().position(|(_, one)| Arc::ptr_eq(&one.vnode().0, &vnode.0));
        let Some((_, one)) = at.and_then(|at| kept.inodes.remove(at)) else { return false };
        kept.inodes.push_back((self.base.clock.instant(), one));
        true
    }

    fn insert(self: &Arc<Self>, inode: KeptInode) {
        let mut kept = self.kept.lock();
        kept.inodes.push_back((self.base.clock.instant(), inode));
        if !kept.has_thread {
            let (weak, clock) = (Arc::downgrade(self), self.base.clock.clone());
            let named = thread::Builder::new().name("recent-lookups".to_owned());
            kept.has_thread = named.spawn(move || run(&weak, &clock)).is_ok();
        }
        let is_one_too_many = kept.inodes.len() > KEPT_MAX || !kept.has_thread;
        let gone = is_one_too_many.then(|| kept.inodes.pop_front());
        drop(kept);
        drop(gone);
    }

    /// Keeps nothing any more.
    pub(crate) fn end(&self) {
        let gone = std::mem::take(&mut self.kept.lock().inodes);
        drop(gone);
    }

    /// Closes what was kept long enough; whether something is left.
    fn close_old(&self) -> bool {
        let now = self.base.clock.instant();
        let mut kept = self.kept.lock();
        let young =
            |(since, _): &(Instant, KeptInode)| now.saturating_duration_since(*since) < KEPT;
        let old = kept.inodes.iter().take_while(|one| !young(one)).count();
        let gone: Vec<_> = kept.inodes.drain(..old).collect();
        kept.has_thread = !kept.inodes.is_empty();
        let is_left = kept.has_thread;
        drop(kept);
        drop(gone);
        is_left
    }
}

/// Closes what was kept long enough, until nothing is left.
fn run(recent: &Weak<RecentLookups>, clock: &Clock) {
    loop {
        clock.sleep(PAUSE);
        let Some(recent) = recent.upgrade() else { return };
        if !caught(|| recent.close_old()).unwrap_or(true) {
            return;
        }
    }
}
