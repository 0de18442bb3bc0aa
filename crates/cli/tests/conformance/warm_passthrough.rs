//! A file that the kernel reads without the mount at times (`warm_passthrough`, and a file tier),
//! while the same and other programs write it, map it, and leave mappings behind: every read and copy
//! finds the newest bytes (I1), and the origin has them at the end (I7).

use std::fs::{self, File};
use std::io::Seek;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::slice;
use std::thread;
use std::time::{Duration, Instant};

use halocline_testkit::waiting::WAIT_LIMIT;
use rustix::fs::{Advice, MemfdFlags, copy_file_range, fadvise, memfd_create, sendfile};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::kill::Random;
use crate::mount::{self, IO_URING, Mount};
use crate::programs;

const FILE_BYTES: usize = 1 << 20;
const LENGTH_MAX: u64 = 64 << 10;
const STEPS: u32 = 1500;
const PAGE: usize = 4096;
/// Handles and mappings at most, each.
const HELD: usize = 4;

/// A shared mapping of a file's first bytes; it outlives the handle it was made with.
pub(crate) struct Mapping {
    at: *mut u8,
    length: usize,
    writes: bool,
}

impl Mapping {
    pub(crate) fn new(file: &File, length: usize, writes: bool) -> Self {
        let access = if writes { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe {
            mmap(std::ptr::null_mut(), length, access, MapFlags::SHARED, file, 0).expect("mmap")
        };
        Self { at: at.cast(), length, writes }
    }

    pub(crate) fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        // SAFETY: inside the mapping, of a file that never shrinks; this is the only thread.
        unsafe { slice::from_raw_parts(self.at.add(offset), length).to_vec() }
    }

    pub(crate) fn write(&self, offset: usize, data: &[u8]) {
        // SAFETY: as above, and the mapping can be written.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.at.add(offset), data.len()) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and not used any more.
        unsafe { munmap(self.at.cast(), self.length).expect("munmap") };
    }
}

/// A file on the mount, what it must hold, and who has it open.
struct Attack {
    path: PathBuf,
    truth: Vec<u8>,
    random: Random,
    handles: Vec<(File, bool)>,
    mappings: Vec<Mapping>,
    /// Where copies go: out of the mount, and to another of its files.
    copies: [File; 2],
    /// Copies that the kernel was not let make.
    refused: u32,
}

impl Attack {
    fn step(&mut self, mount: &Mount) {
        let offset = at(self.random.below(FILE_BYTES as u64 - LENGTH_MAX));
        let length = at(1 + self.random.below(LENGTH_MAX));
        let byte = u8::try_from(self.random.below(256)).expect("a byte");
        match self.random.below(100) {
            0..20 => {
                let writes = self.random.below(3) == 0;
                let file = File::options().read(true).write(writes).open(&self.path);
                keep(&mut self.random, &mut self.handles, (file.expect("open"), writes));
            }
            20..30 if !self.handles.is_empty() => {
                let which = at(self.random.below(self.handles.len() as u64));
                self.handles.swap_remove(which);
            }
            30..36 => {
                let Some((file, writes)) = self.handles.last() else { return };
                let mapping = Mapping::new(file, FILE_BYTES, *writes);
                keep(&mut self.random, &mut self.mappings, mapping);
            }
            36..42 => {
                self.mappings.pop();
            }
            42..60 => {
                let Some((file, _)) = self.handles.iter().find(|(_, writes)| *writes) else {
                    return;
                };
                self.truth[offset..offset + length].fill(byte);
                file.write_all_at(&self.truth[offset..offset + length], offset as u64)
                    .expect("write");
            }
            60..66 => {
                // What this brings into memory is old afterwards.
                self.look(offset, length);
                let Some(mapping) = self.mappings.iter().find(|mapping| mapping.writes) else {
                    return;
                };
                self.truth[offset..offset + length].fill(byte);
                mapping.write(offset, &self.truth[offset..offset + length]);
                self.look(offset, length);
            }
            66..70 => {
                // Nobody has it open, nothing is dirty: the next reader may read past us.
                self.handles.clear();
                programs::run(programs::halocline().arg("flush").arg(mount.path()));
            }
            70..72 => self.mappings.clear(),
            72..75 => {
                if let Some((file, _)) = self.handles.last() {
                    fadvise(file, 0, None, Advice::WillNeed).expect("advice");
                }
            }
            _ => self.look(offset, length),
        }
    }

