//! How requests come from the kernel and answers are returned.
//!
//! - [`device`]: threads that read and write `/dev/fuse`, with two system calls per request, in the library's event
//!   loop. Always present: it performs the handshake, and it takes requests that the other does not.
//! - [`uring`]: `io_uring` commands (Linux 6.14), with one system call per request, which stays on the processor of the
//!   program that made it.
//!
//! Both are tables from the kernel's operations to the methods of the components of [`crate::front::Front`].

pub mod device;
pub mod uring;

/// How the requests of a mount arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// [`device`]
    Device,
    /// [`uring`]
    Ring,
}
