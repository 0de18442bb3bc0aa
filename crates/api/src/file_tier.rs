//! What file tiers count for their status: [`Counters`] of what they did since the mount began, and [`ActiveMoves`].

mod active_moves;
mod counters;

pub use active_moves::{ActiveMove, ActiveMoves};
pub use counters::{Counters, Opening};
