//! FUSE front end: kernel requests to engine calls. No policy in here.
//!
//! - [`session`] mounts an engine, privately if asked, and unmounts it;
//! - [`front`] decodes requests, calls the [`halocline_core::engine::Engine`], encodes answers;
//! - [`inode_table`] maps the kernel's node numbers to the engine's nodes.

pub mod front;
pub mod inode_table;
pub mod session;

pub use session::{MountOptions, MountedSession, Unmounted, mount, private_namespace, with_helper};
