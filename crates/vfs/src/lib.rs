//! The interface between front ends and engines, and the directory tree below both.
//!
//! [`engine`] is the contract: a front end (`crates/fuse`) calls it, the extent cache (`crates/cache`) and the file
//! tier (`crates/tier`) implement it. [`tree`] is what has an engine's names; [`namespace`] is one in a directory, accessed
//! by descriptors, which both of these use; [`uncached`] is an engine that consists only of such a tree.

mod allocate;
mod caller;
pub mod engine;
pub mod namespace;
pub mod ownership;
mod seek;
mod stat;
pub mod tree;
pub mod uncached;

pub use allocate::Allocate;
pub use caller::{Caller, Make, Maker};
pub use engine::{Counted, Engine, OpenMode};
pub use namespace::DirEntry;
pub use seek::Seek;
pub use stat::{SetAttr, SetTime, Stat};
pub use tree::{OpenDirectory, Tree};
