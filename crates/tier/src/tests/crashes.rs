//! A mount that is killed after each step of each change of places and names.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::stories::{Ended, Story, stories};
use super::*;
use crate::steps::watch::{self, KillAll, Watch};

/// Kills the mount after some more steps.
pub(super) struct Countdown(pub(super) usize);

impl Watch for Countdown {
    fn after(&mut self, _tier: usize, _what: &'static str) -> bool {
        let last = self.0 == 0;
        self.0 = self.0.saturating_sub(1);
        last
    }
}

/// Goes through a story; how many acts were done before the mount was killed, and after which step
/// it was.
fn until_killed(story: &Story, fixture: &Fixture) -> (usize, Option<&'static str>) {
    for (done, act) in story.acts.iter().enumerate() {
        match act.run(fixture) {
            Ended::Well => {}
            Ended::Failed(error) => panic!("{}, act {done}: {error}", story.name),
            Ended::Killed(step) => return (done, Some(step)),
        }
    }
    (story.acts.len(), None)
}

/// I4 and I10: after a kill at any step the next mount has every file, whole, in one place, and
/// nothing else.
#[test]
fn i10_a_kill_at_any_step_leaves_one_whole_copy() {
    let mut steps = 0;
    for (story, copies) in stories() {
        for count in 0.. {
            let mut fixture = Fixture::of_stories(copies);
            watch::set(Some(Box::new(Countdown(count))));
            let (done, killed) = until_killed(story, &fixture);
            watch::set(None);
            let Some(step) = killed else { break };
            steps += 1;
            fixture.open();
            let context = || format!("{}, act {done}, killed after {step}", story.name);
            fixture.assert_in_order(&context);
            story.assert_between(&fixture.tree(), (done, done + 1), &context);
            fixture.assert_copies_are_equal(&context);
        }
    }
    assert!(steps > 300, "only {steps} steps were killed");
}

/// The same with several files in flight, each of which stops at a step of its own.
#[test]
fn i10_a_kill_at_any_step_of_a_batch_leaves_one_whole_copy_of_each() {
    let names = ["one", "two", "three", "four", "five", "six"];
    let mut killed = 0;
    for (up, by_mover) in [(false, false), (true, false), (false, true)] {
        for count in 0.. {
            let quick = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
            let mut fixture = Fixture::within(quick, &["ssd", "hdd"], limited(1 << 20));
            for name in names {
                fixture.write(name, name.as_bytes());
            }
            if up {
                assert_eq!(fixture.demote("").files, 6);
            }
            let kill = KillAll::after(count);
            kill.begin();
            let moved = catch_unwind(AssertUnwindSafe(|| match (up, by_mover) {
                (true, _) => drop(fixture.warm("")),
                (false, false) => drop(fixture.demote("")),
                (false, true) => drop(fixture.tier().core.executor.free_up(1 << 20, u64::MAX)),
            }));
            let left = kill.end();
            let context = || format!("{up}, {by_mover}, killed after {count} steps");
            if moved.is_ok() {
                assert!(left >= 0, "{}", context());
                let tier = usize::from(!up);
                assert!(names.iter().all(|name| fixture.where_is(name) == tier), "{}", context());
                break;
            }
            killed += 1;
            fixture.open();
            fixture.assert_in_order(&context);
            for name in names {
                assert_eq!(fixture.content(name).unwrap(), name.as_bytes(), "{}", context());
            }
        }
    }
    assert!(killed > 150, "only {killed} steps were killed");
}

impl Fixture {
    /// Asserts that the mount found nothing that is not as it should be, and left nothing.
    pub(super) fn assert_in_order(&self, context: &dyn Fn() -> String) {
        assert_eq!(self.found.problems, [], "{}", context());
        assert!(self.found.adopted.is_empty(), "{}: {:?}", context(), self.found.adopted);
        self.check_places();
        self.check_names(context);
    }
}
