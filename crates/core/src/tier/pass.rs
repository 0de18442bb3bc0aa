//! Kernel passthrough: which open files the kernel serves by itself, and why others are not.
//!
//! What must hold: a file that is passed through is on the SSD and stays there until its last such
//! handle is closed (`passed` is counted while `place` is shared, and looked at while it is held
//! exclusively). Programs write such files without asking for room, so a handle that may write is
//! passed through only while the SSD has ample room.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;

use super::Core;
use super::inode::Opened;
use crate::control::tier::PassthroughStatus;
use crate::namespace::{stat_descriptor, xattr};

/// What must be free where a handle may write: this part of the limit, or so many bytes. The mover
/// counts such files each second, and no SSD fills that many bytes in a second.
const AMPLE_PART: u64 = 4;
const AMPLE_BYTES: u64 = 8 << 30;
/// Files below are read from the kernel's page cache after one request: handing them over costs
/// more than that.
const SMALL_BYTES: u64 = 64 << 10;
/// Open files that `status` names at most.
const NAMED_MAX: usize = 100;

/// What is known of passthrough so far.
#[derive(Debug, Default)]
pub(super) struct Passing {
    /// Whether the kernel takes files; not known before one was offered.
    works: Option<bool>,
    /// Why it does not.
    reason: Option<String>,
    /// Opens that were not passed through, by reason.
    refused: BTreeMap<&'static str, u64>,
}

impl Core {
    /// Hands an open file to the kernel if that is wise; see `Engine::pass_through`.
    pub(super) fn pass_through(
        &self,
        handle: &Opened,
        must: bool,
        register: &mut dyn FnMut(BorrowedFd<'_>) -> io::Result<()>,
    ) -> bool {
        let place = handle.inode.place.read();
        let refused = |why| {
            *self.passing.lock().refused.entry(why).or_default() += 1;
            false
        };
        let Some(resident) = place.resident.as_ref().filter(|_| place.away.is_none()) else {
            return refused("on a lower tier");
        };
        if self.passing.lock().works == Some(false) && !must {
            return refused("the kernel takes no files");
        }
        if !handle.writes() && !must && resident.bytes() < SMALL_BYTES {
            return refused("small and opened for reading");
        }
        if handle.writes() && !must && !self.has_ample_room() {
            return refused("opened for writing without ample room on the SSD");
        }
        if handle.flags & libc::O_DIRECT != 0 && !must {
            // The kernel would ask the device's alignment of the program.
            return refused("opened with O_DIRECT");
        }
        let opened =
            handle.file(place.moves, |flags| self.open_again(&handle.inode, &place, flags));
        let Ok(file) = opened else { return refused("cannot be opened") };
        if !must && has_privileges(&file) {
            // A write takes them away, and the kernel leaves that to us.
            return refused("has set-id bits or capabilities");
        }
        match register(file.as_fd()) {
            Ok(()) => {
                if handle.passed.set(resident.clone()).is_ok() {
                    handle.inode.passed.fetch_add(1, Ordering::AcqRel);
                }
                self.passing.lock().works = Some(true);
                true
            }
            Err(error) => {
                let mut passing = self.passing.lock();
                if passing.works.is_none() {
                    tracing::info!(%error, "no kernel passthrough");
                    passing.works = Some(false);
                    passing.reason = Some(explain(&error));
                }
                drop(passing);
                refused("the kernel takes no files")
            }
        }
    }

    fn has_ample_room(&self) -> bool {
        let ample = (self.residents.account.limit / AMPLE_PART).min(AMPLE_BYTES);
        self.residents.free() >= ample && self.sides[0].room().is_ok_and(|room| room >= ample)
    }

    /// For people.
    pub(super) fn passthrough_status(&self) -> PassthroughStatus {
        let open =
            self.table.live().into_iter().filter(|inode| inode.passed.load(Ordering::Relaxed) > 0);
        let mut files: Vec<String> = open
            .take(NAMED_MAX)
            .map(|inode| self.namespace.path_of(&inode.entry()).display().to_string())
            .collect();
        files.sort();
        let passing = self.passing.lock();
        let reason = passing.reason.clone().or_else(|| {
            (!self.options.passthrough).then(|| "switched off (--passthrough=false)".to_owned())
        });
        let refused = passing.refused.iter().map(|(why, count)| ((*why).to_owned(), *count));
        PassthroughStatus { works: passing.works, reason, files, refused: refused.collect() }
    }
}

/// Whether a change of the contents takes something away from the file.
fn has_privileges(file: &File) -> bool {
    let set_id =
        |stat: crate::engine::Stat| stat.raw.st_mode & (libc::S_ISUID | libc::S_ISGID) != 0;
    stat_descriptor(file).is_ok_and(set_id)
        || xattr::get_on(file, "security.capability".as_ref()).is_ok()
}

fn explain(error: &io::Error) -> String {
    let remedy = match error.raw_os_error() {
        Some(libc::EPERM) => "mount as root (CAP_SYS_ADMIN in the first user namespace)",
        Some(libc::ENOTTY | libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS) => {
            "it needs Linux 6.9 with CONFIG_FUSE_PASSTHROUGH"
        }
        Some(libc::ELOOP) => "the SSD's file system is itself stacked on another",
        _ => "the mount process serves the files instead",
    };
    format!("{error}: {remedy}")
}
