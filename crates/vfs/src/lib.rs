//! The interface between front ends and engines, and the directory tree below both.
//!
//! [`engine`] is the contract: a front end (`crates/fuse`) calls it, the extent cache (`crates/cache`) and the file
//! tier (`crates/tier`) implement it. [`namespace`] is a directory tree accessed by descriptors, which has the names of
//! either; [`uncached`] is an engine that consists only of such a tree.

mod allocate;
mod caller;
pub mod engine;
pub mod namespace;
mod seek;
mod stat;
pub mod uncached;

pub use allocate::Allocate;
pub use caller::{Caller, Make, Maker};
pub use engine::{Engine, OpenMode};
pub use namespace::DirEntry;
pub use seek::Seek;
pub use stat::{SetAttr, SetTime, Stat};
