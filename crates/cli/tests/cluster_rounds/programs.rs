//! Programs on both nodes, while something fails, and until it works again.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use halocline_testkit::hostile::Random;
use halocline_testkit::nodes::{CACHES, NODES, Nodes, TokenStore};
use halocline_testkit::program;
use halocline_testkit::sandbox::{last_lines, said};
use halocline_testkit::scratch::Scratch;
use halocline_testkit::standstill::Standstill;
use halocline_testkit::waiting::{SetOnDrop, WAIT_LIMIT, eventually};
use rustix::process::{Pid, Signal, kill_process};

use crate::ledger::Ledger;

/// Programs on each node.
const PROGRAMS: u64 = 2;
/// What each of them must have acknowledged after something failed.
const GOES_ON: u64 = 5;
const SLOTS: &str = "slots";
const RECORDS: &str = "records";
/// The smallest cache, and dirty bytes that age, so that flushes by themselves run, too.
const OPTIONS: [&str; 5] = ["--size", "1M", "--max-dirty-age", "150ms", "--rebuild=true"];

/// Two nodes and what programs on them wrote.
#[derive(Debug)]
pub(crate) struct Rounds<S> {
    pub(crate) nodes: Nodes<S>,
    ledger: Ledger,
    ends: [Ends; 2],
    count: u64,
}

/// How often a node was killed: an error of before is none.
#[derive(Debug, Default)]
struct Ends {
    kills: AtomicU64,
    /// The most bytes that were dirty when it was killed, or shortly before.
    dirty: AtomicU64,
    is_down: AtomicBool,
    /// The other node may be taken for gone: what only it may have is answered `EIO`.
    may_lack: AtomicBool,
}

/// Repeats a round from its number.
pub(crate) fn pause(random: &mut Random, from_ms: usize, to_ms: usize) {
    let ms = from_ms + random.below(to_ms - from_ms);
    thread::sleep(Duration::from_millis(ms as u64));
}

impl<S: TokenStore + Send + Sync> Rounds<S> {
    /// Two nodes whose tokens are in a store; `None`, with the reason, where that cannot be tried.
    pub(crate) fn new(store: S) -> Option<Self> {
        let scratch = Scratch::with_mountpoints(store.stand_in(program!()), &NODES)?;
        let nodes = Nodes::over(scratch, ["origin"; 2].map(str::to_owned), store, &OPTIONS);
        let ledger = Ledger::new();
        let [slots, _] = nodes.open(SLOTS);
        Ledger::make(&slots);
        drop(nodes.open(RECORDS));
        Some(Self { nodes, ledger, ends: Default::default(), count: 0 })
    }

