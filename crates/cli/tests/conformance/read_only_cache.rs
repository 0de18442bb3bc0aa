//! A cache whose file system turns read-only under a mount, as ext4 does after an error.

use std::fs;

use crate::{mount, programs};

/// 293 of 400 overwrites failed, and every flush and unmount after that.
#[test]
fn programs_go_on_and_the_mount_ends_where_the_cache_turns_read_only() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    if ["unshare", "mkfs.ext4", "losetup"].iter().any(|name| !programs::is_installed(name)) {
        return programs::skip("there is no unshare, mkfs.ext4 or losetup");
    }
    let scratch = tempfile::tempdir().expect("scratch");
    for name in ["origin", "disk", "mnt"] {
        fs::create_dir(scratch.path().join(name)).expect("directory");
    }
    let halocline = programs::halocline();
    // The mount runs in the background, where its log is on the same disk: a line that it cannot
    // write must not fail a program's request either.
    let script = format!(
        "set -e; h={}; truncate -s 96M image; mkfs.ext4 -q -F -O ^has_journal image; \
         mount -o loop,errors=remount-ro image disk 2> /dev/null || {{ echo no loop device; exit; }}; \
         loop=$(awk -v at=\"$PWD/disk\" '$5 == at {{ print $(NF-1) }}' /proc/self/mountinfo); \
         error=/sys/fs/ext4/${{loop#/dev/}}/trigger_fs_error; \
         test -w $error || {{ umount disk; echo no way to make it read-only; exit; }}; \
         mkdir disk/cache; opts='--cache disk/cache --policy always --rebuild=false --size 32M'; \
         over() {{ for i in $(seq 0 $1); do \
           printf %s-$i $2 | dd of=$3/file bs=1 seek=$((i * 8192)) conv=notrunc status=none; done; }}; \
         $h mount origin mnt $opts; head -c 1703936 /dev/zero > mnt/file; $h flush mnt >&2; \
         over 199 old mnt; sync disk; cp origin/file expected; \
         echo 1 > $error; ! touch disk/x 2> /dev/null; \
         over 199 new mnt; cat mnt/file > seen; \
         timeout 300 $h flush mnt >&2; timeout 300 $h umount mnt >&2; \
         umount disk; fsck.ext4 -fy image > /dev/null 2>&1 || true; mount -o loop image disk; \
         $h mount origin mnt $opts; cat mnt/file > again; $h umount mnt >&2; umount disk; \
         mv expected file; over 199 new .; \
         cmp seen file; cmp origin/file file; cmp again file; echo as expected",
        halocline.get_program().to_string_lossy()
    );
    let output = programs::in_own_namespace(scratch.path(), &script);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    match String::from_utf8_lossy(&output.stdout).trim() {
        "as expected" => {}
        why => programs::skip(why),
    }
}
