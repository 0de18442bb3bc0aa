//! What a check says of bytes that are not where the store has them, and of SSDs that are not reached.

use std::collections::{BTreeMap, BTreeSet};

use halocline_cluster::names::attributes::{Attributes, Location};

use super::Repair;
use super::findings::{Finding, Findings, note};
use super::leftovers::{self, where_it_may_be};
use super::merge::{FoundFile, FoundNames};
use super::unfinished_changes::lies_at;
use crate::places::copies::Copies;

/// Files by their numbers, with their places.
type Places<'a> = BTreeMap<u64, (&'a FoundFile, Option<Location>)>;

/// Checks that each file of the store is at its place.
pub(super) fn look_at_places(
    repair: &Repair<'_>,
    places: &Places<'_>,
    found: &FoundNames,
    findings: &mut Findings,
) {
    let nodes = repair.disks.all.iter().filter_map(|disk| disk.node.as_deref());
    let reached: BTreeSet<&str> = nodes.collect();
    // Files that are set aside are at their places only until then.
    let aside: BTreeSet<u64> = found.never_arrived.iter().map(|(_, number)| *number).collect();
    for (number, file) in &repair.view.files {
        let Some(place) = &file.attributes.location else { continue };
        if place.node.as_deref().is_some_and(|node| !reached.contains(node)) {
            findings.unreached_files += 1;
            continue;
        }
        let lies = places.get(number);
        let is_there = lies.is_some_and(|(_, at)| at.as_ref() == Some(place));
        // Otherwise the scan may have preferred another copy, or another path of the same file.
        let is_aside = lies.is_none() && aside.contains(number);
        if is_there || !is_aside && lies_at(repair.disks, place, *number, found) {
            continue;
        }
        let path = repair.view.path(file.directory, &file.name);
        let should = repair.view.place(place);
        let about = repair.view.about(*number);
        if let Some((file, _)) = lies {
            let at = repair.path(file.at);
            let line = format!(
                "{path}: its bytes should be {should}, and are at {at}; if that is the file, move it there"
            );
            note(&mut findings.told, Finding::of_older_store(about, line));
        } else if let Some(line) = put_back(repair, *number) {
            note(&mut findings.attributes, Finding::new(about, line));
        } else {
            let copy = where_its_copy_is(repair, *number);
            let aside = where_it_may_be(repair.disks, &repair.leftovers, *number);
            let line = format!("{path} (should be {should}{copy}{aside})");
            note(&mut findings.lost, Finding::new(about, line));
        }
    }
}

/// What is said of a file that a repair puts back.
fn put_back(repair: &Repair<'_>, number: u64) -> Option<String> {
    leftovers::told(repair.disks, &repair.view, number, repair.leftovers.get(&number)?)
}

/// What becomes of a file that its SSD has lost, if the shared disk has its copy.
fn where_its_copy_is(repair: &Repair<'_>, number: u64) -> String {
    let of = repair.view.files.get(&number).map(|file| &file.attributes);
    let copies = Copies::on(&repair.disks.all[0].tree);
    let stands = |of: &&Attributes| copies.standing_for(of, number).is_ok_and(|it| it.is_some());
    let place = of.filter(stands).and_then(|of| of.location.as_ref());
    place.and_then(|place| place.node.as_ref()).map_or_else(String::new, |node| {
        format!(
            "; the shared disk has its copy, which `halocline cluster drain {node}`, run on a mount of the tier, makes the file"
        )
    })
}

/// The nodes whose SSDs are not reached, and why. One without files may have been drained for good.
pub(super) fn missing(repair: &Repair<'_>) -> Vec<(String, String)> {
    let places = repair.view.files.values().filter_map(|file| file.attributes.location.as_ref());
    let with_files: BTreeSet<&str> = places.filter_map(|place| place.node.as_deref()).collect();
    let missing = repair.disks.missing.iter().map(|(node, why)| {
        let why = if repair.is_rebuilt || with_files.contains(node.as_str()) {
            why.clone()
        } else if repair.were_missing.contains(node) {
            format!(
                "{why}. The last rebuild has not read it either: files that are only there are missing until a repair reaches it"
            )
        } else {
            format!(
                "{why}. The store has no file there, as after a drain: if the node will not come back, remove \
                 hdd/.halocline/nodes/{node} and hdd/.halocline/node-{node}"
            )
        };
        (node.clone(), why)
    });
    let is_known = |node: &str| {
        let mut all = repair.disks.missing.iter().map(|(node, _)| node);
        let mut read = repair.disks.all.iter().filter_map(|disk| disk.node.as_deref());
        all.any(|it| it == node) || read.any(|it| it == node)
    };
    let unknown = with_files.iter().filter(|node| !is_known(node)).map(|node| {
        let why = format!(
            "the store has files there, and the shared disk does not know the node (hdd/.halocline/nodes/{node} is missing): mount \
             its SSD, or give --peers"
        );
        ((*node).to_owned(), why)
    });
    missing.chain(unknown).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::tests::World;

    /// Regression: the check offered to remove the node, whose SSD had the only bytes of its files.
    #[test]
    fn an_ssd_that_a_rebuild_did_not_read_is_not_taken_for_a_drained_one() {
        let world = World::new();
        let (one, two) = (world.node("n1"), world.node_until("n2", 2, i64::MAX));
        one.create(1, "f", "of n1").unwrap();
        two.create(1, "g", "of n2").unwrap();
        drop((one, two));
        fs::rename(world.at("n2/ssd"), world.at("away")).unwrap();
        world.forget();
        world.repair(true);
        for repair in [false, true, false] {
            let missing = world.repair(repair).missing;
            let [(node, why)] = missing.as_slice() else { panic!("{missing:?}") };
            assert_eq!(node, "n2");
            assert!(why.contains("last rebuild") && !why.contains("remove"), "{why}");
        }
        fs::rename(world.at("away"), world.at("n2/ssd")).unwrap();
        world.repair(true);
        assert_eq!(world.tree().get("/g").map(String::as_str), Some("of n2"));
        // One that has no files, and was read.
        fs::remove_file(world.at("n2/ssd/g")).unwrap();
        world.forget();
        world.repair(true);
        fs::rename(world.at("n2/ssd"), world.at("away")).unwrap();
        let missing = world.repair(false).missing;
        assert!(missing[0].1.contains("as after a drain"), "{missing:?}");
    }
}
