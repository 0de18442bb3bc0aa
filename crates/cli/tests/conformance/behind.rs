//! Files that are changed in the origin while the mount goes on (I9): what the kernel kept of them
//! since they were last open is of what they were.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use crate::mount::{self, IO_URING, Mount};
use crate::programs;
use crate::waiting::eventually;

/// The kernel keeps no attributes, as the option's description recommends for such an origin.
const OPTIONS: [&str; 3] = ["--policy=never", "--attr-timeout=0s", "--rebuild=false"];

fn reads(mount: &Mount) -> u64 {
    mount.status()["report"]["read"]["requests"].as_u64().expect("a number")
}

fn check(mount: &Mount) {
    let (ours, home) = (mount.path().join("file"), mount.origin().join("file"));
    fs::write(&ours, "by the mount").expect("write");
    assert_eq!(fs::read(&ours).expect("read"), b"by the mount");

    let before = reads(mount);
    fs::set_permissions(&ours, Permissions::from_mode(0o600)).expect("chmod");
    let renamed = mount.path().join("renamed");
    fs::rename(&ours, &renamed).expect("rename");
    assert_eq!(fs::read(&renamed).expect("read"), b"by the mount");
    assert_eq!(reads(mount), before, "what only we changed is kept");
    fs::rename(&renamed, &ours).expect("rename");

    for theirs in ["behind it...", "behind it, and longer", "shorter"] {
        fs::write(&home, theirs).expect("write");
        // A program's close may be told late.
        eventually("their bytes", || fs::read(&ours).is_ok_and(|bytes| bytes == theirs.as_bytes()));
    }
}

#[test]
fn i9_pages_of_a_file_that_changed_while_it_was_closed_are_read_anew() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    check(&Mount::new(&OPTIONS));
    let always =
        OPTIONS.map(|option| if option == OPTIONS[0] { "--policy=always" } else { option });
    let mount = Mount::new(&always);
    fs::write(mount.origin().join("file"), "older").expect("write");
    assert_eq!(fs::read(mount.path().join("file")).expect("read"), b"older");
    fs::write(mount.origin().join("file"), "newer").expect("write");
    assert_eq!(fs::read(mount.path().join("file")).expect("read"), b"newer", "at once");
    if mount::ring_obstacle().is_none() {
        check(&Mount::new(&[&OPTIONS[..], &[IO_URING]].concat()));
    }
}
