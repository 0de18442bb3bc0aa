//! What one user of a shared tier can open leaves descriptors of the mount process for others, and for its own work.

use std::fs::{self, File};
use std::io::Error;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::thread;

use halocline_testkit::program;
use halocline_testkit::sandbox::said;
use halocline_testkit::scratch::Scratch;
use halocline_testkit::shared_tiers::{SharedTiers, peers};
use halocline_testkit::skipping::skip;
use halocline_testkit::waiting::eventually;
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::process::{Resource, Rlimit, setrlimit};

const NODES: [&str; 2] = ["one", "two"];
/// The limit of the mount's process.
const LIMIT: u64 = 600;
const BYTES: usize = 64 << 10;
/// A user who is neither root nor who mounted.
const OTHER: u32 = 65534;

/// Two mounts; that of `one` may have few files open, and is started with a lower limit that it may raise.
fn nodes() -> Option<SharedTiers> {
    let scratch = Scratch::with_mountpoints(program!(), &NODES)?;
    let nodes = SharedTiers::new(scratch, &NODES)?;
    let (url, peers) = (nodes.store.url(), peers(&nodes.scratch));
    let args = ["mount", "--tier", "one-tiers", "one", "--cluster", &url, "--node", "one"];
    let mut command = nodes.scratch.command(&[&args[..], &["--peers", &peers]].concat());
    let limit = Rlimit { current: Some(300), maximum: Some(LIMIT) };
    // SAFETY: between fork and exec the closure makes a system call only.
    unsafe { command.pre_exec(move || Ok(setrlimit(Resource::Nofile, limit)?)) };
    let mounted = command.output().unwrap();
    assert!(mounted.status.success(), "{}", said(&mounted));
    Some(nodes.mounted(&["two"], &[]))
}

/// This process may have more open than the mount.
fn raise_own_limit() {
    let limit = Rlimit { current: Some(2 * LIMIT), maximum: Some(20_000) };
    setrlimit(Resource::Nofile, limit).unwrap();
}

/// Another node reads what this one has, which moves files of both.
fn works(nodes: &SharedTiers) {
    assert_eq!(fs::read_to_string(nodes.at("two", "here")).unwrap(), "on one");
    nodes.moves(&["demote", "one/here"]);
    nodes.moves(&["warm", "one/there"]);
    assert_eq!(nodes.scratch.status("one")["health"]["state"], "ok");
}

/// The nodes, and a directory of as many files as the limit.
fn with_many(bytes: &[u8]) -> Option<(SharedTiers, PathBuf)> {
    let nodes = nodes()?;
    raise_own_limit();
    fs::write(nodes.at("one", "here"), "on one").unwrap();
    fs::write(nodes.at("two", "there"), "on two").unwrap();
    let many = nodes.at("one", "many");
    fs::create_dir(&many).unwrap();
    (0..LIMIT).for_each(|at| fs::write(many.join(at.to_string()), bytes).unwrap());
    nodes.until_closed("one", "many");
    Some((nodes, many))
}

/// Whether the kernel serves files; if not, the test is skipped.
fn serves_by_kernel(nodes: &SharedTiers, many: &Path) -> bool {
    drop(File::open(many.join("0")).unwrap());
    let passthrough = nodes.scratch.status("one")["tier"]["passthrough"].clone();
    let works = passthrough["works"] == true;
    if !works {
        skip(format!("the kernel serves no files: {passthrough}"));
    }
    works
}

/// A mapping of a file's first bytes.
struct Mapping(*mut libc::c_void);

