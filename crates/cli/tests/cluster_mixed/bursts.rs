//! What programs on all nodes do at the same time.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::Barrier;
use std::thread;

use halocline_testkit::hostile::Random;
use rustix::fs::{FallocateFlags, fallocate};

use crate::world::{World, whole};

const RECORD: usize = 700;

/// Two nodes take the same bytes from each other, until nobody caches there.
pub(crate) fn contend(world: &mut World, random: &mut Random) {
    let (of, files) = world.on_all_nodes(64 << 10, random, false);
    world.note(&format!("contend for {of}"));
    let first = random.below(3);
    let second = (first + 1 + random.below(2)) % 3;
    for round in 0..40_u8 {
        for (turn, node) in [(0, first), (1, second)] {
            let (offset, data) = (random.below(60_000), vec![round * 2 + turn + 1; 3000]);
            world.expect(files[node].write_all_at(&data, offset as u64));
            world.model.files[of].write(offset, &data);
        }
    }
    world.compare_all(of, &files);
}

/// A node writes more than a cache has room for, and another one reads it until it has it, too.
pub(crate) fn fill_up(world: &mut World, random: &mut Random) {
    let (writer, reader) = (random.below(3), random.below(3));
    let all = [(); 4].map(|()| {
        let (of, files) = world.on_all_nodes(0, random, false);
        world.note(&format!("fill {of}"));
        for at in 0..25_u8 {
            let (offset, data) = (usize::from(at) * 16_384, vec![at + of.to_le_bytes()[0]; 16_384]);
            world.expect(files[writer].write_all_at(&data, offset as u64));
            world.model.files[of].write(offset, &data);
        }
        (of, files)
    });
    world.look_at_status();
    for (of, files) in all.iter().chain(&all).chain(&all) {
        let found = world.expect(whole(&files[reader]));
        world.compare(&found, *of, (0, usize::MAX / 2));
    }
    world.look_at_status();
}

/// Records are appended by all: each is there once, whole.
pub(crate) fn append_at_once(world: &mut World, random: &mut Random) {
    const EACH: u8 = 12;
    let (of, files) = world.on_all_nodes(0, random, true);
    world.note(&format!("append to {of}"));
    let start = Barrier::new(files.len());
    let appended: Vec<std::io::Result<()>> = thread::scope(|scope| {
        let append = |(node, file): (usize, &File)| {
            let node = u8::try_from(node).unwrap();
            start.wait();
            (0..EACH).try_for_each(|number| (&*file).write_all(&[node * EACH + number + 1; RECORD]))
        };
        let threads: Vec<_> =
            files.iter().enumerate().map(|file| scope.spawn(move || append(file))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread")).collect()
    });
    for done in appended {
        world.expect(done);
    }
    let found = world.expect(whole(&files[random.below(3)]));
    let before = world.model.files[of].bytes.len();
    if found.len() != before + files.len() * usize::from(EACH) * RECORD {
        world.fail(&format!("{} bytes, after {before} of before", found.len()));
    }
    let records: BTreeSet<&[u8]> = found[before..].chunks(RECORD).collect();
    let are_whole = records.iter().all(|record| record.iter().all(|byte| *byte == record[0]));
    if records.len() != files.len() * usize::from(EACH) || !are_whole {
        world.fail(&format!("records of file {of} are torn or missing"));
    }
    let new = found[before..].to_vec();
    world.model.files[of].append(&new);
    world.compare_all(of, &files);
}

/// Each node writes every third piece, none of which begins at a block, and reads what others write.
pub(crate) fn write_between_each_other(world: &mut World, random: &mut Random) {
    const PIECES: usize = 24;
    let piece = [300, 4096, 5000][random.below(3)];
    let begin = random.below(20_000);
    let (of, files) = world.on_all_nodes(0, random, false);
    world.note(&format!("write pieces of {piece} at {begin} to {of}"));
    let start = Barrier::new(files.len());
    let data = |number: usize| vec![u8::try_from(number + 1).expect("few"); piece];
    let written: Vec<std::io::Result<()>> = thread::scope(|scope| {
        let write = |(node, file): (usize, &File)| {
            start.wait();
            for number in (node..PIECES).step_by(3) {
                file.write_all_at(&data(number), (begin + number * piece) as u64)?;
                let mut found = vec![0; piece];
                file.read_exact_at(&mut found, (begin + number * piece) as u64)?;
                assert!(found == data(number), "what the same program wrote");
            }
            Ok(())
        };
        let threads: Vec<_> =
            files.iter().enumerate().map(|file| scope.spawn(move || write(file))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread")).collect()
    });
    for done in written {
        world.expect(done);
    }
    (0..PIECES)
        .for_each(|number| world.model.files[of].write(begin + number * piece, &data(number)));
    world.compare_all(of, &files);
}

/// One node appends by writes past the end, one rewrites the beginning, and one punches holes between.
pub(crate) fn change_at_once(world: &mut World, random: &mut Random) {
    const PART: usize = 96 << 10;
    const PIECE: usize = 6000;
    let (of, files) = world.on_all_nodes(2 * PART, random, false);
    let end = world.model.files[of].bytes.len();
    world.note(&format!("grow, write and punch {of}"));
    let turn = random.below(3);
    let pieces = || (0..PART / PIECE).map(|number| number * PIECE);
    let start = Barrier::new(3);
    let work = |role: usize, file: &File| -> std::io::Result<()> {
        start.wait();
        for at in pieces() {
            match role {
                0 => file.write_all_at(&[7; PIECE], at as u64)?,
                1 => {
                    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    file.write_all_at(&[9; PIECE], (PART + at) as u64)?;
                    fallocate(file, hole, (PART + at) as u64, PIECE as u64 / 2)?;
                }
                _ => file.write_all_at(&[8; PIECE], (end + at) as u64)?,
            }
        }
        Ok(())
    };
    let done: Vec<std::io::Result<()>> = thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = files
            .iter()
            .enumerate()
            .map(|(node, file)| scope.spawn(move || work((node + turn) % 3, file)))
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread")).collect()
    });
    for done in done {
        world.expect(done);
    }
    let file = &mut world.model.files[of];
    for at in pieces() {
        file.write(at, &[7; PIECE]);
        file.write(PART + at, &[9; PIECE]);
        file.clear(PART + at, PIECE / 2);
        file.write(end + at, &[8; PIECE]);
    }
    world.compare_all(of, &files);
    // Files are not to become longer and longer.
    world.expect(files[turn].set_len(2 * PART as u64));
    world.model.files[of].resize(2 * PART);
    world.compare_all(of, &files);
}
