//! What the kernel answers by itself about a tier, and what it must ask for.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use halocline_testkit::waiting::eventually;

use crate::mount::{self, Mount};
use crate::programs;

/// An hour takes the kernel's own expiry out of the tests.
const KEPT: &str = "--tier-attr-timeout=1h";

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("stat").permissions().mode() & 0o7777
}

fn modified(path: &Path) -> SystemTime {
    fs::metadata(path).expect("stat").modified().expect("a time")
}

/// Makes a file and changes it through a shared mapping, perhaps after somebody has looked at it.
fn store(path: &Path, looked_at: bool) {
    let script = "import mmap, os, sys\n\
                  fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n\
                  os.ftruncate(fd, 4096)\n\
                  os.utime(fd, (1000000, 1000000))\n\
                  page = mmap.mmap(fd, 4096)\n\
                  os.close(fd)\n\
                  _ = sys.argv[2] and os.stat(sys.argv[1])\n\
                  page[0] = 1\n\
                  page.flush()\n";
    programs::run(Command::new("python3").args(["-c", script]).arg(path).arg(if looked_at {
        "yes"
    } else {
        ""
    }));
}

#[test]
fn the_kernel_keeps_attributes_as_long_as_it_is_told() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    for (option, kept) in [(KEPT, true), ("--tier-attr-timeout=0s", false)] {
        let mount = Mount::tier(&[option]);
        let file = mount.path().join("file");
        fs::write(&file, "contents").expect("write");
        fs::set_permissions(&file, Permissions::from_mode(0o600)).expect("chmod");
        assert_eq!(mode(&file), 0o600);
        let below = mount.root().join("ssd/file");
        fs::set_permissions(&below, Permissions::from_mode(0o644)).expect("chmod below");
        assert_eq!(mode(&file) == 0o600, kept, "{option}");
        // What the mount changes is seen at once whatever the kernel keeps.
        fs::set_permissions(&file, Permissions::from_mode(0o640)).expect("chmod");
        assert_eq!(mode(&file), 0o640, "{option}");
        fs::write(&file, "longer contents").expect("write");
        assert_eq!(fs::metadata(&file).expect("stat").len(), 15, "{option}");
    }
}

#[test]
fn set_id_bits_are_not_kept_for_long() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    let mount = Mount::tier(&[KEPT]);
    let file = mount.path().join("file");
    fs::write(&file, "contents").expect("write");
    fs::set_permissions(&file, Permissions::from_mode(0o4755)).expect("chmod");
    assert_eq!(mode(&file), 0o4755);
    let below = mount.root().join("ssd/file");
    fs::set_permissions(&below, Permissions::from_mode(0o755)).expect("chmod below");
    eventually("the end of a set-user-id bit", || mode(&file) == 0o755);
}

#[test]
fn a_store_through_a_mapping_is_seen_in_the_times() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    let mount = Mount::tier(&[KEPT]);
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    for (name, looked_at) in [("looked at", true), ("made", false)] {
        for dir in [mount.root().join("hdd"), mount.path()] {
            let file = dir.join(name);
            store(&file, looked_at);
            let is_seen = || modified(&file) != long_ago;
            if dir != mount.path() && !is_seen() {
                return programs::skip("the file system does not note stores of mappings");
            }
            eventually("the time of a store", is_seen);
        }
    }
}

/// Who asks for the modification time alone, as `stat` and `ls` do, was told the old one for a minute:
/// only the access time was known to have changed with the mapping.
#[test]
fn a_store_is_seen_by_who_asks_for_the_modification_time_alone() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    let mount = Mount::tier(&[KEPT, "--passthrough-writes=true"]);
    let file = mount.path().join("file");
    fs::write(&file, vec![1; 8192]).expect("write");
    let old = fs::File::open(&file).expect("open");
    old.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000)).expect("a time");
    drop(old);
    let modified = || {
        let only = rustix::fs::StatxFlags::MTIME;
        let found = rustix::fs::statx(rustix::fs::CWD, &file, rustix::fs::AtFlags::empty(), only);
        found.expect("statx").stx_mtime.tv_sec
    };
    assert_eq!(modified(), 1_000_000);
    let script = "import mmap, os, sys\n\
                  fd = os.open(sys.argv[1], os.O_RDWR)\n\
                  page = mmap.mmap(fd, 4096)\n\
                  page[0] = 2\n";
    programs::run(Command::new("python3").args(["-c", script]).arg(&file));
    if self::modified(&mount.root().join("ssd/file"))
        == SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000)
    {
        return programs::skip("the file system does not note stores of mappings");
    }
    assert_ne!(modified(), 1_000_000, "the time of a store");
}
