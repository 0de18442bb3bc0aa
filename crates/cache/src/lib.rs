//! The extent cache of Halocline: byte ranges of files on SSD servers in front of an origin (SLA-Cache and S4D-Cache;
//! docs/ALGORITHMS.md, sections 2 to 6).
//!
//! A request goes one way, and comes back to no file that it left:
//! - [`engine`] answers the front end and finds the [`open_file`]; [`permits`] asks for what other nodes must leave us.
//! - [`redirect`] locks the range (a [`range_lock`]), asks [`identify`] (which knows [`processes`] and [`hints`]) what it deserves, and [`health`]
//!   and [`pressure`] whether there is [`room`]; [`segments`] says what of it lies where.
//! - [`extent`] keeps tables and cache objects in step below all of it; [`mappings`] changes them for all.
//! - What was read twice comes to the cache from its own bytes ([`fill`]), or later from the origin ([`fetch`]).
//! - [`rebuild`] makes passes in the background: [`flush`] writes to the origin, [`discard`] frees, [`barriers`] make durable.
//! - [`resize`] truncates and seeks, [`blocks`] and [`times`] are what `stat` shows of what is not on the origin yet.
//!
//! What keeps promises:
//! - [`own_changes`] and [`external_changes`] tell who changed a file of the origin (I9), by a lease that [`lease_renewal`] prolongs while [`changes_under_way`] are; [`reach`] says
//!   whether a file is gone.
//! - [`damage`] is found by checksums and dealt with by [`repair`]; [`degrade`] goes on without a store of records, [`defects`] after a
//!   panic; [`sight`] says whether both sides answer, [`space`] whether what is admitted can be flushed.
//! - [`recover`] finds dirty files of earlier sessions at mount; [`known_files`] and [`lifecycle`] follow files until nothing of them is left.
//! - [`yields`] gives up what other nodes want, through the traits of [`coherence`].
//!
//! People and commands: [`engine`] answers the control socket, too, by [`counters`], [`explain`], [`notes`] and [`bulk`]; [`globs`] are pinned or excluded paths,
//! [`page_cache_passthrough`] is kernel passthrough of what memory holds whole.
//!
//! It also puts itself together: [`settings`], both [`sides`] with their decorators, the [`foundation`] that all stand on, and the [`components`] from the
//! bottom up; each is handed what it uses. [`handle`] opens and closes files, [`origin_access`] is the origin's tree and data together.

mod barriers;
mod blocks;
mod bulk;
mod changes_under_way;
pub mod coherence;
mod components;
pub mod counters;
mod damage;
mod defects;
mod degrade;
mod discard;
mod engine;
mod explain;
mod extent;
mod external_changes;
mod fetch;
mod fill;
mod flush;
mod foundation;
mod globs;
mod handle;
mod health;
mod hints;
mod identify;
mod known_files;
mod lease_renewal;
mod lifecycle;
mod mappings;
mod notes;
mod open_file;
mod origin_access;
mod own_changes;
mod page_cache_passthrough;
mod permits;
mod pressure;
mod processes;
pub mod range_lock;
pub mod reach;
mod rebuild;
mod recover;
mod redirect;
mod repair;
mod resize;
mod room;
mod segments;
mod settings;
mod sides;
mod sight;
mod space;
mod times;
mod yields;

pub use engine::ExtentEngine;
pub use sides::{CacheServers, Decorations};
