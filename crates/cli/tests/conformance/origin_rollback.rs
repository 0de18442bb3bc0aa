//! An origin whose disk loses what was never synced there, after programs were told that their bytes are
//! durable: those are on the cache, and it must not take the older file for one that others changed (I4, I9).

use std::fs;

use crate::{mount, programs};

/// Formats a disk, mounts a cache over it, and leaves a file with eight dirty bytes that were fsynced and
/// an origin whose last changes only the page cache has. `back` then shows the disk as it was when
/// `umount` had ended, which is what a power loss leaves; nothing is committed by itself meanwhile.
const PREPARE: &str = r#"set -e
opts='--policy always --rebuild=false --size 32M'
hdd() { mount -o loop,errors=remount-ro,commit=300 image hdd; }
prepare() {
  rm -rf cache; mkdir cache; truncate -s 64M image; mkfs.ext4 -qF image
  hdd 2> /dev/null || { echo no loop device; exit; }
  mkdir hdd/o; $h mount hdd/o m --cache cache $opts
  head -c 1048576 /dev/zero | tr '\0' A > m/f; sync m/f; $h flush m > /dev/null; sync -f hdd
  printf BBBBBBBB | dd of=m/f bs=4096 seek=8 conv=notrunc,fsync status=none
}
# Waits until the kernel has told the mount's process of all that programs have closed.
told() {
  mkdir -p connections; mountpoint -q connections || mount -t fusectl none connections
  own=$(awk -v at=$PWD/m '$5 == at { split($3, device, ":"); print device[1] * 1048576 + device[2] }' /proc/self/mountinfo)
  until test "$(cat connections/$own/waiting)" = 0; do sleep 0.05; done
}
# A process that was killed lets go of the disk a moment later.
free() { for i in $(seq 3000); do ! umount hdd 2> /dev/null || return 0; sleep 0.1; done; umount hdd; }
back() { cp --sparse=always image older; free; mv older image; check; }
check() { e2fsck -fy image > /dev/null 2>&1 || test $? = 1; hdd; }
boot() { cat /proc/sys/kernel/random/uuid > id; mount --bind id /proc/sys/kernel/random/boot_id; }
again() { $h mount hdd/o m --cache cache $opts; }
# What the mount serves at the place, and what the origin has there after an unmount with a status.
served() {
  at() { dd if=$1 bs=4096 skip=8 count=1 status=none | head -c 8; }
  seen=$(at m/f); status=0; $h umount m > said 2>&1 || status=$?; on_origin=$(at hdd/o/f)
  test "$seen $on_origin $status" = "$1 $1 $2" || { echo "$3: $seen, $on_origin, $status"; cat said; exit 1; }
  umount hdd
}
"#;

/// The same with a striped origin, whose mount is killed, and plans for its file.
const STRIPED: &str = r#"
killed() {
  rm -rf cache; mkdir cache; truncate -s 64M image; mkfs.ext4 -qF image
  hdd 2> /dev/null || { echo no loop device; exit; }
  mkdir hdd/o; $h mount hdd/o m --cache cache $opts --origin-volume striped --origin-servers 2
  head -c 1048576 /dev/zero | tr '\0' A > m/f; sync m/f; $h flush m > /dev/null; sync -f hdd
  printf BBBBBBBB | dd of=m/f bs=4096 seek=8 conv=notrunc,fsync status=none
  touch -m -d 2020-01-01 m/f; told
  kill -9 $($h status m --json | tr -d ' ' | sed -n 's/.*\x22pid\x22:\([0-9]*\).*/\1/p' | head -n 1)
  umount -l m; back
}
costs() { printf '[server.profile.%s]\nstartup_sequential_ps = 1000\nstartup_random_ps = 5000\nper_byte_ps = 800\n' read write; }
plan() {
  printf 'version = 1\nchosen = "%s"\nfiles = 1\n[trace]\ndigest = "xxh3-128:7449d80bda9b16a199ea4f481960a863"\nrequests = 1\n' $1
  printf '[expected]\npredicted_seconds = 0.04\nsimulated_seconds = 0.04\ndef_simulated_seconds = 0.05\ngain_over_def = 0.25\nspread = 0.1\n'
  for server in s0 s1; do printf '[[server]]\nname = "%s"\ncapacity = 37992816640\n' $server; costs; done
  printf '[[file]]\npath = "f"\nbytes = 1000\n[[file.part]]\nbegin = 0\nwidths = [%s, 65536]\n' $2
}
plan ours 0 > plan.toml; plan def 65536 > default.toml
moved() { $h apply plan.toml hdd/o > said; grep -q '1.00 MiB moved' said; }
back_again() { $h apply default.toml hdd/o --to-default > said; grep -q '1.00 MiB moved' said; }
clean() { $h fsck cache > said || { cat said; exit 1; }; grep -q clean said; }
# What the mount serves at the place, and what a copy of the origin has there after an unmount with a status.
served_striped() {
  at() { dd if=$1 bs=4096 skip=8 count=1 status=none | head -c 8; }
  seen=$(at m/f); status=0; $h umount m > said 2>&1 || status=$?; rm -rf copy; $h unstripe hdd/o copy > /dev/null
  on_origin=$(at copy/f)
  test "$seen $on_origin $status" = "$1 $1 $2" || { echo "$3: $seen, $on_origin, $status"; cat said; exit 1; }
  umount hdd
}
"#;

