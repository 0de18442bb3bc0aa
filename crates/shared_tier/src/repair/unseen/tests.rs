use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};

use halocline_cluster::names::attributes::{Attributes, Kind};
use rustix::process::{Uid, geteuid};
use rustix::thread::set_thread_res_uid;

use crate::repair::Report;
use crate::repair::tests::{Node, World};

/// Modes that keep owners from reading, entering, or both.
const MODES: [u32; 6] = [0o000, 0o100, 0o200, 0o300, 0o400, 0o600];

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

fn set(world: &World, path: &str, mode: u32) {
    let path = world.at(path);
    if path.exists() {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
}

fn make_link(world: &World, node: &Node, directory: u64, path: &str) {
    let number = node.names.number().unwrap();
    let mut attributes = Attributes::new(Kind::Symlink, 0o777, 0);
    attributes.target = b"somewhere".to_vec();
    (attributes.uid, attributes.gid) = (geteuid().as_raw(), rustix::process::getegid().as_raw());
    node.names.create_as(number, &Node::entry(directory, "link"), &attributes).unwrap();
    symlink("somewhere", world.at(path).join("link")).unwrap();
}

/// Directories with files on both disks, links and directories in them; of which those in `r` were renamed since their files
/// were made. Returns their names.
fn filled(world: &World) -> Vec<String> {
    let node = world.node("n1");
    let mut names = Vec::new();
    for mode in MODES {
        for is_renamed in [false, true] {
            let name = format!("{}{mode:o}", if is_renamed { 'r' } else { 'd' });
            let first = if is_renamed { format!("was{mode:o}") } else { name.clone() };
            let number = node.mkdir(1, &first).unwrap();
            node.create(number, "f", "on the SSD").unwrap();
            node.create_on_shared(number, "s", "on the disk").unwrap();
            let below = node.mkdir(number, "below").unwrap();
            node.create(below, "g", "on the SSD").unwrap();
            let deep = node.mkdir(below, "deep").unwrap();
            node.create(deep, "h", "on the SSD").unwrap();
            node.create_on_shared(below, "t", "on the disk").unwrap();
            node.link((below, "g"), (number, "second")).unwrap();
            make_link(world, &node, below, &format!("shared/{first}/below"));
            if is_renamed {
                node.rename((1, &first), (1, &name)).unwrap();
            }
            names.push(name);
        }
        let file = format!("f{mode:o}");
        node.create(1, &file, "on the SSD").unwrap();
        node.create_on_shared(1, &format!("s{mode:o}"), "on the disk").unwrap();
        names.extend([file, format!("s{mode:o}")]);
    }
    names
}

fn mode_of(name: &str) -> u32 {
    u32::from_str_radix(&name[1..], 8).unwrap()
}

/// What a check finds, apart from what it says that it has not read.
fn differences(world: &World) -> Report {
    let report = world.repair(false);
    let unread = |line: &String| line.contains("cannot be read");
    let told = report.told.iter().filter(|line| !unread(line)).cloned().collect();
    Report { told, ..report }
}

/// Regression: what was in such directories was said to be lost, and they themselves to be somewhere else.
#[test]
fn of_what_a_check_may_not_read_it_tells_only_that() {
    as_user(|| {
        let world = World::new();
        let names = filled(&world);
        assert!(world.repair(false).is_clean(), "{:?}", world.repair(false));
        for disk in ["shared", "n1/ssd"] {
            let close = |name: &String, mode| set(&world, &format!("{disk}/{name}"), mode);
            // A file of mode 0600 can be read, and a directory of that mode not.
            for name in &names {
                close(name, mode_of(name));
            }
            for mode in MODES {
                close(&format!("was{mode:o}"), mode);
            }
            let told = world.repair(false).told;
            assert!(
                told.iter().any(|line| line.contains("d0: its names cannot be read")),
                "{told:?}"
            );
            assert!(differences(&world).is_clean(), "{disk}: {:#?}", differences(&world));
        }
        let file = world.repair(false).told;
        assert!(file.iter().any(|line| line.contains("ssd/f0: its attributes cannot be read")));
        // What is found elsewhere is told.
        fs::rename(world.at("shared/d300/below"), world.at("shared/moved")).unwrap();
        let found = differences(&world);
        assert_eq!(found.remade, ["d300/below"], "{found:#?}");
        fs::rename(world.at("shared/moved"), world.at("shared/d300/below")).unwrap();
        // A repair lets itself in.
        let report = world.repair(true);
        assert!(report.is_clean(), "{report:#?}");
        assert!(world.repair(false).is_clean(), "{:#?}", world.repair(false));
    });
}
