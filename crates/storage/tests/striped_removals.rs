//! Names of a striped volume that go, by `unlink` or by a rename over them, and the data of their files: no power loss of the tree's
//! file system, or of a server's, brings a name back without its bytes; and what was removed is room for what is written.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use halocline_api::config::{VolumeKind, VolumeShape};
use halocline_model::request::ByteRange;
use halocline_storage::device::{Device, ServerFile, Space};
use halocline_storage::volume::{Origin, OriginFile};
use halocline_vfs::Allocate;

const SERVERS: usize = SHAPE.servers as usize;
const SHAPE: VolumeShape = VolumeShape { kind: VolumeKind::Striped, servers: 2, stripe: 4096 };
const LEN: usize = 20_000;

/// Which files the tree's names lead to: names of [links](Disks::keep) beside the tree.
type Names = BTreeMap<&'static str, &'static str>;
/// The local files of a server.
type Objects = BTreeMap<PathBuf, Vec<u8>>;

#[derive(Debug, Clone, Copy)]
enum Step {
    /// Makes a file, which others call its kept link, and fsyncs it.
    Make(&'static str),
    Rename(&'static str, &'static str),
    Unlink(&'static str),
    /// What a mount does about once a second.
    WorkOff,
}

use Step::{Make, Rename, Unlink, WorkOff};

/// What the file systems have after a step.
#[derive(Debug)]
struct Moment {
    after: Step,
    /// The durable names first, then all since.
    names: Vec<Names>,
    /// What is durable of each server, and what it shows.
    servers: Vec<[Objects; 2]>,
}

#[derive(Debug)]
struct Disks {
    dir: PathBuf,
    names: Vec<Names>,
    durable: Vec<Objects>,
}

fn mounted(dir: &Path) -> Origin {
    Origin::open_or_create(dir, SHAPE, &|_, device| device).unwrap()
}

fn open(origin: &Origin, name: &str) -> OriginFile {
    let node = File::open(origin.namespace_dir().join(name)).unwrap();
    origin.open_data(node.as_fd(), libc::O_RDWR).unwrap()
}

fn create(origin: &Origin, name: &str) -> OriginFile {
    File::create_new(origin.namespace_dir().join(name)).unwrap();
    open(origin, name)
}

/// The bytes of a file that is kept under this name.
fn bytes_of(kept: &str) -> Vec<u8> {
    vec![kept.as_bytes()[0]; LEN]
}

impl Disks {
    /// A second name of a file beside the tree, which is given back to the tree when a power loss does.
    fn keep(&self, file: &str) -> PathBuf {
        self.dir.with_file_name(file)
    }

    fn objects(&self, server: usize) -> Objects {
        let mut found = Objects::new();
        let root = self.dir.join(format!("server-{server}/objects"));
        for dir in fs::read_dir(root).into_iter().flatten() {
            for object in fs::read_dir(dir.unwrap().path()).unwrap() {
                let path = object.unwrap().path();
                found.insert(path.clone(), fs::read(path).unwrap());
            }
        }
        found
    }

    fn step(&mut self, origin: &Origin, step: Step) -> Moment {
        let tree = origin.namespace_dir().to_owned();
        let mut names = self.names.last().unwrap().clone();
        match step {
            Make(name) => {
                let file = create(origin, name);
                fs::hard_link(tree.join(name), self.keep(name)).unwrap();
                file.write_at(0, &bytes_of(name)).unwrap();
                file.sync(false).unwrap();
                self.durable = (0..SERVERS).map(|server| self.objects(server)).collect();
                names.insert(name, name);
            }
            Rename(from, to) => {
                let replaced = names.get(to).map(|file| File::open(self.keep(file)).unwrap());
                fs::rename(tree.join(from), tree.join(to)).unwrap();
                replaced.map_or(Ok(()), |file| origin.remove_data(file)).unwrap();
                let file = names.remove(from).unwrap();
                names.insert(to, file);
            }
            Unlink(name) => {
                fs::remove_file(tree.join(name)).unwrap();
                let file = names.remove(name).unwrap();
                origin.remove_data(File::open(self.keep(file)).unwrap()).unwrap();
            }
            WorkOff => {
                origin.removals().work_off();
                // By its contract.
                self.names.clear();
            }
        }
        self.names.push(names);
        let servers =
            (0..SERVERS).map(|server| [self.durable[server].clone(), self.objects(server)]);
        let servers = servers.collect();
        Moment { after: step, names: self.names.clone(), servers }
    }

    /// What the power loss leaves.
    fn lose(&self, names: &Names, objects: &[&Objects]) {
        let tree = self.dir.join("namespace");
        for entry in fs::read_dir(&tree).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
        for (name, file) in names {
            fs::hard_link(self.keep(file), tree.join(name)).unwrap();
        }
        for (server, objects) in objects.iter().enumerate() {
            for path in self.objects(server).keys().filter(|path| !objects.contains_key(*path)) {
                fs::remove_file(path).unwrap();
            }
            objects.iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
        }
    }
}

/// Tells a story, and loses the power after each step of it, in each combination of what the tree and the servers had made durable.
fn lose_power(story: &[Step]) {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("volume");
    fs::create_dir(&dir).unwrap();
    let (names, durable) = (vec![Names::new()], vec![Objects::new(); SERVERS]);
    let mut disks = Disks { dir: dir.clone(), names, durable };
    let origin = mounted(&dir);
    let moments: Vec<_> = story.iter().map(|step| disks.step(&origin, *step)).collect();
    drop(origin);
    for moment in &moments {
        for (lost, names) in
            (0..1 << SERVERS).flat_map(|lost: usize| moment.names.iter().map(move |it| (lost, it)))
        {
            let objects = moment.servers.iter().enumerate();
            let objects: Vec<_> = objects.map(|(at, it)| &it[1 - (lost >> at & 1)]).collect();
            disks.lose(names, &objects);
            let origin = mounted(&dir);
            for (name, file) in names {
                let mut bytes = vec![0xaa; LEN];
                let read = open(&origin, name).read_at(0, &mut bytes).ok();
                let what = format!("{:?}, {lost:b} lost, {names:?}: {name}", moment.after);
                assert!(read == Some(LEN) && bytes == bytes_of(file), "{what}: {read:?}");
            }
        }
    }
    let last = moments.last().unwrap();
    let files = last.names[0].len();
    assert!(last.servers.iter().all(|server| server[1].len() == files), "the rest is removed");
}

/// Regression: the data went at once, and the name not before the tree's file system committed that. So what a program had fsynced,
/// and replaced by what it had fsynced, was zeros or EIO after a power loss.
#[test]
fn i4_a_save_by_rename_and_a_power_loss_leave_the_old_file_or_the_new() {
    lose_power(&[
        Make("old"),
        WorkOff,
        Make("new"),
        Rename("new", "old"),
        Make("third"),
        WorkOff,
        Rename("third", "old"),
        WorkOff,
    ]);
}

#[test]
fn i4_an_unlink_and_a_power_loss_leave_the_file_or_nothing() {
    lose_power(&[
        Make("a"),
        Make("b"),
        WorkOff,
        Unlink("a"),
        Make("c"),
        Unlink("b"),
        Unlink("c"),
        WorkOff,
        Make("d"),
        WorkOff,
    ]);
}

/// A server that takes no more than `limit` bytes.
#[derive(Debug)]
struct FullDevice {
    below: Arc<dyn Device>,
    objects: PathBuf,
    limit: u64,
}

impl FullDevice {
    fn used(&self) -> u64 {
        let dirs = fs::read_dir(&self.objects).into_iter().flatten();
        let files = dirs.flat_map(|dir| fs::read_dir(dir.unwrap().path()).unwrap());
        files.map(|file| file.unwrap().metadata().unwrap().blocks() * 512).sum()
    }

    fn within(&self, bytes: u64, work: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let full = self.used() + bytes > self.limit;
        if full { Err(io::Error::from_raw_os_error(libc::ENOSPC)) } else { work() }
    }
}

impl Device for FullDevice {
    fn read_at(
        &self,
        file: &ServerFile,
        offset: u64,
        bufs: &mut [IoSliceMut<'_>],
    ) -> io::Result<usize> {
        self.below.read_at(file, offset, bufs)
    }

    fn write_at(&self, file: &ServerFile, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        let bytes = bufs.iter().map(|buf| buf.len() as u64).sum();
        self.within(bytes, || self.below.write_at(file, offset, bufs))
    }

    fn allocate(&self, file: &ServerFile, range: ByteRange, how: Allocate) -> io::Result<()> {
        self.within(range.len(), || self.below.allocate(file, range, how))
    }

    fn truncate(&self, file: &ServerFile, len: u64) -> io::Result<()> {
        self.below.truncate(file, len)
    }

    fn sync(&self, file: &ServerFile, data_only: bool) -> io::Result<()> {
        self.below.sync(file, data_only)
    }

    fn space(&self) -> io::Result<Space> {
        self.below.space()
    }
}

#[test]
fn what_was_removed_is_room_on_a_full_server() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    let full = |server: usize, below: Arc<dyn Device>| -> Arc<dyn Device> {
        let objects = dir.join(format!("server-{server}/objects"));
        Arc::new(FullDevice { below, objects, limit: 600 << 10 })
    };
    let origin = Origin::open_or_create(dir, SHAPE, &full).unwrap();
    let data = vec![7; 1 << 20];
    let device = fs::metadata(dir).unwrap().dev();
    for turn in 0..3 {
        let file = create(&origin, "file");
        if turn == 1 {
            file.allocate(ByteRange::at(0, 1 << 20), Allocate::Reserve).unwrap();
        } else {
            file.write_at(0, &data).unwrap();
        }
        let more = file.write_at(1 << 20, &data).unwrap_err();
        assert_eq!(more.raw_os_error(), Some(libc::ENOSPC), "nothing was removed");
        assert_eq!(origin.removals().bytes_on(device).unwrap(), 0);
        file.truncate(1 << 20).unwrap();
        file.sync(true).unwrap();
        fs::remove_file(origin.namespace_dir().join("file")).unwrap();
        origin.remove_data(file.namespace_file()).unwrap();
        let told = origin.removals().bytes_on(device).unwrap();
        assert!(told >= 1 << 20, "`df` counts {told} bytes as free");
        assert_eq!(origin.object_count().unwrap(), 1);
    }
}
