//! The times of files in the store of a shared tier are those on the disks, whatever programs do: else a check would call a sound
//! tier different from its disks, and have its names built again.

use std::ffi::CString;
use std::fs::{self, File, FileTimes, Permissions};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use halocline_testkit::program;
use halocline_testkit::sandbox::{said, written};
use halocline_testkit::scratch::Scratch;
use halocline_testkit::shared_tiers::{SharedTiers, fsck, unmount};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT,
    XattrFlags, copy_file_range, fallocate, ftruncate, linkat, open, removexattr, setxattr,
    utimensat,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

const NODES: [&str; 2] = ["one", "two"];
/// More than the kernel leaves to the mount process.
const BYTES: usize = 100 << 10;

/// One way to make, use or change a file, by its path. What it is made for exists if its name begins with `old`.
type Act = fn(&Path);

fn opened(path: &Path, flags: OFlags) {
    drop(open(path, flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o644)).unwrap());
}

fn writable(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

fn beside(path: &Path, end: &str) -> std::path::PathBuf {
    path.with_extension(end)
}

fn dated(path: &Path, at: i64, ns: i64) {
    let time = Timespec { tv_sec: at, tv_nsec: ns };
    let times = Timestamps { last_access: time, last_modification: time };
    utimensat(CWD, path, &times, AtFlags::empty()).unwrap();
}

const MADE: [(&str, Act); 13] = [
    ("read-only", |path| opened(path, OFlags::RDONLY | OFlags::CREATE)),
    ("read-only-excl", |path| opened(path, OFlags::RDONLY | OFlags::CREATE | OFlags::EXCL)),
    ("read-only-trunc", |path| opened(path, OFlags::RDONLY | OFlags::CREATE | OFlags::TRUNC)),
    ("write-only", |path| opened(path, OFlags::WRONLY | OFlags::CREATE)),
    ("append-excl", |path| {
        opened(path, OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::EXCL);
    }),
    ("read-only-locked", |path| {
        let flags = OFlags::RDONLY | OFlags::CREATE | OFlags::CLOEXEC;
        let file = open(path, flags, Mode::from_raw_mode(0o400)).unwrap();
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    }),
    ("read-only-then-read-write", |path| {
        let flags = OFlags::RDONLY | OFlags::CREATE | OFlags::CLOEXEC;
        let file = open(path, flags, Mode::from_raw_mode(0o600)).unwrap();
        opened(path, OFlags::RDWR);
        drop(file);
    }),
    ("written", |path| fs::write(path, "written").unwrap()),
    ("mknod", |path| {
        let path = CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: the path ends with a zero byte.
        assert_eq!(unsafe { libc::mknod(path.as_ptr(), libc::S_IFREG | 0o644, 0) }, 0);
    }),
    ("tmpfile", |path| {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let Ok(file) = open(path.parent().unwrap(), flags, Mode::from_raw_mode(0o644)) else {
            return;
        };
        let own = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        linkat(CWD, own, CWD, path, AtFlags::SYMLINK_FOLLOW).unwrap();
    }),
    ("symlink", |path| symlink("nowhere", path).unwrap()),
    ("mkdir", |path| {
        fs::create_dir(path).unwrap();
        opened(&path.join("below"), OFlags::RDONLY | OFlags::CREATE);
    }),
    ("pipe", |path| {
        let path = CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: the path ends with a zero byte.
        assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o644) }, 0);
    }),
];

