//! I4 and I10 under fire: `kill -9` of a tier mount while programs write and files move, a hundred
//! times. After each, `fsck` finds one file for each name, and the next mount holds every
//! acknowledged write.

use crate::kill::{check_after_kill, kill_under_load};
use crate::ledger::Ledger;
use crate::mount::{self, Mount};
use crate::programs;
use crate::tier_migrations::Migrations;

const ROUNDS: u64 = 100;
/// The same where the disk keeps copies.
const ROUNDS_WITH_COPIES: u64 = 30;
const WRITERS: usize = 4;
/// Less than the files together, so that they spill.
const OPTIONS: [&str; 3] = ["--passthrough=false", "--ssd-limit", "3M"];

/// One round: work while files move, kill, check the tiers, mount again, check every byte. Returns
/// the moves.
fn round(mount: &mut Mount, ledgers: &mut [Ledger], number: u64) -> u64 {
    let migrations = Migrations::start(mount);
    kill_under_load(mount, ledgers, number);
    let count = migrations.stop();
    let root = mount.root();
    check_after_kill(mount, ledgers, number, &root);
    count
}

/// Kills a tier mounted with `options` besides its own `rounds` times.
fn kill_again_and_again(options: &[&str], rounds: u64) {
    let mut mount = Mount::tier(&[&OPTIONS, options].concat());
    let mut ledgers: Vec<Ledger> = (0..WRITERS).map(|_| Ledger::default()).collect();
    let mut moved = 0;
    let issued = |ledgers: &[Ledger]| ledgers.iter().map(|it| u64::from(it.issued())).sum::<u64>();
    let is_attacked =
        |ledgers: &[Ledger], moved| issued(ledgers) > rounds * 10 && moved > rounds * 3 / 10;
    for number in 0..10 * rounds {
        // More where other work leaves programs and migrations little time.
        if number >= rounds && is_attacked(&ledgers, moved) {
            break;
        }
        moved += round(&mut mount, &mut ledgers, number);
    }
    assert!(is_attacked(&ledgers, moved), "only {} operations, {moved} moves", issued(&ledgers));
}

#[test]
fn i4_a_hundred_kills_of_a_tier_lose_no_acknowledged_write() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    kill_again_and_again(&[], ROUNDS);
}

#[test]
fn i4_kills_of_a_tier_that_keeps_copies_lose_no_acknowledged_write() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    kill_again_and_again(&["--copies", "keep"], ROUNDS_WITH_COPIES);
}

#[test]
fn i4_kills_of_a_tier_that_archives_lose_no_acknowledged_write() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    // As soon as it may: the copies are made while the files change.
    kill_again_and_again(&["--copies", "archive", "--archive-after", "0s"], ROUNDS_WITH_COPIES);
}
