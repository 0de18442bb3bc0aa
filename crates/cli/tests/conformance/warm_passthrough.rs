//! A file that the kernel reads without the mount at times (`warm_passthrough`), while the same and
//! other programs write it, map it, and leave mappings behind: every read finds the newest bytes
//! (I1), and the origin has them at the end (I7).

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::slice;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::kill::Random;
use crate::mount::{self, Mount};
use crate::programs;

const FILE_BYTES: usize = 1 << 20;
const LENGTH_MAX: u64 = 64 << 10;
const STEPS: u32 = 1500;
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
                let Some(mapping) = self.mappings.iter().find(|mapping| mapping.writes) else {
                    return;
                };
                self.truth[offset..offset + length].fill(byte);
                mapping.write(offset, &self.truth[offset..offset + length]);
            }
            66..70 => {
                // Nobody has it open, nothing is dirty: the next reader may read past us.
                self.handles.clear();
                programs::run(programs::halocline().arg("flush").arg(mount.path()));
            }
            70..72 => self.mappings.clear(),
            _ => self.look(offset, length),
        }
    }

    /// Reads through everything that is there.
    fn look(&self, offset: usize, length: usize) {
        let wanted = &self.truth[offset..offset + length];
        for (file, writes) in &self.handles {
            let mut found = vec![0; length];
            file.read_exact_at(&mut found, offset as u64).expect("read");
            assert!(found == wanted, "I1: a handle (writes: {writes}) at {offset}");
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
    let path = mount.path().join("file");
    fs::write(&path, vec![0; FILE_BYTES]).expect("write");
    let mut attack = Attack {
        path,
        truth: vec![0; FILE_BYTES],
        random: Random::new(seed),
        handles: Vec::new(),
        mappings: Vec::new(),
    };
    for step in 0..STEPS {
        let steps = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| attack.step(&mount)));
        assert!(steps.is_ok(), "seed {seed}, step {step}: see above");
    }
    attack.look(0, FILE_BYTES);
    let Attack { truth, handles, mappings, .. } = attack;
    drop((handles, mappings));
    let status = mount.status();
    assert!(status["warm_opens"].as_u64() > Some(10), "the kernel served files: {status}");
    assert!(status["report"]["admitted"]["bytes"].as_u64() > Some(1 << 20), "and we did: {status}");
    mount.unmount();
    assert!(fs::read(mount.origin().join("file")).expect("read") == truth, "I7, seed {seed}");
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
