//! A directory in which one intent after another is in the way.

use std::sync::Arc;
use std::time::Duration;

use halocline_cluster::names::memory::MemoryNames;
use halocline_cluster::names::namespace::{Namespace, WaitLimit};
use halocline_model::namespace::ROOT;
use halocline_os::clock::Clock;

use super::world::{Fault, Faulty, at, directory, node};

/// Regression: each further intent was waited for as long as the first one, without end.
#[test]
fn intents_that_follow_one_another_are_not_waited_for_without_end() {
    let store = MemoryNames::default();
    Namespace::format(&store, &directory()).unwrap();
    let clock = Clock::simulated();
    let wait = WaitLimit { clock: clock.clone(), ..WaitLimit::default() };
    let crowded = Faulty::new(Arc::new(store), Fault::MeetsIntents, 20_000);
    let names = node(Arc::new(crowded), 1, wait);
    let begun = clock.instant();
    let _is_absent = names.lookup(&at(ROOT, "f"));
    let counts = names.counts();
    assert!(counts.completed >= 10, "{counts:?}");
    let each = clock.elapsed(begun) / u32::try_from(counts.completed).unwrap();
    assert!(each <= Duration::from_millis(1100), "{each:?}: {counts:?}");
}
