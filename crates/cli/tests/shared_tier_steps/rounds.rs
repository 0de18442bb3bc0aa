//! Two nodes, and one round on them.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::Output;
use std::thread;
use std::time::{Duration, Instant};

use halocline_testkit::sandbox::{said, written};
use halocline_testkit::scratch::Scratch;
use halocline_testkit::standstill::Standstill;
use halocline_testkit::waiting::{WAIT_LIMIT, eventually};
use halocline_testkit::{program, shared_tiers};

use crate::held::Held;
use crate::operations::{Act, Operation, Tree, changed, seen};
use crate::store::Store;

const NODES: [&str; 2] = ["one", "two"];
const PAUSE: Duration = Duration::from_millis(20);

/// What fails, while the node `one` is at a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The node is killed.
    NodeKilled,
    /// The node stands still, and the other one looks and works meanwhile.
    NodeStops,
    /// The server of the names is killed, and started with all that it had acknowledged; or a master, and its replica takes
    /// its place.
    MasterKilled,
    /// It stands still when the step is made.
    MasterStops,
    /// It is killed, and started with nothing; of a master, the replica has heard nothing since the step.
    MasterLost,
}

pub(crate) const FAILURES: [Failure; 5] = [
    Failure::NodeKilled,
    Failure::NodeStops,
    Failure::MasterKilled,
    Failure::MasterStops,
    Failure::MasterLost,
];

impl Failure {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::NodeKilled => "node killed",
            Self::NodeStops => "node stands still",
            Self::MasterKilled => "master killed",
            Self::MasterStops => "master stands still",
            Self::MasterLost => "lost master",
        }
    }

    /// Whether the operation may fail.
    const fn breaks(self) -> bool {
        !matches!(self, Self::NodeStops | Self::MasterStops)
    }
}

/// The nodes, which are called as their mount points, and what the tier has.
#[derive(Debug)]
pub(crate) struct Nodes {
    scratch: Scratch,
    store: Store,
    /// What each round left.
    left: Vec<(String, Tree)>,
}

/// Whether a command was refused because the server, which is there, took longer to answer than commands wait: its disk has
/// much to do for others.
fn is_slow_store(said: &str) -> bool {
    said.contains("no answer in")
}

impl Nodes {
    pub(crate) fn over(store: Option<Store>) -> Option<Self> {
        let (scratch, store) = (Scratch::with_mountpoints(program!(), &NODES)?, store?);
        shared_tiers::make(&scratch, &NODES);
        let nodes = Self { scratch, store, left: Vec::new() };
        for node in NODES {
            nodes.mount(node);
        }
        Some(nodes)
    }

    fn socket(&self) -> PathBuf {
        self.scratch.path("steps")
    }

    fn mount(&self, node: &str) {
        let (root, peers, url) =
            (format!("{node}-tiers"), shared_tiers::peers(&self.scratch), self.store.urls());
        let cluster = ["--cluster", &url, "--node", node, "--peers", &peers];
        let args = [&["mount", "--tier", &root, node][..], &cluster].concat();
        let begun = Instant::now();
        loop {
            let mut command = self.scratch.command(&args);
            if node == NODES[0] {
                command.env("HALOCLINE_HELD_STEPS", self.socket());
            }
            let mounted = command.output().unwrap();
            if mounted.status.success() {
                return;
            }
            let all = said(&mounted);
            assert!(is_slow_store(&all) && begun.elapsed() < WAIT_LIMIT, "{all}");
        }
    }

    fn unmount(&self, node: &str) {
        shared_tiers::unmount(&self.scratch, node);
    }

    fn fsck(&self, more: &[&str]) -> Output {
        shared_tiers::fsck(&self.scratch, &self.store.urls(), more)
    }

    /// Has the names checked, when the leases of the dead are over.
    fn checked(&self, how: &str) {
        let begun = Instant::now();
        loop {
            let checked = self.fsck(&[how]);
            if checked.status.success() {
                return;
            }
            let all = [said(&checked), written(&checked)].concat();
            // The store is confirmed; what a node that died could not tell the disks is left to a repair.
            if how == "--confirm" && all.contains("confirmed: ") && all.contains("--repair does it")
            {
                return self.checked("--repair");
            }
            let may_pass = all.contains("uses the tier") || is_slow_store(&all);
            assert!(may_pass && begun.elapsed() < WAIT_LIMIT, "{how}: {all}");
            thread::sleep(PAUSE * 10);
        }
    }

    fn see(&self, node: &str, dir: &str) -> io::Result<Tree> {
        seen(&self.scratch.path(node).join(dir))
    }

    fn kill(&self, node: &str) {
        self.scratch.kill(node);
    }

    /// The nodes end, the names are checked or built again, and the nodes are mounted.
    fn begin_again(&self, how: &[&str]) {
        for node in NODES {
            self.unmount(node);
        }
        for how in how {
            self.checked(how);
        }
        for node in NODES {
            self.mount(node);
        }
    }

    /// Makes what there is before the operation.
    fn prepare(&self, operation: &Operation, dir: &str) -> Tree {
        let by = if operation.is_of_own_files() { NODES[0] } else { NODES[1] };
        let path = self.scratch.path(by).join(dir);
        for below in ["", "a", "b"] {
            fs::create_dir(path.join(below)).unwrap();
        }
        (operation.prepare)(&path).unwrap();
        // A step of another file's close would be taken for one of the operation.
        let is_closed =
            |done: &Output| ![written(done), said(done)].concat().contains("has it open");
        eventually("that all is closed", || {
            is_closed(&self.scratch.halocline(&["demote", "--dry-run", &format!("{by}/{dir}")]))
        });
        if operation.begins_below() {
            eventually("that it is on the shared disk", || {
                self.scratch.halocline(&["demote", &format!("{by}/{dir}")]).status.success()
            });
        }
        self.see(NODES[1], dir).unwrap()
    }

