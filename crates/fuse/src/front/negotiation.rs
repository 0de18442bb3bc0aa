//! What is agreed with the kernel when a mount begins.

use fuser::{InitFlags, KernelConfig};

/// Largest write and read of one request, in bytes.
const REQUEST_MAX: u32 = 1 << 20;
/// Read-ahead and asynchronous requests the kernel may have under way.
const BACKGROUND: u16 = 128;

/// Asks for what the front end is written for, as far as the kernel has it.
pub(super) fn agree(config: &mut KernelConfig, passes_through: bool) {
    let wanted = InitFlags::FUSE_ASYNC_READ
        | InitFlags::FUSE_BIG_WRITES
        | InitFlags::FUSE_PARALLEL_DIROPS
        | InitFlags::FUSE_DONT_MASK
        | InitFlags::FUSE_POSIX_ACL
        | InitFlags::FUSE_DO_READDIRPLUS
        | InitFlags::FUSE_READDIRPLUS_AUTO
        | InitFlags::FUSE_CACHE_SYMLINKS
        // The engine says at open whether cached pages are still right (I9); our own writes
        // change the modification time and must not throw them away.
        | InitFlags::FUSE_EXPLICIT_INVAL_DATA
        | InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP
        | InitFlags::FUSE_HANDLE_KILLPRIV_V2
        | InitFlags::FUSE_ATOMIC_O_TRUNC
        | InitFlags::FUSE_ASYNC_DIO;
    if let Err(missing) = config.add_capabilities(wanted) {
        tracing::debug!(?missing, "the kernel lacks FUSE features");
        let supported = config.capabilities() & wanted;
        config.add_capabilities(supported).expect("the kernel offered these");
    }
    if passes_through && config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok() {
        config.set_max_stack_depth(1).expect("at most two");
    }
    config.set_max_write(REQUEST_MAX).expect("1 MiB fits the session's buffer");
    if let Err(most) = config.set_max_readahead(REQUEST_MAX) {
        config.set_max_readahead(most).expect("the kernel offered this");
    }
    config.set_max_background(BACKGROUND).expect("not zero");
}
