//! What file tiers note for their status: [`Counters`] of what they did since the mount began, [`ActiveMoves`], and
//! [`KernelServed`], the files that the kernel serves by itself.

mod active_moves;
mod counters;
mod kernel_served;

pub use active_moves::{ActiveMove, ActiveMoves};
pub use counters::{Counters, Opening};
pub use kernel_served::KernelServed;
