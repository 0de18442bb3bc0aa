//! What this process was given by its caller and does not keep for itself: its umask, its limits, the end by SIGXFSZ.
//!
//! What must hold: commands that it starts for the caller have what the caller gave ([`restore`]).

use std::sync::OnceLock;

use halocline_os::error::{Error, Result};
use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit, umask};

use crate::text;

/// What a umask takes from others.
const OF_OTHERS: u32 = 0o077;
/// The files of a cache are no longer than files of the origin, but for its log.
const FILE_BYTES_MIN: u64 = 64 << 20;
/// Addresses that a mount needs: most of them are room of the allocator that is never used. An allocation that fails
/// ends the process, whatever programs do on the mount then; 2.4 GiB were seen on two processors at rest.
const ADDRESS_BYTES_MIN: u64 = 3 << 30;
/// The same for the threads of each processor.
const ADDRESS_BYTES_PER_PROCESSOR: u64 = 1 << 30;
/// Of these what may be written at once.
const DATA_BYTES_MIN: u64 = 1 << 30;
const DATA_BYTES_PER_PROCESSOR: u64 = 256 << 20;

/// Limits of which this process takes all that it may have.
const RAISED: [Resource; 3] = [Resource::Fsize, Resource::As, Resource::Data];

struct Inherited {
    umask: Mode,
    limits: [Rlimit; RAISED.len()],
    /// What SIGXFSZ did.
    on_long_file: libc::sighandler_t,
}

static INHERITED: OnceLock<Inherited> = OnceLock::new();

/// Takes what this process needs. Called before there are threads, which may have umasks of their own.
///
/// The user of this process may read and write what it makes, whatever umask it was started with: a cache that its
/// owner may not open again would keep what is dirty on it. And a file that grows too long is an error of the one who
/// wrote it, not the end of the mount.
pub(crate) fn replace() {
    let callers = umask(Mode::from_raw_mode(OF_OTHERS));
    umask(Mode::from_raw_mode(callers.as_raw_mode() & OF_OTHERS));
    // SAFETY: neither action runs code of ours.
    let on_long_file = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let limits = RAISED.map(|resource| {
        let limit = getrlimit(resource);
        // Up to the hard limit anybody may.
        let _ = setrlimit(resource, Rlimit { current: limit.maximum, ..limit });
        limit
    });
    if getrlimit(Resource::As).current.is_some() {
        share_arenas();
    }
    let _ = INHERITED.set(Inherited { umask: callers, limits, on_long_file });
}

/// Has all threads allocate from few arenas, of which each reserves 64 MiB of addresses.
fn share_arenas() {
    const ARENAS: libc::c_int = 2;
    #[cfg(target_env = "gnu")]
    // SAFETY: takes plain numbers, before there are threads.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, ARENAS);
    }
}

/// Gives this process back what it was started with, for a command that takes its place. Makes system calls only, and
/// may be called between fork and exec.
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

/// Refuses a mount where this process may write only short files, or use little memory: it would fail later, with
/// programs at work.
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

/// Longest file that this process may write, in bytes; `None` where that is not limited.
pub(crate) fn file_bytes_max() -> Option<u64> {
    getrlimit(Resource::Fsize).current
}
