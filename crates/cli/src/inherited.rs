//! Settings that this process got from its caller but does not keep for itself: umask, limits, the action of SIGXFSZ.
//!
//! What must hold: commands that it starts for the caller get the caller's settings ([`restore`]).

use std::sync::OnceLock;

use halocline_os::error::{Error, Result};
use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit, umask};

use crate::text;

/// The permissions of others in a umask.
const OF_OTHERS: u32 = 0o077;
/// The files of a cache are no longer than files of the origin, except for its log.
const FILE_BYTES_MIN: u64 = 64 << 20;
/// Address space that a mount needs: most of it is reserved by the allocator and never used. A failed allocation ends
/// the process, whatever programs are doing on the mount; 2.4 GiB were seen on two idle processors.
const ADDRESS_BYTES_MIN: u64 = 3 << 30;
/// The same for the threads of each processor.
const ADDRESS_BYTES_PER_PROCESSOR: u64 = 1 << 30;
/// Of these, how much may be written.
const DATA_BYTES_MIN: u64 = 1 << 30;
const DATA_BYTES_PER_PROCESSOR: u64 = 256 << 20;

/// Limits that this process raises as far as it may.
const RAISED: [Resource; 3] = [Resource::Fsize, Resource::As, Resource::Data];

struct Inherited {
    umask: Mode,
    limits: [Rlimit; RAISED.len()],
    /// What SIGXFSZ did.
    on_long_file: libc::sighandler_t,
}

static INHERITED: OnceLock<Inherited> = OnceLock::new();

/// Sets what this process needs. Called before there are threads, which may have their own umasks.
///
/// The user of this process may read and write what it creates, whatever umask it was started with: otherwise the owner
/// might be unable to open a cache again, and dirty bytes would be stuck on it. And a file that grows too long must be
/// an error for its writer, not the end of the mount.
pub(crate) fn replace() {
    let callers = umask(Mode::from_raw_mode(OF_OTHERS));
    umask(Mode::from_raw_mode(callers.as_raw_mode() & OF_OTHERS));
    // SAFETY: neither action runs code of ours.
    let on_long_file = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let limits = RAISED.map(|resource| {
        let limit = getrlimit(resource);
        // Anyone may raise a limit up to the hard one.
        let _ = setrlimit(resource, Rlimit { current: limit.maximum, ..limit });
        limit
    });
    if getrlimit(Resource::As).current.is_some() {
        share_arenas();
    }
    let _ = INHERITED.set(Inherited { umask: callers, limits, on_long_file });
}

/// Makes all threads allocate from few arenas, each of which reserves 64 MiB of address space.
fn share_arenas() {
    const ARENAS: libc::c_int = 2;
    #[cfg(target_env = "gnu")]
    // SAFETY: takes plain numbers, before there are threads.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, ARENAS);
    }
}

/// Restores what this process was started with, for a command that replaces it. Makes only system calls, and may be
/// called between fork and exec.
pub(crate) fn restore() {
    let Some(inherited) = INHERITED.get() else { return };
    umask(inherited.umask);
    for (resource, limit) in RAISED.into_iter().zip(&inherited.limits) {
        // A soft limit may always be lowered again.
        let _ = setrlimit(resource, *limit);
    }
    if inherited.on_long_file != libc::SIG_ERR {
        // SAFETY: this process never had a handler, and neither of the other actions runs code of ours.
        unsafe { libc::signal(libc::SIGXFSZ, inherited.on_long_file) };
    }
}

/// Refuses a mount if this process may only write short files, or use little memory: it would fail later, while
/// programs are working.
pub(crate) fn check_limits() -> Result<()> {
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let addresses = ADDRESS_BYTES_MIN + processors * ADDRESS_BYTES_PER_PROCESSOR;
    check(Resource::Fsize, FILE_BYTES_MIN, "write files of", "ulimit -Hf, or LimitFSIZE=")?;
    let data = DATA_BYTES_MIN + processors * DATA_BYTES_PER_PROCESSOR;
    check(Resource::As, addresses, "have addresses for", "ulimit -Hv, or LimitAS=")?;
    check(Resource::Data, data, "have data of", "ulimit -Hd, or LimitDATA=")
}

fn check(resource: Resource, least: u64, may: &str, named: &str) -> Result<()> {
    let Some(limit) = getrlimit(resource).current.filter(|&limit| limit < least) else {
        return Ok(());
    };
    let (limit, least) = (text::bytes(limit), text::bytes(least));
    Err(Error::invalid(
        format!("this process may {may} {limit} at most, and a mount needs {least}"),
        format!("raise the hard limit ({named} of a systemd unit)"),
    ))
}

/// Longest file that this process may write, in bytes; `None` if that is unlimited.
pub(crate) fn file_bytes_max() -> Option<u64> {
    getrlimit(Resource::Fsize).current
}
