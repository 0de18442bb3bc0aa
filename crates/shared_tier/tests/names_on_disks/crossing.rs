//! Two nodes change the same names: one does between any two requests of the other. Once both are done, the disks have
//! what the store has, and nothing else.

use std::env;
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;

use crate::disks::{self, Disks, NODES};
use crate::mounted::{Act, Mounted};

/// How many pairs are tried at once.
const SIDE_BY_SIDE: usize = 16;

/// What a node does with names that the other one also changes.
const ACTS: [(&str, Act); 21] = [
    ("rename over a file", |on| on.rename("a/f", "b/g", 0)),
    ("rename of another file over it", |on| on.rename("a/below/h", "b/g", 0)),
    ("rename of one of two names over it", |on| on.rename("a/linked", "b/g", 0)),
    ("rename of a link over it", |on| on.rename("a/symlink", "b/g", 0)),
    ("rename of it", |on| on.rename("b/g", "b/new", 0)),
    ("rename of it elsewhere", |on| on.rename("b/g", "a/new", 0)),
    ("exchange with it", |on| on.rename("a/f", "b/g", libc::RENAME_EXCHANGE)),
    ("exchange of a directory and it", |on| on.rename("a/below", "b/g", libc::RENAME_EXCHANGE)),
    ("link to it", |on| on.link("b/g", "a/new")),
    ("unlink of it", |on| on.unlink("b/g")),
    ("unlink of a file to be renamed", |on| on.unlink("a/f")),
    ("removal and creation of it", |on| {
        on.unlink("b/g")?;
        on.create("b/g", "new")
    }),
    ("rename of the directory above it", |on| on.rename("b", "c", 0)),
    ("exchange of the directories", |on| on.rename("a", "b", libc::RENAME_EXCHANGE)),
    ("a directory renamed over an empty one", |on| on.rename("a/below", "b/empty", 0)),
    ("rename of a file over the second of two names", |on| on.rename("a/f", "b/linked", 0)),
    ("unlink of one of two names", |on| on.unlink("a/linked")),
    ("promotion of it", |on| on.promote("b/g")),
    ("demotion of it", |on| on.demote("b/g")),
    ("promotion of the second of two names", |on| on.promote("b/linked")),
    ("rename of a file to where others make names", |on| on.rename("a/f", "a/new", 0)),
];

/// Both nodes, with all files made by the first one.
fn filled(to_ssd: bool) -> (Disks, [Mounted; 2]) {
    let disks = Disks::new();
    let nodes = NODES.map(|node| Mounted::of_node(&disks, node, to_ssd));
    nodes[0].fill();
    (disks, nodes)
}

/// What is wrong if the second node does `other` in the midst of what the first one does.
fn wrong_ends(one: (&str, Act), other: (&str, Act), to_ssd: bool) -> Vec<String> {
    let mut wrong = Vec::new();
    for requests in 0.. {
        let (disks, [first, second]) = filled(to_ssd);
        let second = Arc::new(second);
        let (act, by) = (other.1, Arc::clone(&second));
        first.interrupt(requests, move || drop(act(&by)));
        let done = (one.1)(&first);
        if !first.was_interrupted() {
            return wrong;
        }
        let found = disks::tree(&first.tier);
        for node in [first, Arc::into_inner(second).expect("it is over")] {
            node.tier.close().unwrap();
        }
        let place = if to_ssd { "SSD" } else { "shared disk" };
        let (one, other) = (one.0, other.0);
        let what = format!("{other} before request {requests} of {one}, {place}: {done:?}");
        let left = disks.problems();
        if !left.is_empty() {
            wrong.push(format!("{what}: {left}"));
        }
        disks.forget();
        disks.repair();
        let again = disks::tree(&Mounted::new(&disks, to_ssd).tier);
        if again != found {
            wrong.push(format!("{what}: {found:?} is built again as {again:?}"));
        }
    }
    wrong
}

