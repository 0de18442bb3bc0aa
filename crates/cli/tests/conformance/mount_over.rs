//! A mount over the origin's own path, where the origin is the root of a mounted disk: the usual
//! place of slow storage. The disk must stay mounted when Halocline goes.

use std::fs;

use crate::{mount, programs};

#[test]
fn an_unmount_leaves_the_disk_below_mounted() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    if !programs::is_installed("unshare") {
        return programs::skip("there is no unshare");
    }
    let scratch = tempfile::tempdir().expect("scratch");
    for name in ["origin", "cache"] {
        fs::create_dir(scratch.path().join(name)).expect("directory");
    }
    let halocline = programs::halocline();
    let script = format!(
        "set -e; h={}; mount -t tmpfs -o size=64M disk origin; echo old > origin/a; \
         for how in '' --force; do \
           $h mount origin origin --cache cache --policy always --size 8M; \
           cat origin/a; echo new > origin/b; $h umount $how origin >&2; \
           cat origin/b; grep -c \" $PWD/origin \" /proc/self/mountinfo; \
         done; \
         $h mount origin origin --cache cache --size 8M; mount -t tmpfs top origin; \
         ! $h umount cache 2> said; ! $h umount --force cache 2>> said; umount origin; $h umount origin >&2; \
         grep \" $PWD/origin \" /proc/self/mountinfo | grep -c disk",
        halocline.get_program().to_string_lossy()
    );
    let output = programs::in_own_namespace(scratch.path(), &script);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let said = String::from_utf8_lossy(&output.stdout);
    let refusals = fs::read_to_string(scratch.path().join("said")).expect("refused twice");
    assert_eq!(refusals.matches("something else is mounted over it").count(), 2, "{refusals}");
    assert_eq!(said, "old\nnew\n1\nold\nnew\n1\n1\n", "{errors}");
}
