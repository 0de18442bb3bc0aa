//! Faults and meters around a real directory, and what a striped volume makes of them.

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

use halocline_model::request::{ByteRange, Direction};
use halocline_model::striping::Striping;
use halocline_storage::device::fault::{Effect, Faults, FaultyDevice, Operation, When};
use halocline_storage::device::local::LocalDevice;
use halocline_storage::device::meter::{Meter, MeteredDevice};
use halocline_storage::device::piecewise::PiecewiseDevice;
use halocline_storage::device::{Device, ServerFile};
use halocline_storage::volume::{Volume, VolumeFile};
use halocline_testkit::waiting::WAIT_LIMIT;

struct Scratch {
    _dir: tempfile::TempDir,
    file: ServerFile,
    faults: Arc<Faults>,
    device: FaultyDevice,
}

fn scratch() -> Scratch {
    let dir = tempfile::tempdir().unwrap();
    let faults = Arc::new(Faults::default());
    let local = Arc::new(LocalDevice::open(dir.path()).unwrap());
    let device = FaultyDevice::new(local, Arc::clone(&faults));
    let file = ServerFile::new(tempfile::tempfile_in(dir.path()).unwrap()).unwrap();
    Scratch { _dir: dir, file, faults, device }
}

fn errno<T>(outcome: std::io::Result<T>) -> Option<i32> {
    outcome.err().and_then(|error| error.raw_os_error())
}

#[test]
fn only_the_nth_matching_operation_fails() {
    let Scratch { file, faults, device, .. } = &scratch();
    faults.set(Some(Operation::Write), Effect::Errno(libc::EIO), When::Nth(2));
    let write = || device.write_at(file, 0, &[IoSlice::new(b"x")]);
    let mut back = [0];
    for expected in [None, None, Some(libc::EIO), None] {
        device.read_at(file, 0, &mut [IoSliceMut::new(&mut back)]).unwrap();
        assert_eq!(errno(write()), expected);
    }
    assert_eq!(faults.hits(), 1);
}

#[test]
fn faults_from_the_nth_on_last_until_cleared() {
    let Scratch { file, faults, device, .. } = &scratch();
    faults.set(None, Effect::Errno(libc::ENOSPC), When::From(1));
    assert_eq!(errno(device.sync(file, true)), None);
    assert_eq!(errno(device.truncate(file, 5)), Some(libc::ENOSPC));
    let punch = halocline_vfs::Allocate::PunchHole;
    assert_eq!(errno(device.allocate(file, ByteRange::at(0, 1), punch)), Some(libc::ENOSPC));
    assert_eq!(file.size().unwrap(), 0, "a failed truncate did nothing");
    faults.clear();
    assert_eq!(errno(device.truncate(file, 5)), None);
}

#[test]
fn short_transfers_move_half() {
    let Scratch { file, faults, device, .. } = &scratch();
    device.write_at(file, 0, &[IoSlice::new(b"........")]).unwrap();
    faults.set(Some(Operation::Write), Effect::Short, When::Nth(0));
    let bufs = [IoSlice::new(b"abc"), IoSlice::new(b"defgh")];
    assert_eq!(errno(device.write_at(file, 0, &bufs)), Some(libc::ENOSPC));
    faults.set(Some(Operation::Read), Effect::Short, When::Nth(1));
    let mut back = [0; 8];
    assert_eq!(device.read_at(file, 0, &mut [IoSliceMut::new(&mut back)]).unwrap(), 8);
    assert_eq!(&back, b"abcd....");
    assert_eq!(device.read_at(file, 0, &mut [IoSliceMut::new(&mut back)]).unwrap(), 4);
}

#[test]
fn a_stall_lasts_until_it_is_cleared() {
    let Scratch { file, faults, device, .. } = &scratch();
    faults.set(Some(Operation::Write), Effect::Stall, When::Always);
    std::thread::scope(|scope| {
        let write = scope.spawn(|| device.write_at(file, 0, &[IoSlice::new(b"late")]));
        while faults.stalled() == 0 {
            std::thread::yield_now();
        }
        assert!(!write.is_finished());
        assert_eq!(file.size().unwrap(), 0);
        faults.clear();
        write.join().unwrap().unwrap();
    });
    assert_eq!(file.size().unwrap(), 4);
}

/// The fault was cleared between the decision to linger and the end of the operation, which then
/// waited for the next clear: a test of schedules hung in CI.
#[test]
fn an_operation_does_not_linger_for_a_fault_that_is_cleared_meanwhile() {
    let Scratch { file, faults: below, device, .. } = scratch();
    let faults = Arc::new(Faults::default());
    let device = FaultyDevice::new(Arc::new(device), Arc::clone(&faults));
    faults.set(None, Effect::Linger, When::Nth(0));
    below.set(None, Effect::Stall, When::Nth(0));
    let (send, done) = std::sync::mpsc::channel();
    std::thread::spawn(move || send.send(device.truncate(&file, 5)));
    while below.stalled() == 0 {
        std::thread::yield_now();
    }
    faults.clear();
    below.clear();
    done.recv_timeout(WAIT_LIMIT).expect("it goes on").unwrap();
}

