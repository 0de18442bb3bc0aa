//! I4 under fire: `kill -9` of the mount process while programs write, a hundred times on one
//! cache. After each, the next mount must hold every acknowledged write, and `fsck` find nothing.

use std::fs::{self, File};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::ledger::Ledger;
use crate::mount::{self, Mount};
use crate::programs;

const ROUNDS: u64 = 100;
/// Rounds in which requests come through `io_uring`, which dies with the process, too.
const RING_ROUNDS: u64 = 25;
const WRITERS: usize = 4;
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Less than the files together, so that eviction and spilling run too.
const OPTIONS: [&str; 6] = ["--policy", "always", "--size", "2M", "--max-dirty-age", "100ms"];

/// A small generator (xorshift64*), so that a round can be repeated from its number.
pub(crate) struct Random(u64);

impl Random {
    /// A generator; equal seeds give equal numbers.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % limit
    }
}

/// Works on one file until the mount is gone; all errors before `dying` are failures.
fn write_until_killed(path: &Path, ledger: &mut Ledger, random: &mut Random, dying: &AtomicBool) {
    let outcome = (|| {
        let file =
            File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        loop {
            let offset = random.below(FILE_BYTES_MAX);
            let most = [300, 4096, 40_000][to_usize(random.below(3))];
            let length = 1 + random.below(most);
            match random.below(100) {
                0 => ledger.truncate(&file, offset)?,
                1..5 => file.sync_all()?,
                5..20 if ledger.size() > 0 => {
                    let start = offset % ledger.size();
                    ledger.check_read(&file, start, length.min(ledger.size() - start))?;
                }
                _ => ledger.write(&file, offset, length)?,
            }
        }
    })();
    let error: std::io::Error = match outcome {
        Ok(never) => never,
        Err(error) => error,
    };
    assert!(dying.load(Ordering::Acquire), "{}: {error}", path.display());
}

fn to_usize(number: u64) -> usize {
    usize::try_from(number).expect("small")
}

/// The first half of a round: programs write, each to its file, until the mount is killed.
pub(crate) fn kill_under_load(mount: &mut Mount, ledgers: &mut [Ledger], number: u64) {
    let pid = u32::try_from(mount.status()["pid"].as_u64().expect("a pid")).expect("a pid");
    let dying = AtomicBool::new(false);
    let root = mount.path();
    let mut random = Random::new(number);
    thread::scope(|scope| {
        for (index, ledger) in ledgers.iter_mut().enumerate() {
            let (path, dying) = (root.join(format!("file{index}")), &dying);
            let mut random = Random::new(number * 1000 + index as u64);
            scope.spawn(move || write_until_killed(&path, ledger, &mut random, dying));
        }
        thread::sleep(Duration::from_millis(20 + random.below(200)));
        dying.store(true, Ordering::Release);
        mount.kill(pid);
    });
}

/// The second half: `fsck` of `left` finds nothing, and a new mount holds every acknowledged byte.
pub(crate) fn check_after_kill(
    mount: &mut Mount,
    ledgers: &mut [Ledger],
    number: u64,
    left: &Path,
) {
    programs::run(programs::halocline().arg("fsck").arg(left));
    mount.start();
    let root = mount.path();
    for (index, ledger) in ledgers.iter_mut().enumerate() {
        let content = fs::read(root.join(format!("file{index}"))).unwrap_or_default();
        if let Err(loss) = ledger.recover(&content) {
            panic!("round {number}, file{index}: {loss}\n{}", mount.log());
        }
    }
}

#[test]
fn i4_a_hundred_kills_lose_no_acknowledged_write() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    survive(0..ROUNDS, &OPTIONS);
}

#[test]
fn i4_kills_lose_no_acknowledged_write_that_came_through_io_uring() {
    if let Some(reason) = mount::ring_obstacle() {
        return programs::skip(&reason);
    }
    survive(ROUNDS..ROUNDS + RING_ROUNDS, &[&OPTIONS[..], &[mount::IO_URING]].concat());
}

/// Kills a mount in each round, each a seed of its own.
fn survive(rounds: Range<u64>, options: &[&str]) {
    let mut mount = Mount::new(options);
    let mut ledgers: Vec<Ledger> = (0..WRITERS).map(|_| Ledger::default()).collect();
    let count = rounds.end - rounds.start;
    let issued = |ledgers: &[Ledger]| ledgers.iter().map(|it| u64::from(it.issued())).sum::<u64>();
    for number in rounds.start..rounds.start + 10 * count {
        // More where other work leaves programs little time.
        if number >= rounds.end && issued(&ledgers) > 10 * count {
            break;
        }
        kill_under_load(&mut mount, &mut ledgers, number);
        let cache = mount.cache();
        check_after_kill(&mut mount, &mut ledgers, number, &cache);
    }
    assert!(issued(&ledgers) > 10 * count, "only {} operations", issued(&ledgers));
    // I7: the origin alone holds everything after unmount.
    mount.unmount();
    for (index, ledger) in ledgers.iter_mut().enumerate() {
        let content = fs::read(mount.origin().join(format!("file{index}"))).unwrap_or_default();
        ledger.recover(&content).unwrap_or_else(|loss| panic!("origin, file{index}: {loss}"));
    }
}
