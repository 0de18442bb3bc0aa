//! Changes that a check meets half-made.

use halocline_os::clock::Clock;

use super::*;
use crate::repair::tests::{Node, World};

fn live() -> BTreeSet<Session> {
    BTreeSet::from([Session(2)])
}

/// Without attributes, which nodes of these tests do not keep alike.
fn found(world: &World) -> Findings {
    let peers = world.peers();
    let mut findings = look((&world.at("n1"), Some(&peers)), &world.store, &live()).unwrap();
    findings.attributes.clear();
    findings
}

type Make = fn(&Node) -> Result<()>;

/// Changes of a file `f` and a directory `d` in the root.
const CHANGES: [(&str, Make); 6] = [
    ("create", |node| node.create(1, "new", "text").map(drop)),
    ("mkdir", |node| node.mkdir(1, "below").map(drop)),
    ("rename", |node| node.rename((1, "f"), (1, "g"))),
    ("rename a directory", |node| node.rename((1, "d"), (1, "e"))),
    ("unlink", |node| node.unlink(1, "f")),
    ("link", |node| node.link((1, "f"), (1, "second"))),
];

fn world() -> World {
    let world = World::new();
    let node = world.node("n2");
    node.create(1, "f", "of n2").unwrap();
    node.mkdir(1, "d").unwrap();
    world
}

/// Regression: what programs were making, renaming and removing was told as differences, with advice that would have
/// undone it.
#[test]
fn what_is_over_when_it_is_looked_at_again_is_not_told() {
    let mut differed = 0;
    for (what, change) in CHANGES {
        for steps in 0.. {
            let world = world();
            let node = world.node_until("n2", 2, steps);
            if change(&node).is_ok() {
                break;
            }
            let mut first = found(&world);
            if first.are_none() {
                continue;
            }
            differed += 1;
            assert_eq!(first.keep_those_in(&mut found(&world)), 0, "{what} until {steps}");
            assert!(!first.are_none(), "{what} until {steps}");
            // Whatever completes it.
            world.repair(true);
            assert!(first.keep_those_in(&mut found(&world)) > 0, "{what} until {steps}");
            assert!(first.are_none(), "{what} until {steps}: {first:?}");
        }
    }
    assert!(differed > 5, "{differed}");
}

#[test]
fn another_file_of_the_same_name_is_another_difference() {
    let (create, world) = (CHANGES[0].1, world());
    let mut half_made = 0;
    loop {
        create(&world.node_until("n2", 2, half_made)).unwrap_err();
        if !found(&world).are_none() {
            break;
        }
        half_made += 1;
    }
    let mut first = found(&world);
    let told = |findings: &Findings| findings.set_aside.clone();
    let before = told(&first);
    world.repair(true);
    create(&world.node_until("n2", 2, half_made)).unwrap_err();
    let mut second = found(&world);
    assert_eq!((before.len(), told(&second).len()), (1, 1));
    assert!(first.keep_those_in(&mut second) > 0 && first.are_none());
}

#[test]
fn what_stays_is_told() {
    let world = world();
    let lost = world.at("n2/ssd/f");
    std::fs::remove_file(lost).unwrap();
    let (peers, clock) = (world.peers(), Clock::simulated());
    let report = check(&world.at("n1"), Some(&peers), &world.store, (&live(), &clock)).unwrap();
    assert_eq!((report.lost.len(), report.changed_meanwhile), (1, 0), "{report:?}");
    assert!(!report.is_clean());
}

/// Regression: what a node had yet to complete was said not to have lasted.
#[test]
fn what_nodes_have_yet_to_complete_is_told_as_that() {
    let report = Findings { under_way: 2, ..Findings::default() }.report();
    assert_eq!((report.under_way, report.changed_meanwhile), (2, 0));
    assert!(report.is_clean());
}

/// Regression: a directory that another node had removed was told by a name that no program had given it.
#[test]
fn a_directory_beside_its_name_is_told_with_that_name() {
    let world = World::new();
    let node = world.node("n2");
    std::fs::write(world.at("shared/del"), "in its way").unwrap();
    let number = node.mkdir(1, "del").unwrap();
    assert!(world.at(&format!("shared/del~{number}")).is_dir());
    node.names.remove_directory(&Node::entry(1, "del")).unwrap();
    let [told] = &*world.repair(false).left_directories else { panic!("one directory") };
    assert!(told.ends_with(&format!("hdd/del~{number}, called del")), "{told}");
}
