//! Calibration finds the parameters of an emulated device within 10 %.

use std::path::Path;
use std::sync::Arc;

use halocline_core::calibrate::{Calibration, Effort, calibrate};
use halocline_core::config::{EmulatedDevice, EmulatedHdd, EmulatedSsd};
use halocline_core::device::emulate::{EmulatedServer, expected};
use halocline_core::device::local::LocalDevice;
use halocline_core::device::{Device, emulate};
use halocline_model::profile::ServiceProfile;

/// Small enough that the emulated time, not the real one, is what passes: some seconds.
fn effort() -> Effort {
    Effort { span: 32 << 20, requests: 60, sizes: vec![4096, 32_768, 262_144], direct: false }
}

fn measure(dir: &Path, device: EmulatedDevice) -> Calibration {
    let local = Arc::new(LocalDevice::open(dir).unwrap());
    let server = EmulatedServer::new(device, local);
    let mut steps = Vec::new();
    let found = calibrate(dir, &server, &effort(), &mut |done, total| steps.push((done, total)));
    assert!(steps.is_sorted(), "progress goes one way");
    let (done, total) = steps.last().unwrap();
    assert_eq!(done, total);
    assert_eq!(std::fs::read_dir(dir).unwrap().count(), 0, "the scratch file is gone");
    found.unwrap()
}

fn assert_within_tenth(what: &str, found: u64, wanted: u64) {
    let error = found.abs_diff(wanted);
    assert!(error * 10 <= wanted, "{what}: {found} ps found, {wanted} ps emulated");
}

fn assert_service(direction: &str, found: ServiceProfile, wanted: ServiceProfile) {
    let random = wanted.startup_random_ps;
    assert_within_tenth(&format!("{direction} random"), found.startup_random_ps, random);
    assert_within_tenth(&format!("{direction} byte"), found.per_byte_ps, wanted.per_byte_ps);
    if wanted.startup_sequential_ps == 0 {
        let small = found.startup_sequential_ps;
        assert!(small * 10 <= random, "{direction} sequential: {small} ps found, none emulated");
    } else {
        let (found, wanted) = (found.startup_sequential_ps, wanted.startup_sequential_ps);
        assert_within_tenth(&format!("{direction} sequential"), found, wanted);
    }
}

fn assert_recovered(device: EmulatedDevice) {
    let dir = tempfile::tempdir().unwrap();
    let (found, wanted) = (measure(dir.path(), device), expected(&device, effort().span));
    assert_service("read", found.profile.read, wanted.read);
    assert_service("write", found.profile.write, wanted.write);
    assert_eq!(found.requests, 4 * 3 * 60);
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

#[test]
fn a_server_without_room_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let device = LocalDevice::open(dir.path()).unwrap();
    let span = device.space().unwrap().available;
    let effort = Effort { span, ..effort() };
    let error = calibrate(dir.path(), &device, &effort, &mut |_, _| ()).unwrap_err().to_string();
    assert!(error.contains("free") && error.contains("smaller"), "{error}");
}

#[test]
fn the_builtin_profiles_expect_what_their_kind_does() {
    let hdd = emulate::expected(&EmulatedDevice::Hdd(EmulatedHdd::default()), 250_000_000_000);
    let ms = hdd.read.startup_random_ps / 1_000_000_000;
    assert!((10..=15).contains(&ms), "a random request on a whole 7200 rpm disk: {ms} ms");
    let ssd = emulate::expected(&EmulatedDevice::Ssd(EmulatedSsd::default()), 1 << 30);
    assert!(ssd.read.startup_random_ps * 20 < hdd.read.startup_random_ps);
}
