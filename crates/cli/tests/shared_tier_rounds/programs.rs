//! Programs on both nodes, while something fails, and until it works again.

use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use halocline_testkit::hostile::Random;
use halocline_testkit::redis_server::RedisServer;
use halocline_testkit::sandbox::{said, written};
use halocline_testkit::scratch::Scratch;
use halocline_testkit::standstill::Standstill;
use halocline_testkit::waiting::{SetOnDrop, WAIT_LIMIT};
use halocline_testkit::{program, shared_tiers, stuck};
use rustix::process::{Signal, kill_process};

use crate::ledger::Ledger;
use crate::mount_contents::MountContents;
use crate::nodes::{Ends, NODES, log, socket};
use crate::one_program::{PROGRAMS, Program, Progress};
use crate::operations::Operations;

/// What each of them must have acknowledged after something failed.
const GOES_ON: u64 = 5;
/// How often it is looked whether they have.
const PAUSE: Duration = Duration::from_millis(20);
/// How long apart it is asked whether the leases of the dead are over: each time it is another process.
const BETWEEN_REPAIRS: Duration = Duration::from_millis(500);

/// Two nodes and what programs on them did.
#[derive(Debug)]
pub(crate) struct Rounds {
    scratch: Scratch,
    store: RedisServer,
    ledger: Ledger,
    ends: [Ends; 2],
    count: u64,
}

/// Repeats a round from its number.
pub(crate) fn pause(random: &mut Random, from_ms: usize, to_ms: usize) {
    let ms = from_ms + random.below(to_ms - from_ms);
    thread::sleep(Duration::from_millis(ms as u64));
}

impl Rounds {
    /// Two nodes; `None`, with the reason, where that cannot be tried.
    pub(crate) fn new() -> Option<Self> {
        let scratch = Scratch::with_mountpoints(program!(), &NODES)?;
        let store = RedisServer::start(&[])?;
        shared_tiers::make(&scratch, &NODES);
        let all =
            Self { scratch, store, ledger: Ledger::new(), ends: Default::default(), count: 0 };
        all.faults_of(|faults| NODES.iter().for_each(|node| faults.mount(node)));
        let (mount, socket) = (all.scratch.path(NODES[0]), socket(&all.scratch, NODES[0]));
        let first = Operations { ledger: &all.ledger, mount: &mount, socket: &socket };
        first.prepare().unwrap();
        Some(all)
    }

