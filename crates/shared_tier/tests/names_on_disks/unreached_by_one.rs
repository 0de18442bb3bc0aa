//! A node that reaches an SSD and one that does not change names of one file, whose bytes are there, at once or one after the
//! other: names that are rebuilt then are those that the store had.

use std::sync::Arc;

use crate::disks::{Disks, NODES, tree};
use crate::mounted::{Act, Mounted};

/// Changes of a file with the names `d/f` and `d/k`, and of those that the others give it.
const ACTS: [(&str, Act); 6] = [
    ("rename f to g", |on| on.rename("d/f", "d/g", 0)),
    ("rename g to f", |on| on.rename("d/g", "d/f", 0)),
    ("rename k to e/k", |on| on.rename("d/k", "e/k", 0)),
    ("link g to h", |on| on.link("d/g", "d/h")),
    ("unlink g", |on| on.unlink("d/g")),
    ("exchange f and other", |on| on.rename("d/f", "d/other", libc::RENAME_EXCHANGE)),
];

struct Nodes {
    disks: Disks,
    reaching: Arc<Mounted>,
    other: Arc<Mounted>,
}

impl Nodes {
    fn new(names: usize) -> Self {
        let disks = Disks::new();
        let reaching = Mounted::new(&disks, true);
        for directory in ["d", "e"] {
            reaching.mkdir(directory).unwrap();
        }
        for file in ["d/f", "d/other"] {
            reaching.create(file, file).unwrap();
        }
        if names > 1 {
            reaching.link("d/f", "d/k").unwrap();
        }
        let other = Mounted::with_peers(&disks, NODES[1], true, None);
        Self { disks, reaching: Arc::new(reaching), other: Arc::new(other) }
    }

    /// Loses the store, and returns what is wrong with the names that are built again.
    fn lose(self, what: &str) -> Option<String> {
        let Self { disks, reaching, other } = self;
        let found: Vec<String> = tree(&reaching.tier).into_keys().collect();
        disks.forget();
        // Both are as if they had died: nothing that they do later changes what is built.
        disks.give_up_locks();
        disks.repair();
        drop((reaching, other));
        let again: Vec<String> = tree(&Mounted::new(&disks, true).tier).into_keys().collect();
        (again != found).then(|| format!("{what}: {found:?} is built again as {again:?}"))
    }
}

/// One changes names, then the other, and then the first one again.
fn one_after_another(acts: [usize; 3], is_reaching_first: bool, names: usize) -> Option<String> {
    let nodes = Nodes::new(names);
    let mut on = [&nodes.reaching, &nodes.other];
    if !is_reaching_first {
        on.reverse();
    }
    for (at, act) in acts.into_iter().enumerate() {
        // Some do not find their names.
        let _done = ACTS[act].1(on[at % 2]);
    }
    let what = acts.map(|act| ACTS[act].0);
    nodes.lose(&format!("{what:?}, first by the one that reaches it: {is_reaching_first}"))
}

/// Regression: what the node without a way to the SSD had noted was not changed by the others, so it was true again.
#[test]
fn i15_names_that_two_nodes_change_one_after_another_are_rebuilt_as_they_were() {
    let mut wrong = Vec::new();
    for one in 0..ACTS.len() {
        for other in 0..ACTS.len() {
            let third = (one + 2 * other) % ACTS.len();
            let (is_reaching_first, names) = (one % 2 == 0, 2 - (one + other) % 2);
            wrong.extend(one_after_another([one, other, third], is_reaching_first, names));
        }
    }
    wrong.extend(one_after_another([0, 1, 0], false, 1));
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// The same while a change of the other one is under way.
#[test]
fn i15_names_that_two_nodes_change_at_once_are_rebuilt_as_they_were() {
    let mut wrong = Vec::new();
    let pairs = [(0, 0), (0, 2), (0, 4), (1, 0), (3, 4), (5, 0)];
    for (at, (one, other)) in pairs.into_iter().enumerate() {
        for requests in 0.. {
            let nodes = Nodes::new(1 + at % 2);
            if one != 0 {
                nodes.other.rename("d/f", "d/g", 0).unwrap();
            }
            let (outer, inner) = if at % 3 == 0 {
                (&nodes.reaching, &nodes.other)
            } else {
                (&nodes.other, &nodes.reaching)
            };
            let inner = Arc::clone(inner);
            outer.interrupt(requests, move || drop(ACTS[other].1(&inner)));
            let _done = ACTS[one].1(outer);
            let was_interrupted = outer.was_interrupted();
            outer.interrupt(i64::MAX, || {});
            let what = format!("{} before request {requests} of {}", ACTS[other].0, ACTS[one].0);
            wrong.extend(nodes.lose(&what));
            if !was_interrupted {
                break;
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}