    /// Programs work on both nodes while `fails` lets something fail and mends it, until both go on after it. Then all
    /// that was acknowledged is there, on both.
    pub(crate) fn round(
        &mut self,
        seed: u64,
        what: &str,
        fails: impl FnOnce(&mut Faults<'_, S>, &mut Random),
    ) {
        let (mut random, begun) = (Random(seed), std::time::Instant::now());
        print!("round {seed} ({what}): ");
        let (is_over, failed) = (AtomicBool::new(false), AtomicBool::new(false));
        let done: Vec<AtomicU64> =
            (0..NODES.len() as u64 * PROGRAMS).map(|_| AtomicU64::new(0)).collect();
        let (ledger, ends) = (&self.ledger, &self.ends);
        let places = NODES.map(|node| self.nodes.path(node));
        let mut faults = Faults { nodes: &mut self.nodes, ends };
        thread::scope(|scope| {
            for (node, place) in places.iter().enumerate() {
                for program in 0..PROGRAMS {
                    let number = node as u64 * PROGRAMS + program;
                    let done = &done[usize::try_from(number).unwrap()];
                    let program = Program { ledger, end: &ends[node], place, number, done };
                    let mut random = Random(random.any());
                    let (is_over, failed) = (&is_over, &failed);
                    scope.spawn(move || program.run(&mut random, is_over, failed));
                }
            }
            // Or the scope would wait for its threads for ever.
            let _over = SetOnDrop(&is_over);
            pause(&mut random, 10, 300);
            fails(&mut faults, &mut random);
            faults.wait_until_all_go_on(&done, &failed);
        });
        for end in ends {
            end.may_lack.store(false, Ordering::SeqCst);
        }
        self.count += 1;
        println!("{} ms", begun.elapsed().as_millis());
        for node in 0..NODES.len() {
            self.settle(&places[node], &format!("round {seed} ({what}), node {}", NODES[node]));
        }
    }

    fn settle(&self, place: &Path, when: &str) {
        let open =
            |name: &str| File::open(place.join(name)).unwrap_or_else(|e| panic!("{when}: {e}"));
        let (slots, records) = (open(SLOTS), open(RECORDS));
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            self.ledger.settle(&slots, &records);
        }));
        if let Err(panicked) = checked {
            self.tell(when);
            let why = panicked.downcast_ref::<String>().map_or("see above", String::as_str);
            panic!("{when}: {why}");
        }
    }

    /// What helps to find out why: what the mounts said, and whether the origin has what a node does not.
    fn tell(&self, when: &str) {
        println!("{when}: {}", self.ledger.summary());
        show_logs(self.nodes.root());
        for place in NODES.iter().chain(&["origin"]) {
            let slots = File::open(self.nodes.path(place).join(SLOTS));
            let lost = slots.map(|slots| self.ledger.lost(&slots));
            println!("{place} lacks {lost:?} (slot, word, found, acknowledged)");
        }
    }

    /// After the last round: the origin alone has everything (I7), and nothing is left of the sessions.
    pub(crate) fn end(self, name: &str) {
        for node in NODES {
            self.nodes.succeed(&["umount", node]);
        }
        self.settle(&self.nodes.path("origin"), "on the origin");
        assert_eq!(self.nodes.listed(), [""; 0], "both have left");
        for cache in CACHES {
            self.nodes.succeed(&["fsck", cache]);
        }
        let sum = |of: fn(&Ends) -> &AtomicU64| -> u64 {
            self.ends.iter().map(|end| of(end).load(Ordering::SeqCst)).sum()
        };
        let (kills, dirty) = (sum(|end| &end.kills), sum(|end| &end.dirty));
        println!(
            "{name}: {} rounds, {}, {kills} kills with up to {dirty} dirty bytes",
            self.count,
            self.ledger.summary()
        );
        assert!(kills < 4 || dirty > 0, "a kill without dirty bytes proves nothing");
    }
}

/// What can be made to fail.
#[derive(Debug)]
pub(crate) struct Faults<'a, S> {
    pub(crate) nodes: &'a mut Nodes<S>,
    ends: &'a [Ends; 2],
}