impl Mapping {
    fn of(file: impl AsFd) -> Option<Self> {
        let (read, shared) = (ProtFlags::READ, MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice.
        unsafe { mmap(std::ptr::null_mut(), BYTES, read, shared, file, 0) }.ok().map(Self)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and not used any more.
        unsafe { munmap(self.0, BYTES).unwrap() };
    }
}

fn open_all(at: &Path, open: impl Fn(&Path) -> std::io::Result<File>) -> (Vec<File>, Error) {
    let mut files = Vec::new();
    loop {
        match open(&at.join(files.len().to_string())) {
            Ok(file) => files.push(file),
            Err(error) => return (files, error),
        }
    }
}

/// Regression: the limit stayed at that of the shell, and whoever mounted took all: the mount's own work failed with EMFILE.
#[test]
fn the_user_who_mounted_leaves_descriptors_for_the_mounts_work() {
    let Some(nodes) = nodes() else { return };
    raise_own_limit();
    fs::write(nodes.at("one", "here"), "on one").unwrap();
    fs::write(nodes.at("two", "there"), "on two").unwrap();
    let many = nodes.at("one", "many");
    fs::create_dir(&many).unwrap();
    let (files, error) = open_all(&many, |path| File::create_new(path));
    assert_eq!(error.raw_os_error(), Some(libc::ENFILE), "{} were open", files.len());
    assert_eq!(files.len(), 450, "three quarters");
    works(&nodes);
    drop(files);
    eventually("that they are closed", || File::open(many.join("0")).is_ok());
}

/// What another user can open of a directory's files, each after the one before.
fn open_as_other(dir: &File, mut names: impl Iterator<Item = u64>) -> (Vec<OwnedFd>, Errno) {
    // SAFETY: changes the rights of this thread only, which ends with the scope.
    unsafe { libc::setfsuid(OTHER) };
    let mut files = Vec::new();
    loop {
        let name = names.next().expect("fewer can be opened").to_string();
        match openat(dir, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(file) => files.push(file),
            Err(error) => return (files, error),
        }
    }
}

/// Regression: only the lowest free number of a descriptor was looked at, and there the mount had closed a file.
#[test]
fn another_user_leaves_descriptors_whether_alone_or_at_once() {
    if !rustix::process::geteuid().is_root() {
        return skip("needs root, to be another user");
    }
    let Some((nodes, many)) = with_many(b"small") else { return };
    let dir = File::open(&many).unwrap();
    for openers in [1, 2] {
        let all: Vec<_> = thread::scope(|scope| {
            let open = |first| {
                let names = (first..LIMIT).step_by(openers);
                let dir = &dir;
                scope.spawn(move || open_as_other(dir, names))
            };
            let openers: Vec<_> = (0..openers as u64).map(open).collect();
            openers.into_iter().map(|opener| opener.join().unwrap()).collect()
        });
        let count: usize = all.iter().map(|(files, _)| files.len()).sum();
        for (_, error) in &all {
            assert_eq!(*error, Errno::NFILE, "{openers} had {count} open");
        }
        assert!((100..300).contains(&count), "at most half: {openers} had {count} open");
        drop(File::open(many.join("0")).unwrap());
        drop(File::create_new(many.join(format!("new-{openers}"))).unwrap());
        if openers == 2 {
            works(&nodes);
        }
        drop(all);
        nodes.until_closed("one", "many");
    }
}

/// Regression: a mapping takes no descriptor of the program once it has closed the file, but one of the mount.
#[test]
fn mappings_of_closed_files_leave_descriptors_for_others() {
    let Some((nodes, many)) = with_many(&vec![b'a'; BYTES]) else { return };
    if !serves_by_kernel(&nodes, &many) {
        return;
    }
    let map = |at: u64| Mapping::of(File::open(many.join(at.to_string())).unwrap());
    let maps: Vec<_> = (0..LIMIT).map_while(map).collect();
    assert!((75..=85).contains(&maps.len()), "an eighth: {}", maps.len());
    let (files, error) = open_all(&many, |path| File::open(path));
    assert_eq!(error.raw_os_error(), Some(libc::ENFILE), "{} were open", files.len());
    works(&nodes);
    drop((files, maps));
    eventually("that they are unmapped", || map(1).is_some());
}

/// Regression: what was open at once before it was closed, and stayed mapped, counted for nobody.
#[test]
fn mappings_of_closed_files_count_for_who_opened_them() {
    if !rustix::process::geteuid().is_root() {
        return skip("needs root, to be another user");
    }
    let Some((nodes, many)) = with_many(&vec![b'a'; BYTES]) else { return };
    if !serves_by_kernel(&nodes, &many) {
        return;
    }
    let dir = File::open(&many).unwrap();
    let open = |first| {
        let dir = &dir;
        thread::scope(|scope| scope.spawn(move || open_as_other(dir, first..LIMIT)).join().unwrap())
    };
    let (files, error) = open(0);
    assert_eq!(error, Errno::NFILE, "{} were open", files.len());
    let maps: Vec<_> = files.iter().map(|file| Mapping::of(file).unwrap()).collect();
    drop(files);
    let (more, error) = open(maps.len() as u64);
    assert_eq!(error, Errno::NFILE, "{} were mapped and {} open", maps.len(), more.len());
    assert!(more.len() < 20, "{} were mapped and {} open", maps.len(), more.len());
    works(&nodes);
    drop((more, maps));
    eventually("that they are unmapped", || open(0).0.len() > 100);
}