/// Pairs of what nodes do, and whether files are on an SSD: each of them, or one in so many.
fn pairs(one_in: usize) -> impl Iterator<Item = (usize, usize, bool)> {
    let all = (0..ACTS.len()).flat_map(|one| (0..ACTS.len()).map(move |other| (one, other)));
    let each = all.flat_map(|(one, other)| [(one, other, false), (one, other, true)]);
    each.enumerate().filter(move |(at, _)| at % one_in == 0).map(|(_, pair)| pair)
}

/// Those that have been wrong.
const REGRESSIONS: [(usize, usize, bool); 12] = [
    (0, 1, false),
    (1, 0, true),
    (3, 0, false),
    (4, 3, false),
    (6, 0, true),
    (15, 2, false),
    (11, 3, false),
    (6, 5, true),
    (3, 12, false),
    (5, 13, false),
    (16, 19, true),
    (8, 20, true),
];

/// `HALOCLINE_CROSSING=1` tries each pair, in ten minutes of two processors.
#[test]
fn i15_the_disks_have_what_the_store_has_after_two_nodes_changed_the_same_names() {
    let one_in = env::var("HALOCLINE_CROSSING").ok().and_then(|text| text.parse().ok());
    let others = pairs(one_in.unwrap_or(17)).filter(|pair| !REGRESSIONS.contains(pair));
    let left = Mutex::new(REGRESSIONS.into_iter().chain(others));
    let tried = || {
        let mut wrong = Vec::new();
        loop {
            let Some((one, other, to_ssd)) = left.lock().next() else { return wrong };
            wrong.extend(wrong_ends(ACTS[one], ACTS[other], to_ssd));
        }
    };
    // Side by side, because they mostly wait.
    let wrong: Vec<String> = thread::scope(|scope| {
        let begun: Vec<_> = (0..SIDE_BY_SIDE).map(|_| scope.spawn(tried)).collect();
        begun.into_iter().flat_map(|one| one.join().unwrap()).collect()
    });
    assert!(wrong.is_empty(), "{} wrong ends:\n{}", wrong.len(), wrong.join("\n"));
}

/// What a link leaves whose name another node gives to one file, and then to a further one. `None` if it makes fewer
/// requests before the first of these; also returns whether it made enough before the second.
fn left_by_a_link(before: i64, between: i64) -> Option<(bool, String)> {
    let (disks, [first, second]) = filled(true);
    let second = Arc::new(second);
    let [one, other] = [Arc::clone(&second), Arc::clone(&second)];
    first.interrupt_twice(
        (before, move || one.rename("a/f", "b/g", 0).unwrap()),
        (between, move || other.rename("a/below/h", "b/g", 0).unwrap()),
    );
    let done = first.link("b/g", "a/new");
    let was_interrupted = first.was_interrupted();
    // What has not happened by now does not happen any more.
    first.interrupt(i64::MAX, || {});
    let is_begun = second.at("a/f").is_err();
    for node in [first, Arc::into_inner(second).expect("it is over")] {
        node.tier.close().unwrap();
    }
    let left = disks.problems();
    let left = if left.is_empty() { left } else { format!("{done:?}: {left}") };
    is_begun.then_some((was_interrupted, left))
}

#[test]
fn i15_a_link_to_a_name_that_leads_to_one_file_after_another_leaves_no_file_without_a_name() {
    let tried = |before| {
        let mut wrong = Vec::new();
        for between in 0.. {
            let Some((was_interrupted, left)) = left_by_a_link(before, between) else {
                assert!(before > 0, "a link makes requests");
                break;
            };
            if !left.is_empty() {
                wrong.push(format!("after {before} and {between} requests: {left}"));
            }
            if !was_interrupted {
                break;
            }
        }
        wrong
    };
    // More than a link makes; side by side, because they mostly wait.
    let wrong: Vec<String> = thread::scope(|scope| {
        let begun: Vec<_> = (0..24).map(|before| scope.spawn(move || tried(before))).collect();
        begun.into_iter().flat_map(|one| one.join().unwrap()).collect()
    });
    assert!(wrong.is_empty(), "{} wrong ends:\n{}", wrong.len(), wrong.join("\n"));
}
