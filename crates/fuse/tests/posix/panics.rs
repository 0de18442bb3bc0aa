//! A defect of one request costs that request, not a thread of the mount.

use std::fs::{self, File};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::channel;

use halocline_api::config::Config;
use halocline_cache::Decorations;
use halocline_cache::ExtentEngine;
use halocline_fuse::transport::uring;
use halocline_fuse::{MountOptions, Transport, mount};
use halocline_model::request::ByteRange;
use halocline_storage::device::{Device, ServerFile, Space};
use halocline_testkit::waiting::WAIT_LIMIT;
use halocline_vfs::Allocate;

use crate::harness::{errno, reason_to_skip, skip};

/// Where a read of the origin panics.
const TRAP: u64 = 1 << 20;
const THREADS: usize = 2;

/// An origin with a defect.
#[derive(Debug)]
struct Defective(Arc<dyn Device>);

impl Device for Defective {
    fn read_at(
        &self,
        file: &ServerFile,
        offset: u64,
        bufs: &mut [IoSliceMut<'_>],
    ) -> io::Result<usize> {
        assert!(offset < TRAP, "on purpose");
        self.0.read_at(file, offset, bufs)
    }

    fn write_at(&self, file: &ServerFile, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.0.write_at(file, offset, bufs)
    }

    fn allocate(&self, file: &ServerFile, range: ByteRange, how: Allocate) -> io::Result<()> {
        self.0.allocate(file, range, how)
    }

    fn truncate(&self, file: &ServerFile, len: u64) -> io::Result<()> {
        self.0.truncate(file, len)
    }

    fn sync(&self, file: &ServerFile, data_only: bool) -> io::Result<()> {
        self.0.sync(file, data_only)
    }

    fn space(&self) -> io::Result<Space> {
        self.0.space()
    }
}

/// Twice as many requests panic as there are threads: without one left nobody would answer the last
/// ones, nor the reads and the unmount after them.
fn panics_are_answered(transport: Transport) {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let at = |name: &str| dir.path().join(name);
    for name in ["origin", "cache", "mount"] {
        fs::create_dir(at(name)).expect("make a directory");
    }
    fs::write(at("origin/f"), vec![7; 2 << 20]).expect("write");
    let defective = |_: usize, device| Arc::new(Defective(device)) as Arc<dyn Device>;
    let around = Decorations { origin: &defective, ..Decorations::NONE };
    let config = Config::default();
    let engine =
        ExtentEngine::open_decorated(&at("origin"), &at("cache"), &config, around).expect("open");
    let mut options = MountOptions::new(at("mount"));
    options.threads = THREADS;
    options.transport = transport;
    // No pages of the kernel's: each read below is a request.
    options.direct = true;
    let session = mount(Arc::new(engine), &options).expect("mount");
    // A read that nobody answers cannot be interrupted here; the test must end nevertheless.
    let (told, done) = channel();
    let file = File::open(at("mount/f")).expect("open");
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        for _ in 0..4 * THREADS {
            assert_eq!(errno(file.read_at(&mut bytes, TRAP)), libc::EIO);
        }
        file.read_exact_at(&mut bytes, 0).expect("read");
        let _ = told.send(bytes == [7; 4096]);
    });
    let right = done.recv_timeout(WAIT_LIMIT);
    drop(session);
    assert_eq!(right, Ok(true), "a request was not answered");
}

#[test]
fn requests_that_panic_are_answered_and_end_no_thread() {
    if let Some(reason) = reason_to_skip() {
        return skip(reason);
    }
    panics_are_answered(Transport::Device);
    match uring::obstacle() {
        None => panics_are_answered(Transport::Ring),
        Some(obstacle) => skip(obstacle),
    }
}
