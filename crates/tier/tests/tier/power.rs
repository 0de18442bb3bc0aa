//! Power losses at each step of each change of places and names.
//!
//! What a power loss may leave is built from what was done: [`record`] notes each change of the
//! two tiers and each sync, [`image`] builds the trees. As ext4 and xfs do it, a tier keeps its
//! changes of names up to any point behind its last sync, where a sync of a file or directory
//! covers what came before that inode's last change, and the bytes of a file that was not synced
//! are new, old, zero or missing. The two tiers know nothing of each other.

mod image;
mod record;

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use halocline_api::config::Copies;
use halocline_tier::FileTier;

use self::image::Image;
use self::record::Recording;
use crate::fixture::Fixture;
use crate::scenarios::{Ended, Kind, Scenario, scenarios};

/// What happens in a scenario besides.
#[derive(Debug, Clone, Copy, Default)]
struct Trouble {
    /// The mount is killed after so many steps.
    kill_at: Option<usize>,
    /// After so many syncs one fails.
    fail_at: Option<usize>,
    /// What is synced in this step is not.
    lie: Option<&'static str>,
}

/// A scenario that was gone through under a recording.
struct Run {
    fixture: Fixture,
    recording: Recording,
    done: usize,
    killed: Option<&'static str>,
}

impl Run {
    /// Until the end, or until the mount is killed or an act fails.
    fn new((scenario, copies): (&Scenario, Copies), trouble: Trouble) -> Self {
        let fixture = Fixture::of_scenarios(copies);
        let recording = Recording::of(&fixture, trouble);
        recording.start(&fixture);
        let (mut done, mut killed) = (0, None);
        for act in scenario.acts {
            recording.begins(done);
            match act.run(&fixture) {
                Ended::Well => {}
                Ended::Killed(step) => {
                    killed = Some(step);
                    break;
                }
                Ended::Failed(error) => {
                    assert!(recording.has_failed(), "{}, act {done}: {error}", scenario.name);
                    break;
                }
            }
            done += 1;
            // A sync that a program asked for and that did not fail holds whatever failed before.
            if act.kind == Kind::Sync || (act.is_durable() && !recording.has_failed()) {
                recording.durable(done);
            }
        }
        fixture.unwatch();
        Self { fixture, recording, done, killed }
    }
}

/// Mounts what a power loss left and looks at it.
fn survives(scenario: &Scenario, fixture: &mut Fixture, image: &Image) {
    fixture.tier = None;
    image.build(fixture.dir.path());
    fixture.open();
    let context = || format!("{}, power lost {}", scenario.name, image.when);
    fixture.assert_in_order(&context);
    scenario.assert_between(&fixture.tree(), image.between, &context);
    fixture.assert_copies_are_equal(&context);
    fixture.tier = None;
    let found = FileTier::check(&fixture.set(), false).unwrap();
    assert_eq!((found.problems, found.removed), (Vec::new(), 0), "{}: fsck", context());
}

/// Loses power at each step of each scenario; how many images there were.
fn lose_power_at_each_step(lie: Option<&'static str>) -> usize {
    let mut images = 0;
    for (scenario, copies) in scenarios() {
        let trouble = Trouble { lie, ..Trouble::default() };
        let Run { mut fixture, recording, done, killed } = Run::new((scenario, copies), trouble);
        assert_eq!((done, killed), (scenario.acts.len(), None));
        for image in recording.images() {
            survives(scenario, &mut fixture, &image);
            images += 1;
        }
    }
    images
}

/// Kills the mount after each step of each scenario, and loses power while the next one recovers.
fn lose_power_in_recovery(lie: Option<&'static str>) -> usize {
    let mut images = 0;
    for (scenario, copies) in scenarios() {
        let mut seen = HashSet::new();
        for count in 0.. {
            let trouble = Trouble { kill_at: Some(count), lie, ..Trouble::default() };
            let Run { mut fixture, recording, done, killed } =
                Run::new((scenario, copies), trouble);
            let Some(step) = killed else { break };
            recording.recovers(step);
            recording.start(&fixture);
            fixture.open();
            fixture.unwatch();
            scenario
                .assert_between(&fixture.tree(), (done, done + 1), &|| scenario.name.to_owned());
            for image in recording.images() {
                if seen.insert(image.digest()) {
                    survives(scenario, &mut fixture, &image);
                    images += 1;
                }
            }
        }
    }
    images
}

/// I4, I10: what was durable is there after a power loss at any step, whole, once, and nothing
/// else.
#[test]
fn i10_a_power_loss_at_any_step_leaves_one_whole_copy() {
    let images = lose_power_at_each_step(None);
    assert!(images > 200, "only {images} images");
}

/// The same where a mount was killed, and the power fails while the next one recovers.
#[test]
fn i10_a_power_loss_during_recovery_loses_nothing() {
    let images = lose_power_in_recovery(None);
    assert!(images > 600, "only {images} images");
}

/// Each sync of each scenario fails once, and then the power: whatever was durable before is there.
#[test]
fn i4_a_power_loss_after_a_failed_sync_loses_nothing() {
    let mut images = 0;
    for (scenario, copies) in scenarios() {
        let mut seen = HashSet::new();
        for count in 0.. {
            let trouble = Trouble { fail_at: Some(count), ..Trouble::default() };
            let Run { mut fixture, recording, .. } = Run::new((scenario, copies), trouble);
            if !recording.has_failed() {
                break;
            }
            for image in recording.images() {
                if seen.insert(image.digest()) {
                    survives(scenario, &mut fixture, &image);
                    images += 1;
                }
            }
        }
    }
    assert!(images > 400, "only {images} images");
}

/// Each sync is needed: without it something is lost, and the tests above notice.
#[test]
fn a_power_loss_after_a_sync_that_was_none_loses_a_file() {
    type Lose = fn(Option<&'static str>) -> usize;
    for (lie, lose) in [
        ("syncing a copy", lose_power_at_each_step as Lose),
        ("syncing copies", lose_power_at_each_step),
        ("syncing cutovers", lose_power_at_each_step),
        ("syncing the intents", lose_power_at_each_step),
        ("syncing a place", lose_power_at_each_step),
        ("syncing a cutover", lose_power_at_each_step),
        ("syncing removed names", lose_power_at_each_step),
        ("syncing what is removed", lose_power_at_each_step),
        ("syncing what is kept", lose_power_at_each_step),
        ("syncing the end of a clean copy", lose_power_at_each_step),
        ("syncing a copy's permissions", lose_power_at_each_step),
        ("syncing", lose_power_at_each_step),
        ("syncing the file system", lose_power_in_recovery),
    ] {
        let ended = catch_unwind(AssertUnwindSafe(|| lose(Some(lie))));
        assert!(ended.is_err(), "{lie}: nothing is lost without it");
    }
}
