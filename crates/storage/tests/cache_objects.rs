//! The cache's objects on a real file system: names, lazy creation, bounded descriptors, barrier.

use std::path::Path;
use std::sync::Arc;

use halocline_model::layout::{CacheGeometry, Layout};
use halocline_storage::device::Device;
use halocline_storage::volume::ObjectKey;
use halocline_storage::volume::{CacheObjects, Volume};

const STRIPE: u64 = 4096;

fn objects(dir: &Path) -> CacheObjects {
    let plain = |_: usize, device: Arc<dyn Device>| device;
    let volume = Volume::in_directory(dir, 4, STRIPE, &plain).unwrap();
    CacheObjects::new(volume, CacheGeometry::new(4, STRIPE, 2))
}

#[test]
fn each_placement_has_its_own_object_on_its_own_servers() {
    let dir = tempfile::tempdir().unwrap();
    let objects = objects(dir.path());
    let mut keys = Vec::new();
    for (layout, owner) in [(Layout::OneDh, 0), (Layout::OneDv, 3), (Layout::TwoD, 1)] {
        let placement = objects.geometry().place(layout, owner);
        let file = objects.open(0x1234, placement).unwrap();
        file.write_at(3 * STRIPE, layout.name().as_bytes()).unwrap();
        keys.push(ObjectKey { file: 0x1234, placement });
    }
    let at = |server: u32, name: &str| {
        dir.path().join(format!("server-{server}/objects/34/0000000000001234.{name}")).exists()
    };
    assert!(at(3, "1dh0") && !at(0, "1dh0"), "stripe 3 of four servers");
    assert!(at(3, "1dv3") && !at(2, "1dv3"), "the owner's server");
    assert!(at(3, "2d1") && !at(2, "2d1") && !at(1, "2d1"), "stripe 3 of the group {{2, 3}}");
    assert_eq!(objects.list().unwrap(), keys);

    for key in &keys {
        let mut back = vec![9; 10];
        let file = objects.open(key.file, key.placement).unwrap();
        file.read_filled(3 * STRIPE, &mut back).unwrap();
        let name = key.placement.layout.name().as_bytes();
        assert_eq!(&back[..name.len()], name);
        assert!(back[name.len()..].iter().all(|&byte| byte == 0));
    }
    objects.remove(0x1234).unwrap();
    assert_eq!(objects.list().unwrap(), []);
    assert_eq!(objects.allocated_bytes().unwrap(), 0);
}

#[test]
fn reading_creates_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let objects = objects(dir.path());
    let file = objects.open(1, objects.geometry().place(Layout::OneDh, 0)).unwrap();
    let mut back = vec![7; 5 * 4096];
    file.read_filled(100, &mut back).unwrap();
    assert!(back.iter().all(|&byte| byte == 0));
    assert_eq!(objects.list().unwrap(), []);
}

#[test]
fn i5_allocated_bytes_are_the_blocks_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let objects = objects(dir.path());
    let file = objects.open(9, objects.geometry().place(Layout::OneDh, 0)).unwrap();
    file.write_at(1 << 30, &vec![1; 8 * 4096]).unwrap();
    objects.sync_dirty().unwrap();
    assert_eq!(objects.allocated_bytes().unwrap(), 8 * 4096);
    assert_eq!(file.allocated_bytes().unwrap(), 8 * 4096);
    file.punch(halocline_model::request::ByteRange::at(1 << 30, 4 * 4096)).unwrap();
    objects.sync_dirty().unwrap();
    assert_eq!(objects.allocated_bytes().unwrap(), 4 * 4096);
}

#[test]
fn open_descriptors_stay_bounded_and_nothing_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let objects = objects(dir.path()).with_open_files_max(16);
    let placement = objects.geometry().place(Layout::OneDv, 2);
    let held = objects.open(0, placement).unwrap();
    held.write_at(0, b"held").unwrap();
    for file in 1..200_u64 {
        objects.open(file, placement).unwrap().write_at(8, &file.to_le_bytes()).unwrap();
    }
    let under = dir.path().canonicalize().unwrap();
    let open = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(Result::ok);
    let open = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let open = open.filter(|path| path.starts_with(&under) && path.is_file()).count();
    assert!(open <= 16, "{open} objects open");
    assert!(Arc::ptr_eq(&held, &objects.open(0, placement).unwrap()), "one object, one file");
    for file in 1..200_u64 {
        let mut back = [0; 8];
        objects.open(file, placement).unwrap().read_at(8, &mut back).unwrap();
        assert_eq!(u64::from_le_bytes(back), file);
    }
    assert_eq!(objects.list().unwrap().len(), 200);
}

#[test]
fn names_of_others_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let objects = objects(dir.path());
    let own = objects.open(0xff, objects.geometry().place(Layout::OneDv, 0)).unwrap();
    own.write_at(0, b"x").unwrap();
    let place = dir.path().join("server-0/objects/ff");
    for name in ["notes.txt", "ff.1dv0", "00000000000000ff.1dv00", "00000000000000ff.9d0"] {
        std::fs::write(place.join(name), b"mine").unwrap();
    }
    assert_eq!(objects.list().unwrap().len(), 1);
    objects.remove(0xff).unwrap();
    assert_eq!(std::fs::read_dir(place).unwrap().count(), 4);
}

/// I4: a process that was killed may have made an object a moment ago. Only its bytes were synced
/// by the next one, and a power cut took the name that they were under.
#[test]
fn i4_the_name_of_an_object_that_was_found_is_synced_too() {
    let dir = tempfile::tempdir().unwrap();
    let key = |objects: &CacheObjects| objects.geometry().place(Layout::OneDv, 0);
    let killed = objects(dir.path());
    killed.open(1, key(&killed)).unwrap().write_at(0, b"acknowledged").unwrap();
    let found = objects(dir.path());
    let file = found.open(1, key(&found)).unwrap();
    file.read_filled(0, &mut [0; 12]).unwrap();
    // A directory that cannot be synced stands for one that is not.
    let (here, away) = (dir.path().join("server-0/objects"), dir.path().join("away"));
    std::fs::rename(&here, &away).unwrap();
    assert_eq!(file.sync(true).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    std::fs::rename(&away, &here).unwrap();
    assert!(file.is_unsyncable(), "it is never taken for durable");
}
