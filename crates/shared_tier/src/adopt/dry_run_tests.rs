use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};

use halocline_api::file_tier::LABEL;
use rustix::process::{Uid, geteuid};
use rustix::thread::set_thread_res_uid;

use super::*;
use crate::repair::tests::World;

fn adopt(world: &World, repair: bool) -> Result<Adopted> {
    run_watched(&world.at("n1"), "n1", repair, None)
}

/// Regression: it was refused, though an adoption by the same user would have opened these directories.
#[test]
fn what_only_a_repair_opens_is_not_refused_before() {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if geteuid().is_root() {
                let user = Uid::from_raw(7114);
                set_thread_res_uid(user, user, user).unwrap();
            }
            let world = World::unformatted();
            let (ssd, hdd) = (world.at("n1/ssd"), world.at("shared"));
            for (tier, disk) in [&ssd, &hdd].into_iter().enumerate() {
                fs::create_dir_all(disk.join(".halocline/intents")).unwrap();
                let label = format!(r#"{{"set": "s", "tier": {tier}, "roots": []}}"#);
                fs::write(disk.join(".halocline").join(LABEL), label).unwrap();
            }
            for closed in [ssd.join("a"), ssd.join("b"), hdd.join("b")] {
                fs::create_dir(closed).unwrap();
            }
            fs::write(ssd.join("a/hot"), "hot").unwrap();
            fs::write(hdd.join("b/cold"), "cold").unwrap();
            symlink(hdd.canonicalize().unwrap().join("b/cold"), ssd.join("cold")).unwrap();
            for closed in [ssd.join("a"), hdd.join("b")] {
                fs::set_permissions(closed, Permissions::from_mode(0o0)).unwrap();
            }
            let dry = adopt(&world, false).unwrap();
            assert_eq!((dry.directories, dry.ssd_files, dry.unopened), (2, 0, 2), "{dry:?}");
            let mode = fs::metadata(ssd.join("a")).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0, "it was opened");
            let done = adopt(&world, true).unwrap();
            assert_eq!((done.ssd_files, done.disk_files, done.unopened), (1, 1, 0), "{done:?}");
        });
    });
}
