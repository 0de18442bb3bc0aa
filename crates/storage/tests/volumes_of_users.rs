//! Striped volumes that an ordinary user makes in a directory of his.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::thread;

use halocline_api::config::{VolumeKind, VolumeShape};
use halocline_storage::volume::Origin;
use halocline_testkit::skipping::skip;
use rustix::thread::{Gid, Uid, set_thread_groups, set_thread_res_gid, set_thread_res_uid};

const SHAPE: VolumeShape = VolumeShape { kind: VolumeKind::Striped, servers: 2, stripe: 4096 };
const USER: u32 = 7113;
const FOREIGN_GROUP: u32 = 7114;

/// Runs `what` as an ordinary user with a group of his own.
fn as_user(what: impl FnOnce() + Send) {
    let (user, group) = (Uid::from_raw(USER), Gid::from_raw(USER));
    let run = move || {
        set_thread_groups(&[]).unwrap();
        set_thread_res_gid(group, group, group).unwrap();
        set_thread_res_uid(user, user, user).unwrap();
        what();
    };
    thread::scope(|scope| scope.spawn(run).join().unwrap());
}

/// Regression: root had made the directory and given it to the user, whose volume could not get the group of that, and half of it
/// was left.
#[test]
fn a_directory_of_a_group_that_is_not_the_users_becomes_a_volume() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can become another user");
    }
    let scratch = tempfile::tempdir().unwrap();
    fs::set_permissions(scratch.path(), Permissions::from_mode(0o755)).unwrap();
    // What the group may do is nothing for the user's group, unless everybody may; in a set-gid directory the group is inherited.
    for (mode, group, tree_mode) in [
        (0o755, USER, 0o755),
        (0o770, USER, 0o700),
        (0o750, USER, 0o700),
        (0o2770, FOREIGN_GROUP, 0o770),
    ] {
        let dir = scratch.path().join(format!("{mode:o}"));
        fs::create_dir(&dir).unwrap();
        chown(&dir, Some(USER), Some(FOREIGN_GROUP)).unwrap();
        fs::set_permissions(&dir, Permissions::from_mode(mode)).unwrap();
        as_user(|| {
            for _ in 0..2 {
                drop(Origin::open_or_create(&dir, SHAPE, &|_, device| device).unwrap());
            }
        });
        let tree = fs::metadata(dir.join("namespace")).unwrap();
        let found = (tree.uid(), tree.gid(), tree.mode() & 0o777);
        assert_eq!(found, (USER, group, tree_mode), "{mode:o}");
    }
}
