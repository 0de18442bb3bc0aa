//! Kernel passthrough: which open files of this node's own SSD its kernel serves by itself.
//!
//! What must hold (I15): such a file is moved by nobody until the kernel serves it no more. The kernel does not take a file
//! back: it goes on after the lease is over, and after the mount process was killed. So an open that may be handed over is
//! noted in the store as such before the file is opened (`Open::by_kernel`), and no other node counts it as closed. And a
//! mapping holds the file below instead of our handle, so it outlives the last close: the file is noted as open until
//! nobody else has it open, as the kernel tells by granting a write lease.
//!
//! Only readers are handed over: what they read is what the mount process would read, in the same pages of the SSD's file
//! system, whoever writes there. Writers come to us, which is where a lease that is over stops them; beside a reader that
//! was handed over the kernel serves their mappings only. Files elsewhere are not handed over: another node's SSD may be
//! away, and its answers are then ours to explain.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use halocline_api::control::tier::PassthroughStatus;
use halocline_cluster::names::attributes::Attributes;
use halocline_os::kernel_passthrough;
use halocline_os::write_lease::is_exclusive;
use parking_lot::Mutex;

use crate::inodes::{Inode, Node};
use crate::places::SSD;

/// How long after a close it is looked whether mappings are left, and the longest pause between further looks.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LAST_PAUSE: Duration = Duration::from_secs(1);
/// How often it is looked when the mount ends.
const LAST_LOOKS: usize = 20;
/// The most open files that `status` names.
const NAMED_MAX: usize = 100;

/// Why the mount process serves a handle, if it must.
pub(crate) type WhyOurs = Option<&'static str>;

/// Who notes closes.
pub(crate) trait Closes: Send + Sync + 'static {
    fn passthrough(&self) -> &Passthrough;
    /// Notes the close of a file that the kernel served, unless it is still open or mapped; `true` if nothing is left to do.
    fn end_if_unused(&self, inode: &Inode) -> bool;
}

/// Which files the kernel serves.
#[derive(Debug)]
pub(crate) struct Passthrough {
    wanted: bool,
    state: Mutex<State>,
    /// Files that were handed over and closed, and may still be mapped.
    closed: Mutex<Closed>,
}

#[derive(Debug, Default)]
struct State {
    /// Whether the kernel accepts files; unknown before one was offered.
    works: Option<bool>,
    /// Why it does not.
    reason: Option<String>,
    /// Opens that were not handed over, by reason.
    refused: BTreeMap<&'static str, u64>,
    /// Files handed over, including some that have been closed since.
    files: HashMap<u64, Weak<Inode>>,
}

#[derive(Debug, Default)]
struct Closed {
    files: Vec<Node>,
    is_watched: bool,
}

impl Passthrough {
    /// `grants_leases` is whether the SSD's file system does.
    pub(crate) fn new(wanted: bool, grants_leases: bool) -> Self {
        let reason = if !wanted {
            Some("switched off (--passthrough=false)")
        } else if !grants_leases {
            Some(
                "the SSD's file system grants no leases (fcntl F_SETLEASE), by which mappings are seen",
            )
        } else {
            None
        };
        let reason = reason.map(str::to_owned);
        let works = reason.is_some().then_some(false);
        let state = Mutex::new(State { works, reason, ..State::default() });
        Self { wanted: wanted && grants_leases, state, closed: Mutex::default() }
    }

    /// Whether any file may be handed over.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// Why a file that `node` opens is none for the kernel, if it is none.
    pub(crate) fn why_ours(&self, of: &Attributes, flags: i32, node: &str) -> WhyOurs {
        let set_id = libc::S_ISUID | libc::S_ISGID;
        let is_own =
            |place: &crate::places::Place| place.tier == SSD && place.node.as_deref() == Some(node);
        if self.state.lock().works == Some(false) {
            Some("the kernel takes no files")
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
        } else {
            None
        }
    }

    /// Offers an open file to the kernel: with `must`, because it has others of the same file.
    pub(crate) fn offer(
        &self,
        (inode, file): (&Arc<Inode>, BorrowedFd<'_>),
        (why_ours, must): (WhyOurs, bool),
        register: &mut dyn FnMut(BorrowedFd<'_>) -> io::Result<()>,
    ) -> bool {
        if let Some(why) = why_ours {
            *self.state.lock().refused.entry(why).or_default() += 1;
            if !must {
                return false;
            }
        }
        let registered = register(file);
        let mut state = self.state.lock();
        match registered {
            Ok(()) => {
                state.works = Some(true);
                state.files.insert(inode.number.0, Arc::downgrade(inode));
                true
            }
            Err(error) => {
                if state.works.is_none() {
                    tracing::info!(%error, "no kernel passthrough");
                    state.works = Some(false);
                    state.reason = Some(kernel_passthrough::explain(&error));
                }
                *state.refused.entry("the kernel takes no files").or_default() += 1;
                false
            }
        }
    }

    /// A file that was handed over is closed, and may still be mapped: its close is noted when it is not.
    pub(crate) fn watch<C: Closes>(&self, files: &Arc<C>, node: Node) {
        let mut closed = self.closed.lock();
        closed.files.push(node);
        if closed.is_watched {
            return;
        }
        let files = Arc::downgrade(files);
        let named = thread::Builder::new().name("mappings".to_owned());
        closed.is_watched = named.spawn(move || watch(&files)).is_ok();
    }

    /// Looks once at all files that were closed; whether some are left.
    pub(crate) fn look(&self, files: &impl Closes) -> bool {
        let closed = std::mem::take(&mut self.closed.lock().files);
        let left: Vec<Node> =
            closed.into_iter().filter(|node| !files.end_if_unused(&node.0)).collect();
        let mut closed = self.closed.lock();
        closed.files.extend(left);
        !closed.files.is_empty()
    }

    /// Looks at them a last time, before the session ends.
    pub(crate) fn end(&self, files: &impl Closes) {
        for _ in 0..LAST_LOOKS {
            if !self.look(files) {
                return;
            }
            thread::sleep(FIRST_PAUSE);
        }
    }

    /// Files that the kernel serves now.
    fn served(&self) -> Vec<Arc<Inode>> {
        let mut live = Vec::new();
        self.state.lock().files.retain(|_, inode| match inode.upgrade() {
            Some(inode) => {
                live.push(inode);
                true
            }
            None => false,
        });
        live.retain(|inode| inode.is_served_by_kernel());
        live
    }

    /// For people to read; `shown` is a file's path.
    pub(crate) fn status(&self, shown: impl Fn(&Inode) -> String) -> PassthroughStatus {
        let mut files: Vec<String> =
            self.served().iter().take(NAMED_MAX).map(|inode| shown(inode)).collect();
        files.sort();
        let state = self.state.lock();
        let refused = state.refused.iter().map(|(why, count)| ((*why).to_owned(), *count));
        PassthroughStatus {
            works: state.works,
            reason: state.reason.clone(),
            files,
            refused: refused.collect(),
        }
    }
}

/// Looks again and again, until no file is left or the tier is closed.
fn watch(files: &Weak<impl Closes>) {
    let mut pause = FIRST_PAUSE;
    loop {
        thread::sleep(pause);
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

/// Whether nobody but us has a file open or mapped; `file` is the only one that we have of it.
pub(crate) fn is_unused(file: &File) -> bool {
    is_exclusive(file)
}
