//! Devices that fail and file systems that are full, at each step of each change of places and
//! names, once or from then on.

use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;

use halocline_api::config::Copies;
use halocline_api::control::tier::Problem;
use halocline_api::control::{Controlled, Health};
use halocline_os::error::Result;
use halocline_tier::{Chore, FileTier, TierOptions, Watcher};
use halocline_vfs::Engine;

use crate::fixture::{CALLER, Fixture, limited};
use crate::scenarios::{Act, Ended, Kind, Scenario, scenarios};

/// A step that fails, and perhaps all later ones of its tier.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fault {
    pub(super) after: usize,
    pub(super) errno: Errno,
    pub(super) for_good: bool,
    /// The tier and the first step that failed.
    pub(super) hit: Option<(usize, &'static str)>,
}

/// Lets the steps fail that a fault says.
#[derive(Debug)]
pub(super) struct Injected(Mutex<Fault>);

impl Injected {
    pub(super) fn of(fault: Fault) -> Arc<Self> {
        Arc::new(Self(Mutex::new(fault)))
    }

    /// What has become of the fault.
    pub(super) fn fault(&self) -> Fault {
        *self.0.lock()
    }
}

impl Watcher for Injected {
    fn before(&self, tier: usize, what: &'static str) -> Result<()> {
        let mut fault = self.0.lock();
        if let Some((failing, _)) = fault.hit {
            let fails = fault.for_good && failing == tier;
            return if fails { Err(fault.errno.into()) } else { Ok(()) };
        }
        if fault.after > 0 {
            fault.after -= 1;
            return Ok(());
        }
        fault.hit = Some((tier, what));
        Err(fault.errno.into())
    }

    fn one_by_one(&self) -> bool {
        true
    }
}

/// Whether a program must see that a step of an act failed: it asked for just that, or there is no
/// other way to do what it asked for.
fn is_unavoidable(scenario: &Scenario, act: &Act, fault: &Fault) -> bool {
    let Some((tier, what)) = fault.hit else { return false };
    let is_full_once = fault.errno == Errno::NOSPC && !fault.for_good;
    match act.kind {
        Kind::Move => false,
        // Names are on the SSD, and others move down where it is full.
        Kind::Names => tier == 0 && !is_full_once,
        // The file does not fit the SSD, and the other tier fails.
        Kind::Bytes if scenario.name.starts_with("spill") => true,
        // A file that the SSD has no room for goes down.
        Kind::Bytes if is_full_once && (tier, what) == (0, "writing") => false,
        Kind::Bytes => {
            fault.for_good || ["writing", "setting attributes", "setting a length"].contains(&what)
        }
        Kind::Sync => fault.for_good || what.starts_with("syncing"),
        Kind::CleanUp | Kind::CleanUpCopies => true,
    }
}

/// Goes through a scenario until an act fails; how many were done, and whether one failed.
fn until_failed(scenario: &Scenario, fixture: &Fixture, injected: &Injected) -> (usize, bool) {
    for (done, act) in scenario.acts.iter().enumerate() {
        match act.run(fixture) {
            Ended::Well => {}
            Ended::Killed(step) => unreachable!("nobody kills after {step}"),
            Ended::Failed(error) => {
                let fault = injected.fault();
                let avoidable = !is_unavoidable(scenario, act, &fault);
                assert!(!avoidable, "{}, act {done}: {error}, from {fault:?}", scenario.name);
                return (done, true);
            }
        }
    }
    (scenario.acts.len(), false)
}

/// I4, I10: whichever step fails, with whatever, once or for good: no file is lost or changed, what
/// could be done was done, `status` tells of it, and the next mount finds nothing amiss.
#[test]
fn i10_a_step_that_fails_costs_no_file() {
    let mut steps = 0;
    for (errno, for_good) in
        [(Errno::IO, false), (Errno::IO, true), (Errno::NOSPC, false), (Errno::NOSPC, true)]
    {
        for (scenario, copies) in scenarios() {
            for after in 0.. {
                let mut fixture = Fixture::of_scenarios(copies);
                let injected = Injected::of(Fault { after, errno, for_good, hit: None });
                fixture.watch(injected.clone());
                let (done, failed) = until_failed(scenario, &fixture, &injected);
                fixture.unwatch();
                let fault = injected.fault();
                if fault.hit.is_none() {
                    break;
                }
                steps += 1;
                let context = || format!("{}, act {done}: {fault:?}", scenario.name);
                let between = (done, done + usize::from(failed));
                scenario.assert_between(&fixture.tree(), between, &context);
                fixture.assert_known(errno, &context);
                match scenario.name {
                    "demote" => assert!(fixture.demote("here").skipped.is_empty(), "{}", context()),
                    "promote" => assert!(fixture.warm("away").skipped.is_empty(), "{}", context()),
                    _ => {}
                }
                let tree = fixture.tree();
                fixture.assert_no_loose_ends(&context);
                fixture.open();
                fixture.assert_in_order(&context);
                assert_eq!(fixture.tree(), tree, "{}: after the next mount", context());
                fixture.assert_copies_are_equal(&context);
            }
        }
    }
    assert!(steps > 800, "only {steps} steps failed");
}

