//! The kernel's list of mounts, whose paths and types are anybody's: body of a fuzz target (`crate::fuzzing`).

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::{
    MountLine, MountState, fuse_mount_of, numbered, numbers_on, parse_line, root_in, state_in,
    top_of, wider_paths_in,
};

/// A list of mounts: what is found in it is in it, on the path that was asked for.
pub fn mounts(table: &[u8]) {
    let lines = || table.split(|byte| *byte == b'\n');
    if lines().count() > 200 {
        // Each mount is compared with each other one on its path.
        return;
    }
    assert!(numbered(table).count() <= lines().count());
    for line in lines() {
        let Some((point, kind)) = parse_line(line) else { continue };
        assert!(point.as_os_str().len() <= line.len() && !kind.contains(&b' '));
        let on = |number| numbers_on(table, &point).any(|(found, _)| found == number);
        let top = top_of(table, &point);
        assert!(top.is_none_or(on));
        for (number, _) in numbers_on(table, &point).take(8) {
            let state = state_in(table, &point, number);
            assert_ne!(state, MountState::Gone);
            assert_eq!(state == MountState::OnTop, top == Some(number));
        }
        if let Some(found) = MountLine::on(table, &point) {
            // Of several lines with one number, the first counts.
            assert!(lines().any(|line| MountLine::parse(line).as_ref() == Some(&found)));
            let _ = (found.is_ours(), found.has_server());
        }
        let below = point.join("a/b");
        if let Some(over) = fuse_mount_of(table, &below) {
            assert!(below.starts_with(&over));
        }
        for (_, inside) in wider_paths_in(table, &below) {
            assert!(below.ends_with(&inside));
        }
        let Some(mount) = MountLine::parse(line) else { continue };
        let (Ok(major), Ok(minor)) = (mount.device.0.try_into(), mount.device.1.try_into()) else {
            continue;
        };
        let Ok(kind) = std::str::from_utf8(&mount.kind) else { continue };
        let root = root_in(table, kind, rustix::fs::makedev(major, minor));
        assert!(root.is_some() || mount.root != Path::new("/"));
        assert!(root.is_none_or(|root| root.as_os_str().as_bytes().len() <= table.len()));
    }
}

/// Seeds of [`mounts`].
#[cfg(test)]
pub(crate) fn seeds() -> [(&'static str, Vec<u8>); 2] {
    let parts: &[u8] = b"\
22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
30 22 8:2 / /data rw - ext4 /dev/sdb rw\n\
31 22 8:2 /jobs/a /mnt/a rw - ext4 /dev/sdb rw\n";
    [("mounts", super::tests::TABLE.to_vec()), ("parts", parts.to_vec())]
}
