//! Single calls, each on one of the nodes.

use std::ffi::c_void;
use std::fs;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, UNIX_EPOCH};

use halocline_testkit::hostile::Random;
use rustix::fs::{FallocateFlags, fallocate};

use crate::model::NAMES;
use crate::world::{How, NODES, World, whole};

const FILE_MAX: usize = 300_000;

/// Makes a random call.
pub(crate) fn make(world: &mut World, random: &mut Random) {
    match random.below(100) {
        0..30 => write(world, random),
        30..58 => read(world, random),
        58..66 => resize(world, random),
        66..74 => allocate(world, random),
        74..78 => copy(world, random),
        78..82 => sync(world, random),
        82..86 => set_time(world, random),
        86..88 => seek(world, random),
        88..91 => close(world, random),
        _ => rename(world, random),
    }
}

fn place(random: &mut Random) -> (usize, usize) {
    let most = [200, 5000, 70_000][random.below(3)];
    let (offset, length) = (random.below(FILE_MAX), random.below(most) + 1);
    if random.below(3) == 0 { (offset & !4095, (length + 4095) & !4095) } else { (offset, length) }
}

fn bytes(length: usize, random: &mut Random) -> Vec<u8> {
    let fill = random.any().to_le_bytes()[0];
    (0..length).map(|at| fill.wrapping_add(u8::try_from(at % 251).expect("small"))).collect()
}

fn write(world: &mut World, random: &mut Random) {
    let slot = world.any_open(random);
    let ((offset, length), of) = (place(random), world.open[slot].of);
    let data = bytes(length, random);
    let how = world.open[slot].how;
    world.note(&format!("{}: write {length} at {offset} to {of}, {how:?}", name_of(world, slot)));
    let open = &world.open[slot];
    let appends = matches!(how, How::Append | How::AppendLater);
    if appends {
        let written = (&open.file).write(&data);
        assert_eq!(world.expect(written), length);
        if world.model.files[of].bytes.len() > 3 * FILE_MAX {
            world.expect(world.open[slot].file.set_len(0));
            world.model.files[of].resize(0);
        } else {
            world.model.files[of].append(&data);
        }
    } else {
        world.expect(open.file.write_all_at(&data, offset as u64));
        world.model.files[of].write(offset, &data);
    }
}

fn name_of(world: &World, slot: usize) -> &'static str {
    NODES[world.open[slot].node]
}

fn read(world: &mut World, random: &mut Random) {
    let slot = world.any_open(random);
    let ((offset, length), of) = (place(random), world.open[slot].of);
    let way = random.below(8);
    world.note(&format!("{}: read {length} at {offset} of {of}, way {way}", name_of(world, slot)));
    let file = &world.open[slot].file;
    match way {
        0 => {
            let found = world.expect(mapped(file));
            world.compare(&found, of, (0, usize::MAX / 2));
        }
        1 => {
            let found = world.expect(sent(file, offset, length));
            world.compare(&found, of, (offset, length));
        }
        2 => {
            let found = world.expect(whole(file));
            world.compare(&found, of, (0, usize::MAX / 2));
        }
        _ => {
            let mut found = vec![0; length];
            let count = world.expect(file.read_at(&mut found, offset as u64));
            world.compare(&found[..count], of, (offset, length));
        }
    }
}

/// A file's bytes through a new private mapping.
fn mapped(file: &File) -> io::Result<Vec<u8>> {
    let length = usize::try_from(file.metadata()?.len()).expect("it fits in memory");
    if length == 0 {
        return Ok(Vec::new());
    }
    let (none, fd) = (std::ptr::null_mut::<c_void>(), file.as_raw_fd());
    // SAFETY: a new mapping is made at a place that the kernel chooses.
    let map = unsafe { libc::mmap(none, length, libc::PROT_READ, libc::MAP_PRIVATE, fd, 0) };
    if map == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: so many bytes are mapped, and nobody shortens the file meanwhile.
    let bytes = unsafe { std::slice::from_raw_parts(map.cast::<u8>(), length) }.to_vec();
    // SAFETY: it was mapped above, and is used by nobody.
    assert_eq!(unsafe { libc::munmap(map, length) }, 0);
    Ok(bytes)
}

/// Bytes of a file as the kernel copies them to another one.
fn sent(file: &File, offset: usize, length: usize) -> io::Result<Vec<u8>> {
    // The kernel goes as far as what it knows of the size.
    file.metadata()?;
    let mut to = tempfile::tempfile()?;
    let mut at = offset as u64;
    while at < (offset + length) as u64 {
        let left = offset + length - usize::try_from(at).expect("small");
        if rustix::fs::sendfile(&to, file, Some(&mut at), left)? == 0 {
            break;
        }
    }
    let mut found = Vec::new();
    to.seek(SeekFrom::Start(0))?;
    to.read_to_end(&mut found)?;
    Ok(found)
}

fn resize(world: &mut World, random: &mut Random) {
    let slot = world.any_open(random);
    let (size, of) = (random.below(FILE_MAX), world.open[slot].of);
    let by_name = random.below(3) == 0;
    let named = world.model.names.iter().find(|(_, named)| **named == of).map(|(name, _)| *name);
    world.note(&format!("{}: size {size} of {of}, by name {by_name}", name_of(world, slot)));
    match named {
        Some(name) if by_name => {
            let path = world.path(random.below(NODES.len()), name);
            let emptied = File::options().write(true).truncate(true).open(path);
            drop(world.expect(emptied));
            world.model.files[of].resize(0);
        }
        _ => {
            world.expect(world.open[slot].file.set_len(size as u64));
            world.model.files[of].resize(size);
        }
    }
}