const CHANGED: [(&str, Act); 27] = [
    ("read", |path| drop(fs::read(path).unwrap())),
    ("opened-to-write", |path| opened(path, OFlags::WRONLY)),
    ("opened-to-make", |path| opened(path, OFlags::RDONLY | OFlags::CREATE)),
    ("written-nothing", |path| assert_eq!(writable(path).write_at(b"", 3).unwrap(), 0)),
    ("written", |path| writable(path).write_all_at(b"x", 7).unwrap()),
    ("appended", |path| {
        File::options().append(true).open(path).unwrap().write_all(b"x").unwrap();
    }),
    ("synchronous", |path| {
        let mut with = File::options();
        let file = with.write(true).custom_flags(libc::O_SYNC).open(path).unwrap();
        file.write_all_at(b"x", 7).unwrap();
    }),
    ("emptied", |path| opened(path, OFlags::WRONLY | OFlags::TRUNC)),
    ("emptied-read-only", |path| opened(path, OFlags::RDONLY | OFlags::TRUNC)),
    ("emptied-twice", |path| {
        opened(path, OFlags::WRONLY | OFlags::TRUNC);
        opened(path, OFlags::WRONLY | OFlags::TRUNC);
    }),
    ("truncated-to-its-size", |path| ftruncate(writable(path).as_fd(), BYTES as u64).unwrap()),
    ("truncated-by-path", |path| {
        let path = CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
        for size in [BYTES, 5, 5] {
            let size = i64::try_from(size).unwrap();
            // SAFETY: the path ends with a zero byte.
            assert_eq!(unsafe { libc::truncate(path.as_ptr(), size) }, 0);
        }
    }),
    ("allocated", |path| {
        fallocate(writable(path), FallocateFlags::empty(), 0, 1 << 20).unwrap();
        fallocate(writable(path), FallocateFlags::KEEP_SIZE, 0, 2 << 20).unwrap();
    }),
    ("with-a-hole", |path| {
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(writable(path), how, 0, 8192).unwrap();
    }),
    ("copied-to", |path| {
        let other = beside(path, "other");
        fs::write(&other, "other bytes").unwrap();
        let copied = copy_file_range(File::open(other).unwrap(), None, writable(path), None, 11);
        assert_eq!(copied, Ok(11));
    }),
    ("mapped", |path| {
        // A reader first, so that the kernel serves the mapping where it can.
        let (_reader, file) = (File::open(path).unwrap(), writable(path));
        let how = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: nobody else has the address.
        if let Ok(at) = unsafe { mmap(std::ptr::null_mut(), 4096, how.0, how.1, &file, 0) } {
            drop(file);
            // SAFETY: as above.
            unsafe {
                at.cast::<u8>().write_volatile(b'm');
                munmap(at, 4096).unwrap();
            }
        }
    }),
    ("dated-now", |path| {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        utimensat(CWD, path, &times, AtFlags::empty()).unwrap();
    }),
    ("dated-by-half", |path| {
        let [now, omit] = [UTIME_NOW, UTIME_OMIT].map(|tv_nsec| Timespec { tv_sec: 0, tv_nsec });
        let times = Timestamps { last_access: omit, last_modification: now };
        utimensat(CWD, path, &times, AtFlags::empty()).unwrap();
        let times = Timestamps { last_access: now, last_modification: omit };
        utimensat(CWD, path, &times, AtFlags::empty()).unwrap();
    }),
    ("dated", |path| dated(path, 1_000_000_000, 123_456_789)),
    // Beyond what many file systems keep.
    ("dated-1850", |path| dated(path, -3_800_000_000, 5)),
    ("dated-2500", |path| dated(path, 16_700_000_000, 5)),
    ("dated-while-open", |path| {
        let file = writable(path);
        file.write_all_at(b"x", 7).unwrap();
        file.set_times(FileTimes::new().set_modified(UNIX_EPOCH + Duration::from_nanos(77)))
            .unwrap();
    }),
    ("mode", |path| fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap()),
    ("owner", |path| chown(path, Some(1234), Some(4321)).unwrap()),
    ("attribute", |path| {
        let (name, flags) = ("user.a", XattrFlags::empty());
        setxattr(path, name, b"v", flags).unwrap();
        setxattr(path, "user.b", b"v", flags).unwrap();
        removexattr(path, name).unwrap();
    }),
    ("renamed", |path| {
        opened(&beside(path, "moved"), OFlags::RDONLY | OFlags::CREATE);
        fs::rename(path, beside(path, "moved")).unwrap();
    }),
    ("linked", |path| {
        fs::hard_link(path, beside(path, "link")).unwrap();
        opened(path, OFlags::RDWR);
        fs::remove_file(path).unwrap();
    }),
];

/// Everything is done by each node, with files of node `one`'s SSD and of the shared disk, while the kernel serves readers or not.
/// Regression: a file that was made by an open to read, as `flock FILE COMMAND` does, had the time of the request in the store.
fn disks_and_store_agree(options: &[&str]) {
    let Some(scratch) = Scratch::with_mountpoints(program!(), &NODES) else { return };
    let Some(tiers) = SharedTiers::new(scratch, &NODES) else { return };
    let tiers = tiers.mounted(&NODES, options);
    let of = |node: &str, kind: &str, at: usize, what: &str| format!("{kind}-{node}-{at}-{what}");
    for node in NODES {
        for (at, (what, act)) in MADE.iter().enumerate() {
            act(&tiers.at(node, &of(node, "new", at, what)));
        }
        for (at, (what, _)) in CHANGED.iter().enumerate() {
            for kind in ["old", "low"] {
                fs::write(tiers.at("one", &of(node, kind, at, what)), vec![b'a'; BYTES]).unwrap();
            }
            tiers.moves(&["demote", &format!("one/{}", of(node, "low", at, what))]);
        }
    }
    for node in NODES {
        for (at, (what, act)) in CHANGED.iter().enumerate() {
            for kind in ["old", "low"] {
                act(&tiers.at(node, &of(node, kind, at, what)));
            }
        }
    }
    let shown = |node: &str| {
        let entries = fs::read_dir(tiers.at(node, "")).unwrap().map(|entry| entry.unwrap().path());
        let entries = entries.filter(|path| path.is_file() || path.is_symlink());
        let mut all: Vec<_> = entries
            .map(|path| {
                let of = fs::symlink_metadata(&path).unwrap();
                (path.file_name().unwrap().to_owned(), of.mtime(), of.mtime_nsec(), of.size())
            })
            .collect();
        all.sort();
        all
    };
    let before = shown("one");
    assert_eq!(before, shown("two"));
    for node in NODES {
        unmount(&tiers.scratch, node);
    }
    let checked = fsck(&tiers.scratch, &tiers.store.url(), &[]);
    assert!(checked.status.success(), "{}{}", written(&checked), said(&checked));
    assert!(tiers.mount("one", options).status.success());
    assert_eq!(before, shown("one"));
    unmount(&tiers.scratch, "one");
}

#[test]
fn disks_and_store_agree_with_passthrough() {
    disks_and_store_agree(&[]);
}

#[test]
fn disks_and_store_agree_without_passthrough() {
    disks_and_store_agree(&["--passthrough=false"]);
}
