//! I4 and I10 under fire: `kill -9` of a tier mount while programs write and files move, a hundred
//! times. After each, `fsck` finds one file for each name, and the next mount holds every
//! acknowledged write.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::kill::{Random, write_until_killed};
use crate::ledger::Ledger;
use crate::mount::{self, Mount};
use crate::programs;
use crate::tier_mover::Mover;

const ROUNDS: u64 = 100;
const WRITERS: usize = 4;
/// Less than the files together, so that they spill.
const OPTIONS: [&str; 3] = ["--passthrough=false", "--ssd-limit", "3M"];

/// One round: work, kill, check the tiers, mount again, check every byte.
fn round(mount: &mut Mount, ledgers: &mut [Ledger], number: u64) -> u64 {
    let pid = u32::try_from(mount.status()["pid"].as_u64().expect("a pid")).expect("a pid");
    let dying = AtomicBool::new(false);
    let root = mount.path();
    let mut random = Random::new(number);
    let mover = Mover::start(mount);
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
    let count = mover.stop();
    programs::run(programs::halocline().arg("fsck").arg(mount.root()));
    mount.start();
    for (index, ledger) in ledgers.iter_mut().enumerate() {
        let content = fs::read(root.join(format!("file{index}"))).unwrap_or_default();
        if let Err(loss) = ledger.recover(&content) {
            panic!("round {number}, file{index}: {loss}\n{}", mount.log());
        }
    }
    count
}

#[test]
fn i4_a_hundred_kills_of_a_tier_lose_no_acknowledged_write() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    let mut mount = Mount::tier(&OPTIONS);
    let mut ledgers: Vec<Ledger> = (0..WRITERS).map(|_| Ledger::default()).collect();
    let mut moved = 0;
    for number in 0..ROUNDS {
        moved += round(&mut mount, &mut ledgers, number);
    }
    let issued: u32 = ledgers.iter().map(Ledger::issued).sum();
    assert!(issued > 1000, "only {issued} operations: nothing was attacked");
    assert!(moved > 30, "only {moved} moves: nothing was attacked");
}
