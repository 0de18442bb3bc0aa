//! The extent cache of Halocline: byte ranges of files on SSD servers in front of an origin (SLA-Cache and S4D-Cache;
//! docs/ALGORITHMS.md, sections 2 to 6).
//!
//! A request goes one way; where a component measures or retries work, it runs a closure of its caller:
//! - [`engine`] answers the front end: [`handle`] opens an [`open_file`], [`name_changes`] and [`attributes`] handle
//!   what is not data.
//! - [`redirect`] has [`permits`] ask for what other nodes must leave to us, locks the range (a [`range_lock`]), asks
//!   [`identify`] (which uses [`processes`] and [`hints`]) whether it is critical, and [`health`] and
//!   [`dirty_pressure`] whether there is room, for which [`backpressure`] may let it wait; [`request_split`] says where
//!   its parts lie.
//! - [`extent`], below all of these, keeps tables and cache objects consistent; [`mappings`] changes them for all.
//! - Bytes read twice come to the cache from the read itself ([`fill`]), or later from the origin ([`fetch`]).
//! - [`rebuild`] makes passes in the background: [`flush`] writes to the origin, [`discard`] frees, [`barriers`] make
//!   durable.
//! - [`resize`] truncates and seeks, [`block_count`] and [`modification_times`] make `stat` show what is not on the
//!   origin yet.
//!
//! What keeps promises:
//! - [`own_changes`] and [`external_changes`] tell our changes of origin files from those of others (I9), by a lease
//!   that [`lease_renewal`] renews during [`changes_under_way`]; [`judging`] says what commands past the mount have
//!   done; [`path_lookup`] says whether a file is gone.
//! - [`damage`] is found by checksums and dealt with by [`repair`]; [`degraded_mode`] continues without a store of
//!   records, [`defects`] after a panic; [`hang_detection`] says whether both sides answer, [`origin_space`] whether
//!   what is admitted can be flushed.
//! - [`session`] takes over what the last session left and marks a clean end; [`recover`] finds its dirty files;
//!   [`known_files`] and [`lifecycle`] follow files until nothing of them is left.
//! - [`revocation`] gives up what other nodes want, through the traits of [`coherence`]; [`peers`] reads from their
//!   caches what they have said they have ([`peer_copies`]).
//!
//! Commands are answered by [`status`] (from [`counters`] and [`status_notes`]), [`explain`], [`bulk_operations`] and
//! [`glob_rules`]; [`page_cache_passthrough`] is kernel passthrough of files
//! wholly in memory.
//!
//! It also assembles itself: [`settings`], both sides' [`servers`] with their [`decorators`], and the [`components`] from
//! the bottom up; each is handed by name what it uses. [`origin_access`] is the origin's tree and data together.

mod attributes;
mod backpressure;
mod barriers;
mod block_count;
mod bulk_operations;
mod changes_under_way;
pub mod coherence;
mod components;
pub mod counters;
mod damage;
mod decorators;
mod defects;
mod degraded_mode;
mod dirty_pressure;
mod discard;
mod engine;
mod explain;
mod extent;
mod external_changes;
mod fetch;
mod fill;
mod flush;
mod glob_rules;
mod handle;
mod hang_detection;
mod health;
mod hints;
mod identify;
pub mod judging;
mod kernel_pages;
mod known_files;
mod lease_renewal;
mod lifecycle;
mod mappings;
mod modification_times;
mod name_change_count;
mod name_changes;
mod open_file;
mod origin_access;
mod origin_share;
mod origin_space;
mod own_changes;
mod page_cache_passthrough;
pub mod path_lookup;
mod peer_copies;
mod peers;
mod permits;
mod processes;
pub mod range_lock;
mod rebuild;
mod recover;
mod redirect;
mod repair;
mod request_split;
mod resize;
mod revocation;
mod saved_conflicts;
mod servers;
mod session;
mod settings;
mod status;
mod status_notes;
#[cfg(test)]
mod test_engine;

pub use engine::ExtentEngine;
pub use servers::{CacheServers, Decorations};