fn allocate(world: &mut World, random: &mut Random) {
    let slot = world.any_open(random);
    let ((offset, length), of) = (place(random), world.open[slot].of);
    let flags = [
        FallocateFlags::empty(),
        FallocateFlags::KEEP_SIZE,
        FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        FallocateFlags::ZERO_RANGE,
        FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
    ][random.below(6)];
    world.note(&format!("{}: {flags:?} {length} at {offset} of {of}", name_of(world, slot)));
    let done = fallocate(&world.open[slot].file, flags, offset as u64, length as u64);
    if done == Err(rustix::io::Errno::OPNOTSUPP) {
        return;
    }
    world.expect(done);
    let file = &mut world.model.files[of];
    if !flags.contains(FallocateFlags::KEEP_SIZE) {
        file.grow(offset + length);
    }
    if flags.intersects(FallocateFlags::PUNCH_HOLE | FallocateFlags::ZERO_RANGE) {
        file.clear(offset, length);
    }
    file.time = None;
}

fn copy(world: &mut World, random: &mut Random) {
    let (from, (target, length)) = (world.any_open(random), place(random));
    let (source, _) = place(random);
    let node = world.open[from].node;
    let to = (0..world.open.len()).find(|slot| {
        let open = &world.open[*slot];
        let appends = matches!(open.how, How::Append | How::AppendLater);
        open.node == node && open.of != world.open[from].of && !appends
    });
    let Some(to) = to else { return };
    let (of, into) = (world.open[from].of, world.open[to].of);
    world
        .note(&format!("{}: copy {length} at {source} of {of} to {target} of {into}", NODES[node]));
    let (from, to) = (&world.open[from].file, &world.open[to].file);
    // The kernel copies no more than what it knows of the file.
    world.expect(from.metadata());
    let (mut at, mut end) = (source as u64, target as u64);
    let copied = rustix::fs::copy_file_range(from, Some(&mut at), to, Some(&mut end), length);
    let copied = world.expect(copied);
    let data = world.model.files[of].read(source, copied).to_vec();
    assert_eq!(data.len(), copied, "more was copied than there is");
    world.model.files[into].write(target, &data);
}

fn sync(world: &mut World, random: &mut Random) {
    let slot = world.any_open(random);
    world.note(&format!("{}: sync {}", name_of(world, slot), world.open[slot].of));
    world.expect(world.open[slot].file.sync_all());
}

fn set_time(world: &mut World, random: &mut Random) {
    let slot = world.any_open(random);
    let (seconds, of) = (1_000_000_000 + random.below(1000) as u64, world.open[slot].of);
    world.note(&format!("{}: time {seconds} of {of}", name_of(world, slot)));
    let time = UNIX_EPOCH + Duration::from_secs(seconds);
    world.expect(world.open[slot].file.set_modified(time));
    world.model.files[of].time = Some(seconds.cast_signed());
}

/// What is not zero is data.
fn seek(world: &mut World, random: &mut Random) {
    let slot = world.any_open(random);
    let (offset, of) = (random.below(FILE_MAX), world.open[slot].of);
    world.note(&format!("{}: data from {offset} of {of}", name_of(world, slot)));
    let found = rustix::fs::seek(&world.open[slot].file, rustix::fs::SeekFrom::Data(offset as u64));
    let bytes = &world.model.files[of].bytes;
    let skipped = match found {
        Err(rustix::io::Errno::NXIO) => offset.min(bytes.len())..bytes.len(),
        found => {
            let found = usize::try_from(world.expect(found)).expect("small");
            offset.min(bytes.len())..found.min(bytes.len())
        }
    };
    if bytes[skipped.clone()].iter().any(|byte| *byte != 0) {
        world.fail(&format!("{skipped:?} of file {of} is taken for a hole"));
    }
}

fn close(world: &mut World, random: &mut Random) {
    if world.open.len() > 2 {
        let slot = random.below(world.open.len());
        world.note(&format!("{}: close {}", name_of(world, slot), world.open[slot].of));
        world.open.swap_remove(slot);
    }
}

/// Renames, links and unlinks.
fn rename(world: &mut World, random: &mut Random) {
    let [from, to] = [(); 2].map(|()| NAMES[random.below(NAMES.len())]);
    let node = random.below(NODES.len());
    let what = random.below(4);
    let [source, target] = [from, to].map(|name| world.path(node, name));
    let (known, taken) = (world.model.names.get(from).copied(), world.model.names.get(to).copied());
    let Some(of) = known.filter(|_| from != to) else { return };
    world.note(&format!("{}: {from}, {to}: names, way {what}; file {of}", NODES[node]));
    match what {
        0 | 1 => {
            world.expect(fs::rename(source, target));
            // Two names of one file both stay.
            if taken != Some(of) {
                world.model.names.remove(from);
                world.model.names.insert(to, of);
            }
        }
        2 if taken.is_none() => {
            world.expect(fs::hard_link(source, target));
            world.model.names.insert(to, of);
        }
        _ => {
            world.expect(fs::remove_file(source));
            world.model.names.remove(from);
        }
    }
}
