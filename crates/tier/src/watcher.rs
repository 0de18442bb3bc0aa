//! The seam between a tier and the machine: a watcher is told of each step, and may fail it.

use std::fmt;
use std::os::fd::BorrowedFd;

use halocline_os::error::Result;

/// Watches the steps in which tiers change, each of them one call that its file system does or refuses. Tests
/// fail steps, stop a mount after them, or build what a power loss would leave; production has none.
///
/// What a tier promises its watcher:
/// - every change of a tree, of a copy, or of the links in the private directories that name copies, and every sync,
///   is a step: `before` is called, then the call is made, then `after` if it succeeded. A step that fails, also one
///   that `before` fails, has no `after`. Reads of a program's bytes are steps, too; reads of names and attributes
///   are not, nor are changes of the labels and rules of a set.
/// - all calls of a step come from the thread that makes it, the threads of one move too: there is one watcher
///   for a [`FileTier`](crate::FileTier), from before the first look at what a killed mount left until the last
///   reference to the tier is dropped. Steps of several threads come at the same time.
/// - `tier` is the index in the set, 0 the SSD, and `what` one of a fixed set of phrases that are fit for
///   people: "renaming".
///
/// What a watcher promises the tier:
/// - an error of `before` replaces the call's result; the call is not made. Its errno must be one that the call
///   can return.
/// - it may wait, which delays the step, and may panic, which the tier treats as the death of that
///   thread in the middle of its work: the next mount can use the set, but this tier can only be
///   dropped, unless the thread was one of the tier's own.
/// - it calls the tier only where the call cannot wait for the thread that makes the step, which may hold locks.
///
/// The default methods do nothing.
pub trait Watcher: fmt::Debug + Send + Sync {
    /// Before a step.
    ///
    /// # Errors
    /// The error with which the step fails without being made.
    fn before(&self, tier: usize, what: &'static str) -> Result<()> {
        let _ = (tier, what);
        Ok(())
    }

    /// After a step that succeeded.
    fn after(&self, tier: usize, what: &'static str) {
        let _ = (tier, what);
    }

    /// Within a step, a file or directory became durable: its bytes, or all of it.
    fn synced(&self, tier: usize, file: BorrowedFd<'_>) {
        let _ = (tier, file);
    }

    /// Within a step, all of a tier's file system became durable.
    fn synced_all(&self, tier: usize) {
        let _ = tier;
    }

    /// The totals that the tier is to see for its file system; the real ones are `totals`.
    fn room(&self, tier: usize, totals: libc::statvfs64) -> libc::statvfs64 {
        let _ = tier;
        totals
    }

    /// Whether steps must come in the same order each time: several files are then moved one after the other, in the
    /// thread that requested it. Asked before each such move.
    fn one_by_one(&self) -> bool {
        false
    }
}
