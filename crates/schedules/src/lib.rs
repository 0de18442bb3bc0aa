//! Explores schedules of threads that wait for each other: every thread that waits is woken, and no two hold at once
//! what only one may hold.
//!
//! Each module has a source of the product as `build.rs` makes it, with stories over it, and canaries: the same source with
//! one line wrong, which the exploration must find. Nothing here is part of a release, and the product has nothing for
//! it (docs/decisions/0036-schedule-tests.md).
#![cfg(test)]

mod sync;

mod archive_queue;
mod backpressure;
mod bell;
mod changes;
mod closes;
mod listings;
mod own_session;
mod pending_syncs;
mod queue;
mod range_lock;
mod wakeups;

use std::panic::{AssertUnwindSafe, catch_unwind};

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

/// Schedules of each kind; all stories together take some seconds.
const SCHEDULES: usize = 1_000;
/// One seed for all: what is found is found again.
const SEED: u64 = 0x5eed;
/// Preemptions that a priority schedule places.
const DEPTH: usize = 3;

/// The source `$variant` as a module, under its own name or another one, with stories.
macro_rules! explored {
    ($variant:ident { $($story:item)* }) => {
        $crate::explored!($variant = $variant { $($story)* });
    };
    ($module:ident = $variant:ident { $($story:item)* }) => {
        #[allow(dead_code, unused_imports, clippy::all, clippy::pedantic, missing_docs, unreachable_pub, unused_assignments, unused_mut, unused_variables)]
        mod $module {
            include!(concat!(env!("OUT_DIR"), "/", stringify!($variant), ".rs"));
            $($story)*
        }
    };
}
use explored;

/// Runs a story in many schedules.
///
/// # Panics
/// As the story does in one of them, or where all its threads wait for each other.
fn explore(story: fn()) {
    let mut config = Config::new();
    config.stack_size = 1 << 18;
    config.max_steps = MaxSteps::FailAfter(50_000);
    config.failure_persistence = FailurePersistence::Print;
    let random = RandomScheduler::new_from_seed(SEED, SCHEDULES);
    Runner::new(random, config.clone()).run(story);
    let priorities = PctScheduler::new_from_seed(SEED, DEPTH, SCHEDULES);
    Runner::new(priorities, config).run(story);
}

/// Whether the exploration of a story finds something.
fn finds(story: fn()) -> bool {
    catch_unwind(AssertUnwindSafe(|| explore(story))).is_err()
}
