//! The same random system calls on a mount and on an ordinary directory of the same file system:
//! every result, errno and attribute must agree, and in the end the trees.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::{
    CWD, FallocateFlags, FileType, Mode, RenameFlags, SeekFrom, XattrFlags, fallocate, getxattr,
    listxattr, mknodat, removexattr, renameat_with, seek, setxattr,
};

use crate::harness::{Kind, in_both_modes};

const STEPS: usize = 3000;

/// A generator whose sequence is the same everywhere (Steele, Lea, Flood: `SplitMix64`).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::try_from(self.below(choices.len() as u64)).unwrap()]
    }

    /// Few names and little depth, so that operations meet.
    fn path(&mut self) -> String {
        let name = |random: &mut Self| random.one_of(&["a", "b", "c", "d", "e"]);
        match self.below(4) {
            0 | 1 => name(self).into(),
            2 => format!("{}/{}", name(self), name(self)),
            _ => format!("{}/{}/{}", name(self), name(self), name(self)),
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Open(u8, String, i32, u32),
    Close(u8),
    Write(u8, u64, usize, u8),
    Read(u8, u64, usize),
    SetLen(u8, u64),
    Allocate(u8, u32, u64, u64),
    Seek(u8, bool, u64),
    Truncate(String, i64),
    Make(String, u32),
    Fifo(String),
    Symlink(String, String),
    ReadLink(String),
    Link(String, String),
    Rename(String, String, u32),
    Unlink(String),
    RemoveDir(String),
    Mode(String, u32),
    Owner(String, u32, u32),
    Times(u8, u64),
    SetXattr(String, u8, u8),
    GetXattr(String, u8),
    RemoveXattr(String, u8),
    List(String),
    Stat(String),
    StatOpen(u8),
}

fn step(random: &mut Random) -> Step {
    let slot = u8::try_from(random.below(4)).unwrap();
    let at = random.below(200_000);
    let size = usize::try_from(random.below(70_000)).unwrap();
    match random.below(34) {
        0..=4 => {
            let access =
                random.one_of(&[libc::O_RDWR, libc::O_RDWR, libc::O_WRONLY, libc::O_RDONLY]);
            let how = random.one_of(&[
                0,
                libc::O_CREAT,
                libc::O_CREAT,
                libc::O_CREAT | libc::O_EXCL,
                libc::O_CREAT | libc::O_TRUNC,
                libc::O_TRUNC,
                libc::O_CREAT | libc::O_APPEND,
                libc::O_NOFOLLOW,
                libc::O_DIRECTORY,
            ]);
            Step::Open(slot, random.path(), access | how, random.one_of(&[0o644, 0o600, 0o4755]))
        }
        5 => Step::Close(slot),
        6..=10 => Step::Write(slot, at, size, u8::try_from(random.below(256)).unwrap()),
        11..=13 => Step::Read(slot, at, size),
        14 => Step::SetLen(slot, at),
        15 => Step::Allocate(slot, random.one_of(&[0, 1, 3, 16, 17, 2]), at, random.below(50_000)),
        16 => Step::Seek(slot, random.below(2) == 0, at),
        17 => Step::Truncate(random.path(), i64::try_from(at).unwrap() - 1000),
        18 | 19 => Step::Make(random.path(), random.one_of(&[0o755, 0o1777, 0o2770])),
        20 => Step::Fifo(random.path()),
        21 => Step::Symlink(random.one_of(&["a", "b/c", "../a", "nowhere"]).into(), random.path()),
        22 => Step::ReadLink(random.path()),
        23 => Step::Link(random.path(), random.path()),
        24 | 25 => Step::Rename(random.path(), random.path(), random.one_of(&[0, 0, 1, 2, 8])),
        26 => Step::Unlink(random.path()),
        27 => Step::RemoveDir(random.path()),
        28 => Step::Mode(random.path(), random.one_of(&[0o644, 0o777, 0o6755, 0])),
        29 => Step::Owner(random.path(), random.one_of(&[0, 65534]), random.one_of(&[0, 1234])),
        30 => Step::Times(slot, random.below(4_000_000_000)),
        31 => match random.below(3) {
            0 => Step::SetXattr(random.path(), slot, u8::try_from(random.below(250)).unwrap()),
            1 => Step::GetXattr(random.path(), slot),
            _ => Step::RemoveXattr(random.path(), slot),
        },
        32 => Step::List(random.path()),
        _ if random.below(2) == 0 => Step::Stat(random.path()),
        _ => Step::StatOpen(slot),
    }
}

/// One directory with its open files.
struct Side {
    root: PathBuf,
    open: BTreeMap<u8, File>,
}

type Outcome = Result<String, i32>;

fn io<T>(result: std::io::Result<T>, show: impl FnOnce(T) -> String) -> Outcome {
    result.map(show).map_err(|error| error.raw_os_error().unwrap_or(-1))
}

fn sys<T>(result: rustix::io::Result<T>, show: impl FnOnce(T) -> String) -> Outcome {
    result.map(show).map_err(rustix::io::Errno::raw_os_error)
}

fn done<T>(_: T) -> String {
    String::new()
}

/// What must agree of attributes; times only where a test set them.
fn show(stat: &fs::Metadata) -> String {
    let size = if stat.is_dir() { 0 } else { stat.len() };
    format!("{:o} {}:{} x{} {size}", stat.mode(), stat.uid(), stat.gid(), stat.nlink())
}

fn digest(bytes: &[u8]) -> String {
    let sum = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{} bytes {sum:x}", bytes.len())
}

impl Side {
    fn apply(&mut self, step: &Step) -> Outcome {
        match step {
            Step::Open(slot, path, flags, mode) => self.open(*slot, path, *flags, *mode),
            Step::Close(slot) => {
                self.open.remove(slot);
                Ok(String::new())
            }
            Step::Write(..)
            | Step::Read(..)
            | Step::SetLen(..)
            | Step::Allocate(..)
            | Step::Seek(..)
            | Step::Times(..)
            | Step::StatOpen(..) => self.on_file(step),
            _ => self.on_name(step),
        }
    }

    fn open(&mut self, slot: u8, path: &str, flags: i32, mode: u32) -> Outcome {
        let access = flags & libc::O_ACCMODE;
        // Never wait for the other end of a FIFO.
        let other = flags & !(libc::O_ACCMODE | libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC);
        let append = flags & libc::O_APPEND != 0;
        let creates = flags & libc::O_CREAT != 0 && access != libc::O_RDONLY;
        let opened = OpenOptions::new()
            .read(access != libc::O_WRONLY)
            .write(access != libc::O_RDONLY)
            .append(append && access != libc::O_RDONLY)
            .truncate(flags & libc::O_TRUNC != 0 && access != libc::O_RDONLY && !append)
            .create(creates)
            .create_new(creates && flags & libc::O_EXCL != 0)
            .mode(mode)
            .custom_flags((other & !libc::O_APPEND) | libc::O_NONBLOCK)
            .open(self.root.join(path));
        io(opened, |file| {
            if file.metadata().is_ok_and(|stat| stat.is_file()) {
                self.open.insert(slot, file);
            }
            String::new()
        })
    }

    fn on_file(&mut self, step: &Step) -> Outcome {
        let (Step::Write(slot, ..)
        | Step::Read(slot, ..)
        | Step::SetLen(slot, _)
        | Step::Allocate(slot, ..)
        | Step::Seek(slot, ..)
        | Step::Times(slot, _)
        | Step::StatOpen(slot)) = step
        else {
            unreachable!("sorted by apply")
        };
        let Some(file) = self.open.get(slot) else { return Ok("not open".into()) };
        match step {
            Step::Write(_, at, len, byte) => {
                io(file.write_at(&vec![*byte; *len], *at), |n| n.to_string())
            }
            Step::Read(_, at, len) => {
                let mut bytes = vec![0; *len];
                io(file.read_at(&mut bytes, *at), |count| digest(&bytes[..count]))
            }
            Step::SetLen(_, len) => io(file.set_len(*len), done),
            Step::Allocate(_, flags, at, len) => {
                sys(fallocate(file, FallocateFlags::from_bits_retain(*flags), *at, *len), done)
            }
            Step::Seek(_, data, at) => {
                let to = if *data { SeekFrom::Data(*at) } else { SeekFrom::Hole(*at) };
                sys(seek(file, to), |at| at.to_string())
            }
            Step::Times(_, seconds) => {
                let time = UNIX_EPOCH + Duration::from_secs(*seconds);
                let times = fs::FileTimes::new().set_modified(time).set_accessed(time);
                let set = file.set_times(times);
                io(set.and_then(|()| file.metadata()), |stat| {
                    format!("{} {}", show(&stat), stat.mtime())
                })
            }
            _ => io(file.metadata(), |stat| show(&stat)),
        }
    }

    fn on_name(&self, step: &Step) -> Outcome {
        let at = |path: &String| self.root.join(path);
        let attribute = |number: &u8| format!("user.attribute-{number}");
        match step {
            Step::Truncate(path, len) => {
                let path =
                    std::ffi::CString::new(at(path).into_os_string().into_encoded_bytes()).unwrap();
                // SAFETY: a NUL-terminated path.
                let result = unsafe { libc::truncate64(path.as_ptr(), *len) };
                if result == 0 {
                    Ok(String::new())
                } else {
                    io(Err::<(), _>(std::io::Error::last_os_error()), done)
                }
            }
            Step::Make(path, mode) => {
                sys(rustix::fs::mkdir(at(path), Mode::from_raw_mode(*mode)), done)
            }
            Step::Fifo(path) => sys(mknodat(CWD, at(path), FileType::Fifo, Mode::RUSR, 0), done),
            Step::Symlink(target, path) => io(symlink(target, at(path)), done),
            Step::ReadLink(path) => {
                io(fs::read_link(at(path)), |target| target.display().to_string())
            }
            Step::Link(from, to) => io(fs::hard_link(at(from), at(to)), done),
            Step::Rename(from, to, flags) => {
                let flags = RenameFlags::from_bits_retain(*flags);
                sys(renameat_with(CWD, at(from), CWD, at(to), flags), done)
            }
            Step::Unlink(path) => io(fs::remove_file(at(path)), done),
            Step::RemoveDir(path) => io(fs::remove_dir(at(path)), done),
            Step::Mode(path, mode) => {
                io(fs::set_permissions(at(path), fs::Permissions::from_mode(*mode)), done)
            }
            Step::Owner(path, uid, gid) => {
                io(std::os::unix::fs::lchown(at(path), Some(*uid), Some(*gid)), done)
            }
            Step::SetXattr(path, name, len) => {
                let value = vec![*name; usize::from(*len)];
                sys(setxattr(at(path), attribute(name), &value, XattrFlags::empty()), done)
            }
            Step::GetXattr(path, name) => {
                let mut value = [0; 100];
                sys(getxattr(at(path), attribute(name), &mut value), |count| count.to_string())
            }
            Step::RemoveXattr(path, name) => sys(removexattr(at(path), attribute(name)), done),
            Step::List(path) => io(list(&at(path)), |names| names.join(" ")),
            Step::Stat(path) => io(fs::symlink_metadata(at(path)), |stat| show(&stat)),
            _ => unreachable!("sorted by apply"),
        }
    }
}

fn list(path: &Path) -> std::io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        names.push(format!("{} {:?}", entry.file_name().display(), entry.file_type()?));
    }
    names.sort();
    Ok(names)
}