impl<S: TokenStore> Faults<'_, S> {
    /// Waits until a node has bytes that are not on the origin, so that its end proves something: it often has none for a moment, as
    /// it gives up what the other one wants. The store must answer meanwhile.
    pub(crate) fn wait_for_dirty_bytes(&self, node: usize) {
        eventually("the node has dirty bytes", || self.note_dirty_bytes(node).1 > 0);
    }

    /// The process of a node, and how many dirty bytes it has.
    fn note_dirty_bytes(&self, node: usize) -> (Pid, u64) {
        let status = self.nodes.status(NODES[node]);
        let dirty = status["dirty_bytes"].as_u64().unwrap();
        self.ends[node].dirty.fetch_max(dirty, Ordering::SeqCst);
        (Pid::from_raw(i32::try_from(status["pid"].as_i64().unwrap()).unwrap()).unwrap(), dirty)
    }

    /// `kill -9` of a node's process.
    pub(crate) fn kill(&self, node: usize) {
        let (pid, _) = self.note_dirty_bytes(node);
        self.ends[node].is_down.store(true, Ordering::SeqCst);
        self.ends[node].kills.fetch_add(1, Ordering::SeqCst);
        kill_process(pid, Signal::KILL).unwrap();
        self.nodes.clear(NODES[node]);
    }

    /// Mounts again what was killed, with the cache that it had.
    pub(crate) fn revive(&self, node: usize) {
        let mounted = self.nodes.mount(NODES[node], CACHES[node]);
        assert!(mounted.status.success(), "{}", said(&mounted));
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
        let pid = self.nodes.pid(NODES[node]);
        let _still = Standstill::of(pid);
        thread::sleep(time);
    }

    /// In this round a node's lease may end while it has what others want: they may get errors.
    pub(crate) fn allow_errors_beside(&self, node: usize) {
        self.ends[1 - node].may_lack.store(true, Ordering::SeqCst);
    }

    /// Each program has writes or appends acknowledged again, or one of them has failed.
    fn wait_until_all_go_on(&self, done: &[AtomicU64], failed: &AtomicBool) {
        let now = || -> Vec<u64> { done.iter().map(|done| done.load(Ordering::SeqCst)).collect() };
        let (before, begun) = (now(), std::time::Instant::now());
        while !now().iter().zip(&before).all(|(now, before)| *now >= before + GOES_ON) {
            assert!(!failed.load(Ordering::SeqCst), "a program failed, as is said above");
            if begun.elapsed() > WAIT_LIMIT {
                show_logs(self.nodes.root());
                panic!("not all programs go on: {before:?} are acknowledged, later {:?}", now());
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// What the mounts said last.
fn show_logs(root: &Path) {
    for cache in CACHES {
        println!("{}", last_lines(&root.join(cache).join("halocline.log")));
    }
}

/// Sets a flag where its thread panics.
struct SetOnPanic<'a>(&'a AtomicBool);

impl Drop for SetOnPanic<'_> {
    fn drop(&mut self) {
        self.0.fetch_or(thread::panicking(), Ordering::SeqCst);
    }
}

/// One that writes, reads and appends.
struct Program<'a> {
    ledger: &'a Ledger,
    end: &'a Ends,
    place: &'a PathBuf,
    number: u64,
    /// How many of its writes and appends were acknowledged.
    done: &'a AtomicU64,
}

impl Program<'_> {
    fn run(&self, random: &mut Random, is_over: &AtomicBool, failed: &AtomicBool) {
        let _failed = SetOnPanic(failed);
        while !is_over.load(Ordering::SeqCst) {
            let kills = self.end.kills.load(Ordering::SeqCst);
            let Err(error) = self.work(random, is_over) else { return };
            let was_killed = self.end.kills.load(Ordering::SeqCst) != kills
                || self.end.is_down.load(Ordering::SeqCst);
            let is_expected = was_killed
                || self.end.may_lack.load(Ordering::SeqCst)
                    && error.raw_os_error() == Some(libc::EIO);
            if !is_expected {
                show_logs(self.place.parent().expect("it is in the sandbox"));
                panic!("{}: {error}", self.place.display());
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Until all is over, or something fails.
    fn work(&self, random: &mut Random, is_over: &AtomicBool) -> io::Result<()> {
        // Not made if it is not there: the mount point may be bare.
        let open = |name: &str, appends: bool| {
            File::options().read(true).write(!appends).append(appends).open(self.place.join(name))
        };
        let (slots, records) = (open(SLOTS, false)?, open(RECORDS, true)?);
        while !is_over.load(Ordering::SeqCst) {
            let is_acknowledged = match random.below(100) {
                0..2 => slots.sync_all().map(|()| false)?,
                2..5 => self.ledger.append(&records, self.number).map(|()| true)?,
                5..45 => self.ledger.read(&slots, random).map(|()| false)?,
                _ => self.ledger.write(&slots, random)?,
            };
            self.done.fetch_add(u64::from(is_acknowledged), Ordering::SeqCst);
        }
        Ok(())
    }
}
