//! Whole-file tier: which files are kept on the SSD (docs/ALGORITHMS.md, section 8; `HyCache`, Algorithms 4 and 5). The
//! engine and a replay of a known sequence use the same policies.

mod foresight;
mod heuristic;
pub mod optimum;
mod recency;
pub mod replay;
mod shadows;
mod transfer;
mod watermarks;

use std::cmp::Ordering;
use std::fmt::Debug;

use crate::policy::UnknownPolicy;

pub use replay::{Replay, Step, Trace, replay, replay_with};
pub use transfer::Transfers;
pub use watermarks::Watermarks;

/// A file, by a permanent number.
pub type FileId = u64;

/// What a policy may know when it decides.
pub trait Outlook {
    /// Bytes of a file.
    fn size(&self, file: FileId) -> u64;
    /// Whether the references to come are announced and being followed.
    fn is_known(&self) -> bool;
    /// Announced references of a file among the next `horizon` ones; all of them for `u64::MAX`.
    fn later(&self, file: FileId, horizon: u64) -> u64;
    /// How many references from now a file's next announced one is; 1 is the very next.
    fn next(&self, file: FileId) -> Option<u64>;
    /// An order by name, to break ties.
    fn by_name(&self, one: FileId, other: FileId) -> Ordering;
}

/// A policy of the file tier.
///
/// The caller guarantees that it calls `referenced` for every use of a file before it asks anything about the file, and
/// that `cached` lists files that may leave, each once.
///
/// An implementation MUST only name files that `cached` lists, each once, and MUST be deterministic. The order of two
/// files in `leaving` MUST only depend on the calls for these two, on their sizes and on their announced references,
/// and not change with references to other files, unless [`Keep::is_reordered`] reports it; with the same outlook,
/// `make_room` MUST name no file, or only the first ones of that order that free enough: the caller may then list only
/// the first ones.
pub trait Keep: Send + Debug {
    /// A file of `bytes` bytes is used, whether it is on the SSD or not.
    fn referenced(&mut self, file: FileId, bytes: u64);
    /// The SSD holds this many bytes: called before anything else, and when that changes.
    fn holds(&mut self, _bytes: u64) {}
    /// Whether the order of files changed since the last call, other than for the files of the calls in between. The
    /// caller asks after every use.
    fn is_reordered(&mut self) -> bool {
        false
    }
    /// A file came to the SSD (`true`) or left it.
    fn moved(&mut self, _file: FileId, _to_ssd: bool) {}
    /// A file exists no more.
    fn removed(&mut self, file: FileId);
    /// The order in which files leave: for an announced file if the outlook is known, otherwise for no particular file.
    fn leaving(&mut self, cached: Vec<FileId>, outlook: &dyn Outlook) -> Vec<FileId>;
    /// Files to evict, in order, to make room for `file`, which was just referenced and fits an empty SSD; `None` if it
    /// is to be served in place. `free` is the number of free bytes.
    fn make_room(
        &mut self,
        file: FileId,
        free: u64,
        cached: &dyn Fn() -> Vec<FileId>,
        outlook: &dyn Outlook,
    ) -> Option<Vec<FileId>> {
        let size = outlook.size(file);
        if free >= size {
            return Some(Vec::new());
        }
        let order = self.leaving(cached(), outlook);
        first_that_free(order, size - free, outlook)
    }
}

/// The first files of `order` that have `bytes` bytes in total; `None` if all together have fewer.
fn first_that_free(order: Vec<FileId>, bytes: u64, outlook: &dyn Outlook) -> Option<Vec<FileId>> {
    let (mut freed, mut leaving) = (0, Vec::new());
    for file in order {
        if freed >= bytes {
            break;
        }
        freed += outlook.size(file);
        leaving.push(file);
    }
    (freed >= bytes).then_some(leaving)
}

/// One tier policy: its name, a sentence about it, and its constructor.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    /// Name in configuration and reports.
    pub name: &'static str,
    /// What it does, for help texts.
    pub doc: &'static str,
    /// Makes an empty one.
    pub make: fn() -> Box<dyn Keep>,
}

/// All tier policies; the first is the default.
pub const POLICIES: &[Policy] = &[
    Policy {
        name: "foresight",
        doc: "next announced uses, counting what a move writes; without them the best of several \
              rules, by what each would have moved (ours)",
        make: || Box::<foresight::Foresight>::default(),
    },
    Policy {
        name: "heuristic",
        doc: "announced uses times size decide (the paper's Algorithms 4 and 5)",
        make: || Box::<heuristic::Heuristic>::default(),
    },
    Policy {
        name: "lru",
        doc: "least recently used leaves first, every file comes",
        make: || Box::new(recency::Recency::lru()),
    },
    Policy {
        name: "lfu",
        doc: "least often used leaves first, every file comes",
        make: || Box::new(recency::Recency::lfu()),
    },
];

/// Makes the policy called `name`.
pub fn by_name(name: &str) -> Result<Box<dyn Keep>, UnknownPolicy> {
    let row = POLICIES.iter().find(|policy| policy.name == name);
    row.map(|policy| (policy.make)())
        .ok_or_else(|| UnknownPolicy::new("tier", name, POLICIES.iter().map(|row| row.name)))
}