/// Everything below a directory, in order.
fn tree(root: &Path, at: &Path, into: &mut Vec<String>) {
    let mut entries: Vec<_> =
        fs::read_dir(at).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        let stat = fs::symlink_metadata(&path).unwrap();
        let mut line = format!("{} {}", path.strip_prefix(root).unwrap().display(), show(&stat));
        if stat.is_file() {
            line += &digest(&fs::read(&path).unwrap());
        }
        if stat.is_file() || stat.is_dir() {
            let mut names = [0; 1000];
            let len = listxattr(&path, &mut names).unwrap_or(0);
            let mut names: Vec<_> = names[..len].split(|byte| *byte == 0).collect();
            names.sort_unstable();
            line += &String::from_utf8_lossy(&names.join(&b' '));
        }
        into.push(line);
        if stat.is_dir() {
            tree(root, &path, into);
        }
    }
}

#[test]
fn a_mount_behaves_like_a_directory() {
    in_both_modes(|mounted| {
        for seed in 1..=4 {
            let plain = mounted.dir.path().join(format!("plain-{seed}"));
            let below = format!("mounted-{seed}");
            fs::create_dir(&plain).unwrap();
            fs::create_dir(mounted.path(&below)).unwrap();
            let mut expected = Side { root: plain.clone(), open: BTreeMap::new() };
            let mut actual = Side { root: mounted.path(&below), open: BTreeMap::new() };
            let mut random = Random(seed);
            for number in 0..STEPS {
                let step = step(&mut random);
                let (want, got) = (expected.apply(&step), actual.apply(&step));
                assert_eq!(got, want, "seed {seed}, step {number}: {step:?}");
            }
            // Files that move are found on either side: only the mount shows the whole tree.
            let origin = (mounted.kind != Kind::Moving).then(|| mounted.origin(&below));
            for root in [Some(mounted.path(&below)), origin].into_iter().flatten() {
                let (mut want, mut got) = (Vec::new(), Vec::new());
                tree(&plain, &plain, &mut want);
                tree(&root, &root, &mut got);
                assert_eq!(got, want, "seed {seed}, {}", root.display());
            }
        }
    });
}
