//! A mount that is killed after each step of each change of places and names.

use super::stories::{Ended, STORIES, Story};
use super::*;
use crate::tier::steps::watch::{self, Watch};

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
    for story in STORIES {
        for count in 0.. {
            let mut fixture = Fixture::of_stories();
            watch::set(Some(Box::new(Countdown(count))));
            let (done, killed) = until_killed(story, &fixture);
            watch::set(None);
            let Some(step) = killed else { break };
            steps += 1;
            fixture.open();
            let context = || format!("{}, act {done}, killed after {step}", story.name);
            fixture.assert_in_order(&context);
            story.assert_between(&fixture.tree(), (done, done + 1), &context);
        }
    }
    assert!(steps > 200, "only {steps} steps were killed");
}

impl Fixture {
    /// Asserts that the mount found nothing that is not as it should be, and left nothing.
    pub(super) fn assert_in_order(&self, context: &dyn Fn() -> String) {
        assert_eq!(self.found.problems, [], "{}", context());
        assert!(self.found.adopted.is_empty(), "{}: {:?}", context(), self.found.adopted);
        self.check_places();
    }
}
