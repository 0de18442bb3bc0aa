//! Bytes of files: appending, truncating, holes, mappings, locks, reading again.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::thread;

use rustix::fs::{FallocateFlags, FlockOperation, fallocate, fcntl_lock, flock};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

use crate::harness::{Mounted, in_both_modes};

fn open(mounted: &Mounted, name: &str) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).open(mounted.path(name)).expect("open")
}

/// Changes bytes through a shared mapping of the file's first page.
fn poke(file: &File, at: usize, bytes: &[u8]) {
    // SAFETY: a fresh mapping of one page, used within its bounds and unmapped below.
    unsafe {
        let flags = ProtFlags::READ | ProtFlags::WRITE;
        let page = mmap(std::ptr::null_mut(), 4096, flags, MapFlags::SHARED, file, 0).unwrap();
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), page.cast::<u8>().add(at), bytes.len());
        msync(page, 4096, MsyncFlags::SYNC).unwrap();
        munmap(page, 4096).unwrap();
    }
}

#[test]
fn appending_writers_lose_nothing() {
    in_both_modes(|mounted| {
        thread::scope(|scope| {
            for writer in 0..4_u8 {
                scope.spawn(move || {
                    let mut file = OpenOptions::new()
                        .append(true)
                        .create(true)
                        .open(mounted.path("log"))
                        .unwrap();
                    for _ in 0..200 {
                        file.write_all(&[b'a' + writer; 100]).unwrap();
                    }
                });
            }
        });
        let log = fs::read(mounted.origin("log")).unwrap();
        assert_eq!(log.len(), 4 * 200 * 100);
        assert!(log.chunks(100).all(|line| line.iter().all(|byte| *byte == line[0])));
    });
}

#[test]
fn writers_of_one_file_keep_their_places() {
    in_both_modes(|mounted| {
        open(mounted, "shared");
        thread::scope(|scope| {
            for writer in 0..8_u64 {
                scope.spawn(move || {
                    let file = open(mounted, "shared");
                    for i in 0..64 {
                        let at = (i * 8 + writer) * 1000;
                        file.write_all_at(&[u8::try_from(writer).unwrap() + 1; 1000], at).unwrap();
                    }
                });
            }
        });
        let bytes = fs::read(mounted.path("shared")).unwrap();
        assert_eq!(bytes, fs::read(mounted.origin("shared")).unwrap());
        for (i, part) in bytes.chunks(1000).enumerate() {
            assert!(part.iter().all(|byte| usize::from(*byte) == i % 8 + 1), "part {i}");
        }
    });
}

#[test]
fn an_unlinked_open_file_lives_on() {
    in_both_modes(|mounted| {
        let mut file = open(mounted, "f");
        file.write_all(b"before").unwrap();
        fs::remove_file(mounted.path("f")).unwrap();
        file.write_all(b" and after").unwrap();
        assert_eq!(file.metadata().unwrap().len(), 16);
        file.seek(SeekFrom::Start(0)).unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "before and after");
        file.set_len(3).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 3);
        assert!(!mounted.origin("f").exists());
    });
}

#[test]
fn truncation_is_seen_at_once() {
    in_both_modes(|mounted| {
        let file = open(mounted, "f");
        file.write_all_at(&[7; 10_000], 0).unwrap();
        File::create(mounted.path("f")).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 0);
        file.write_all_at(b"x", 5000).unwrap();
        let bytes = fs::read(mounted.path("f")).unwrap();
        assert!(bytes[..5000].iter().all(|byte| *byte == 0), "old bytes came back");
        file.set_len(100).unwrap();
        file.set_len(6000).unwrap();
        assert_eq!(fs::read(mounted.path("f")).unwrap(), vec![0; 6000]);
    });
}

