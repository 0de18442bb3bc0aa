//! Power losses of a striped volume whose tree and servers are on file systems of their own: at each device call of a story, and in
//! any combination of what each had made durable by then and what it had not. The file is as before or after what was not
//! synced, byte by byte, and grows with zeros.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use halocline_api::config::{VolumeKind, VolumeShape};
use halocline_model::request::ByteRange;
use halocline_storage::device::{Device, ServerFile, Space};
use halocline_storage::volume::{Origin, OriginFile};
use halocline_vfs::Allocate;
use parking_lot::Mutex;
use rustix::fs::{XattrFlags, getxattr, removexattr, setxattr};

const SERVERS: usize = SHAPE.servers as usize;
const SHAPE: VolumeShape = VolumeShape { kind: VolumeKind::Striped, servers: 2, stripe: 4096 };
/// Every how many bytes are compared: nothing that is written, cut or left is shorter.
const STRIDE: usize = 10;
const ATTRIBUTES: [&str; 3] =
    ["user.halocline.object", "trusted.halocline.object", "user.halocline.cut"];

/// What a file system has of the namespace file, all in one inode: so a power loss leaves one of its states.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Name {
    len: u64,
    attributes: [Option<Vec<u8>>; 3],
}

/// The local files of a server.
type Objects = BTreeMap<PathBuf, Vec<u8>>;

/// What the file systems have at a moment.
#[derive(Debug, Clone)]
struct Moment {
    what: String,
    step: usize,
    /// The durable state first, then all since.
    names: Vec<Name>,
    /// What is durable of each server, and what it shows.
    servers: Vec<[Objects; 2]>,
}

/// What is durable of a volume, and each moment at which it may lose the rest.
#[derive(Debug)]
struct Disks {
    dir: PathBuf,
    step: usize,
    names: Vec<Name>,
    durable: Vec<Objects>,
    moments: Vec<Moment>,
}

