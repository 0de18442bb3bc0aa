//! Direct and cached users of one file.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use halocline_fuse::Transport;
use halocline_fuse::transport::uring;
use io_uring::{IoUring, opcode, types};

use crate::harness::{Kind, mounted_with, skip};

const SIZE: usize = 640 << 10;
const ROUNDS: usize = 100;

/// Writes all of `data` through a direct handle without waiting in the call.
fn write_asynchronously(path: &Path, data: &[u8]) {
    let file = fs::OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .expect("open past the page cache");
    let mut ring = IoUring::new(2).expect("a ring");
    let len = u32::try_from(data.len()).expect("small");
    let write = opcode::Write::new(types::Fd(file.as_raw_fd()), data.as_ptr(), len);
    // SAFETY: the file and the bytes outlive the wait for the completion.
    unsafe { ring.submission().push(&write.build()) }.expect("room for one");
    ring.submit_and_wait(1).expect("waited");
    let completion = ring.completion().next().expect("one");
    assert_eq!(completion.result(), i32::try_from(data.len()).expect("small"));
}

/// A page that was read while an asynchronous direct write was on its way kept the old bytes.
#[test]
fn i1_cached_reads_find_what_asynchronous_direct_writes_wrote() {
    if let Err(error) = IoUring::new(2) {
        return skip(format_args!("no io_uring: {error}"));
    }
    let ring = uring::obstacle().is_none().then_some(Transport::Ring);
    for transport in ring.into_iter().chain([Transport::Device]) {
        for kind in [Kind::Plain, Kind::Tier, Kind::Moving] {
            let Some(mounted) = mounted_with(kind, false, |options| options.transport = transport)
            else {
                return;
            };
            let path = mounted.path("f");
            fs::write(&path, vec![0; SIZE]).expect("write");
            let stop = AtomicBool::new(false);
            std::thread::scope(|threads| {
                for _ in 0..2 {
                    threads.spawn(|| {
                        let mut bytes = vec![0; SIZE];
                        let held = File::open(&path).expect("open");
                        while !stop.load(Ordering::Relaxed) {
                            held.read_exact_at(&mut bytes, 0).expect("read");
                            let opened = File::open(&path).expect("open");
                            opened.read_exact_at(&mut bytes, 0).expect("read");
                        }
                    });
                }
                let wrong = (0..ROUNDS).find_map(|round| {
                    let new = u8::try_from(round % 250 + 1).expect("small");
                    write_asynchronously(&path, &vec![new; SIZE]);
                    let bytes = fs::read(&path).expect("read");
                    let old = bytes.iter().position(|byte| *byte != new);
                    old.map(|at| format!("round {round}: byte {at} is old"))
                });
                stop.store(true, Ordering::Relaxed);
                assert_eq!(wrong, None, "{transport:?}, {kind:?}");
            });
        }
    }
}