#[test]
fn writes_in_pieces_arrive_whole() {
    const PIECE: usize = 256 << 10;
    let Scratch { file, faults, device, .. } = scratch();
    let device = PiecewiseDevice::new(Arc::new(device));
    let data: Vec<u8> = (0..1_200_000_u32).map(|at| at.to_le_bytes()[at as usize % 3]).collect();
    for (offset, cuts) in [(0, [0, 1_200_000]), (5, [1, 280_000]), (PIECE as u64 - 1, [2, PIECE])] {
        let bufs = [&data[..cuts[0]], &data[cuts[0]..cuts[1]], &data[cuts[1]..]].map(IoSlice::new);
        device.write_at(&file, offset, &bufs).unwrap();
        let mut back = vec![0; data.len()];
        device.read_at(&file, offset, &mut [IoSliceMut::new(&mut back)]).unwrap();
        assert!(back == data, "at {offset}");
        assert_eq!(file.size().unwrap(), offset + 1_200_000);
    }
    // The second of two pieces fails: the first has arrived.
    faults.set(Some(Operation::Write), Effect::Errno(libc::EIO), When::Nth(1));
    let ones = vec![1; 2 * PIECE];
    assert_eq!(errno(device.write_at(&file, 0, &[IoSlice::new(&ones)])), Some(libc::EIO));
    let mut back = vec![0; 2 * PIECE];
    device.read_at(&file, 0, &mut [IoSliceMut::new(&mut back)]).unwrap();
    assert!(back[..PIECE] == ones[..PIECE] && back[PIECE..] != ones[PIECE..]);
}

#[test]
fn a_meter_counts_by_direction() {
    let Scratch { file, faults, device, .. } = scratch();
    let meter = Arc::new(Meter::default());
    let device = MeteredDevice::new(Arc::new(device), Arc::clone(&meter));
    device.write_at(&file, 0, &[IoSlice::new(b"abc"), IoSlice::new(b"de")]).unwrap();
    faults.set(Some(Operation::Write), Effect::Errno(libc::EIO), When::Nth(0));
    device.write_at(&file, 0, &[IoSlice::new(b"abc")]).unwrap_err();
    device.read_at(&file, 3, &mut [IoSliceMut::new(&mut [0; 10])]).unwrap();
    device.sync(&file, true).unwrap();
    let (read, write) = (meter.traffic(Direction::Read), meter.traffic(Direction::Write));
    assert_eq!((read.requests, read.bytes, read.errors), (1, 2, 0));
    assert_eq!((write.requests, write.bytes, write.errors), (2, 5, 1));
    assert_eq!(meter.other().requests, 1);
}

#[test]
fn a_striped_request_ends_whole_and_returns_its_first_error_in_file_order() {
    let dir = tempfile::tempdir().unwrap();
    let faults: Vec<Arc<Faults>> = (0..4).map(|_| Arc::default()).collect();
    let decorate = |index: usize, device: Arc<dyn Device>| -> Arc<dyn Device> {
        Arc::new(FaultyDevice::new(device, Arc::clone(&faults[index])))
    };
    let volume = Volume::in_directory(dir.path(), 4, 10, &decorate).unwrap();
    let file = VolumeFile::lazy(&volume, 0, Striping::new(4, 10), "file".as_ref());
    faults[0].set(None, Effect::Errno(libc::EIO), When::Always);
    faults[3].set(None, Effect::Errno(libc::ENOSPC), When::Always);
    // From stripe 2 on: servers 2, 3, 0, 1.
    assert_eq!(errno(file.write_at(20, &[7; 40])), Some(libc::ENOSPC));
    faults[3].clear();
    assert_eq!(errno(file.write_at(20, &[8; 40])), Some(libc::EIO));
    assert!(file.is_dirty(), "a part arrived");
    faults[0].clear();
    let mut back = [0; 40];
    file.read_filled(20, &mut back).unwrap();
    assert_eq!(back[..20], [8; 20], "servers 2 and 3 did their parts");
    assert_eq!(back[20..30], [0; 10], "server 0 failed");
    assert_eq!(back[30..], [8; 10], "server 1 did its part");
}

#[test]
fn what_could_not_be_synced_once_is_never_taken_for_durable() {
    let dir = tempfile::tempdir().unwrap();
    let faults: Arc<Faults> = Arc::default();
    let decorate = |_: usize, device: Arc<dyn Device>| -> Arc<dyn Device> {
        Arc::new(FaultyDevice::new(device, Arc::clone(&faults)))
    };
    let volume = Volume::in_directory(dir.path(), 2, 10, &decorate).unwrap();
    let file = VolumeFile::lazy(&volume, 0, Striping::new(2, 10), "file".as_ref());
    file.write_at(0, &[1; 20]).unwrap();
    faults.set(Some(Operation::Sync), Effect::Errno(libc::EIO), When::Always);
    assert_eq!(errno(file.sync(true)), Some(libc::EIO));
    assert!(file.is_dirty());
    faults.clear();
    // The system would say yes now, with the pages it could not write gone.
    assert_eq!(errno(file.sync(true)), Some(libc::EIO));
    assert!(file.is_dirty() && file.is_unsyncable());
}
