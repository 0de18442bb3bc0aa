//! How many requests the cache's device gets for one of a program's.

use halocline_api::config::{VolumeKind, VolumeShape};
use halocline_api::control::{Controlled, Health, Side};
use halocline_model::profile::{DeviceProfile, ServiceProfile};
use halocline_storage::device::fault::{Effect, Operation, When};
use halocline_vfs::Engine;

use crate::fixture::{Fixture, still};

const BLOCK: usize = 512;
const BLOCKS: usize = 16;

/// Reads and writes that the cache's device served.
fn served(fixture: &Fixture) -> (u64, u64) {
    let servers = fixture.engine().status().servers;
    let cache = servers.iter().find(|server| server.side == Side::Cache).unwrap();
    (cache.reads, cache.writes)
}

#[test]
fn clean_and_dirty_neighbours_are_one_request() {
    let fixture = Fixture::new(still(4 << 20, "always"));
    fixture.write("file", 0, &[1; BLOCK * BLOCKS]);
    fixture.flush();
    for block in (1..BLOCKS).step_by(2) {
        fixture.write("file", (block * BLOCK) as u64, &[2; BLOCK]);
    }
    let status = fixture.engine().status();
    assert_eq!((status.extents, status.dirty_extents), (16, 8), "clean and dirty take turns");

    let before = served(&fixture);
    let bytes = fixture.read("file", 0, BLOCK * BLOCKS);
    assert_eq!(served(&fixture), (before.0 + 1, before.1));
    assert!(
        bytes
            .chunks(BLOCK)
            .enumerate()
            .all(|(at, block)| block == [if at % 2 == 0 { 1 } else { 2 }; BLOCK])
    );

    fixture.write("file", 0, &[3; BLOCK * BLOCKS]);
    assert_eq!(served(&fixture), (before.0 + 1, before.1 + 1));
    assert_eq!(fixture.engine().status().dirty_bytes, (BLOCK * BLOCKS) as u64);
    assert_eq!(fixture.read("file", 0, BLOCK * BLOCKS), [3; BLOCK * BLOCKS]);
}

/// A disk that is about to fail, or one that others use too, decides wrongly for months.
#[test]
fn a_device_that_takes_longer_than_calibrated_is_told() {
    let slower = |startup_random_ps| {
        let startup_sequential_ps = 0;
        let service = ServiceProfile { startup_sequential_ps, startup_random_ps, per_byte_ps: 0 };
        let mut config = still(4 << 20, "never");
        config.devices.insert("/".into(), DeviceProfile { read: service, write: service });
        let fixture = Fixture::new(config);
        for at in 0..4096 {
            fixture.write("file", at * 512, &[1; 512]);
        }
        let servers = fixture.engine().status().servers;
        servers.iter().find(|server| server.side == Side::Origin).unwrap().slower
    };
    assert!(slower(1).is_some_and(|ratio| ratio > 1.5), "a request takes a picosecond at most");
    assert_eq!(slower(3_600_000_000_000_000), None, "it takes an hour at most");
}

/// Servers of a striped origin may be devices of several kinds, each with its own calibration: only that of the volume's
/// directory was looked at, which no device has.
#[test]
fn each_server_of_a_striped_origin_is_compared_with_its_own_calibration() {
    let profile = |startup_random_ps| {
        let startup_sequential_ps = 0;
        let service = ServiceProfile { startup_sequential_ps, startup_random_ps, per_byte_ps: 0 };
        DeviceProfile { read: service, write: service }
    };
    let mut config = still(4 << 20, "never");
    config.origin = VolumeShape { kind: VolumeKind::Striped, servers: 3, stripe: 512 };
    let mut fixture = Fixture::new(config);
    fixture.close();
    let server = |index| fixture.origin.path().join(format!("server-{index}"));
    // A picosecond at most, an hour at most, and nothing that anybody measured.
    let calibrated = [(server(0), profile(1)), (server(1), profile(3_600_000_000_000_000))];
    fixture.config.devices.extend(calibrated);
    fixture.open();
    for at in 0..3 * 4096 {
        fixture.write("file", at * 512, &[1; 512]);
    }
    let status = fixture.engine().status();
    let origin = status.servers.iter().filter(|server| server.side == Side::Origin);
    let slower: Vec<_> = origin.map(|server| server.slower).collect();
    assert!(slower[0].is_some_and(|ratio| ratio > 1.5), "{slower:?}");
    assert_eq!(slower[1..], [None, None]);
}

/// Neither is the cache's fault, but it took a rest for ten seconds each time: files that are longer
/// than the SSD's file system allows, and a disk that cannot be read.
#[test]
fn what_is_no_fault_of_the_cache_does_not_rest_it() {
    let fixture = Fixture::new(still(4 << 20, "always"));
    let is_well = || matches!(fixture.engine().status().health, Health::Ok);
    fixture.cache_faults.set(Some(Operation::Write), Effect::Errno(libc::EFBIG), When::Always);
    fixture.write("long", 0, &[1; BLOCK]);
    assert_eq!((fixture.read("long", 0, BLOCK), is_well()), (vec![1; BLOCK], true));
    fixture.cache_faults.clear();

    fixture.origin_faults.set(Some(Operation::Read), Effect::Errno(libc::EIO), When::Always);
    assert_eq!(fixture.warm("long").skipped.len(), 1);
    assert!(is_well());
    fixture.origin_faults.clear();
    fixture.write("short", 0, &[2; BLOCK]);
    assert_eq!(fixture.engine().status().dirty_extents, 1);
}

#[test]
fn a_directory_lists_what_is_cached_below_it() {
    let fixture = Fixture::new(still(4 << 20, "always"));
    std::fs::create_dir(fixture.origin.path().join("dir")).unwrap();
    std::fs::write(fixture.origin.path().join("other"), [1; BLOCK]).unwrap();
    let dir = fixture.vnode("dir");
    let engine = fixture.engine();
    for (name, len) in [("b", 2 * BLOCK), ("a", BLOCK)] {
        let place = (&dir, std::ffi::OsStr::new(name));
        let file = engine.create(place, 0o644, libc::O_RDWR, crate::fixture::BY).unwrap().2;
        engine.write(&file, 0, &vec![1; len], crate::fixture::ME).unwrap();
    }
    fixture.write("top", 0, &[1; BLOCK]);
    fixture.flush();
    fixture.write("top", 0, &[2; BLOCK]);
    let listed = |path: &str| {
        let tree = engine.cached(std::path::Path::new(path)).unwrap();
        let names = tree.files.iter().map(|file| file.path.display().to_string());
        (names.collect::<Vec<_>>().join(" "), tree.cached_bytes, tree.dirty_bytes)
    };
    let block = BLOCK as u64;
    assert_eq!(listed(""), ("dir/a dir/b top".to_owned(), 4 * block, block));
    assert_eq!(listed("dir"), ("dir/a dir/b".to_owned(), 3 * block, 0));
    assert_eq!(listed("other"), (String::new(), 0, 0));
}