    fn act(&self, act: Act, dir: &str) -> io::Result<()> {
        let path = self.scratch.path(NODES[0]).join(dir);
        match act {
            Act::Calls(act) => act(&path),
            Act::Command(words) => {
                let path = path.to_str().expect("it is text");
                let done = self.scratch.halocline(&[words, &[path]].concat());
                let all = || io::Error::other([said(&done), written(&done)].concat());
                if done.status.success() { Ok(()) } else { Err(all()) }
            }
        }
    }

    /// One round; returns the step at which it failed, or nothing if the operation has fewer steps.
    pub(crate) fn round(
        &mut self,
        operation: &Operation,
        failure: Failure,
        step: usize,
        round: usize,
    ) -> Option<String> {
        let begun = Instant::now();
        let dir = format!("r{}", self.left.len());
        let name =
            format!("{} of {} at step {step}, round {round}", failure.name(), operation.name);
        let before = self.prepare(operation, &dir);
        let (mut step, done, other) = self.fail(operation, (failure, step, round), (&dir, &before));
        let is_expected = done.is_ok() || failure.breaks() && step.is_some();
        if !is_expected {
            let log = self.scratch.path("one-tiers/ssd/.halocline/halocline.log");
            println!("{}", fs::read_to_string(log).unwrap_or_default());
        }
        assert!(is_expected, "{name} ({step:?}): {done:?}");
        let mut may_be = vec![changed(&before, operation.after)];
        if done.is_err() {
            may_be.push(before.clone());
            may_be.extend(operation.between.iter().map(|changes| changed(&before, changes)));
            let is_killed = matches!(failure, Failure::MasterKilled | Failure::MasterLost);
            if is_killed && self.store.rebuilds_after(failure == Failure::MasterLost) {
                may_be.extend(operation.half_made.iter().map(|half| changed(&before, half)));
            }
        }
        if let Some(other) = other {
            for tree in &mut may_be {
                tree.insert(other.clone(), "other".to_owned());
            }
        }
        let [one, two] = NODES.map(|node| {
            self.see(node, &dir)
                .unwrap_or_else(|error| panic!("{name} ({step:?}): {node}: {error}"))
        });
        assert_eq!(one, two, "{name} ({step:?}): both nodes show the same");
        assert!(
            may_be.contains(&one),
            "{name} ({step:?}, {done:?}): {one:?} is none of {may_be:?}"
        );
        println!("{name}: {:?}, {done:?}, {} ms", step.as_deref(), begun.elapsed().as_millis());
        self.left.push((dir, one));
        step.take()
    }

    /// Does it, lets it fail, and mends that. Returns the step, how the operation ended, and what the other node made
    /// beside it.
    fn fail(
        &mut self,
        operation: &Operation,
        (failure, step, round): (Failure, usize, usize),
        (dir, before): (&str, &Tree),
    ) -> (Option<String>, io::Result<()>, Option<String>) {
        let held = Held::step(&self.socket(), step);
        let mut other = None;
        let this = &*self;
        let mut broken = None;
        let (what, done) = thread::scope(|scope| {
            let acting = scope.spawn(|| this.act(operation.act, dir));
            let what = held.wait(|| acting.is_finished());
            if what.is_some() {
                match failure {
                    Failure::NodeKilled => this.kill(NODES[0]),
                    Failure::NodeStops => {
                        let pid = this.scratch.pid(NODES[0]);
                        let still = Standstill::of(pid);
                        this.look(operation, (dir, before), what.as_deref());
                        let made = this.scratch.path(NODES[1]).join(dir).join("a/other");
                        fs::write(made, "other").unwrap();
                        other = Some("a/other".to_owned());
                        drop(still);
                    }
                    Failure::MasterStops => this.store.stands_still(round, || held.release()),
                    Failure::MasterKilled | Failure::MasterLost => {
                        let loses = failure == Failure::MasterLost;
                        broken = Some(this.store.breaks(round, loses));
                    }
                }
            }
            held.release();
            let done = acting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            (what, done)
        });
        drop(held);
        if what.is_some() && failure == Failure::NodeKilled {
            self.mount(NODES[0]);
        }
        if let Some(broken) = broken {
            let how = self.store.mend(&broken);
            self.begin_again(how);
        }
        (what, done, other)
    }

    /// The other node sees one state, whatever is half done.
    fn look(&self, operation: &Operation, (dir, before): (&str, &Tree), step: Option<&str>) {
        let see = self.see(NODES[1], dir).unwrap();
        let between = operation.between.iter().copied();
        let mut all = between.chain([operation.after]).map(|changes| changed(before, changes));
        let is_one = see == *before || all.any(|tree| tree == see);
        assert!(is_one, "{} at {step:?}: {see:?}, before it {before:?}", operation.name);
    }

    /// Checked, and built again from the disks, the names are as they were (D15).
    pub(crate) fn end(&mut self) {
        self.begin_again(&["--repair"]);
        self.compare("after a check");
        for node in NODES {
            self.unmount(node);
        }
        self.store.forgets_all();
        self.checked("--repair");
        for node in NODES {
            self.mount(node);
        }
        self.compare("after the names were built again");
    }

    fn compare(&self, when: &str) {
        for node in NODES {
            for (dir, tree) in &self.left {
                let now = self.see(node, dir).unwrap_or_else(|error| panic!("{dir}: {error}"));
                assert_eq!(now, *tree, "{dir} on {node} {when}");
            }
        }
    }
}
