//! What programs may expect of a mount, tried with real system calls on real mounts of the
//! pass-through engine, with the kernel's page cache and without.
//!
//! The tests need root and `/dev/fuse`; without them each prints SKIP and why.

mod appending;
mod contents;
mod differential;
mod direct;
mod directories;
mod harness;
mod names;
mod panics;
mod permissions;
mod silent_attributes;