#[test]
fn holes_are_punched_and_found() {
    in_both_modes(|mounted| {
        let file = open(mounted, "f");
        file.write_all_at(&vec![1; 65536], 0).unwrap();
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&file, punch, 16384, 16384).unwrap();
        let mut bytes = vec![9; 65536];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes[16384..32768].iter().all(|byte| *byte == 0));
        assert!(bytes[32768..].iter().all(|byte| *byte == 1));
        let hole = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)).unwrap();
        let data = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(hole)).unwrap();
        assert_eq!((hole, data), (16384, 32768));
        let end = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(1 << 20)).unwrap_err();
        assert_eq!(end, Errno::NXIO);
        fallocate(&file, FallocateFlags::empty(), 0, 100_000).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 100_000);
        fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 1 << 20).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 100_000);
        fallocate(&file, FallocateFlags::ZERO_RANGE, 40_000, 8192).unwrap();
        file.read_exact_at(&mut bytes[..8192], 40_000).unwrap();
        assert!(bytes[..8192].iter().all(|byte| *byte == 0));
        let collapse = fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096).unwrap_err();
        assert_eq!(collapse, Errno::OPNOTSUPP);
    });
}

#[test]
fn shared_mappings_reach_the_origin() {
    in_both_modes(|mounted| {
        let file = open(mounted, "f");
        file.write_all_at(&[b'.'; 8192], 0).unwrap();
        poke(&file, 100, b"mapped");
        assert_eq!(&fs::read(mounted.origin("f")).unwrap()[100..106], b"mapped");
        let mut bytes = [0; 6];
        file.read_exact_at(&mut bytes, 100).unwrap();
        assert_eq!(&bytes, b"mapped");
    });
}

#[test]
fn mapped_pages_keep_their_place_through_an_appending_handle() {
    in_both_modes(|mounted| {
        fs::write(mounted.path("f"), [b'.'; 4096]).unwrap();
        let file = OpenOptions::new().read(true).append(true).open(mounted.path("f")).unwrap();
        poke(&file, 10, b"here");
        let bytes = fs::read(mounted.origin("f")).unwrap();
        assert_eq!((bytes.len(), &bytes[10..14]), (4096, &b"here"[..]));
    });
}

#[test]
fn locks_exclude_each_other() {
    in_both_modes(|mounted| {
        let (one, two) = (open(mounted, "f"), open(mounted, "f"));
        flock(&one, FlockOperation::LockExclusive).unwrap();
        let refused = flock(&two, FlockOperation::NonBlockingLockExclusive).unwrap_err();
        assert_eq!(refused, Errno::WOULDBLOCK);
        flock(&one, FlockOperation::Unlock).unwrap();
        flock(&two, FlockOperation::NonBlockingLockExclusive).unwrap();
        // Record locks belong to a process: ask as another one.
        fcntl_lock(&one, FlockOperation::NonBlockingLockExclusive).unwrap();
        let script = "import fcntl,sys\nf=open(sys.argv[1],'r+')\n\
                      try: fcntl.lockf(f,fcntl.LOCK_EX|fcntl.LOCK_NB)\n\
                      except BlockingIOError: sys.exit(42)\n";
        let other = std::process::Command::new("python3")
            .args(["-c", script])
            .arg(mounted.path("f"))
            .status();
        if let Ok(status) = other {
            assert_eq!(status.code(), Some(42));
        }
    });
}

#[test]
fn direct_io_needs_no_alignment() {
    in_both_modes(|mounted| {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .custom_flags(libc::O_DIRECT)
            .open(mounted.path("f"))
            .unwrap();
        file.write_all_at(b"odd bytes", 13).unwrap();
        let mut bytes = [0; 9];
        file.read_exact_at(&mut bytes, 13).unwrap();
        assert_eq!(&bytes, b"odd bytes");
    });
}

#[test]
fn a_copy_in_the_kernel_is_a_copy() {
    in_both_modes(|mounted| {
        let (from, to) = (open(mounted, "from"), open(mounted, "to"));
        let bytes: Vec<u8> = (0..300_000_u32).map(|i| i.to_le_bytes()[0]).collect();
        from.write_all_at(&bytes, 0).unwrap();
        let mut left = bytes.len();
        while left > 0 {
            let copied = rustix::fs::copy_file_range(&from, None, &to, None, left).unwrap();
            assert!(copied > 0);
            left -= copied;
        }
        assert_eq!(fs::read(mounted.origin("to")).unwrap(), bytes);
    });
}
