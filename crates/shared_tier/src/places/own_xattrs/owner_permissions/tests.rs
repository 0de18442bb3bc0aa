use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use halocline_cluster::names::attributes::Kind;
use halocline_model::namespace::{InodeNumber, Name};
use halocline_vfs::SetAttr;
use rustix::process::{Uid, geteuid};
use rustix::thread::set_thread_res_uid;

use crate::places::DirectoryStep;
use crate::places::moving::FileMove;
use crate::repair::tests::{Node, World};

/// Modes by which owners withhold permissions from themselves.
const MODES: [u32; 8] = [0o000, 0o200, 0o400, 0o444, 0o044, 0o500, 0o300, 0o5444];

/// Runs something as an ordinary user.
fn as_user(act: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let user = scope.spawn(|| {
            if geteuid().is_root() {
                let user = Uid::from_raw(7114);
                set_thread_res_uid(user, user, user).unwrap();
            }
            act();
        });
        user.join().unwrap();
    });
}

/// Changes modes as the engine does: on the disk, then in the store.
fn chmod(node: &Node, (directory, name): (u64, &str), mode: u32) -> crate::Result<()> {
    let at = Node::entry(directory, name);
    let found = node.names.lookup(&at).unwrap();
    let change = SetAttr { mode: Some(mode), ..SetAttr::default() };
    match &found.attributes.location {
        Some(place) => node.places.set_attributes(place, found.inode.0, &change)?,
        None => node.places.set_directory_attributes(found.inode.0, &change)?,
    };
    let set = |of: &mut halocline_cluster::names::attributes::Attributes| {
        of.mode = mode;
        Ok(())
    };
    let attributes = node.names.attributes();
    match found.attributes.kind {
        Kind::Directory => attributes.update_directory(found.inode, set),
        _ => attributes.update_of((&at, found.inode), set),
    }
    .unwrap();
    Ok(())
}

/// The modes of everything in the root.
fn modes(node: &Node) -> BTreeMap<String, u32> {
    let all = node.names.list(InodeNumber(1), 0, 1000).unwrap().0;
    let mode = |name: Name| {
        let text = name.as_bytes().escape_ascii().to_string();
        let found = node.names.lookup(&Node::entry(1, &text)).unwrap();
        (text, found.attributes.mode)
    };
    all.into_iter().map(|one| mode(one.name)).collect()
}

/// A file on each disk and a directory for each mode.
fn filled(world: &World) -> Vec<String> {
    let node = world.node("n1");
    let mut names = Vec::new();
    for mode in MODES {
        let [file, shared, directory] = ["f", "s", "d"].map(|kind| format!("{kind}{mode:o}"));
        node.create(1, &file, "on the SSD").unwrap();
        node.create_on_shared(1, &shared, "on the disk").unwrap();
        let number = node.mkdir(1, &directory).unwrap();
        node.create_on_shared(number, "in", "below").unwrap();
        names.extend([file, shared, directory]);
    }
    names
}

fn mode_of(name: &str) -> u32 {
    u32::from_str_radix(&name[1..], 8).unwrap()
}

#[track_caller]
fn is_usable(world: &World, names: &[String]) {
    let node = world.node_until("n1", 4, i64::MAX);
    for name in names {
        // Bytes are moved, names recorded, and the mode is changed and changed back.
        let found = node.names.lookup(&Node::entry(1, name)).unwrap();
        if let Some(place) = &found.attributes.location {
            let number = node.names.number().unwrap().0;
            FileMove::new(&node.places, place, found.inode.0).begin(number).unwrap();
            let names = [(1, Name::from(name.as_str()))];
            node.places.listed_names().set(place, found.inode.0, &names).unwrap();
        }
        let [old, new] = [name.clone(), format!("{name}.new")];
        node.rename((1, &old), (1, &new)).unwrap();
        node.rename((1, &new), (1, &old)).unwrap();
        chmod(&node, (1, name), 0o700).unwrap();
        chmod(&node, (1, name), mode_of(name)).unwrap();
    }
}

/// Regression: changes of modes were refused for good, files could not be moved, and names not built again.
#[test]
fn an_owner_without_permissions_on_his_files_has_them_served() {
    as_user(|| {
        let world = World::new();
        let names = filled(&world);
        let node = world.node_until("n1", 2, i64::MAX);
        for name in &names {
            chmod(&node, (1, name), mode_of(name)).unwrap();
        }
        let (before, tree) = (modes(&node), world.tree());
        is_usable(&world, &names);
        assert_eq!(modes(&node), before);
        assert!(world.repair(false).is_clean(), "{:?}", world.repair(false));
        world.forget();
        let report = world.repair(true);
        assert!(report.is_rebuilt && report.told.is_empty(), "{report:?}");
        assert_eq!(world.tree(), tree);
        assert_eq!(modes(&world.node_until("n1", 5, i64::MAX)), before);
        is_usable(&world, &names);
        // An empty directory goes from the disk, too.
        let number = world.node_until("n1", 6, i64::MAX).mkdir(1, "empty").unwrap();
        let node = world.node_until("n1", 7, i64::MAX);
        chmod(&node, (1, "empty"), 0).unwrap();
        let step = DirectoryStep { number, name: Name::from("empty") };
        node.places.remove_directory(&[step]).unwrap();
        assert!(!world.at("shared/empty").exists());
    });
}

/// Regression: as on tiers of earlier versions and of one node, and where root's mount has set the modes.
#[test]
fn modes_that_the_disks_have_themselves_are_served_and_built_again() {
    as_user(|| {
        let world = World::new();
        let names = filled(&world);
        for name in &names {
            let tier = if name.starts_with('f') { "n1/ssd" } else { "shared" };
            let path = world.at(tier).join(name);
            fs::set_permissions(path, Permissions::from_mode(mode_of(name))).unwrap();
        }
        world.forget();
        world.repair(false);
        let mode = |name: &str| fs::metadata(world.at(name)).unwrap().permissions().mode();
        assert_eq!((mode("shared/d0"), mode("shared/s0")), (0o040_000, 0o100_000), "a check");
        let report = world.repair(true);
        assert!(report.is_rebuilt && report.told.is_empty(), "{report:?}");
        let found = modes(&world.node_until("n1", 2, i64::MAX));
        for name in &names {
            assert_eq!(found[name], mode_of(name), "{name}");
        }
        is_usable(&world, &names);
        assert!(world.repair(false).is_clean());
    });
}
