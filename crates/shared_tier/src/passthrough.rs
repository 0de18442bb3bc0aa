//! Kernel passthrough: which open files on this node's own SSD the kernel serves by itself.
//!
//! What must hold (I15): nobody moves such a file while the kernel may still serve it. The kernel cannot be made to
//! return a file: it continues after the lease has lapsed, and after the mount process was killed. So an open that
//! may be handed over is noted as such in the store before the file is opened (`Open::by_kernel`), and no other node
//! counts it as closed. A mapping holds the file below rather than our handle, so it outlives the last close: the
//! file stays noted as open until nobody else has it open, which the kernel shows by granting a write lease.
//!
//! Only readers are handed over: they read what the mount process would read, from the same pages of the SSD's file
//! system, whoever writes there. Writers come to us, so that we can stop them when the lease has lapsed; if a reader
//! of the file was handed over, the kernel serves their mappings only. Files elsewhere are not handed over: another
//! node's SSD may be unreachable, and we must explain its errors.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use halocline_api::control::tier::PassthroughStatus;
use halocline_api::file_tier::KernelServed;
use halocline_cluster::names::attributes::{Attributes, Location};
use halocline_os::clock::Clock;
use halocline_os::{kernel_passthrough, open_files};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::inodes::{Inode, Vnode};
use crate::places::SSD;

/// The pause between a close and the first check for remaining mappings, and the longest pause between later checks.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LAST_PAUSE: Duration = Duration::from_secs(1);
/// How many checks are made when the mount ends.
const LAST_LOOKS: usize = 20;
/// The part of this process's open files that closed ones, which may be mapped, should take.
const MAPPED_SHARE: usize = 8;

/// Why the mount process must serve a handle; `None` if the kernel may.
pub(crate) type WhyOurs = Option<&'static str>;

/// Notes closes in the store.
pub(crate) trait Closes: Send + Sync + 'static {
    fn passthrough(&self) -> &Passthrough;
    /// Notes the close of a file that the kernel served, unless it is still open or mapped; `true` if nothing is left
    /// to do.
    fn end_if_unused(&self, inode: &Inode) -> bool;
}

/// Which files the kernel serves.
#[derive(Debug)]
pub(crate) struct Passthrough {
    clock: Clock,
    wanted: bool,
    served: KernelServed<Inode>,
    /// How many closed files may stay open for their mappings before no more are handed over. Those that were handed
    /// over before go on counting for their users.
    mapped_max: usize,
    /// Files that were handed over and closed, but may still be mapped.
    closed: Mutex<Closed>,
}

#[derive(Debug, Default)]
struct Closed {
    /// By number: a mapped file may be opened and closed again and again.
    files: FxHashMap<u64, Vnode>,
    /// How many were taken out to be looked at.
    looked_at: usize,
    is_watched: bool,
}

impl Closed {
    /// How many may still be mapped, at most. None is left out while it is looked at.
    fn count(&self) -> usize {
        self.files.len() + self.looked_at
    }
}

impl Passthrough {
    /// `grants_leases`: whether the SSD's file system grants write leases.
    pub(crate) fn new(wanted: bool, grants_leases: bool, clock: &Clock) -> Self {
        let why_none = if !wanted {
            Some("switched off (--passthrough=false)")
        } else if !grants_leases {
            Some(
                "the SSD's file system grants no leases (fcntl F_SETLEASE), by which mappings are seen",
            )
        } else {
            None
        };
        Self {
            clock: clock.clone(),
            wanted: why_none.is_none(),
            served: KernelServed::new(why_none),
            mapped_max: open_files::limit() / MAPPED_SHARE,
            closed: Mutex::default(),
        }
    }

    /// Whether any file may be handed over.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// Why the kernel must not serve a file that `node` opens; `None` if it may.
    pub(crate) fn why_ours(&self, of: &Attributes, flags: i32, node: &str) -> WhyOurs {
        let set_id = libc::S_ISUID | libc::S_ISGID;
        let is_own = |place: &Location| place.tier == SSD && place.node.as_deref() == Some(node);
        if let Some(why) = self.served.why_none() {
            Some(why)
        } else if flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0 {
            Some("opened for writing")
        } else if !of.location.as_ref().is_some_and(is_own) {
            Some("not on this node's SSD")
        } else if of.size < kernel_passthrough::SMALL_BYTES {
            Some("small")
        } else if flags & libc::O_DIRECT != 0 {
            // The kernel would require the device's alignment from the program.
            Some("opened with O_DIRECT")
        } else if of.mode & set_id != 0 {
            Some("has set-id bits")
        } else if self.closed.lock().count() >= self.mapped_max {
            Some("too many that are closed are still mapped")
        } else {
            None
        }
    }

