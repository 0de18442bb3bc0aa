//! A node stands still in the midst of a change, for longer than its lease, while the store forgets all names and they are
//! built again, although its lock was left (`disk_users`). When it goes on, it takes nothing away that has a name now.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread;

use crate::disks::{Disks, NODES, tree};
use crate::mounted::{Act, Mounted};

/// Changes that make something on the disks before the store has it, or take it away there.
const ACTS: [(&str, Act); 9] = [
    ("creation", |on| on.create("b/new", "new")),
    ("promotion", |on| on.promote("b/g")),
    ("demotion", |on| on.demote("b/g")),
    ("rename", |on| on.rename("b/g", "a/new", 0)),
    ("rename over a file", |on| on.rename("a/f", "b/g", 0)),
    ("exchange", |on| on.rename("a/f", "b/g", libc::RENAME_EXCHANGE)),
    ("unlink of one of two names", |on| on.unlink("a/linked")),
    ("rename of one of two names", |on| on.rename("a/linked", "b/new", 0)),
    ("link", |on| on.link("b/g", "a/new")),
];

/// The contents of all files, some of which may not be reached.
fn contents(tree: BTreeMap<String, String>) -> BTreeSet<String> {
    tree.into_values().filter(|what| what != "directory").collect()
}

/// What is wrong if that happens before a request of a change.
fn wrong_ends((what, act): (&str, Act), to_ssd: bool) -> Vec<String> {
    let mut wrong = Vec::new();
    for requests in 0.. {
        let disks = Arc::new(Disks::new());
        let mounted = Mounted::of_node(&disks, NODES[0], to_ssd);
        mounted.fill();
        let before = contents(tree(&mounted.tier));
        let built_again = Arc::clone(&disks);
        mounted.interrupt(requests, move || {
            built_again.forget();
            built_again.give_up_locks();
            built_again.repair();
        });
        let done = act(&mounted);
        let was_interrupted = mounted.was_interrupted();
        mounted.interrupt(i64::MAX, || {});
        let _closed = mounted.tier.close();
        drop(mounted);
        let found = contents(tree(&Mounted::new(&disks, to_ssd).tier));
        // It may have been made.
        let may_go = |text: &str| what == "rename over a file" && text == "b/g";
        let is_lost = |text: &&String| !found.contains(*text) && !may_go(text);
        let lost: Vec<&String> = before.iter().filter(is_lost).collect();
        let unreached: Vec<_> = found.iter().filter(|what| what.starts_with("error")).collect();
        if !lost.is_empty() || !unreached.is_empty() {
            let place = if to_ssd { "SSD" } else { "shared disk" };
            wrong.push(format!(
                "{what} on the {place}, before request {requests}: {done:?}; {lost:?} is lost, {unreached:?}"
            ));
        }
        if !was_interrupted {
            return wrong;
        }
    }
    wrong
}

#[test]
fn i15_a_node_that_stands_still_while_names_are_built_again_takes_nothing_away() {
    let all = ACTS.into_iter().flat_map(|act| [false, true].map(|to_ssd| (act, to_ssd)));
    // Side by side, because they mostly wait.
    let wrong: Vec<String> = thread::scope(|scope| {
        let begun: Vec<_> =
            all.map(|(act, to_ssd)| scope.spawn(move || wrong_ends(act, to_ssd))).collect();
        begun.into_iter().flat_map(|one| one.join().unwrap()).collect()
    });
    assert!(wrong.is_empty(), "{} wrong ends:\n{}", wrong.len(), wrong.join("\n"));
}
