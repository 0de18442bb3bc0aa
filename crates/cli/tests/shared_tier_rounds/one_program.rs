//! A program that changes and reads files on a node, and how far it has come.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use halocline_testkit::hostile::Random;
use halocline_testkit::scratch::Scratch;

use crate::ledger::{DIRECTORIES, FILES, Ledger, PLACES, PROBE};
use crate::nodes::{Ends, NODES, log, socket};
use crate::operations::Operations;

/// How long a program waits that got an error.
const PAUSE: Duration = Duration::from_millis(20);
/// Programs on each node.
pub(crate) const PROGRAMS: usize = 2;
/// How many errors a program takes until what failed is mended, and how many after that.
const ERRORS_MAX: usize = 2;
/// How many items a change has at most.
const ITEMS_MAX: usize = 2;
// What is tried in vain is not known afterwards: if nothing were, no program would find anything to do.
const _: () = assert!(NODES.len() * PROGRAMS * 2 * ERRORS_MAX * ITEMS_MAX < FILES + DIRECTORIES);

/// How far a program has come, for who waits for it.
#[derive(Debug)]
pub(crate) struct Progress {
    /// Changes that were acknowledged.
    acknowledged: AtomicU64,
    /// How often it found nothing to change.
    idle: AtomicU64,
    /// What it does, and since when.
    does: Mutex<(String, Instant)>,
    /// Its last error, and when that came.
    error: Mutex<Option<(String, Instant)>>,
}

impl Progress {
    pub(crate) fn new() -> Self {
        let [acknowledged, idle] = [const { AtomicU64::new(0) }; 2];
        let does = Mutex::new(("nothing yet".to_owned(), Instant::now()));
        Self { acknowledged, idle, does, error: Mutex::default() }
    }

    /// How many of its changes were acknowledged.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::SeqCst)
    }

    fn begins(&self, what: &str) {
        let mut does = self.does.lock().unwrap_or_else(PoisonError::into_inner);
        what.clone_into(&mut does.0);
        does.1 = Instant::now();
    }

    fn failed(&self, error: &io::Error) {
        let error = (error.to_string(), Instant::now());
        *self.error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }

    /// For people.
    pub(crate) fn told(&self) -> String {
        let ago = |when: &Instant| format!("{:.3} s", when.elapsed().as_secs_f64());
        let does = self.does.lock().unwrap_or_else(PoisonError::into_inner);
        let error = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        let error = error.as_ref().map_or_else(
            || "no error yet".to_owned(),
            |(error, when)| format!("the last error {} ago: {error}", ago(when)),
        );
        format!(
            "{} acknowledged, {} times nothing to do; for {}: {}; {error}",
            self.acknowledged(),
            self.idle.load(Ordering::SeqCst),
            ago(&does.1),
            does.0
        )
    }
}

/// One that changes and reads files.
pub(crate) struct Program<'a> {
    pub(crate) ledger: &'a Ledger,
    pub(crate) end: &'a Ends,
    pub(crate) node: &'a str,
    pub(crate) scratch: &'a Scratch,
    pub(crate) progress: &'a Progress,
    /// Whether what failed in this round works again.
    pub(crate) is_mended: &'a AtomicBool,
}

impl Program<'_> {
    /// Until all is over.
    ///
    /// # Panics
    /// At an error that nothing explains.
    pub(crate) fn run(&self, random: &mut Random, is_over: &AtomicBool) {
        let (mount, socket) = (self.scratch.path(self.node), socket(self.scratch, self.node));
        let (mut errors, mut errors_then) = (0, 0);
        while !is_over.load(Ordering::SeqCst) {
            let kills = self.end.kills.load(Ordering::SeqCst);
            let Err(error) = self.work((&mount, &socket), random, is_over) else { return };
            self.progress.failed(&error);
            let was_killed = self.end.kills.load(Ordering::SeqCst) != kills
                || self.end.is_down.load(Ordering::SeqCst);
            let is_expected = was_killed
                || self.end.may_fail.load(Ordering::SeqCst)
                    && error.raw_os_error() == Some(libc::EIO);
            let is_mended = self.is_mended.load(Ordering::SeqCst);
            *(if is_mended { &mut errors_then } else { &mut errors }) += 1;
            if !is_expected || errors_then > ERRORS_MAX {
                for node in NODES {
                    println!("{node}: {}", log(self.scratch, node));
                }
                println!("not answered: {:#?}", self.ledger.errors());
                panic!("a program on node {}: {error}", self.node);
            }
            // For a moment after it has lost its store, a node still tells what is in directories.
            let waits = || errors >= ERRORS_MAX && !self.is_mended.load(Ordering::SeqCst);
            while !is_over.load(Ordering::SeqCst) && (waits() || !self.works(&mount)) {
                thread::sleep(PAUSE);
            }
        }
    }

    /// Whether its node reads and makes changes.
    fn works(&self, mount: &Path) -> bool {
        if self.end.is_down.load(Ordering::SeqCst) {
            self.progress.begins("its node is down");
            return false;
        }
        self.progress.begins("looks whether its node works");
        let reads = PLACES.iter().try_for_each(|place| fs::read_dir(mount.join(place)).map(drop));
        let opens = || fs::File::options().write(true).open(mount.join(PROBE)).map(drop);
        reads.and_then(|()| opens()).inspect_err(|error| self.progress.failed(error)).is_ok()
    }

    /// Until all is over, or something fails.
    fn work(
        &self,
        (mount, socket): (&Path, &Path),
        random: &mut Random,
        is_over: &AtomicBool,
    ) -> io::Result<()> {
        let operations = Operations { ledger: self.ledger, mount, socket };
        while !is_over.load(Ordering::SeqCst) {
            self.progress.begins("an operation");
            let is_acknowledged = operations.any(random)?;
            let one =
                if is_acknowledged { &self.progress.acknowledged } else { &self.progress.idle };
            one.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    }
}
