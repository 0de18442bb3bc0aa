//! Servers that lose their power: what was removed there and not synced is there again, whatever the others have noted since.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use halocline_api::config::{VolumeKind, VolumeShape};
use halocline_model::file_layout::FileLayout;
use parking_lot::Mutex;

use super::super::identity::ObjectNumber;
use super::super::move_notes::{MOVING, MoveNotes};
use super::*;
use crate::device::{Directory, ServerFile};
use crate::volume::Volume;

/// The names of a server whose removals are in memory until they are synced.
#[derive(Debug)]
struct ForgetfulDirectory {
    below: Arc<Server>,
    disk: Arc<Disks>,
}

/// What all servers have.
#[derive(Debug, Default)]
struct Disks {
    /// Objects that were removed and would come back.
    unsynced: Mutex<Vec<(PathBuf, PathBuf)>>,
    /// Whether such an object was not noted any longer.
    has_forgotten: AtomicUsize,
    syncs: AtomicUsize,
}

impl Directory for ForgetfulDirectory {
    fn open(&self, path: &Path) -> io::Result<Option<ServerFile>> {
        self.below.directory().open(path)
    }

    fn create(&self, path: &Path) -> io::Result<ServerFile> {
        self.below.directory().create(path)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        if self.below.directory().open(path)?.is_some() {
            self.disk.unsynced.lock().push((self.below.dir().to_owned(), path.to_owned()));
        }
        self.below.directory().remove(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.below.directory().rename(from, to)
    }

    fn names(&self, path: &Path) -> io::Result<Vec<OsString>> {
        self.below.directory().names(path)
    }

    fn allocated_of(&self, path: &Path) -> io::Result<u64> {
        self.below.directory().allocated_of(path)
    }

    fn sync_parents(&self, path: &Path) -> io::Result<()> {
        self.below.directory().sync_parents(path)
    }

    fn sync_all(&self) -> io::Result<()> {
        self.disk.syncs.fetch_add(1, Ordering::Relaxed);
        self.disk.unsynced.lock().retain(|(dir, _)| dir != self.below.dir());
        Ok(())
    }

    fn label(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.below.directory().label(name)
    }

    fn set_label(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.below.directory().set_label(name, bytes)?;
        let text = String::from_utf8_lossy(bytes).into_owned();
        for (_, path) in self.disk.unsynced.lock().iter().filter(|_| name == MOVING) {
            let object = ObjectId::parse(path.file_name().unwrap().to_str().unwrap()).unwrap();
            let is_noted = text.contains(&object.number.to_string());
            self.disk.has_forgotten.fetch_add(usize::from(!is_noted), Ordering::Relaxed);
        }
        Ok(())
    }
}

fn forgetful(dir: &Path) -> (Relayout, Arc<Disks>) {
    let disk = Arc::new(Disks::default());
    let mut volume = Relayout::open(dir).unwrap();
    let over = |below: &Arc<Server>| {
        let directory = ForgetfulDirectory { below: Arc::clone(below), disk: Arc::clone(&disk) };
        let device = Arc::clone(below.device());
        Arc::new(Server::new(below.name(), below.dir(), Arc::new(directory), device))
    };
    let servers = volume.origin.servers().iter().map(over).collect();
    volume.origin.volume = Volume::new(servers, 4096);
    (volume, disk)
}

/// A volume with a file of these bytes.
fn volume(dir: &Path, bytes: &[u8]) {
    let shape = VolumeShape { kind: VolumeKind::Striped, servers: 3, stripe: 4096 };
    let origin = Origin::open_or_create(dir, shape, &|_, device| device).unwrap();
    let path = origin.namespace_dir().join("file");
    let file = File::options().create_new(true).read(true).write(true).open(path).unwrap();
    origin.adopt_data(file).unwrap().write_at(0, bytes).unwrap();
}

fn move_to(volume: &Relayout, width: u64) {
    let layout = FileLayout::uniform(vec![width, 0, 4096]).unwrap();
    let wish = Wish { path: "file".into(), layout };
    let change = look(volume.origin(), &[wish], true).unwrap().remove(0);
    let moved = volume.relayout(&change, &mut |_| Ok(()), &mut |_| {}).unwrap();
    assert!(moved.left.is_none(), "{moved:?}");
}

fn bytes_of(volume: &Relayout) -> Vec<u8> {
    let file = File::open(volume.origin().namespace_dir().join("file")).unwrap();
    let data = volume.origin().open_data(file.as_fd(), libc::O_RDONLY).unwrap();
    let mut bytes = vec![0; 100_000];
    let len = data.read_at(0, &mut bytes).unwrap();
    bytes.truncate(len);
    bytes
}

/// Regression: the note about a move went before the removal of its former object was durable. After a power loss that was there
/// again, no command knew it, and none but the removal of all objects without names removed it.
#[test]
fn a_former_object_that_comes_back_is_noted() {
    let scratch = tempfile::tempdir().unwrap();
    let bytes: Vec<u8> = (0..50_000_u32).map(|at| (at % 251) as u8).collect();
    volume(scratch.path(), &bytes);
    let (volume, disk) = forgetful(scratch.path());
    for round in 0..70 {
        move_to(&volume, 4096 << (round % 2));
        assert_eq!(volume.outstanding(), 0, "{round}");
    }
    assert_eq!(disk.has_forgotten.load(Ordering::Relaxed), 0);
    // Not one of each server for each file.
    assert!(disk.syncs.load(Ordering::Relaxed) <= 6, "{disk:?}");
    assert!(!disk.unsynced.lock().is_empty(), "the last ones wait");
    volume.settle_removals().unwrap();
    assert!(disk.unsynced.lock().is_empty());
    assert!(MoveNotes::read(volume.origin().servers()).unwrap().all().is_empty());
    assert_eq!(bytes_of(&volume), bytes);
}

/// The same where a killed move is cleared, and where another one had removed the object and was killed.
#[test]
fn a_leftover_that_comes_back_is_noted() {
    for is_gone in [false, true] {
        let scratch = tempfile::tempdir().unwrap();
        volume(scratch.path(), b"bytes");
        let (killed, disk) = forgetful(scratch.path());
        let layout = FileLayout::uniform(vec![8192, 0, 4096]).unwrap();
        let wish = Wish { path: "file".into(), layout };
        let change = look(killed.origin(), &[wish], true).unwrap().remove(0);
        let stop = if is_gone { Step::Forget } else { Step::Remove };
        let mut before = |step| {
            let error = io::Error::from(io::ErrorKind::Interrupted);
            if step == stop { Err(error.into()) } else { Ok(()) }
        };
        assert!(killed.relayout(&change, &mut before, &mut |_| {}).unwrap().left.is_some());
        let cleared = killed.clear_moves(&mut |_| Ok(())).unwrap();
        assert_eq!((cleared.removed, cleared.left), (usize::from(!is_gone), 0));
        assert_eq!(disk.has_forgotten.load(Ordering::Relaxed), 0, "{is_gone}");
        assert!(disk.unsynced.lock().is_empty());
        assert_eq!(bytes_of(&killed), b"bytes");
    }
}

/// A file that had no object, and moves on before its first move is forgotten, has two objects while the second one is not settled.
#[test]
fn what_ended_is_not_forgotten_when_its_object_moves_again() {
    let scratch = tempfile::tempdir().unwrap();
    volume(scratch.path(), b"");
    let (volume, _) = forgetful(scratch.path());
    let number = |file| ObjectNumber::for_file((file, file), false, None).unwrap();
    let [first, second] = [1, 2].map(number);
    let mut notes = volume.notes.lock();
    notes.add(volume.origin(), None, first).unwrap();
    notes.forget_object(volume.origin(), first).unwrap();
    assert_eq!(notes.outstanding(), 0);
    notes.add(volume.origin(), Some(first), second).unwrap();
    assert_eq!(notes.outstanding(), 1);
    notes.settle_removals(volume.origin()).unwrap();
    assert_eq!(notes.all(), [vec![first, second]]);
    notes.forget_object(volume.origin(), first).unwrap();
    notes.settle_removals(volume.origin()).unwrap();
    assert!(notes.all().is_empty());
}
