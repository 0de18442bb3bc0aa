//! FUSE front end: kernel requests to engine calls. No policy in here.
//!
//! - [`session`] mounts an engine, privately if asked, and unmounts it;
//! - [`transport`] brings requests from the kernel and answers to it, by `/dev/fuse` or `io_uring`;
//! - [`front`] does what a request asks, with calls of the [`halocline_vfs::Engine`].

pub mod front;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod session;
pub mod transport;

pub use session::{
    MountOptions, MountedSession, PrivateView, Sights, Unmounted, mount, private_namespace,
    show_over, with_helper,
};
pub use transport::Transport;
