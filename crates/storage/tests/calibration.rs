//! Calibration finds the parameters of an emulated device within 10 %, in simulated time: other work on the machine adds to
//! the real one.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use halocline_api::config::{EmulatedDevice, EmulatedHdd, EmulatedSsd};
use halocline_model::profile::ServiceProfile;
use halocline_model::request::ByteRange;
use halocline_os::clock::Clock;
use halocline_storage::calibrate::{Calibration, Effort, calibrate};
use halocline_storage::device::emulate::{EmulatedServer, expected};
use halocline_storage::device::local::LocalDevice;
use halocline_storage::device::{Device, ServerFile, Space, emulate};
use halocline_vfs::Allocate;
use parking_lot::Mutex;

fn effort(clock: &Clock) -> Effort {
    Effort {
        span: 32 << 20,
        requests: 60,
        sizes: vec![4096, 32_768, 262_144],
        direct: false,
        network: false,
        clock: clock.clone(),
    }
}

fn measure(dir: &Path, device: EmulatedDevice) -> Calibration {
    let local = Arc::new(LocalDevice::open(dir).unwrap());
    let clock = Clock::simulated();
    let server = EmulatedServer::new(device, local).timed_by(&clock);
    let mut steps = Vec::new();
    let found =
        calibrate(dir, &server, &effort(&clock), &mut |done, total| steps.push((done, total)));
    assert!(steps.is_sorted(), "progress goes one way");
    let (done, total) = steps.last().unwrap();
    assert_eq!(done, total);
    assert_eq!(std::fs::read_dir(dir).unwrap().count(), 0, "the scratch file is gone");
    found.unwrap()
}

/// What of `found` is not within a tenth of `wanted`.
fn strays(direction: &str, found: ServiceProfile, wanted: ServiceProfile) -> Vec<String> {
    let (random, sequential) = (wanted.startup_random_ps, wanted.startup_sequential_ps);
    // Where none is emulated, next to nothing must be found.
    let allowed = if sequential == 0 { random } else { sequential };
    [
        ("random", found.startup_random_ps, random, random),
        ("byte", found.per_byte_ps, wanted.per_byte_ps, wanted.per_byte_ps),
        ("sequential", found.startup_sequential_ps, sequential, allowed),
    ]
    .into_iter()
    .filter(|(_, found, wanted, of)| found.abs_diff(*wanted) * 10 > *of)
    .map(|(what, found, wanted, _)| {
        format!("{direction} {what}: {found} ps found, {wanted} ps emulated")
    })
    .collect()
}

fn assert_recovered(device: EmulatedDevice) {
    let dir = tempfile::tempdir().unwrap();
    let found = measure(dir.path(), device);
    let wanted = expected(&device, effort(&Clock::MACHINE).span);
    assert_eq!(found.requests, 4 * 3 * 60);
    let mut strayed = strays("read", found.profile.read, wanted.read);
    strayed.extend(strays("write", found.profile.write, wanted.write));
    assert!(strayed.is_empty(), "{strayed:#?}");
}

#[test]
fn an_emulated_disk_is_recovered() {
    assert_recovered(EmulatedDevice::Hdd(EmulatedHdd {
        seek_ms_min: 0.5,
        seek_ms_max: 10.0,
        rpm: 20_000.0,
        mb_per_s: 90.0,
        capacity_gb: 1.0,
    }));
}

#[test]
fn an_emulated_ssd_is_recovered() {
    assert_recovered(EmulatedDevice::Ssd(EmulatedSsd {
        read_startup_us: 700.0,
        write_startup_us: 1100.0,
        read_mb_per_s: 320.0,
        write_mb_per_s: 200.0,
        channels: 4,
    }));
}

/// A server on another machine: a network path, a device, and in memory what was read last.
#[derive(Debug)]
struct RemoteServer {
    memory: LocalDevice,
    device: EmulatedServer,
    in_memory: Mutex<(u64, usize)>,
    clock: Clock,
}

/// What a request waits on the network, and a byte of it, nanoseconds.
const WAY_NS: (u64, u64) = (400_000, 8);

impl RemoteServer {
    fn pass_way(&self, bytes: usize) {
        self.clock.sleep(Duration::from_nanos(WAY_NS.0 + WAY_NS.1 * bytes as u64));
    }
}

