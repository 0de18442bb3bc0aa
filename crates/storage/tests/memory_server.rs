//! A server in memory is told apart from a directory by nothing but its speed.

use std::io::{IoSlice, IoSliceMut};
use std::path::Path;

use halocline_model::request::ByteRange;
use halocline_storage::device::directory::LocalDirectory;
use halocline_storage::device::local::LocalDevice;
use halocline_storage::device::memory::MemoryServer;
use halocline_storage::device::{Device, Directory, ServerFile};
use halocline_vfs::Allocate;
use proptest::prelude::*;
use rustix::fs::SeekFrom;

#[derive(Debug, Clone)]
enum Op {
    Write { at: u64, len: usize, seed: u8 },
    Truncate { len: u64 },
    Allocate { range: ByteRange, how: Allocate },
}

fn op() -> impl Strategy<Value = Op> {
    let (at, len) = (0..20_000u64, 0..9_000usize);
    let how = prop_oneof![
        Just(Allocate::PunchHole),
        Just(Allocate::Reserve),
        Just(Allocate::ReserveKeepSize),
        Just(Allocate::Zero { keep_size: true }),
        Just(Allocate::Zero { keep_size: false }),
    ];
    prop_oneof![
        4 => (at.clone(), len, any::<u8>()).prop_map(|(at, len, seed)| Op::Write { at, len, seed }),
        1 => at.clone().prop_map(|len| Op::Truncate { len }),
        2 => (at, 1..9_000u64, how)
            .prop_map(|(at, len, how)| Op::Allocate { range: ByteRange::new(at, at + len), how }),
    ]
}

fn apply(device: &dyn Device, file: &ServerFile, op: &Op) {
    match *op {
        Op::Write { at, len, seed } => {
            let data: Vec<u8> = (0..len).map(|i| seed.wrapping_add(i.to_le_bytes()[0])).collect();
            let (head, tail) = data.split_at(len / 3);
            device.write_at(file, at, &[IoSlice::new(head), IoSlice::new(tail)]).unwrap();
        }
        Op::Truncate { len } => device.truncate(file, len).unwrap(),
        Op::Allocate { range, how } => device.allocate(file, range, how).unwrap(),
    }
}

fn content(device: &dyn Device, file: &ServerFile) -> Vec<u8> {
    let (mut head, mut tail) = (vec![0xEE; 1234], vec![0xEE; 40_000]);
    let mut bufs = [IoSliceMut::new(&mut head), IoSliceMut::new(&mut tail)];
    let got = device.read_at(file, 100, &mut bufs).unwrap();
    let mut all = [head, tail].concat();
    all.truncate(got);
    all
}

/// Data and holes in turn, to the end.
fn holes(file: &ServerFile) -> Vec<u64> {
    let (mut at, mut found) = (0, Vec::new());
    while let Ok(data) = file.seek(SeekFrom::Data(at)) {
        at = file.seek(SeekFrom::Hole(data)).unwrap();
        found.extend([data, at]);
    }
    found
}

proptest! {
    #[test]
    fn it_holds_what_a_directory_holds(ops in prop::collection::vec(op(), 1..40)) {
        let dir = tempfile::tempdir().unwrap();
        let root = std::fs::File::open(dir.path()).unwrap();
        let local = LocalDevice::open(dir.path()).unwrap();
        let names = LocalDirectory::new(root, dir.path().to_owned(), false);
        let memory = MemoryServer::default();
        let path = Path::new("objects/0a/file");
        let (real, simulated) = (names.create(path).unwrap(), memory.create(path).unwrap());
        for op in &ops {
            apply(&local, &real, op);
            apply(&memory, &simulated, op);
            prop_assert_eq!(real.size().unwrap(), simulated.size().unwrap(), "{:?}", op);
            prop_assert!(content(&local, &real) == content(&memory, &simulated), "{:?}", op);
        }
        // Which zeros are holes differs between file systems: there is no data in any.
        let mut all = vec![0; usize::try_from(simulated.size().unwrap()).unwrap()];
        memory.read_at(&simulated, 0, &mut [IoSliceMut::new(&mut all)]).unwrap();
        let index = |at: u64| usize::try_from(at).unwrap();
        for data in holes(&simulated).chunks_exact(2) {
            all[index(data[0])..index(data[1])].fill(0);
        }
        prop_assert!(all.iter().all(|byte| *byte == 0));
    }
}

fn names_of(directory: &dyn Directory) -> Vec<Vec<String>> {
    let sorted = |path: &str| {
        let names = directory.names(Path::new(path)).unwrap();
        let mut names: Vec<_> =
            names.iter().map(|name| name.to_str().unwrap().to_owned()).collect();
        names.sort();
        names
    };
    ["", "objects", "objects/0a", "none"].map(sorted).to_vec()
}

#[test]
fn its_names_are_those_of_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let root = std::fs::File::open(dir.path()).unwrap();
    let local = LocalDirectory::new(root, dir.path().to_owned(), false);
    let memory = MemoryServer::default();
    let all: [&dyn Directory; 2] = [&local, &memory];
    for directory in all {
        assert!(directory.open(Path::new("objects/0a/1")).unwrap().is_none());
        for path in ["objects/0a/1", "objects/0a/2", "objects/0b/3"] {
            directory.create(Path::new(path)).unwrap();
        }
        let rename = |from: &str, to: &str| {
            directory.rename(Path::new(from), Path::new(to)).err().map(|e| e.kind())
        };
        assert_eq!(rename("objects/0a/1", "objects/0a/2"), Some(std::io::ErrorKind::AlreadyExists));
        assert_eq!(rename("objects/0a/1", "objects/0a/4"), None);
        assert_eq!(rename("objects/0a/1", "objects/0a/5"), Some(std::io::ErrorKind::NotFound));
        directory.remove(Path::new("objects/0a/2")).unwrap();
        directory.remove(Path::new("objects/0a/2")).unwrap();
        assert_eq!(directory.allocated_of(Path::new("objects/0a/2")).unwrap(), 0);
    }
    assert_eq!(names_of(&local), names_of(&memory));
    assert_eq!(names_of(&memory)[2], ["4"]);
}
