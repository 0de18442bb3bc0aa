//! An earlier state of the shared disk is put back, by copying it over what is there.

use std::os::unix::fs::PermissionsExt;

use super::attributes::{change, known, on_disk};
use super::*;

/// Copies one file past the mounts, with all attributes.
fn copy(world: &World, from: &str, to: &str) {
    let mut copy = Command::new("cp");
    copy.arg("-a").arg(world.at(from)).arg(world.at(to));
    assert!(copy.status().unwrap().success());
}

/// Demotes a file, keeps the shared disk, and promotes it again.
fn demote_and_promote(world: &World, node: &Node, at: &EntryName) {
    assert!(matches!(demote(node, 1, at, SHARED).unwrap(), Moved::Done(_)));
    let _ = fs::remove_dir_all(world.at("backup"));
    copy_tree(world, "shared", "backup");
    assert!(matches!(demote(node, 1, at, SSD).unwrap(), Moved::Done(_)));
}

fn own_uid(node: &Node, at: &EntryName) -> u32 {
    node.names.lookup(at).unwrap().attributes.uid
}

/// The texts among the leftovers of the shared disk.
fn leftovers(world: &World) -> Vec<String> {
    let all = fs::read_dir(world.at("shared/.halocline/leftovers"));
    let all = all.map_or_else(|_| Vec::new(), |all| all.map(Result::unwrap).collect());
    all.iter().map(|one| fs::read_to_string(one.path()).unwrap()).collect()
}

/// The names in a directory that begin with `f~`.
fn numbered(world: &World) -> Vec<String> {
    let tree = world.tree();
    let names = tree.keys().filter_map(|path| path.strip_prefix("/a/f~"));
    names.map(|number| format!("f~{number}")).collect()
}

/// Regression: the old version of a file that was moved to an SSD and closed since got a second name, which everybody could open.
#[test]
fn i15_an_older_version_at_the_name_of_a_file_is_set_aside_where_the_store_is_sound() {
    let (world, at) = world();
    let node = world.node("n1");
    demote_and_promote(&world, &node, &at);
    change(&node, &at, &(0o600, own_uid(&node, &at), None));
    drop(node);
    copy(&world, "backup/a/f", "shared/a/f");
    assert_eq!(on_disk(&world, "shared/a/f").0, 0o644);
    for repairs in [false, true] {
        let report = world.repair(repairs);
        assert_eq!(report.set_aside.len(), 1, "{report:?}");
        assert!(report.set_aside[0].contains("n1/ssd") || report.set_aside[0].contains("node n1"));
        let Report { named, conflicts, told, .. } = &report;
        assert!(*named == [0; 3] && conflicts.is_empty() && told.is_empty(), "{report:?}");
    }
    assert!(world.repair(false).is_clean());
    assert_eq!(leftovers(&world), [TEXT]);
    assert!(numbered(&world).is_empty());
    let node = world.node("n1");
    assert_eq!((known(&node, &at).0, read(&node, &at).as_deref()), (0o600, Some(TEXT)));
}

/// At another name nobody can tell an older state from a copy that a user has made (`cp -a`): it is not lost, and nobody else may
/// open it.
#[test]
fn i15_an_older_version_or_a_copy_at_another_name_is_its_owners_alone() {
    for (is_renamed, forgets) in [(true, false), (false, false), (true, true), (false, true)] {
        let case = format!("{is_renamed}, {forgets}");
        let (world, at) = world();
        let node = world.node("n1");
        change(&node, &at, &(0o4755, own_uid(&node, &at), None));
        demote_and_promote(&world, &node, &at);
        let mut at = at;
        if is_renamed {
            let closed = node.mkdir(1, "closed").unwrap();
            node.rename((at.directory.0, "f"), (closed, "g")).unwrap();
            at = Node::entry(closed, "g");
        }
        drop(node);
        let lies = if is_renamed { "shared/a/f" } else { "shared/a/copy" };
        copy(&world, "backup/a/f", lies);
        assert_eq!(on_disk(&world, lies).0, 0o4755, "{case}");
        if forgets {
            world.forget();
        }
        for repairs in [false, true] {
            let report = world.repair(repairs);
            assert_eq!(report.told.len(), 1, "{case}: {report:?}");
            assert!(report.told[0].contains("nobody but its owner"), "{case}: {report:?}");
            assert!(report.set_aside.is_empty(), "{case}: {report:?}");
        }
        for forgets in [false, true] {
            if forgets {
                world.forget();
                world.repair(true);
            }
            let report = world.repair(false);
            assert!(report.is_clean(), "{case}: {report:?}");
            assert_eq!(on_disk(&world, lies).0, 0o700, "{case}");
            let node = world.node("n1");
            let a = node.names.lookup(&Node::entry(1, "a")).unwrap().inode.0;
            let other = Node::entry(a, if is_renamed { "f" } else { "copy" });
            assert_eq!(known(&node, &other).0, 0o700, "{case}");
            assert_eq!(read(&node, &other).as_deref(), Some(TEXT), "{case}");
            assert_eq!(read(&node, &at).as_deref(), Some(TEXT), "{case}");
        }
    }
}

/// In a rebuild nobody knows which of both is older: neither admits whom the other one refuses.
#[test]
fn i15_of_two_versions_neither_grants_in_a_rebuild_what_the_other_one_refuses() {
    for (on_ssd, on_shared) in [(0o600, 0o644), (0o644, 0o600), (0o640, 0o604)] {
        let (world, at) = world();
        let node = world.node("n1");
        demote_and_promote(&world, &node, &at);
        change(&node, &at, &(on_ssd, own_uid(&node, &at), None));
        drop(node);
        copy(&world, "backup/a/f", "shared/a/f");
        let mode = fs::Permissions::from_mode(on_shared);
        fs::set_permissions(world.at("shared/a/f"), mode).unwrap();
        for repairs in [false, true] {
            world.forget();
            let report = world.repair(repairs);
            assert_eq!(report.conflicts.len(), 1, "{report:?}");
        }
        for forgets in [false, true] {
            if forgets {
                world.forget();
                world.repair(true);
            }
            assert!(world.repair(false).is_clean());
            let (node, others) = (world.node("n1"), numbered(&world));
            assert_eq!(others.len(), 1, "{others:?}");
            let other = Node::entry(at.directory.0, &others[0]);
            for one in [&at, &other] {
                assert_eq!(known(&node, one).0, 0o600, "{on_ssd:o} {on_shared:o} {one:?}");
                assert_eq!(read(&node, one).as_deref(), Some(TEXT));
            }
            assert_eq!(on_disk(&world, "n1/ssd/a/f").0, 0o600);
            assert_eq!(on_disk(&world, "shared/a/f").0, 0o600);
        }
    }
}