/// A failing disk under a file that a program reads and syncs: it is told, and `status` says where.
#[test]
fn programs_are_told_of_errors_of_their_own_requests() {
    let fixture = Fixture::new(limited(1 << 20));
    fixture.write("file", b"content");
    let handle = fixture.open_file("file", libc::O_RDWR);
    fixture.demote("file");
    let fails = |act: &dyn Fn() -> Result<()>| {
        let fault = Fault { after: 0, errno: Errno::IO, for_good: false, hit: None };
        fixture.watch(Injected::of(fault));
        let error = act().unwrap_err();
        fixture.unwatch();
        assert_eq!(error.errno(), libc::EIO);
    };
    let tier = fixture.tier();
    fails(&|| tier.read(&handle, 0, &mut [0; 16], CALLER).map(drop));
    fails(&|| tier.write(&handle, 0, b"x", CALLER));
    fails(&|| tier.fsync(&handle, true));
    assert_eq!(fixture.read(&handle), b"content");
    let Health::Degraded { reason } = tier.status().health else { panic!("it failed") };
    assert!(reason.contains("/hdd: 3 I/O errors") && reason.contains("syncing"), "{reason}");
}

/// A disk that takes nothing is not given every file of the SSD, again and again.
#[test]
fn a_demotion_gives_up_after_a_few_errors_of_the_disk() {
    let fixture = Fixture::new(TierOptions { high: 0.0, low: 0.0, ..limited(1 << 20) });
    for number in 0..40 {
        fixture.write(&format!("file{number}"), &vec![1; 8 << 10]);
    }
    let dead = Fault { after: 0, errno: Errno::IO, for_good: true, hit: Some((1, "before")) };
    fixture.watch(Injected::of(dead));
    assert!(!fixture.work(Chore::Demote));
    fixture.unwatch();
    let Health::Degraded { reason } = fixture.tier().status().health else { panic!("it failed") };
    assert!(reason.contains("/hdd: 8 I/O errors, the last creating a copy"), "{reason}");
    assert_eq!(fixture.where_is("file0"), 0);
    assert!(fixture.work(Chore::Demote), "it is back");
    fixture.check_places();
}

#[test]
fn one_file_that_cannot_be_removed_does_not_keep_the_others() {
    let fixture = Fixture::of_scenarios(Copies::None);
    for path in ["away", "dir/deep"] {
        let (dir, name) = fixture.at(path);
        fixture.tier().unlink(&dir, name, CALLER).unwrap();
    }
    // Both parents are synced, then the first file fails.
    let fault = Fault { after: 2, errno: Errno::IO, for_good: false, hit: None };
    fixture.watch(Injected::of(fault));
    fixture.reap().unwrap_err();
    fixture.unwatch();
    assert!(fixture.hdd("away").exists() && fixture.hdd("dir/deep").exists());
    // The second comes first now, and the parents are not synced again.
    let fault = Fault { after: 3, errno: Errno::IO, for_good: true, hit: None };
    fixture.watch(Injected::of(fault));
    fixture.reap().unwrap_err();
    fixture.unwatch();
    assert!(fixture.hdd("away").exists() && !fixture.hdd("dir/deep").exists());
    fixture.check_places();
}

impl Fixture {
    /// Asserts that `status` knows of a device that failed.
    fn assert_known(&self, errno: Errno, context: &dyn Fn() -> String) {
        match self.tier().status().health {
            Health::Degraded { reason } => {
                assert!(errno == Errno::IO && reason.contains("I/O errors"), "{}", context());
            }
            Health::Ok => assert_eq!(errno, Errno::NOSPC, "{}", context()),
            other @ (Health::Full { .. } | Health::Silent { .. }) => {
                panic!("{}: {other:?}", context())
            }
        }
    }

    /// Unmounts and asserts that the next mount will know what to do with all that is left.
    fn assert_no_loose_ends(&mut self, context: &dyn Fn() -> String) {
        self.held.lock().clear();
        self.tier = None;
        for problem in FileTier::check(&self.set(), false).unwrap().problems {
            let of_copies =
                matches!(problem, Problem::CopyGone { .. } | Problem::CopyDiffers { .. });
            let is_leftover = of_copies
                || matches!(problem, Problem::Leftover { .. } | Problem::NotCutOver { .. });
            assert!(is_leftover, "{}: {problem}", context());
        }
    }
}
