//! FUSE front end: turns kernel requests into engine calls. It contains no policy.
//!
//! - [`session`] mounts an engine, privately if requested, and unmounts it;
//! - [`transport`] receives requests from the kernel and returns answers, through `/dev/fuse` or `io_uring`;
//! - [`front`] executes requests with calls of [`halocline_vfs::Engine`].

pub mod front;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod session;
pub mod transport;

pub use session::{
    MountHandle, MountOptions, MountedSession, PrivateView, Unmounted, mount, private_namespace,
    show_over, with_helper,
};
pub use transport::Transport;
