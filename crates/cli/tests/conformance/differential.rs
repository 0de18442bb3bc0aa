//! The same system calls on a mount and on a plain directory: bytes, attributes and errno must be
//! equal after each. A failure prints its seed and step; the same seed repeats it.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, FallocateFlags, Mode, OFlags, RenameFlags, Timespec, Timestamps, UTIME_OMIT,
    XattrFlags,
};
use rustix::io::{self, Errno};

use crate::kill::Random;
use crate::mount::{self, ALWAYS, IO_URING, Mount};
use crate::programs;

const STEPS: u32 = 3000;
/// Few names, so that calls meet each other; some lie in directories that may not exist.
const NAMES: [&str; 9] = ["a", "b", "c", "d", "e", "d/a", "d/b", "e/a", "a/b"];
const FILE_BYTES_MAX: u64 = 300_000;
const OPEN_FILES: usize = 6;

/// One side: a root directory, or several that lead to one, and files open there.
struct Side {
    roots: Vec<PathBuf>,
    /// Through which of them the next call goes.
    turn: usize,
    open: Vec<Option<OwnedFd>>,
}

/// A call, drawn once and made on both sides.
#[derive(Debug, Clone)]
enum Call {
    Open { slot: usize, name: &'static str, flags: OFlags, mode: u32 },
    Close { slot: usize },
    Write { slot: usize, offset: u64, length: usize, fill: u8 },
    Append { slot: usize, length: usize, fill: u8 },
    Read { slot: usize, offset: u64, length: usize },
    Truncate { slot: usize, size: u64 },
    TruncateName { name: &'static str, size: u64 },
    Allocate { slot: usize, flags: FallocateFlags, offset: u64, length: u64 },
    Sync { slot: usize, data_only: bool },
    Copy { from: usize, to: usize, at: u64, length: usize },
    Rename { from: &'static str, to: &'static str, flags: RenameFlags },
    Link { from: &'static str, to: &'static str },
    Symlink { target: &'static str, name: &'static str },
    Unlink { name: &'static str },
    MakeDirectory { name: &'static str, mode: u32 },
    RemoveDirectory { name: &'static str },
    List { name: &'static str },
    Stat { name: &'static str },
    Chmod { name: &'static str, mode: u32 },
    SetTime { name: &'static str, seconds: i64 },
    SetAttribute { name: &'static str, key: usize, length: usize, flags: XattrFlags },
    Attributes { name: &'static str },
    RemoveAttribute { name: &'static str, key: usize },
    Whole { name: &'static str },
}

fn draw(random: &mut Random) -> Call {
    let slot = index(random.below(OPEN_FILES as u64));
    let name = pick(random, &NAMES);
    let offset = random.below(FILE_BYTES_MAX);
    let most = pick(random, &[200, 5000, 70_000]);
    let length = index(1 + random.below(most));
    let fill = u8::try_from(random.below(256)).expect("a byte");
    match random.below(100) {
        0..8 => Call::Open { slot, name, flags: open_flags(random), mode: mode(random) },
        8..11 => Call::Close { slot },
        11..33 => Call::Write { slot, offset, length, fill },
        33..38 => Call::Append { slot, length, fill },
        38..52 => Call::Read { slot, offset, length },
        52..55 => Call::Truncate { slot, size: offset },
        55..57 => Call::TruncateName { name, size: offset },
        57..61 => {
            let flags = [
                FallocateFlags::empty(),
                FallocateFlags::KEEP_SIZE,
                FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                FallocateFlags::ZERO_RANGE,
                FallocateFlags::PUNCH_HOLE,
            ];
            Call::Allocate { slot, flags: pick(random, &flags), offset, length: length as u64 }
        }
        61..63 => Call::Sync { slot, data_only: fill > 127 },
        63..65 => Call::Copy { from: slot, to: index(offset) % OPEN_FILES, at: offset, length },
        65..70 => {
            let flags = [RenameFlags::empty(), RenameFlags::NOREPLACE, RenameFlags::EXCHANGE];
            Call::Rename { from: name, to: pick(random, &NAMES), flags: pick(random, &flags) }
        }
        70..73 => Call::Link { from: name, to: pick(random, &NAMES) },
        73..75 => Call::Symlink { target: pick(random, &NAMES), name },
        75..78 => Call::Unlink { name },
        78..81 => Call::MakeDirectory { name, mode: mode(random) },
        81..82 => Call::RemoveDirectory { name },
        82..84 => Call::List { name },
        84..88 => Call::Stat { name },
        88..90 => Call::Chmod { name, mode: mode(random) },
        90..92 => Call::SetTime { name, seconds: 1_000_000_000 + i64::from(fill) },
        92..94 => {
            let flags = [XattrFlags::empty(), XattrFlags::CREATE, XattrFlags::REPLACE];
            Call::SetAttribute {
                name,
                key: slot % 3,
                length: length % 500,
                flags: pick(random, &flags),
            }
        }
        94..96 => Call::Attributes { name },
        96..97 => Call::RemoveAttribute { name, key: slot % 3 },
        _ => Call::Whole { name },
    }
}

fn pick<T: Copy>(random: &mut Random, choices: &[T]) -> T {
    choices[index(random.below(choices.len() as u64))]
}

fn index(number: u64) -> usize {
    usize::try_from(number).expect("small")
}

fn mode(random: &mut Random) -> u32 {
    pick(random, &[0o644, 0o600, 0o755, 0o4711, 0o2770, 0o444, 0o1777])
}

fn open_flags(random: &mut Random) -> OFlags {
    pick(random, &[OFlags::RDWR, OFlags::RDWR, OFlags::RDONLY, OFlags::WRONLY])
        | pick(random, &[OFlags::CREATE, OFlags::CREATE, OFlags::empty()])
        | pick(
            random,
            &[
                OFlags::empty(),
                OFlags::empty(),
                OFlags::TRUNC,
                OFlags::EXCL,
                OFlags::APPEND,
                OFlags::NOFOLLOW,
                OFlags::DIRECTORY,
                OFlags::SYNC,
            ],
        )
}

impl Side {
    fn new(roots: Vec<PathBuf>) -> Self {
        let open = std::iter::repeat_with(|| None).take(OPEN_FILES).collect();
        Self { roots, turn: 0, open }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.roots[self.turn % self.roots.len()].join(name)
    }

    fn file(&self, slot: usize) -> io::Result<&OwnedFd> {
        self.open[slot].as_ref().ok_or(Errno::BADF)
    }

    /// Makes the call; the answer holds all that a program can see of it.
    fn make(&mut self, call: &Call) -> io::Result<String> {
        match *call {
            Call::Open { .. }
            | Call::Close { .. }
            | Call::Write { .. }
            | Call::Append { .. }
            | Call::Read { .. }
            | Call::Truncate { .. }
            | Call::Allocate { .. }
            | Call::Sync { .. }
            | Call::Copy { .. } => self.on_file(call),
            _ => self.on_name(call),
        }
    }

    fn on_file(&mut self, call: &Call) -> io::Result<String> {
        match *call {
            Call::Open { slot, name, flags, mode } => {
                self.open[slot] = None;
                let file = rustix::fs::open(
                    self.at(name),
                    flags | OFlags::CLOEXEC,
                    Mode::from_raw_mode(mode),
                )?;
                let stat = rustix::fs::fstat(&file)?;
                self.open[slot] = Some(file);
                Ok(format!("size {} mode {:o}", stat.st_size, stat.st_mode))
            }
            Call::Close { slot } => {
                self.open[slot] = None;
                Ok(String::new())
            }
            Call::Write { slot, offset, length, fill } => {
                Ok(io::pwrite(self.file(slot)?, &bytes(length, fill), offset)?.to_string())
            }
            Call::Append { slot, length, fill } => {
                let file = self.file(slot)?;
                rustix::fs::seek(file, rustix::fs::SeekFrom::End(0))?;
                Ok(io::write(file, &bytes(length, fill))?.to_string())
            }
            Call::Read { slot, offset, length } => {
                let mut buffer = vec![0; length];
                let got = io::pread(self.file(slot)?, &mut buffer[..], offset)?;
                Ok(digest(&buffer[..got]))
            }
            Call::Truncate { slot, size } => {
                rustix::fs::ftruncate(self.file(slot)?, size)?;
                Ok(String::new())
            }
            Call::Allocate { slot, flags, offset, length } => {
                rustix::fs::fallocate(self.file(slot)?, flags, offset, length)?;
                Ok(rustix::fs::fstat(self.file(slot)?)?.st_size.to_string())
            }
            Call::Sync { slot, data_only } => {
                let file = self.file(slot)?;
                if data_only {
                    rustix::fs::fdatasync(file)?;
                } else {
                    rustix::fs::fsync(file)?;
                }
                Ok(String::new())
            }
            Call::Copy { from, to, at, length } => {
                let (mut source, mut target) = (at / 2, at);
                let (from, to) = (self.file(from)?, self.file(to)?);
                if self.roots.len() > 1 {
                    // The kernel copies no more than what it knows of the file, as on NFS: programs look first.
                    rustix::fs::fstat(from)?;
                }
                let copied = rustix::fs::copy_file_range(
                    from,
                    Some(&mut source),
                    to,
                    Some(&mut target),
                    length,
                )?;
                Ok(copied.to_string())
            }
            _ => unreachable!("a call on a name"),
        }
    }

    fn on_name(&mut self, call: &Call) -> io::Result<String> {
        use rustix::fs::CWD;
        match *call {
            Call::TruncateName { name, size } => truncate(&self.at(name), size)?,
            Call::Rename { from, to, flags } => {
                rustix::fs::renameat_with(CWD, self.at(from), CWD, self.at(to), flags)?;
            }
            Call::Link { from, to } => rustix::fs::link(self.at(from), self.at(to))?,
            Call::Symlink { target, name } => rustix::fs::symlink(target, self.at(name))?,
            Call::Unlink { name } => rustix::fs::unlink(self.at(name))?,
            Call::MakeDirectory { name, mode } => {
                rustix::fs::mkdir(self.at(name), Mode::from_raw_mode(mode))?;
            }
            Call::RemoveDirectory { name } => rustix::fs::rmdir(self.at(name))?,
            Call::Chmod { name, mode } => {
                rustix::fs::chmod(self.at(name), Mode::from_raw_mode(mode))?;
            }
            Call::SetTime { name, seconds } => {
                let times = Timestamps {
                    last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
                    last_modification: Timespec { tv_sec: seconds, tv_nsec: 123_456_789 },
                };
                rustix::fs::utimensat(CWD, self.at(name), &times, AtFlags::empty())?;
                let stat = rustix::fs::stat(self.at(name))?;
                return Ok(format!("{}.{}", stat.st_mtime, stat.st_mtime_nsec));
            }
            Call::SetAttribute { name, key, length, flags } => {
                let value = vec![b'v'; length];
                rustix::fs::setxattr(self.at(name), attribute(key), &value, flags)?;
            }
            Call::RemoveAttribute { name, key } => {
                rustix::fs::removexattr(self.at(name), attribute(key))?;
            }
            Call::List { name } => return list(&self.at(name)),
            Call::Stat { name } => return describe(&self.at(name)),
            Call::Attributes { name } => return attributes(&self.at(name)),
            Call::Whole { name } => {
                let file = rustix::fs::open(self.at(name), OFlags::CLOEXEC, Mode::empty())?;
                let mut content = Vec::new();
                while io::read(&file, rustix::buffer::spare_capacity(reserve(&mut content)))? > 0 {}
                return Ok(digest(&content));
            }
            _ => unreachable!("a call on an open file"),
        }
        Ok(String::new())
    }
}

fn reserve(content: &mut Vec<u8>) -> &mut Vec<u8> {
    content.reserve(65_536);
    content
}

/// By name, which rustix leaves out.
fn truncate(path: &Path, size: u64) -> io::Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let path = CString::new(path.as_os_str().as_bytes()).expect("no NUL");
    let size = libc::off64_t::try_from(size).expect("small");
    // SAFETY: `path` is a NUL-terminated string that lives through the call.
    let status = unsafe { libc::truncate64(path.as_ptr(), size) };
    if status == 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).expect("an errno"))
}

fn bytes(length: usize, fill: u8) -> Vec<u8> {
    (0..length).map(|at| fill.wrapping_add(u8::try_from(at % 251).expect("a byte"))).collect()
}

/// Length and a checksum (FNV-1a): equal exactly where it matters here.
fn digest(bytes: &[u8]) -> String {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{} bytes, {hash:016x}", bytes.len())
}

fn attribute(key: usize) -> &'static str {
    ["user.one", "user.two", "nonsense.three"][key]
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

fn describe(path: &Path) -> io::Result<String> {
    let stat = fs::symlink_metadata(path).map_err(|error| errno(&error))?;
    let size = if stat.is_dir() { 0 } else { stat.len() };
    let target = fs::read_link(path).unwrap_or_default();
    Ok(format!(
        "mode {:o} links {} owner {}:{} size {size} {}",
        stat.mode(),
        if stat.is_dir() { 0 } else { stat.nlink() },
        stat.uid(),
        stat.gid(),
        target.display()
    ))
}

fn list(path: &Path) -> io::Result<String> {
    let entries = fs::read_dir(path).map_err(|error| errno(&error))?;
    let mut names: Vec<String> = entries
        .map(|entry| {
            let entry = entry.expect("an entry");
            let kind = entry.file_type().expect("a type");
            format!("{} {kind:?}", entry.file_name().display())
        })
        .collect();
    names.sort();
    Ok(names.join(", "))
}

fn attributes(path: &Path) -> io::Result<String> {
    let mut names = vec![0; 4096];
    let length = rustix::fs::listxattr(path, &mut names[..])?;
    let mut all = Vec::new();
    for name in names[..length].split_inclusive(|byte| *byte == 0) {
        let name = std::ffi::CStr::from_bytes_with_nul(name).expect("NUL-terminated");
        let mut value = vec![0; 1000];
        let length = rustix::fs::getxattr(path, name, &mut value[..])?;
        all.push(format!("{name:?}={length}"));
    }
    all.sort();
    Ok(all.join(" "))
}

/// Every name below `root` with its attributes and content.
fn tree(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("list") {
            let path = entry.expect("an entry").path();
            let mut text = describe(&path).expect("stat");
            let kind = fs::symlink_metadata(&path).expect("stat").file_type();
            if kind.is_dir() {
                folders.push(path.clone());
            } else if kind.is_file() {
                text += &digest(&fs::read(&path).expect("read"));
            }
            found.insert(path.strip_prefix(root).expect("below").to_owned(), text);
        }
    }
    found
}

pub(crate) fn compare(seed: u64, options: &[&str]) {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    let mut mount = Mount::new(&[&ALWAYS, options].concat());
    let plain = compare_on(seed, &mount);
    mount.unmount();
    assert_same_origin(seed, &mount, plain.path());
}

/// The same calls by turns on two mounts of one origin with these flags, which make them nodes of one cluster.
pub(crate) fn compare_on_two_nodes(seed: u64, options: &[&str]) {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    let options = [&ALWAYS, options].concat();
    let mut one = Mount::new(&options);
    let mut other = Mount::beside(&one, &options);
    let plain = compare_over(seed, &[&one, &other]);
    for mount in [&mut one, &mut other] {
        mount.assert_cached_and_handed_over();
        mount.unmount();
    }
    assert_same_origin(seed, &one, plain.path());
}

/// After all mounts of an origin have ended.
fn assert_same_origin(seed: u64, mount: &Mount, plain: &Path) {
    // Of a node: where all are listed. None is left.
    let list = mount.origin().join(".halocline-cluster");
    let _ = fs::remove_file(list.join("id")).and_then(|()| fs::remove_dir(&list));
    assert_eq!(tree(&mount.origin()), tree(plain), "I7, seed {seed}: after unmount");
}

/// Makes the same random calls on a mount and on the directory that is returned, and compares what both answer.
pub(crate) fn compare_on(seed: u64, mount: &Mount) -> tempfile::TempDir {
    compare_over(seed, &[mount])
}

/// The same with each call on one of several mounts of one origin: what is opened on one is used beside what is opened,
/// renamed and removed on others.
pub(crate) fn compare_over(seed: u64, mounts: &[&Mount]) -> tempfile::TempDir {
    let plain = tempfile::tempdir().expect("scratch");
    // The scratch directory is private; the origin is not.
    fs::set_permissions(plain.path(), fs::Permissions::from_mode(0o755)).expect("permissions");
    let roots = mounts.iter().map(|mount| mount.path()).collect();
    let mut sides = [Side::new(vec![plain.path().to_owned()]), Side::new(roots)];
    let (mut random, mut turns) = (Random::new(seed), Random::new(seed + 1));
    let mut history: Vec<String> = Vec::new();
    for step in 0..STEPS {
        let call = draw(&mut random);
        sides[1].turn = index(turns.below(mounts.len() as u64));
        let [wanted, mut got] = sides.each_mut().map(|side| side.make(&call));
        if got == Err(Errno::STALE) && mounts.len() > 1 && matches!(call, Call::Rename { .. }) {
            // As on NFS: the kernel knows a directory by the name that it had before another node renamed it, and
            // cannot give it its new one during a rename over directories. It looks at the old name when asked for it.
            for name in NAMES {
                let _ = describe(&sides[1].at(name));
            }
            got = sides[1].make(&call);
        }
        history.push(format!("{call:?} -> {wanted:?}"));
        if wanted != got {
            let from = history.len().saturating_sub(40);
            let before = history[from..].join("\n");
            panic!("seed {seed}, step {step}: the mount answers {got:?} to the last of\n{before}");
        }
    }
    for mount in mounts {
        assert_eq!(tree(&mount.path()), tree(plain.path()), "seed {seed}: after all calls");
    }
    drop(sides);
    plain
}

/// Compares two trees.
pub(crate) fn assert_same_tree(got: &Path, wanted: &Path, when: &str) {
    assert_eq!(tree(got), tree(wanted), "{when}");
}

#[test]
fn calls_answer_as_on_a_directory() {
    (100..104).for_each(|seed| compare(seed, &[]));
}

#[test]
fn calls_answer_as_on_a_directory_with_direct_io() {
    (200..204).for_each(|seed| compare(seed, &["--direct=true"]));
}

#[test]
fn calls_answer_as_on_a_directory_in_write_through_mode() {
    (300..302).for_each(|seed| compare(seed, &["--mode", "write-through"]));
}

#[test]
fn calls_answer_as_on_a_directory_through_io_uring() {
    if let Some(reason) = mount::ring_obstacle() {
        return programs::skip(&reason);
    }
    (600..602).for_each(|seed| compare(seed, &[IO_URING]));
    (602..604).for_each(|seed| compare(seed, &[IO_URING, "--direct=true"]));
}

#[test]
fn calls_answer_as_on_a_directory_with_warm_passthrough() {
    (500..503).for_each(|seed| compare(seed, &["--warm-passthrough=true"]));
}
