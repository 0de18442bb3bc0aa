//! Locks that the engine needs and no library offers in the shape it needs them.

pub mod range_lock;