impl Disks {
    fn name(&self) -> Name {
        let path = self.dir.join("namespace/file");
        let attribute = |name: &str| {
            let mut value = [0; 64];
            let len = getxattr(&path, name, &mut value).ok()?;
            Some(value[..len].to_vec())
        };
        Name { len: fs::metadata(&path).unwrap().len(), attributes: ATTRIBUTES.map(attribute) }
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

    fn moment(&mut self, what: String) {
        let name = self.name();
        if self.names.last() != Some(&name) {
            self.names.push(name);
        }
        let servers =
            (0..SERVERS).map(|server| [self.durable[server].clone(), self.objects(server)]);
        let (step, names) = (self.step, self.names.clone());
        let servers = servers.collect();
        self.moments.push(Moment { what, step, names, servers });
    }

    fn synced(&mut self, inode: u64, server: usize) {
        use std::os::unix::fs::MetadataExt;
        if fs::metadata(self.dir.join("namespace/file")).unwrap().ino() == inode {
            self.names = vec![self.name()];
            return;
        }
        // No more than the file itself.
        let now = self.objects(server);
        let synced = now.into_iter().filter(|it| fs::metadata(&it.0).unwrap().ino() == inode);
        self.durable[server].extend(synced);
    }

    /// What the power loss leaves.
    fn lose(&self, name: &Name, objects: &[&Objects]) {
        let path = self.dir.join("namespace/file");
        File::options().write(true).open(&path).unwrap().set_len(name.len).unwrap();
        for (attribute, value) in ATTRIBUTES.iter().zip(&name.attributes) {
            match value {
                Some(value) => setxattr(&path, *attribute, value, XattrFlags::empty()).unwrap(),
                None => drop(removexattr(&path, *attribute)),
            }
        }
        for (server, objects) in objects.iter().enumerate() {
            for path in self.objects(server).keys().filter(|path| !objects.contains_key(*path)) {
                fs::remove_file(path).unwrap();
            }
            objects.iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
        }
    }
}

/// A server whose power may be lost before and after each call. One call at a time.
#[derive(Debug)]
struct LosingDevice {
    below: Arc<dyn Device>,
    server: usize,
    disks: Arc<Mutex<Disks>>,
}

impl LosingDevice {
    fn run<T>(&self, what: &str, call: impl FnOnce(&mut Disks) -> T) -> T {
        let mut disks = self.disks.lock();
        disks.moment(format!("before {what} on server {}", self.server));
        let done = call(&mut disks);
        disks.moment(format!("after {what} on server {}", self.server));
        done
    }
}

impl Device for LosingDevice {
    fn read_at(
        &self,
        file: &ServerFile,
        offset: u64,
        bufs: &mut [IoSliceMut<'_>],
    ) -> io::Result<usize> {
        self.below.read_at(file, offset, bufs)
    }

    fn write_at(&self, file: &ServerFile, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.run(&format!("write at {offset}"), |_| self.below.write_at(file, offset, bufs))
    }

    fn allocate(&self, file: &ServerFile, range: ByteRange, how: Allocate) -> io::Result<()> {
        self.run(&format!("{how:?} of {range:?}"), |_| self.below.allocate(file, range, how))
    }

    fn truncate(&self, file: &ServerFile, len: u64) -> io::Result<()> {
        self.run(&format!("truncate to {len}"), |_| self.below.truncate(file, len))
    }

    fn sync(&self, file: &ServerFile, data_only: bool) -> io::Result<()> {
        self.run(&format!("sync of inode {}", file.inode()), |disks| {
            self.below.sync(file, data_only)?;
            disks.synced(file.inode(), self.server);
            Ok(())
        })
    }

    fn space(&self) -> io::Result<Space> {
        self.below.space()
    }
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Write(usize, usize, u8),
    Truncate(usize),
    Grow(usize),
    Sync,
}

use Step::{Grow, Sync, Truncate, Write};

impl Step {
    fn make(self, file: &OriginFile) {
        match self {
            Write(at, len, byte) => file.write_at(at as u64, &vec![byte; len]),
            Truncate(len) => file.truncate(len as u64),
            Grow(len) => file.prepare_growth(len as u64),
            Sync => file.sync(true),
        }
        .unwrap();
    }