    fn faults_of(&self, act: impl FnOnce(&Faults<'_>)) {
        let Self { scratch, ends, .. } = self;
        act(&Faults { scratch, url: self.store.url(), ends });
    }

    /// Programs work on both nodes while `fails` lets something fail and mends it, until all go on after it. Then
    /// everything that was acknowledged is there, on both.
    pub(crate) fn round(
        &mut self,
        seed: u64,
        what: &str,
        fails: impl FnOnce(&Faults<'_>, &mut RedisServer, &mut Random),
    ) {
        let (mut random, begun) = (Random(seed), Instant::now());
        print!("round {seed} ({what}): ");
        let (is_over, is_mended) = (AtomicBool::new(false), AtomicBool::new(false));
        let programs: Vec<Progress> =
            std::iter::repeat_with(Progress::new).take(NODES.len() * PROGRAMS).collect();
        let (scratch, ledger, ends) = (&self.scratch, &self.ledger, &self.ends);
        let faults = Faults { scratch, url: self.store.url(), ends };
        thread::scope(|scope| {
            let run = |(number, progress)| {
                let node = number / PROGRAMS;
                let (end, node, is_mended) = (&ends[node], NODES[node], &is_mended);
                let program = Program { ledger, end, node, scratch, progress, is_mended };
                let mut random = Random(random.any());
                let is_over = &is_over;
                let named = thread::Builder::new().name(named(number));
                let runs = move || {
                    // Nobody waits for one that found something wrong.
                    let is_wrong = SetOnDrop(is_over);
                    program.run(&mut random, is_over);
                    std::mem::forget(is_wrong);
                };
                named.spawn_scoped(scope, runs).unwrap()
            };
            let threads: Vec<_> = programs.iter().enumerate().map(run).collect();
            // Or the scope would wait for its threads for ever.
            let over = SetOnDrop(&is_over);
            pause(&mut random, 10, 300);
            fails(&faults, &mut self.store, &mut random);
            is_mended.store(true, Ordering::SeqCst);
            let known = ledger.known();
            wait_until_all_go_on(&programs, &is_over, || stands(scratch, ledger));
            print!("{known}; ");
            drop(over);
            for thread in threads {
                // With what it says: the scope would say only that some thread panicked.
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            }
        });
        for end in ends {
            end.may_fail.store(false, Ordering::SeqCst);
        }
        self.count += 1;
        println!("{} ms", begun.elapsed().as_millis());
        self.settle(&format!("round {seed} ({what})"));
    }

    fn settle(&self, when: &str) {
        let settled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let see = |node: &str| {
                let seen = MountContents::below(&self.scratch.path(node));
                seen.unwrap_or_else(|error| panic!("node {node}: {error}"))
            };
            let [one, two] = NODES.map(see);
            assert_eq!(one.differences(&two), [""; 0], "both nodes show the same");
            self.ledger.settle(&one);
        }));
        if let Err(panic) = settled {
            println!("{when}: {}", self.ledger.summary());
            for node in NODES {
                println!("{node}: {}", log(&self.scratch, node));
            }
            println!("{}", on_disks(&self.scratch, &said_by(&*panic)));
            std::panic::resume_unwind(panic);
        }
    }

    /// What died has left copies and names on the disks: after a check there is nothing more, and all names are as before.
    pub(crate) fn check(&self) {
        self.faults_of(|faults| {
            for node in NODES {
                faults.unmount(node);
            }
            faults.repair();
            for node in NODES {
                faults.mount(node);
            }
        });
        self.settle("after a check");
    }

    /// After the last round: the names fit the disks, and are built again from them (D15).
    pub(crate) fn end(self, name: &str) {
        self.check();
        self.faults_of(|faults| {
            for node in NODES {
                faults.unmount(node);
            }
            self.store.command(&["FLUSHALL"]);
            faults.repair();
            for node in NODES {
                faults.mount(node);
            }
        });
        self.settle("after the names were built again");
        println!("{name}: {} rounds: {}", self.count, self.ledger.summary());
    }
}

/// What a panic said.
pub(crate) fn said_by(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default().to_owned()
}

/// What the disks have of what is named in a message, with the marks of files and directories, as far as the machine can show them.
fn on_disks(scratch: &Scratch, message: &str) -> String {
    let shown = Command::new("getfattr")
        .args(["-LRdm", "user.halocline"])
        .args(NODES.map(|node| format!("{node}-tiers")))
        .current_dir(scratch.root())
        .output();
    let shown = match shown {
        Ok(shown) => String::from_utf8_lossy(&shown.stdout).into_owned(),
        Err(error) => return error.to_string(),
    };
    // As in `f12.345`.
    let named: Vec<&str> = message
        .split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '.')
        .filter(|word| word.contains('.'))
        .collect();
    let is_meant = |entry: &&str| named.iter().any(|name| entry.contains(name));
    shown.split("\n\n").filter(is_meant).collect::<Vec<_>>().join("\n")
}

/// What a program's thread is called.
fn named(program: usize) -> String {
    format!("on {}: {program}", NODES[program / PROGRAMS])
}

/// Each program has changes acknowledged again. Else it is told what each of them does, and how all else stands.
fn wait_until_all_go_on(
    programs: &[Progress],
    is_over: &AtomicBool,
    stands: impl FnOnce() -> String,
) {
    let (begun, before) = (Instant::now(), programs.iter().map(Progress::acknowledged));
    let before: Vec<u64> = before.collect();
    let goes_on = |(now, before): (&Progress, &u64)| now.acknowledged() >= before + GOES_ON;
    while !is_over.load(Ordering::SeqCst) && !programs.iter().zip(&before).all(goes_on) {
        if begun.elapsed() > WAIT_LIMIT {
            let told = programs.iter().enumerate();
            let told =
                told.map(|(number, program)| format!("{}: {}", named(number), program.told()));
            let told: Vec<String> = told.collect();
            println!("{}", stands());
            panic!("not all programs go on:\n{}", told.join("\n"));
        }
        thread::sleep(PAUSE);
    }
}

