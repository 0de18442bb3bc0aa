//! Eviction: which clean extent leaves first. A policy is one file below and one row in
//! [`POLICIES`].

pub mod lru;

use std::fmt::Debug;

use crate::admit::UnknownPolicy;

/// What to do with a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Walk {
    /// It leaves; go on.
    Take,
    /// It stays; go on.
    Skip,
    /// It stays; stop.
    Stop,
}

/// The order in which extents leave. Extents are slots of the caller's dense table.
///
/// The caller guarantees that `touched` and `removed` name slots that are in, `inserted` ones that
/// are not, and that slots answered `Take` are `removed` after the walk.
/// An implementation MUST do `inserted`, `touched` and `removed` in constant time, MUST use at most
/// 12 bytes a slot, and MUST visit every slot once in a walk that is not stopped.
pub trait Eviction: Send + Debug {
    /// A slot came in with so many bytes.
    fn inserted(&mut self, slot: u32, bytes: u64);
    /// A slot was used.
    fn touched(&mut self, slot: u32);
    /// A slot left.
    fn removed(&mut self, slot: u32);
    /// Visits candidates, first to leave first.
    fn victims(&mut self, visit: &mut dyn FnMut(u32) -> Walk);
}

/// One policy.
#[derive(Debug)]
pub struct Row {
    /// Name in configuration and flags.
    pub name: &'static str,
    /// What it does, in one line.
    pub doc: &'static str,
    /// Makes one.
    pub make: fn() -> Box<dyn Eviction>,
}

/// All eviction policies.
pub static POLICIES: &[Row] = &[Row {
    name: "lru",
    doc: "the extent that was used longest ago (the papers')",
    make: || Box::new(lru::Lru::default()),
}];

/// The policy called `name`.
pub fn by_name(name: &str) -> Result<Box<dyn Eviction>, UnknownPolicy> {
    let row = POLICIES.iter().find(|row| row.name == name);
    row.map(|row| (row.make)()).ok_or_else(|| UnknownPolicy(name.to_owned()))
}
