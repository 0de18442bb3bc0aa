//! Mounts over mounts. Over the origin's own path, where the origin is the root of a mounted disk, the
//! usual place of slow storage: the disk must stay mounted when Halocline goes. And somebody's over
//! ours: nothing is lost when Halocline is told to go.

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

/// The first lines come from below the cover, where a program still has its file open.
#[test]
fn a_covered_mount_that_is_told_to_stop_serves_on_until_it_can() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    if !programs::is_installed("unshare") {
        return programs::skip("there is no unshare");
    }
    let scratch = tempfile::tempdir().expect("scratch");
    for name in ["origin", "cache", "mnt"] {
        fs::create_dir(scratch.path().join(name)).expect("directory");
    }
    let halocline = programs::halocline();
    let script = format!(
        "set -e; h={}; \
         eventually() {{ for i in $(seq 6000); do eval \"$1\" && return; sleep 0.05; done; \
           echo \"not true: $1\" >&2; exit 1; }}; \
         $h mount --foreground --policy always --rebuild=false origin mnt --cache cache 2> said & pid=$!; \
         eventually 'grep -q mounted said'; \
         exec 7> mnt/file; echo one >&7; mount -t tmpfs top mnt; \
         kill -TERM $pid; eventually 'grep -q \"something else is mounted over it\" said'; \
         cat origin/file; echo two >&7; exec 7>&-; \
         umount mnt; wait $pid; cat origin/file; ! grep \" $PWD/mnt \" /proc/self/mountinfo",
        halocline.get_program().to_string_lossy()
    );
    let output = programs::in_own_namespace(scratch.path(), &script);
    let errors = String::from_utf8_lossy(&output.stderr);
    let log = fs::read_to_string(scratch.path().join("said")).unwrap_or_default();
    assert!(output.status.success(), "{errors}{log}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "one\none\ntwo\n", "{errors}{log}");
}