fn run(script: &str) {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    if ["unshare", "mkfs.ext4", "e2fsck"].iter().any(|name| !programs::is_installed(name)) {
        return programs::skip("there is no unshare, mkfs.ext4 or e2fsck");
    }
    let scratch = tempfile::tempdir().expect("scratch");
    for name in ["hdd", "m"] {
        fs::create_dir(scratch.path().join(name)).expect("directory");
    }
    let halocline = programs::halocline().get_program().to_string_lossy().into_owned();
    let whole = format!("h={halocline}; {PREPARE} {STRIPED} {script} echo as expected");
    let output = programs::in_own_namespace(scratch.path(), &whole);
    let (said, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}\n{errors}");
    match said.trim() {
        "as expected" => {}
        why => programs::skip(why),
    }
}

/// The origin's file looked older than recorded: the bytes went to `conflicts`, and programs read the old ones.
#[test]
fn i4_what_was_fsynced_is_served_after_dirty_data_was_left_and_the_origin_lost_its_last_changes() {
    run(r"
prepare; touch -m -d 2020-01-01 m/f; $h umount --keep-dirty m > said 2>&1 || test $? = 3
back; boot; again; served BBBBBBBB 0 touch; umount /proc/sys/kernel/random/boot_id
prepare; chmod 600 m/f; mv m/f m/g; mv m/g m/f; $h umount --force --keep-dirty m > said 2>&1 || test $? = 3
back; boot; again; served BBBBBBBB 0 rename; umount /proc/sys/kernel/random/boot_id
prepare; echo more >> m/f; truncate -s 1M m/f; $h umount --keep-dirty m > said 2>&1 || test $? = 3
back; again; served BBBBBBBB 0 truncate
");
}

/// The same after a kill, in the same boot.
#[test]
fn i4_what_was_fsynced_is_served_after_a_kill_and_the_origin_lost_its_last_changes() {
    run(r"
prepare; touch -m -d 2020-01-01 m/f; told
kill -9 $($h status m --json | tr -d ' ' | sed -n 's/.*\x22pid\x22:\([0-9]*\).*/\1/p' | head -n 1)
umount -l m
back; again; served BBBBBBBB 0 kill
");
}

/// A move to another layout gave the file a new time, and the bytes went to `conflicts`.
#[test]
fn i4_what_was_fsynced_is_served_after_the_origin_lost_its_last_changes_and_its_file_was_moved() {
    run(r"
killed; clean; again; served_striped BBBBBBBB 0 control
killed; moved; clean; again; served_striped BBBBBBBB 0 moved
killed; moved; back_again; moved; clean; again; served_striped BBBBBBBB 0 'moved thrice'
");
}

/// Whoever restores an older version of a file leaves the same as whoever changes an attribute of one that lost its last changes.
#[test]
fn i9_what_others_may_have_changed_before_a_move_is_a_conflict() {
    run(r"
killed; chmod 600 hdd/o/namespace/f; moved; again; served_striped AAAAAAAA 4 theirs
test $(ls cache/conflicts | wc -l) = 2
killed; moved; touch -m -d 2021-01-01 hdd/o/namespace/f; again; served_striped AAAAAAAA 4 'theirs afterwards'
");
}

/// A growth that the origin lost, and that no program made durable: what lies past the end now was dropped without a
/// word, although the session had ended with bytes left on the cache.
#[test]
fn i9_dirty_bytes_past_the_end_that_the_origin_lost_are_saved() {
    run(r"
prepare; head -c 4096 /dev/zero | tr '\0' D >> m/f; told
kill -9 $($h status m --json | tr -d ' ' | sed -n 's/.*\x22pid\x22:\([0-9]*\).*/\1/p' | head -n 1)
umount -l m
back; again; served BBBBBBBB 4 growth
grep -q DDDD cache/conflicts/*
");
}

/// The same where the origin's journal was aborted: what is left then is not durable.
#[test]
fn i4_what_was_fsynced_is_served_after_the_origins_journal_was_aborted() {
    run(r"
prepare; touch -m -d 2020-01-01 m/f
loop=$(awk -v at=$PWD/hdd '$5 == at { print $(NF-1) }' /proc/self/mountinfo)
error=/sys/fs/ext4/${loop#/dev/}/trigger_fs_error
test -w $error || { $h umount m > said 2>&1; umount hdd; echo no way to abort the journal; exit; }
echo 1 > $error; ! touch hdd/x 2> /dev/null
! $h umount m > said 2>&1; mountpoint -q m && { $h umount --force m > said 2>&1 || test $? = 3; }
umount hdd; check; again; served BBBBBBBB 0 abort
");
}

/// What others changed in the meantime is a conflict nevertheless.
#[test]
fn i9_what_others_change_after_dirty_data_was_left_is_a_conflict() {
    run(r"
prepare; touch -m -d 2020-01-01 m/f; $h umount --keep-dirty m > said 2>&1 || test $? = 3
printf CCCCCCCC | dd of=hdd/o/f bs=4096 seek=8 conv=notrunc status=none; again; served CCCCCCCC 4 theirs
test $(ls cache/conflicts | wc -l) = 2
");
}
