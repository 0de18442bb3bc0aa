//! Files that are closed, or that a node no longer moves, can be moved: whatever other changes come between.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use halocline_api::control::Controlled;
use halocline_os::clock::Clock;
use halocline_vfs::Engine;

use crate::disks::{Disks, NODES};
use crate::mounted::{CALLER, Mounted};

/// Moves a file to the shared disk; returns why it stays.
fn why_it_stays(on: &Mounted, path: &str) -> Vec<String> {
    let moved = on.tier.evict(path.as_ref(), false, &mut |_| ControlFlow::Continue(())).unwrap();
    moved.skipped.into_iter().map(|file| file.reason).collect()
}

#[test]
fn a_close_beside_a_rename_by_the_same_node_is_noted() {
    for request in 0.. {
        let disks = Disks::new();
        let [one, two] = [NODES[0], NODES[1]].map(|node| Mounted::of_node(&disks, node, true));
        let one = Arc::new(one);
        one.fill();
        assert!(why_it_stays(&two, "a/f").is_empty());
        let opened = one.tier.open(&one.at("b/g").unwrap(), libc::O_RDWR, CALLER).unwrap();
        let by = Arc::downgrade(&one);
        one.interrupt(request, move || by.upgrade().unwrap().rename("b/g", "b/new", 0).unwrap());
        // Closes that follow each other sooner are noted together, later.
        Clock::MACHINE.sleep(Duration::from_millis(10));
        drop(opened);
        if !one.was_interrupted() {
            assert!(request > 0, "a close makes requests");
            return;
        }
        assert_eq!(why_it_stays(&two, "b/new"), [""; 0], "renamed before request {request}");
    }
}

#[test]
fn a_file_that_is_renamed_while_another_node_moves_it_can_be_moved_again() {
    for name in ["b/g", "b/linked"] {
        for request in 0.. {
            let disks = Disks::new();
            let nodes = [NODES[0], NODES[1]].map(|node| Mounted::of_node(&disks, node, true));
            let [one, two] = nodes;
            let one = Arc::new(one);
            one.fill();
            let by = Arc::clone(&one);
            two.interrupt(request, move || by.rename(name, "b/new", 0).unwrap());
            drop(two.promote(name));
            if !two.was_interrupted() {
                assert!(request > 0, "a move makes requests");
                break;
            }
            let why = why_it_stays(&one, "b/new");
            assert_eq!(why, [""; 0], "{name} was renamed before request {request}");
        }
    }
}
