//! Eviction: the order in which extents leave a full cache.
//!
//! A policy orders dense slot numbers; only the caller knows what a slot is. Ten million extents must fit in about 100
//! MB, so a policy uses at most 9 bytes per slot.

mod lru;
mod s3fifo;
mod slots;
#[cfg(test)]
mod suite;

use std::fmt::Debug;

pub use lru::Lru;
pub(crate) use s3fifo::S3Fifo;

use crate::policy::UnknownPolicy;

/// What the caller does with a slot that [`Eviction::victims`] offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Walk {
    /// The slot shall be evicted: the caller calls [`Eviction::removed`] for it after the walk, or keeps it after all.
    Take,
    /// The slot stays (dirty, pinned, in use); the next one is offered.
    Skip,
    /// The walk ends; the slot just offered stays.
    Stop,
}

/// An eviction queue under one policy.
///
/// The caller guarantees that a slot is inserted once before it is touched or removed, that slot numbers are dense
/// (they index arrays) and below `u32::MAX - 1`, and that slots which cannot be evicted for a long time (dirty ones by
/// the million) are not inserted, because a walk passes each of them.
///
/// An implementation MUST take constant time, amortised, for `inserted`, `touched` and `removed`; `victims` MUST offer
/// each present slot at most once, offer all of them unless stopped, and never offer a removed one; a slot MUST only be
/// forgotten when `removed` is called for it.
pub trait Eviction: Send + Debug {
    /// The policy's name in [`POLICIES`].
    fn name(&self) -> &'static str;
    /// A slot of `bytes` bytes was added.
    fn inserted(&mut self, slot: u32, bytes: u64);
    /// A slot was read or written.
    fn touched(&mut self, slot: u32);
    /// A slot is gone; its number may be reused.
    fn removed(&mut self, slot: u32);
    /// Offers slots to `f` from the head of the queue until it returns [`Walk::Stop`].
    fn victims(&mut self, f: &mut dyn FnMut(u32) -> Walk);
    /// Number of slots present.
    fn len(&self) -> usize;
    /// Whether no slot is present.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// One eviction policy: its name, a sentence about it, and its constructor.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    /// Name in configuration and reports.
    pub name: &'static str,
    /// What it does, for help texts.
    pub doc: &'static str,
    /// Makes an empty one.
    pub make: fn() -> Box<dyn Eviction>,
}

/// All eviction policies; the first is the default.
pub const POLICIES: &[Policy] = &[
    Policy {
        name: "s3fifo",
        doc: "scan-resistant: what is used once leaves before what is used again",
        make: || Box::<S3Fifo>::default(),
    },
    Policy {
        name: "lru",
        doc: "least recently used first (the papers' order)",
        make: || Box::<Lru>::default(),
    },
];

/// Makes the policy called `name`.
pub fn by_name(name: &str) -> Result<Box<dyn Eviction>, UnknownPolicy> {
    POLICIES.iter().find(|policy| policy.name == name).map(|policy| (policy.make)()).ok_or_else(
        || UnknownPolicy::new("eviction", name, POLICIES.iter().map(|policy| policy.name)),
    )
}
