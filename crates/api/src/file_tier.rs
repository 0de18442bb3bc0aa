//! What file tiers note for their status: [`Counters`] of what they did since the mount began, [`ActiveMoves`],
//! [`KernelServed`], the files that the kernel serves by itself, and the [`History`] of files, for `explain`. And the
//! [`Label`] of each of a tier's directories, the form of its links ([`link_targets`]), and what it may meet of a tier
//! that nodes share ([`shared_disk`]).

mod active_moves;
mod counters;
mod explaining;
mod history;
mod kernel_served;
mod label;
pub mod link_targets;
pub mod shared_disk;

pub use active_moves::{ActiveMove, ActiveMoves};
pub use counters::{Counters, Opening};
pub use explaining::{no_file, not_found, why_jobs_and_moves};
pub use history::{History, OpenCount};
pub use kernel_served::KernelServed;
pub use label::{LABEL, Label};
