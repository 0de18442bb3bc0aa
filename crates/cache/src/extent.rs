//! Byte ranges of files cached on the cache volume: the part of the extent engine below the
//! policies. [`mod@file`] is one file's locks, size and times, [`table`] finds it, [`store`] keeps
//! the data mapping table and the cache objects in step.

pub(crate) mod file;
pub(crate) mod flush_handle;
pub(crate) mod last_seen;
pub(crate) mod store;
pub(crate) mod table;