    /// Offers an open file to the kernel. `must` says that the kernel already has other handles of the file.
    pub(crate) fn offer(
        &self,
        (inode, file): (&Arc<Inode>, BorrowedFd<'_>),
        (why_ours, must): (WhyOurs, bool),
        register: &mut dyn FnMut(BorrowedFd<'_>) -> io::Result<()>,
    ) -> bool {
        if let Some(why) = why_ours {
            self.served.refused(why);
            if !must {
                return false;
            }
        }
        self.served.answered(inode.number.0, inode, register(file))
    }

    /// Watches a file that was handed over and closed: the close is noted once the file is no longer mapped.
    pub(crate) fn watch<C: Closes>(&self, files: &Arc<C>, vnode: Vnode) {
        let mut closed = self.closed.lock();
        closed.files.insert(vnode.0.number.0, vnode);
        if closed.is_watched {
            return;
        }
        let (files, clock) = (Arc::downgrade(files), self.clock.clone());
        let named = thread::Builder::new().name("mappings".to_owned());
        closed.is_watched = named.spawn(move || watch(&files, &clock)).is_ok();
    }

    /// Checks all closed files once; returns whether some are left.
    pub(crate) fn look(&self, files: &impl Closes) -> bool {
        let mut closed = self.closed.lock();
        let mut left = std::mem::take(&mut closed.files);
        let taken = left.len();
        closed.looked_at += taken;
        drop(closed);
        left.retain(|_, vnode| !files.end_if_unused(&vnode.0));
        let mut closed = self.closed.lock();
        closed.looked_at -= taken;
        closed.files.extend(left);
        !closed.files.is_empty()
    }

    /// Checks them for the last time, before the session ends.
    pub(crate) fn end(&self, files: &impl Closes) {
        for _ in 0..LAST_LOOKS {
            if !self.look(files) {
                return;
            }
            self.clock.sleep(FIRST_PAUSE);
        }
    }

    /// The status for people; `shown` gives a file's path.
    pub(crate) fn status(&self, shown: impl Fn(&Inode) -> String) -> PassthroughStatus {
        self.served.status(Inode::is_served_by_kernel, shown)
    }
}

/// Checks again and again, until no file is left or the tier is closed.
fn watch(files: &Weak<impl Closes>, clock: &Clock) {
    let mut pause = FIRST_PAUSE;
    loop {
        clock.sleep(pause);
        pause = (pause * 2).min(LAST_PAUSE);
        let Some(files) = files.upgrade() else { return };
        let passthrough = files.passthrough();
        if passthrough.look(&*files) {
            continue;
        }
        let mut closed = passthrough.closed.lock();
        if closed.files.is_empty() {
            closed.is_watched = false;
            return;
        }
        pause = FIRST_PAUSE;
    }
}

#[cfg(test)]
mod tests {
    use halocline_cluster::names::attributes::Kind;
    use halocline_model::namespace::InodeNumber;

    use super::*;
    use crate::inodes::Table;

    /// Files that are all mapped.
    struct Mapped(Passthrough);

    impl Closes for Mapped {
        fn passthrough(&self) -> &Passthrough {
            &self.0
        }

        fn end_if_unused(&self, _: &Inode) -> bool {
            assert_eq!(self.0.closed.lock().count(), 2);
            false
        }
    }

    /// Regression: more and more were handed over, because none counted while they were looked at; and one that was
    /// opened and closed often counted as many.
    #[test]
    fn each_mapped_file_counts_once_and_all_the_time() {
        let files = Arc::new(Mapped(Passthrough::new(true, true, &Clock::simulated())));
        files.0.closed.lock().is_watched = true;
        let table = Arc::new(Table::default());
        let vnode = |number| table.intern(InodeNumber(number), false, None);
        (0..10).for_each(|at| files.0.watch(&files, vnode(5 + at % 2)));
        for _ in 0..2 {
            assert!(files.0.look(&*files));
            assert_eq!(files.0.closed.lock().count(), 2);
        }
    }

    /// Regression: `status` held the lock of the files that the kernel serves while it waited for a program that opened one of
    /// them; that open waited for this lock, and all later ones for both, for good.
    #[test]
    fn status_waits_for_no_open_of_a_file() {
        let (all, table) =
            (Arc::new(Passthrough::new(true, true, &Clock::simulated())), Table::default());
        let vnode = Arc::new(table).intern(InodeNumber(5), false, None);
        assert!(all.served.answered(5, &vnode.0, Ok(())));
        let opening = vnode.0.noting.lock();
        let (told, status) = std::sync::mpsc::channel();
        let asked = Arc::clone(&all);
        thread::spawn(move || told.send(asked.status(|_| "f".to_owned()).files).unwrap());
        let status = status.recv_timeout(Duration::from_secs(20));
        assert_eq!(status.as_deref(), Ok(&["f".to_owned()][..]), "it waits for the open");
        let of = Attributes::new(Kind::File, 0o644, 0);
        assert_eq!(all.why_ours(&of, libc::O_RDONLY, "n1"), Some("not on this node's SSD"));
        drop(opening);
        assert!(all.status(|_| "f".to_owned()).files.is_empty());
    }
}
