//! How requests come from the kernel and answers go back.
//!
//! - [`device`]: threads that read and write `/dev/fuse`, two system calls a request, with the
//!   library's event loop. Always there: it shakes hands, and it takes what the other does not.
//! - [`uring`]: `io_uring` commands (Linux 6.14), one system call a request, which stays on the
//!   processor of the program that made it.
//!
//! Both are tables from the kernel's operations to the methods of [`crate::front::Front`].

pub mod device;
pub mod uring;

/// Which way the requests of a mount take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// [`device`]
    Device,
    /// [`uring`]
    Ring,
}
