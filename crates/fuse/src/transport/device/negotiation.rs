//! Negotiation with the kernel when a mount begins.

use std::sync::atomic::{AtomicBool, Ordering};

use fuser::{InitFlags, KernelConfig};

/// Largest write and read of one request, in bytes.
pub(crate) const REQUEST_MAX: u32 = 1 << 20;
/// Limit of read-ahead and asynchronous requests that the kernel may have in progress.
const BACKGROUND: u16 = 128;

/// Features that not every mount wants.
#[derive(Debug)]
pub(super) struct Features {
    /// Whether files may be offered to the kernel, which then serves them by itself.
    pub(super) passes_through: bool,
    /// Whether files that bypass the page cache may be mapped shared.
    pub(super) maps_direct_files: bool,
    /// Whether lock requests come to us; otherwise the kernel handles them.
    pub(super) shares_locks: bool,
}

/// What was negotiated beyond what every mount has.
#[derive(Debug, Default)]
pub(crate) struct Agreed {
    /// Whether rings for requests are ready.
    rings_ready: bool,
    /// Whether the kernel uses the rings.
    rings: AtomicBool,
}

impl Agreed {
    /// To be negotiated: requests through rings if they are ready.
    pub(crate) fn with_rings(ready: bool) -> Self {
        Self { rings_ready: ready, rings: AtomicBool::new(false) }
    }

    /// Whether requests come through rings. The kernel then waits for them to be registered.
    pub(crate) fn rings(&self) -> bool {
        self.rings.load(Ordering::Acquire)
    }

    /// Requests the features that the front end needs, as far as the kernel has them.
    pub(super) fn agree(&self, config: &mut KernelConfig, what: &Features) {
        agree(config, what);
        let rings = InitFlags::FUSE_OVER_IO_URING;
        let granted = self.rings_ready && config.add_capabilities(rings).is_ok();
        self.rings.store(granted, Ordering::Release);
    }
}

fn agree(config: &mut KernelConfig, what: &Features) {
    let only_if = |wanted, flags| if wanted { flags } else { InitFlags::empty() };
    let mapped = only_if(what.maps_direct_files, InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP);
    let locks = InitFlags::FUSE_POSIX_LOCKS | InitFlags::FUSE_FLOCK_LOCKS;
    let locks = only_if(what.shares_locks, locks);
    let wanted = InitFlags::FUSE_ASYNC_READ
        | InitFlags::FUSE_BIG_WRITES
        | InitFlags::FUSE_PARALLEL_DIROPS
        | InitFlags::FUSE_DONT_MASK
        | InitFlags::FUSE_POSIX_ACL
        | InitFlags::FUSE_DO_READDIRPLUS
        | InitFlags::FUSE_READDIRPLUS_AUTO
        | InitFlags::FUSE_CACHE_SYMLINKS
        // The engine decides at open whether cached pages are still valid (I9); our own writes change the modification
        // time and must not invalidate them.
        | InitFlags::FUSE_EXPLICIT_INVAL_DATA
        | mapped
        | locks
        | InitFlags::FUSE_HANDLE_KILLPRIV_V2
        | InitFlags::FUSE_ATOMIC_O_TRUNC
        | InitFlags::FUSE_ASYNC_DIO;
    if let Err(missing) = config.add_capabilities(wanted) {
        tracing::debug!(?missing, "the kernel lacks FUSE features");
        let supported = config.capabilities() & wanted;
        config.add_capabilities(supported).expect("the kernel offered these");
    }
    if what.passes_through && config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok() {
        config.set_max_stack_depth(1).expect("at most two");
    }
    config.set_max_write(REQUEST_MAX).expect("1 MiB fits the session's buffer");
    if let Err(most) = config.set_max_readahead(REQUEST_MAX) {
        config.set_max_readahead(most).expect("the kernel offered this");
    }
    config.set_max_background(BACKGROUND).expect("not zero");
}
