//! An SSD whose file system has no inode or no block left: what was there before is mounted and
//! served, it is told why nothing new goes there, and it ends when inodes are free.

use std::fs;

use crate::{mount, programs};

/// Takes every inode of the disk, and gives them back.
const TAKE_AND_GIVE: &str = "take() { i=0; while touch disk/x$i 2> /dev/null; do i=$((i + 1)); done; }; \
     give() { rm -f disk/x*; }; \
     healthy() { for i in $(seq 3000); do $h status mnt | grep -q 'health *ok' && return; sleep 0.1; done; \
       $h status mnt >&2; return 1; }; ";

fn check(script: &str) {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    if !programs::is_installed("unshare") {
        return programs::skip("there is no unshare");
    }
    let scratch = tempfile::tempdir().expect("scratch");
    for name in ["origin", "disk", "mnt"] {
        fs::create_dir(scratch.path().join(name)).expect("directory");
    }
    let halocline = programs::halocline();
    let script = format!(
        "set -e; h={}; mount -t tmpfs -o nr_inodes=80,size=64M none disk; {TAKE_AND_GIVE} {script} \
         echo as expected",
        halocline.get_program().to_string_lossy()
    );
    let output = programs::in_own_namespace(scratch.path(), &script);
    let errors = String::from_utf8_lossy(&output.stderr);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.ends_with("as expected\n"), "{said}{errors}");
}

/// The mount was refused: `cache ... cannot be written: No space left on device`.
#[test]
fn a_cache_without_free_inodes_is_mounted_served_and_recovers() {
    check(
        "mkdir disk/cache; opts='--cache disk/cache --policy always'; \
         $h mount origin mnt $opts; echo dirty > mnt/file; \
         $h umount --keep-dirty mnt >&2 || test $? = 3; take; \
         $h mount origin mnt $opts; $h status mnt | grep -q 'FULL.*without free inodes'; \
         test \"$(cat mnt/file)\" = dirty; echo other > mnt/other; test \"$(cat mnt/other)\" = other; \
         echo more >> mnt/file; give; healthy; echo cached > mnt/third; \
         $h where mnt/third | grep -q cache; take; \
         $h umount mnt >&2; test \"$(cat origin/third)\" = cached; \
         test \"$(cat origin/file)\" = \"$(printf 'dirty\\nmore')\"; test \"$(cat origin/other)\" = other; \
         $h mount origin mnt $opts; $h umount mnt >&2;",
    );
}

#[test]
fn a_tier_without_free_inodes_is_mounted_served_and_recovers() {
    check(
        "mkdir disk/ssd hdd root; chmod 700 root; ln -s ../disk/ssd root/ssd; ln -s ../hdd root/hdd; \
         $h mount --tier root mnt; echo first > mnt/file; $h umount mnt >&2; take; \
         $h mount --tier root mnt; $h status mnt | grep -q 'FULL.*without free inodes'; \
         test \"$(cat mnt/file)\" = first; echo second > mnt/file; \
         ! touch mnt/other 2> /dev/null; give; healthy; touch mnt/other; take; \
         $h umount mnt >&2; $h mount --tier root mnt; test \"$(cat mnt/file)\" = second; \
         $h umount mnt >&2; $h fsck root | grep -q clean;",
    );
}

/// An origin without inodes takes no new files, and is not a reason to refuse those that are there.
#[test]
fn an_origin_without_free_inodes_is_mounted() {
    check(
        "mkdir disk/origin cache; echo old > disk/origin/file; take; \
         $h mount disk/origin mnt --cache cache --policy always; \
         test \"$(cat mnt/file)\" = old; echo new > mnt/file; ! touch mnt/other 2> /dev/null; \
         $h umount mnt >&2; test \"$(cat disk/origin/file)\" = new;",
    );
}

/// An opening goes on in a new file of the log.
#[test]
fn a_cache_on_a_full_disk_is_mounted_after_a_kill() {
    if ["mkfs.ext4", "losetup"].iter().any(|name| !programs::is_installed(name)) {
        return programs::skip("there is no mkfs.ext4 or losetup");
    }
    check(
        "umount disk; truncate -s 96M image; mkfs.ext4 -q -F image; \
         mount -o loop image disk 2> /dev/null || { echo no loop device; echo as expected; exit; }; \
         mkdir disk/cache; opts='--cache disk/cache --policy always --rebuild=false --size 60M'; \
         $h mount origin mnt $opts; head -c 3000000 /dev/urandom > whole; cp whole mnt/file; \
         dd if=/dev/zero of=disk/fill bs=4k 2> /dev/null || true; \
         for i in $(seq 30); do head -c 4096 /dev/urandom > mnt/piece$i; cp mnt/piece$i want$i; done; \
         kill -9 $($h status --json mnt | awk -F '[:,]' '/\"pid\"/ { print $2; exit }'); \
         for i in $(seq 3000); do ls mnt > /dev/null 2>&1 || break; sleep 0.1; done; \
         $h umount mnt >&2 || test $? = 3; $h fsck disk/cache | grep -q clean; \
         $h mount origin mnt $opts; $h status mnt | grep -q 'health *FULL'; \
         cmp mnt/file whole; $h umount mnt >&2; cmp origin/file whole; \
         for i in $(seq 30); do cmp origin/piece$i want$i; done;",
    );
}