/// All that may tell why programs do not go on: for people.
fn stands(scratch: &Scratch, ledger: &Ledger) -> String {
    let root = scratch.root().to_string_lossy();
    let of_node = |node: &str| {
        let status = stuck::said_in_time(&scratch.command(&["status", node]));
        format!("{node}: {status:?}\n{}\n", log(scratch, node))
    };
    let known = format!("{}\nnot answered: {:#?}\n", ledger.known(), ledger.errors());
    let system = [stuck::unanswered_requests(scratch.root()), stuck::threads(&root)];
    [vec![known], system.into(), NODES.map(of_node).into()].concat().concat()
}

/// What can be made to fail.
#[derive(Debug)]
pub(crate) struct Faults<'a> {
    pub(crate) scratch: &'a Scratch,
    url: String,
    ends: &'a [Ends; 2],
}

impl Faults<'_> {
    fn mount(&self, node: &str) {
        let mounted = shared_tiers::mount_with(self.scratch, &self.url, node, &[]);
        assert!(mounted.status.success(), "{}", said(&mounted));
    }

    fn unmount(&self, node: &str) {
        shared_tiers::unmount(self.scratch, node);
    }

    fn fsck(&self, more: &[&str]) -> Output {
        shared_tiers::fsck(self.scratch, &self.url, more)
    }

    /// Has the names checked and put in order, when the leases of the dead are over.
    fn repair(&self) {
        let begun = Instant::now();
        let repaired = loop {
            let repaired = self.fsck(&["--repair"]);
            if repaired.status.success() {
                break repaired;
            }
            let is_used = said(&repaired).contains("uses the tier");
            let all = [said(&repaired), written(&repaired)].concat();
            assert!(is_used && begun.elapsed() < WAIT_LIMIT, "a repair: {all}");
            thread::sleep(BETWEEN_REPAIRS);
        };
        println!("repaired: {}", written(&repaired));
        let again = self.fsck(&[]);
        assert!(again.status.success(), "after a repair: {}{}", said(&again), written(&again));
    }

    /// `kill -9` of a node's process.
    pub(crate) fn kill(&self, node: usize) {
        let pid = self.scratch.pid(NODES[node]);
        self.ends[node].is_down.store(true, Ordering::SeqCst);
        self.ends[node].kills.fetch_add(1, Ordering::SeqCst);
        kill_process(pid, Signal::KILL).unwrap();
        self.scratch.clear(NODES[node]);
    }

    /// Mounts again what was killed.
    pub(crate) fn revive(&self, node: usize) {
        self.mount(NODES[node]);
        self.ends[node].is_down.store(false, Ordering::SeqCst);
    }

    /// The same, unless it is there.
    pub(crate) fn revive_if_down(&self, node: usize) {
        if self.ends[node].is_down.load(Ordering::SeqCst) {
            self.revive(node);
        }
    }

    /// Stops a node's process, and lets it go on.
    pub(crate) fn stand_still(&self, node: usize, time: Duration) {
        let pid = self.scratch.pid(NODES[node]);
        let _still = Standstill::of(pid);
        thread::sleep(time);
    }

    /// In this round a node's lease may end.
    pub(crate) fn allow_errors(&self, node: usize) {
        self.ends[node].may_fail.store(true, Ordering::SeqCst);
    }

    /// The store has forgotten names: the nodes end, and the names are built again. Those that were killed stay so until then.
    pub(crate) fn build_again(&self) {
        for (node, end) in NODES.iter().zip(self.ends) {
            if !end.is_down.swap(true, Ordering::SeqCst) {
                end.kills.fetch_add(1, Ordering::SeqCst);
                self.unmount(node);
            }
        }
        self.repair();
        self.revive(0);
        self.revive(1);
        // What was found to be forgotten is there again.
        for end in self.ends {
            end.may_fail.store(false, Ordering::SeqCst);
        }
    }

    /// The store is about to forget names: what programs get from now on is what follows from that.
    pub(crate) fn expect_errors(&self) {
        for end in self.ends {
            end.kills.fetch_add(1, Ordering::SeqCst);
            end.may_fail.store(true, Ordering::SeqCst);
        }
    }
}