impl Device for RemoteServer {
    fn read_at(
        &self,
        file: &ServerFile,
        offset: u64,
        bufs: &mut [IoSliceMut<'_>],
    ) -> io::Result<usize> {
        let read = (offset, bufs.iter().map(|buf| buf.len()).sum());
        self.pass_way(read.1);
        let before = mem::replace(&mut *self.in_memory.lock(), read);
        let device: &dyn Device = if before == read { &self.memory } else { &self.device };
        device.read_at(file, offset, bufs)
    }

    fn write_at(&self, file: &ServerFile, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.pass_way(bufs.iter().map(|buf| buf.len()).sum());
        self.device.write_at(file, offset, bufs)
    }

    fn allocate(&self, file: &ServerFile, range: ByteRange, how: Allocate) -> io::Result<()> {
        self.device.allocate(file, range, how)
    }

    fn truncate(&self, file: &ServerFile, len: u64) -> io::Result<()> {
        self.device.truncate(file, len)
    }

    fn sync(&self, file: &ServerFile, data_only: bool) -> io::Result<()> {
        self.device.sync(file, data_only)
    }

    fn space(&self) -> io::Result<Space> {
        self.device.space()
    }
}

#[test]
fn the_way_to_a_server_is_told_from_its_device() {
    let ssd = EmulatedDevice::Ssd(EmulatedSsd {
        read_startup_us: 3000.0,
        write_startup_us: 4000.0,
        read_mb_per_s: 60.0,
        write_mb_per_s: 50.0,
        channels: 4,
    });
    let dir = tempfile::tempdir().unwrap();
    let clock = Clock::simulated();
    let local = || LocalDevice::open(dir.path()).unwrap();
    let server = RemoteServer {
        memory: local(),
        device: EmulatedServer::new(ssd, Arc::new(local())).timed_by(&clock),
        in_memory: Mutex::default(),
        clock: clock.clone(),
    };
    let effort = Effort { network: true, ..effort(&clock) };
    let found = calibrate(dir.path(), &server, &effort, &mut |_, _| ()).unwrap();
    let (network, wanted) = (found.network.unwrap(), expected(&ssd, effort.span));
    let mut strayed = strays("read", found.device().read, wanted.read);
    strayed.extend(strays("write", found.device().write, wanted.write));
    assert!(strayed.is_empty(), "{strayed:#?}");
    let (startup_ps, per_byte_ps) = (WAY_NS.0 * 1000, WAY_NS.1 * 1000);
    assert!(network.startup_ps.abs_diff(startup_ps) * 10 <= startup_ps, "{network:?}");
    assert!(network.per_byte_ps.abs_diff(per_byte_ps) * 10 <= per_byte_ps, "{network:?}");
}

#[test]
fn a_server_without_room_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let device = LocalDevice::open(dir.path()).unwrap();
    let span = device.space().unwrap().available;
    let effort = Effort { span, ..effort(&Clock::MACHINE) };
    let error = calibrate(dir.path(), &device, &effort, &mut |_, _| ()).unwrap_err().to_string();
    assert!(
        error.contains("free") && error.contains("smaller") && error.contains("--span"),
        "{error}"
    );
    // The requests need it as large as that.
    let sizes = vec![4096, span / 8192 * 4096];
    let effort = Effort { span: span / 4096 * 4096, sizes, ..effort };
    let error = calibrate(dir.path(), &device, &effort, &mut |_, _| ()).unwrap_err().to_string();
    assert!(error.contains("until there are") && !error.contains("smaller"), "{error}");
}

#[test]
fn the_builtin_profiles_expect_what_their_kind_does() {
    let hdd = emulate::expected(&EmulatedDevice::Hdd(EmulatedHdd::default()), 250_000_000_000);
    let ms = hdd.read.startup_random_ps / 1_000_000_000;
    assert!((10..=15).contains(&ms), "a random request on a whole 7200 rpm disk: {ms} ms");
    let ssd = emulate::expected(&EmulatedDevice::Ssd(EmulatedSsd::default()), 1 << 30);
    assert!(ssd.read.startup_random_ps * 20 < hdd.read.startup_random_ps);
}
