//! The memory of the store is used up while files move.

use crate::disks::{Disks, NODES, tree};
use crate::mounted::{Act, Mounted};

/// Regression: the copy stayed where the file should have gone, until the names were checked, each time that somebody moved
/// or opened it; and its directory could not be removed on the shared disk.
#[test]
fn a_move_that_a_full_store_refuses_leaves_no_copy() {
    let moves: [(&str, bool, Act); 3] = [
        ("demote", true, |node| node.demote("d/f")),
        ("promote from the shared disk", false, |node| node.promote("d/f")),
        ("promote from the other node", true, |node| node.promote("d/f")),
    ];
    for (what, is_on_ssd, act) in moves {
        for requests in 0.. {
            let disks = Disks::new();
            let one = Mounted::new(&disks, is_on_ssd);
            one.mkdir("d").unwrap();
            one.create("d/f", "bytes").unwrap();
            let two = what.ends_with("node").then(|| Mounted::of_node(&disks, NODES[1], true));
            let actor = two.as_ref().unwrap_or(&one);
            actor.is_full_after(requests);
            let _refused = act(actor);
            let was_full = actor.was_full();
            actor.is_full_after(i64::MAX);
            let wanted = tree(&one.tier);
            assert_eq!(wanted["/d/f"], "bytes", "{what}: request {requests}");
            for node in [Some(one), two].into_iter().flatten() {
                node.tier.close().unwrap();
            }
            disks.are_as_in_store(&format!("{what}: request {requests} was refused"));
            if !was_full {
                break;
            }
        }
    }
}