    /// Reads through everything that is there.
    fn look(&mut self, offset: usize, length: usize) {
        let wanted = &self.truth[offset..offset + length];
        for (file, writes) in &self.handles {
            let mut found = vec![0; length];
            file.read_exact_at(&mut found, offset as u64).expect("read");
            assert!(found == wanted, "I1: a handle (writes: {writes}) at {offset}");
            for (copy, sends) in self.copies.iter().zip([true, false]) {
                match copied(file, copy, sends, (offset, length)) {
                    Ok(found) => {
                        assert!(
                            found == wanted[..found.len()],
                            "I1: a copy (writes: {writes}, sendfile: {sends}) at {offset}"
                        );
                    }
                    // Beside a reader that the kernel serves: `read` it is.
                    Err(Errno::INVAL) if *writes => self.refused += 1,
                    Err(error) => panic!("copy (writes: {writes}, sendfile: {sends}): {error}"),
                }
            }
        }
        for mapping in &self.mappings {
            let writes = mapping.writes;
            assert!(
                mapping.read(offset, length) == wanted,
                "I1: a mapping (writes: {writes}) at {offset}"
            );
        }
    }
}

/// What `sendfile` or `copy_file_range` puts into `copy` of a range of `file`; at least a byte.
fn copied(
    file: &File,
    mut copy: &File,
    sends: bool,
    (offset, length): (usize, usize),
) -> Result<Vec<u8>, Errno> {
    let mut from = offset as u64;
    copy.rewind().expect("seek");
    let count = if sends {
        sendfile(copy, file, Some(&mut from), length)?
    } else {
        copy_file_range(file, Some(&mut from), copy, Some(&mut 0), length)?
    };
    assert!(count > 0, "nothing was copied");
    let mut found = vec![0; count];
    copy.read_exact_at(&mut found, 0).expect("read a copy");
    Ok(found)
}

/// Adds one, in the place of any other where there are enough.
fn keep<T>(random: &mut Random, held: &mut Vec<T>, one: T) {
    if held.len() == HELD {
        let which = at(random.below(HELD as u64));
        held.swap_remove(which);
    }
    held.push(one);
}

fn at(offset: u64) -> usize {
    usize::try_from(offset).expect("an offset in memory")
}

fn attack(seed: u64) {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    let options = ["--policy", "always", "--size", "4M", "--warm-passthrough=true"];
    let mut mount = Mount::new(&options);
    let truth = attack_on(&mount, seed);
    let status = mount.status();
    assert!(status["warm_opens"].as_u64() > Some(10), "the kernel served files: {status}");
    assert!(status["report"]["admitted"]["bytes"].as_u64() > Some(1 << 20), "and we did: {status}");
    mount.unmount();
    assert!(fs::read(mount.origin().join("file")).expect("read") == truth, "I7, seed {seed}");
}

/// What the file on a mount must hold at the end.
fn attack_on(mount: &Mount, seed: u64) -> Vec<u8> {
    let path = mount.path().join("file");
    fs::write(&path, vec![0; FILE_BYTES]).expect("write");
    let outside = File::from(memfd_create("copy", MemfdFlags::CLOEXEC).expect("memory"));
    let beside = File::create_new(mount.path().join("copy")).expect("create");
    let mut attack = Attack {
        path,
        truth: vec![0; FILE_BYTES],
        random: Random::new(seed),
        handles: Vec::new(),
        mappings: Vec::new(),
        copies: [outside, beside],
        refused: 0,
    };
    for step in 0..STEPS {
        let steps = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| attack.step(mount)));
        assert!(steps.is_ok(), "seed {seed}, step {step}: see above");
    }
    attack.look(0, FILE_BYTES);
    let works = mount.status()["tier"]["passthrough"]["works"] != false;
    assert!(attack.refused > 0 || !works, "nobody wrote beside a reader that the kernel served");
    attack.truth
}

