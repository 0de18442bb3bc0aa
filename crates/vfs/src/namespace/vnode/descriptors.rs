//! A bounded number of `O_PATH` descriptors for an unbounded number of vnodes.
//!
//! Descriptors that must stay (pinned, or of a vnode without a name) are not counted here and not closed. The others are
//! replaced by the second-chance rule: in a ring of vnodes, a vnode that was used since the hand last passed it is spared
//! once.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;

use super::super::statx::stat_descriptor;
use super::{DEPTH_MAX, Inode, Link, Pin, Vnode};
use halocline_os::error::Result;

/// How often the walk is repeated in a changing tree before `ESTALE` is reported.
const ATTEMPTS: usize = 16;

/// How many vnodes the hand passes for one new descriptor at most, so that one call stays cheap.
const HAND_STEPS: usize = 64;

/// The descriptor cache of one tree.
pub(in crate::namespace) struct Descriptors {
    ring: Mutex<VecDeque<Weak<Inode>>>,
    /// Nodes whose descriptor counts towards the limit.
    counted: AtomicUsize,
    counted_max: usize,
    pinned: AtomicUsize,
    pinned_max: usize,
}

impl Descriptors {
    pub(in crate::namespace) fn with_bounds(counted_max: usize, pinned_max: usize) -> Self {
        Self {
            ring: Mutex::default(),
            counted: AtomicUsize::new(0),
            counted_max: counted_max.max(16),
            pinned: AtomicUsize::new(0),
            pinned_max,
        }
    }

    /// The vnode's descriptor, opened by its known names if it is not open.
    pub(in crate::namespace) fn of(&self, vnode: &Vnode) -> Result<Arc<OwnedFd>> {
        if let Some(fd) = vnode.0.cached() {
            return Ok(fd);
        }
        for _ in 0..ATTEMPTS {
            if let Some(fd) = self.walk(vnode)? {
                return Ok(fd);
            }
        }
        Err(Errno::STALE.into())
    }

    /// Opens the chain of names down from the nearest ancestor with a descriptor. `None` if a name turned out to be
    /// wrong: it is then forgotten, and another may work.
    fn walk(&self, vnode: &Vnode) -> Result<Option<Arc<OwnedFd>>> {
        let mut chain: Vec<(Vnode, Link)> = Vec::new();
        let mut at = vnode.clone();
        let mut fd = loop {
            if let Some(fd) = at.0.cached() {
                break fd;
            }
            let link = at.link().ok_or(Errno::STALE)?;
            let parent = link.parent.clone();
            chain.push((at, link));
            if chain.len() > DEPTH_MAX {
                return Err(Errno::STALE.into());
            }
            at = parent;
        };
        for (child, link) in chain.into_iter().rev() {
            let Some(opened) = open_checked(&fd, &link, child.0.key)? else {
                child.remove_link(&link.parent, &link.name);
                return Ok(None);
            };
            fd = self.keep(&child, Arc::new(opened));
        }
        Ok(Some(fd))
    }

    /// Stores an opened descriptor in its vnode and closes others beyond the limit.
    pub(in crate::namespace) fn keep(&self, vnode: &Vnode, fd: Arc<OwnedFd>) -> Arc<OwnedFd> {
        let mut state = vnode.0.state.lock();
        if let Some(present) = &state.fd {
            return present.clone();
        }
        state.fd = Some(fd.clone());
        state.counted = true;
        drop(state);
        self.counted.fetch_add(1, Ordering::Relaxed);
        self.ring.lock().push_back(Arc::downgrade(&vnode.0));
        self.shrink();
        fd
    }

    /// Advances the hand until the limit holds, or for [`HAND_STEPS`] vnodes: what is left above the limit is then
    /// closed with the next descriptors.
    fn shrink(&self) {
        let mut ring = self.ring.lock();
        for _ in 0..HAND_STEPS {
            if self.counted.load(Ordering::Relaxed) <= self.counted_max {
                break;
            }
            let Some(entry) = ring.pop_front() else { break };
            let Some(inode) = entry.upgrade() else { continue };
            if inode.used.swap(false, Ordering::Relaxed) || !self.close(&inode) {
                ring.push_back(entry);
            }
        }
        // Entries of freed vnodes are removed before they outnumber the live ones.
        if ring.len() > 2 * self.counted_max {
            ring.retain(|entry| entry.strong_count() > 0);
        }
    }

    /// Closes a vnode's descriptor unless it must stay or is in use.
    fn close(&self, inode: &Inode) -> bool {
        let Some(mut state) = inode.state.try_lock() else { return false };
        if state.must_stay() {
            return false;
        }
        // Otherwise the limit would come to hold for fewer vnodes than have a descriptor.
        assert!(state.counted && state.fd.is_some(), "a node of the ring has a counted descriptor");
        state.counted = false;
        state.fd = None;
        self.uncount();
        true
    }

    pub(in crate::namespace) fn uncount(&self) {
        let before = self.counted.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "a descriptor that was not counted is closed");
    }

    pub(in crate::namespace) fn pin(&self, vnode: &Vnode) -> Pin {
        let held = self
            .pinned
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |pinned| {
                (pinned < self.pinned_max).then_some(pinned + 1)
            })
            .is_ok();
        if held {
            vnode.0.state.lock().pins += 1;
        }
        Pin { vnode: vnode.clone(), held }
    }

    pub(in crate::namespace) fn unpin(&self) {
        let before = self.pinned.fetch_sub(1, Ordering::Relaxed);
        assert!((1..=self.pinned_max).contains(&before), "pins are within their share");
    }
}

/// Opens a name and compares its inode with the expected one; `None` if it differs or is gone.
fn open_checked(parent: &OwnedFd, link: &Link, key: (u64, u64)) -> Result<Option<OwnedFd>> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat(parent, link.name.as_os_str(), flags, Mode::empty()) {
        Ok(fd) => Ok((stat_descriptor(fd.as_fd())?.key() == key).then_some(fd)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}
