//! A mount that is killed after each step of each change of places and names.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, Ordering};

use halocline_os::error::Result;
use halocline_tier::{Chore, TierOptions, Watcher};
use halocline_vfs::Engine;

use crate::clean_copies::archiving;
use crate::fixture::{CALLER, Fixture, files_below, limited};
use crate::scenarios::{Ended, Scenario, kill, scenarios};

/// Kills the mount after some more steps.
#[derive(Debug)]
pub(super) struct Countdown(AtomicIsize);

impl Countdown {
    pub(super) fn of(steps: isize) -> Arc<Self> {
        Arc::new(Self(AtomicIsize::new(steps)))
    }
}

impl Watcher for Countdown {
    fn after(&self, _tier: usize, what: &'static str) {
        if self.0.fetch_sub(1, Ordering::Relaxed) == 0 {
            kill(what);
        }
    }

    fn one_by_one(&self) -> bool {
        true
    }
}

/// Kills a mount after some more steps of several threads: each stops at its next.
#[derive(Debug)]
struct KillAll(AtomicIsize);

impl Watcher for KillAll {
    fn before(&self, _tier: usize, what: &'static str) -> Result<()> {
        if self.0.load(Ordering::Relaxed) < 0 {
            kill(what);
        }
        Ok(())
    }

    fn after(&self, _tier: usize, what: &'static str) {
        if self.0.fetch_sub(1, Ordering::Relaxed) <= 0 {
            kill(what);
        }
    }
}

/// Goes through a scenario; how many acts were done before the mount was killed, and after which step
/// it was.
fn until_killed(scenario: &Scenario, fixture: &Fixture) -> (usize, Option<&'static str>) {
    for (done, act) in scenario.acts.iter().enumerate() {
        match act.run(fixture) {
            Ended::Well => {}
            Ended::Failed(error) => panic!("{}, act {done}: {error}", scenario.name),
            Ended::Killed(step) => return (done, Some(step)),
        }
    }
    (scenario.acts.len(), None)
}

/// I4 and I10: after a kill at any step the next mount has every file, whole, in one place, and
/// nothing else.
#[test]
fn i10_a_kill_at_any_step_leaves_one_whole_copy() {
    let mut steps = 0;
    for (scenario, copies) in scenarios() {
        for count in 0.. {
            let mut fixture = Fixture::of_scenarios(copies);
            fixture.watch(Countdown::of(count));
            let (done, killed) = until_killed(scenario, &fixture);
            fixture.unwatch();
            let Some(step) = killed else { break };
            steps += 1;
            fixture.open();
            let context = || format!("{}, act {done}, killed after {step}", scenario.name);
            fixture.assert_in_order(&context);
            scenario.assert_between(&fixture.tree(), (done, done + 1), &context);
            fixture.assert_copies_are_equal(&context);
        }
    }
    assert!(steps > 300, "only {steps} steps were killed");
}

/// Kills the mount before a step.
#[derive(Debug)]
struct KillBefore(&'static str);

impl Watcher for KillBefore {
    fn before(&self, _tier: usize, what: &'static str) -> Result<()> {
        if what == self.0 {
            kill(what);
        }
        Ok(())
    }
}

/// Where rename knows no flags, a copy moves by a link to its new place. A mount that was killed then left both names,
/// and the next one took the old one for a file that somebody had put there. What is somebody's stays.
#[test]
fn i10_a_kill_between_the_two_names_of_a_moving_copy_shows_no_old_name() {
    for changed in [false, true] {
        let mut fixture = archiving();
        fixture.write("here", b"content");
        fixture.archive();
        assert!(fixture.has_copy("here"));
        let root = fixture.tier().root();
        let (from, to) = ((&root, "here".as_ref()), (&root, "new".as_ref()));
        fixture.tier().rename(from, to, 0, CALLER).unwrap();
        drop(root);
        fixture.watch(Arc::new(KillBefore("moving a copy")));
        assert!(catch_unwind(AssertUnwindSafe(|| fixture.archive())).is_err(), "it is killed");
        fixture.unwatch();
        fs::hard_link(fixture.hdd("here"), fixture.hdd("new")).unwrap();
        if changed {
            fs::set_permissions(fixture.hdd("here"), Permissions::from_mode(0o600)).unwrap();
            fs::write(fixture.hdd("here"), "what somebody wrote").unwrap();
        }
        fixture.open();
        assert_eq!(fixture.found.adopted.len(), usize::from(changed), "{:?}", fixture.found);
        assert_eq!(fixture.content("new").unwrap(), b"content");
        let old = fixture.content("here");
        assert_eq!(old.as_deref(), changed.then_some(&b"what somebody wrote"[..]));
        assert_eq!(files_below(&fixture.hdd("")).len(), usize::from(changed));
        fixture.check_places();
    }
}

/// The same with several files in flight, each of which stops at a step of its own.
#[test]
fn i10_a_kill_at_any_step_of_a_batch_leaves_one_whole_copy_of_each() {
    let names = ["one", "two", "three", "four", "five", "six"];
    let mut killed = 0;
    for (up, by_demoter) in [(false, false), (true, false), (false, true)] {
        for count in 0.. {
            let limited = limited(1 << 20);
            let options =
                if by_demoter { TierOptions { high: 0.0, low: 0.0, ..limited } } else { limited };
            let mut fixture = Fixture::quick(options);
            for name in names {
                fixture.write(name, name.as_bytes());
            }
            if up {
                assert_eq!(fixture.demote("").files, 6);
            }
            let kill = Arc::new(KillAll(AtomicIsize::new(count)));
            fixture.watch(kill.clone());
            let moved = catch_unwind(AssertUnwindSafe(|| match (up, by_demoter) {
                (true, _) => drop(fixture.warm("")),
                (false, false) => drop(fixture.demote("")),
                (false, true) => drop(fixture.work(Chore::Demote)),
            }));
            fixture.unwatch();
            let left = kill.0.load(Ordering::Relaxed);
            let context = || format!("{up}, {by_demoter}, killed after {count} steps");
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
