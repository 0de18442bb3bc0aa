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

/// The emulation takes real time, and so does other work on the machine, which can only add to it:
/// one of three measurements must be undisturbed.
fn assert_recovered(device: EmulatedDevice) {
    let mut disturbed = Vec::new();
    for _ in 0..3 {
        let dir = tempfile::tempdir().unwrap();
        let (found, wanted) = (measure(dir.path(), device), expected(&device, effort().span));
        assert_eq!(found.requests, 4 * 3 * 60);
        let mut strayed = strays("read", found.profile.read, wanted.read);
        strayed.extend(strays("write", found.profile.write, wanted.write));
        if strayed.is_empty() {
            return;
        }
        disturbed.push(strayed);
    }
    panic!("{disturbed:#?}");
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