    fn after(self, mut bytes: Vec<u8>) -> Vec<u8> {
        match self {
            Write(at, len, byte) => {
                bytes.resize(bytes.len().max(at + len), 0);
                bytes[at..at + len].fill(byte);
            }
            Truncate(len) => bytes.resize(len, 0),
            Grow(len) => bytes.resize(bytes.len().max(len), 0),
            Sync => {}
        }
        bytes
    }
}

fn mounted(dir: &Path) -> Origin {
    Origin::open_or_create(dir, SHAPE, &|_, device| device).unwrap()
}

fn open(origin: &Origin) -> OriginFile {
    let node = File::open(origin.namespace_dir().join("file")).unwrap();
    origin.open_data(node.as_fd(), libc::O_RDWR).unwrap()
}

fn read(origin: &Origin) -> Vec<u8> {
    let file = open(origin);
    let len = usize::try_from(file.namespace_file().metadata().unwrap().len()).unwrap();
    let mut bytes = vec![0xaa; len];
    assert_eq!(file.read_at(0, &mut bytes).unwrap(), len);
    bytes
}

/// Whether `found` is what a file system may have after a power loss if `states` are its states from the last one that was synced to
/// the one under way, and the file has the length of the state `now`.
fn is_allowed(found: &[u8], states: &[Vec<u8>], now: usize) -> bool {
    found.len() == states[now].len()
        && found.iter().enumerate().step_by(STRIDE).all(|(at, byte)| {
            let ends_before = |state: &Vec<u8>| state.len() <= at;
            // Not from before it was cut off, nor of after.
            let from = states[..now].iter().rposition(ends_before).unwrap_or(0);
            let to = states[now..].iter().position(ends_before);
            let to = to.map_or(states.len(), |to| now + to);
            states[from..to].iter().any(|state| state.get(at).copied().unwrap_or(0) == *byte)
        })
}

/// Tells a story, and loses the power at each moment of it, in each combination.
fn lose_power(story: &[Step]) -> usize {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().to_owned();
    drop(mounted(&dir));
    File::create_new(dir.join("namespace/file")).unwrap();
    let disks = Disks {
        dir,
        step: 0,
        names: vec![],
        durable: vec![Objects::new(); SERVERS],
        moments: vec![],
    };
    let disks = Arc::new(Mutex::new(disks));
    let losing = |server: usize, below: Arc<dyn Device>| -> Arc<dyn Device> {
        Arc::new(LosingDevice { below, server, disks: Arc::clone(&disks) })
    };
    let origin = Origin::open_or_create(scratch.path(), SHAPE, &losing).unwrap();
    let file = open(&origin);
    for (at, step) in story.iter().enumerate() {
        disks.lock().step = at;
        step.make(&file);
        let mut disks = disks.lock();
        disks.step = at + 1;
        disks.moment(format!("after {step:?}"));
    }
    let mut states = vec![Vec::new()];
    states.extend(story.iter().scan(Vec::new(), |bytes, step| {
        *bytes = step.after(std::mem::take(bytes));
        Some(bytes.clone())
    }));
    drop((file, origin));
    let moments = std::mem::take(&mut disks.lock().moments);
    for moment in &moments {
        let synced = (0..moment.step).rev().find(|at| matches!(story[*at], Sync));
        let synced = synced.map_or(0, |at| at + 1);
        let allowed = &states[synced..states.len().min(moment.step + 2)];
        for (lost, name) in
            (0..1 << SERVERS).flat_map(|lost: usize| moment.names.iter().map(move |it| (lost, it)))
        {
            let objects = moment.servers.iter().enumerate();
            let objects: Vec<_> = objects.map(|(at, it)| &it[1 - (lost >> at & 1)]).collect();
            disks.lock().lose(name, &objects);
            let what = format!("{} in step {}, {lost:b} lost, {name:?}", moment.what, moment.step);
            let origin = mounted(scratch.path());
            let mut found = read(&origin);
            let is_right = (0..allowed.len()).any(|now| is_allowed(&found, allowed, now));
            let ends = (1..found.len()).filter(|at| found[*at] != found[at - 1]);
            let ends: Vec<_> = ends.take(9).collect();
            assert!(is_right, "{} bytes, which change at {ends:?}, {what}", found.len());
            let grown = found.len() + 100_000;
            open(&origin).truncate(grown as u64).unwrap();
            found.resize(grown, 0);
            assert!(read(&origin) == found, "grown, {what}");
        }
    }
    moments.len()
}

/// Regression: servers were cut while the new size was in memory alone, and `fsync` made the cuts durable before it: after a power loss
/// the file had its old length, and zeros over bytes that had been fsynced.
#[test]
fn i4_a_truncate_and_a_power_loss_leave_the_file_as_before_or_as_after() {
    let calls = lose_power(&[
        Write(0, 49_152, 1),
        Sync,
        Truncate(9_221),
        Sync,
        Truncate(5_000),
        Truncate(4_000),
        Write(44_000, 1_000, 2),
        Sync,
        Write(20_000, 9_000, 3),
        Truncate(21_504),
        Truncate(51_200),
        Write(30_000, 500, 4),
        Truncate(31_000),
        Grow(33_000),
        Sync,
        Truncate(0),
        Write(0, 10, 5),
        Sync,
    ]);
    assert!(calls > 40, "{calls}");
}

/// What is cut at once, because it is much.
#[test]
fn i4_a_large_truncate_and_a_power_loss_leave_the_file_as_before_or_as_after() {
    let calls = lose_power(&[
        Write(0, 1_200_000, 1),
        Sync,
        Truncate(100_000),
        Write(90_000, 100, 2),
        Write(1_250_000, 10, 3),
        Sync,
        Truncate(20),
        Sync,
    ]);
    assert!(calls > 15, "{calls}");
}