fn attack_tier(seed: u64) {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    let mut mount = Mount::tier(&["--allow-other=true"]);
    let truth = attack_on(&mount, seed);
    mount.unmount();
    assert!(fs::read(mount.root().join("ssd/file")).expect("read") == truth, "I7, seed {seed}");
}

#[test]
fn i1_programs_see_one_file_whoever_serves_it_seed_1() {
    attack(1);
}

#[test]
fn i1_programs_see_one_file_whoever_serves_it_seed_2() {
    attack(2);
}

#[test]
fn i1_programs_see_one_file_whoever_serves_it_seed_3() {
    attack(3);
}

#[test]
fn i1_programs_see_one_file_of_a_tier_whoever_serves_it_seed_4() {
    attack_tier(4);
}

#[test]
fn i1_programs_see_one_file_of_a_tier_whoever_serves_it_seed_5() {
    attack_tier(5);
}

/// A reader of a file that nobody else has open, which the kernel serves; `None` where it cannot.
fn served_reader(mount: &Mount, path: &Path) -> Option<File> {
    // The kernel tells of earlier closes when it likes: until then the mount serves the file.
    let deadline = Instant::now() + WAIT_LIMIT;
    loop {
        let before = mount.status()["warm_opens"].as_u64();
        let reader = File::open(path).expect("open");
        let status = mount.status();
        let passthrough = &status["tier"]["passthrough"];
        if passthrough["works"] == false {
            return None;
        }
        if passthrough["files"][0] == "file" || status["warm_opens"].as_u64() > before {
            return Some(reader);
        }
        assert!(Instant::now() < deadline, "{status}");
        drop(reader);
        thread::sleep(Duration::from_millis(20));
    }
}

/// Pages that the kernel keeps of the mount's file would be as old as they are when all has been
/// closed.
fn no_page_is_kept(mut mount: Mount) {
    let path = mount.path().join("file");
    fs::write(&path, vec![1; FILE_BYTES]).expect("write");
    programs::run(programs::halocline().arg("flush").arg(mount.path()));
    let Some(reader) = served_reader(&mount, &path) else {
        return programs::skip("the kernel takes no files");
    };
    let writer = File::options().read(true).write(true).open(&path).expect("open");
    let copy = File::from(memfd_create("copy", MemfdFlags::CLOEXEC).expect("memory"));
    let refused = copied(&writer, &copy, true, (0, PAGE)).map(|sent| sent.len());
    assert!(matches!(refused, Err(Errno::INVAL)), "sendfile would bring pages: {refused:?}");
    for file in [&reader, &writer] {
        fadvise(file, 0, None, Advice::WillNeed).expect("advice");
    }
    let mapping = Mapping::new(&writer, FILE_BYTES, true);
    mapping.write(0, &[2; PAGE]);
    let sent = copied(&reader, &copy, true, (0, PAGE)).expect("sendfile");
    assert!(sent.iter().all(|&byte| byte == 2), "I1: sendfile");
    drop((mapping, writer, reader));
    for writes in [true, false] {
        let file = File::options().read(true).write(writes).open(&path).expect("open");
        let mut found = [0; PAGE];
        file.read_exact_at(&mut found, 0).expect("read");
        assert!(found == [2; PAGE], "I1: after all was closed (writes: {writes})");
    }
    mount.unmount();
}

#[test]
fn i1_no_page_is_kept_of_a_warm_file_that_a_mapping_changes() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    let options = ["--policy", "always", "--size", "4M", "--warm-passthrough=true"];
    no_page_is_kept(Mount::new(&options));
}

#[test]
fn i1_no_page_is_kept_of_a_file_of_a_tier_that_a_mapping_changes() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    no_page_is_kept(Mount::tier(&["--allow-other=true"]));
}

#[test]
fn i1_no_page_is_kept_of_a_file_of_a_tier_that_is_asked_for_through_io_uring() {
    if let Some(reason) = mount::ring_obstacle() {
        return programs::skip(&reason);
    }
    no_page_is_kept(Mount::tier(&["--allow-other=true", IO_URING]));
}
