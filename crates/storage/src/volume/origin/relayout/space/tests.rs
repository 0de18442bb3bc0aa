//! Orders and ways of moves with so much room.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use halocline_api::config::{VolumeKind, VolumeShape};

use super::*;
use crate::volume::origin::relayout::{Relayout, look};

const SHAPE: VolumeShape = VolumeShape { kind: VolumeKind::Striped, servers: 3, stripe: 4096 };

/// A file with bytes that differ from each other.
fn make(origin: &Origin, name: &str, size: u32) {
    let path = origin.namespace_dir().join(name);
    let node = File::options().create_new(true).read(true).write(true).open(path).unwrap();
    let content: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
    origin.adopt_data(node).unwrap().write_at(0, &content).unwrap();
}

fn volume(dir: &Path) -> Relayout {
    let mut volume = None;
    // A process that another test starts has its lock until it runs its program.
    halocline_testkit::waiting::eventually("the volume", || {
        volume = Relayout::open(dir).ok();
        volume.is_some()
    });
    volume.expect("opened")
}

fn file_at(volume: &Relayout, widths: [u64; 3]) -> LayoutChange {
    named_at(volume, "file", widths)
}

fn named_at(volume: &Relayout, name: &str, widths: [u64; 3]) -> LayoutChange {
    let layout = FileLayout::uniform(widths.to_vec()).expect("a layout");
    let wishes = [Wish { path: name.into(), layout }];
    look(volume.origin(), &wishes, true).expect("the file").remove(0)
}

/// Two disks and an SSD with so much free on each.
fn room(free: [u64; 3]) -> Room {
    let systems = free.map(|free| (free, 0)).to_vec();
    Room {
        systems,
        of_server: vec![0, 1, 2],
        read_only: vec![false; 3],
        no_files: vec![false; 3],
        indirect: vec![None; 3],
    }
}

/// Regression: a file that is on the SSD could get no more of it, because its own bytes were in the way.
#[test]
fn a_file_whose_copy_does_not_fit_beside_it_moves_by_way_of_the_others() {
    let scratch = tempfile::tempdir().unwrap();
    let made = Origin::open_or_create(scratch.path(), SHAPE, &|_, device| device).unwrap();
    make(&made, "file", 300_000);
    drop(made);
    let volume = volume(scratch.path());
    // Half on the SSD, then all of it there.
    let half = file_at(&volume, [4096, 4096, 8192]);
    volume.relayout(&half, &mut |_| Ok(()), &mut |_| ()).unwrap();
    let file = file_at(&volume, [0, 0, 65_536]);
    assert!(file.used[2] > 100_000, "{file:?}");
    let moves = |free| moves_in(room(free), volume.origin(), std::slice::from_ref(&file));
    let only = |moves: &[Move]| moves.iter().map(|it| it.is_detour).collect::<Vec<_>>();
    assert_eq!(only(&moves([1 << 20, 1 << 20, 400_000]).unwrap()), [false]);
    let detour = moves([1 << 20, 1 << 20, 200_000]).unwrap();
    assert_eq!(only(&detour), [true, false]);
    // Not where the others have no space, or the SSD has none even without the file.
    for free in [[1 << 10, 1 << 10, 200_000], [1 << 20, 1 << 20, 50_000]] {
        let error = moves(free).unwrap_err().to_string();
        assert!(error.contains("server-2") && error.contains("are free"), "{error}");
    }
    for Move { change, .. } in detour {
        volume.relayout(&change, &mut |_| Ok(()), &mut |_| ()).unwrap();
        let there = file_at(&volume, [0, 0, 65_536]);
        assert_eq!(there.now, change.wished);
    }
    let found = file_at(&volume, [0, 0, 65_536]);
    assert!(found.agrees() && found.used[..2] == [0, 0], "{found:?}");
}

/// Regression: the first file was refused because those that were to leave the SSD come behind it.
#[test]
fn what_leaves_a_server_goes_before_what_needs_its_room() {
    const M: u64 = 1 << 20;
    let scratch = tempfile::tempdir().unwrap();
    let made = Origin::open_or_create(scratch.path(), SHAPE, &|_, device| device).unwrap();
    File::create_new(made.namespace_dir().join("file")).unwrap();
    drop(made);
    let volume = volume(scratch.path());
    let like = file_at(&volume, [4096, 8192, 0]);
    let file = |name: &str, used: [u64; 3], planned: [u64; 3]| LayoutChange {
        path: name.into(),
        used: used.to_vec(),
        planned: planned.to_vec(),
        size: planned.iter().sum(),
        // Without a layout of its own, which takes room, too.
        now: like.wished.clone(),
        wished: like.now.clone(),
        ..like.clone()
    };
    let order = |files: &[LayoutChange], free| {
        let moves = moves_in(room(free), volume.origin(), files);
        moves.map(|all| all.into_iter().map(|it| it.change.path).collect::<Vec<_>>())
    };
    let to_ssd = file("to the SSD", [M, 0, 0], [0, 0, M]);
    let off_it = file("off it", [0, 0, 2 * M], [0, 2 * M, 0]);
    let found = order(&[to_ssd.clone(), off_it.clone()], [M, 8 * M, M / 2]).unwrap();
    assert_eq!(found, ["off it", "to the SSD"].map(std::path::PathBuf::from));
    // In the order of the plan where there is room.
    let found = order(&[to_ssd.clone(), off_it.clone()], [M, 8 * M, 2 * M]).unwrap();
    assert_eq!(found, ["to the SSD", "off it"].map(std::path::PathBuf::from));
    let error = order(&[to_ssd], [M, 8 * M, M / 2]).unwrap_err().to_string();
    assert!(error.contains("server-2") && error.contains("to the SSD"), "{error}");
    // Each of 999 waits for another one.
    let chain: Vec<_> = (0..999)
        .map(|at| {
            let (mut used, mut planned) = ([0; 3], [0; 3]);
            (used[at % 3], planned[(at + 1) % 3]) = (64 * M, 64 * M);
            file(&at.to_string(), used, planned)
        })
        .collect();
    let found = order(&chain, [72 * M, 8 * M, 8 * M]);
    assert_eq!(found.map(|found| found.len()).map_err(|error| error.to_string()), Ok(999));
}

/// Files of 300,000 bytes each, of which each has a server, and is to be on that of the next one.
fn in_a_circle(dir: &Path, names: &[&str]) -> Relayout {
    let made = Origin::open_or_create(dir, SHAPE, &|_, device| device).unwrap();
    for name in names {
        make(&made, name, 300_000);
    }
    drop(made);
    let volume = volume(dir);
    for (server, name) in names.iter().enumerate() {
        let there = named_at(&volume, name, on(server));
        volume.relayout(&there, &mut |_| Ok(()), &mut |_| ()).unwrap();
    }
    volume
}

fn on(server: usize) -> [u64; 3] {
    let mut widths = [0; 3];
    widths[server] = 65_536;
    widths
}

fn changes(volume: &Relayout, names: &[&str]) -> Vec<LayoutChange> {
    let next = |at: usize| on((at + 1) % names.len());
    names.iter().enumerate().map(|(at, name)| named_at(volume, name, next(at))).collect()
}

/// Regression: two files that were to change places on two full servers were refused, also where a third one had room.
#[test]
fn files_that_change_places_on_full_servers_do_so_by_way_of_another_one() {
    let names = ["first", "second"];
    let scratch = tempfile::tempdir().unwrap();
    let volume = in_a_circle(scratch.path(), &names);
    let files = changes(&volume, &names);
    let free = [80_000, 40_000, 1 << 20];
    let moves = moves_in(room(free), volume.origin(), &files).unwrap();
    let told = |moves: &[Move]| {
        let told = moves.iter().map(|it| (it.change.path.clone(), it.is_detour));
        told.collect::<Vec<_>>()
    };
    let [first, second] = names.map(PathBuf::from);
    let order = [(second.clone(), true), (first.clone(), false), (second.clone(), false)];
    assert_eq!(told(&moves), order);
    assert_eq!(moves[0].makes_room_for.as_ref(), Some(&first));
    assert_eq!(moves[0].change.planned[..2], [0, 0]);
    // Whatever is interrupted, the rest follows from how the files lie then, in the room that is there then.
    for done in 0..=moves.len() {
        let scratch = tempfile::tempdir().unwrap();
        let volume = in_a_circle(scratch.path(), &names);
        let before = used(&volume, &names);
        for Move { change, .. } in &moves[..done] {
            let change = LayoutChange { inode: inode(&volume, &change.path), ..change.clone() };
            volume.relayout(&change, &mut |_| Ok(()), &mut |_| ()).unwrap();
        }
        let now = used(&volume, &names);
        let free = [0, 1, 2].map(|at| free[at] + before[at] - now[at]);
        let files = changes(&volume, &names);
        let rest = moves_in(room(free), volume.origin(), &files).unwrap();
        assert!(rest.len() <= moves.len() - done.min(1), "{done}: {:?}", told(&rest));
        for Move { change, .. } in rest {
            volume.relayout(&change, &mut |_| Ok(()), &mut |_| ()).unwrap();
        }
        assert!(changes(&volume, &names).iter().all(LayoutChange::agrees), "{done}");
        let mut back = vec![0; 300_001];
        for name in names {
            let node = File::open(volume.origin().namespace_dir().join(name)).unwrap();
            let data = volume.origin().open_data(node.as_fd(), libc::O_RDONLY).unwrap();
            assert_eq!(data.read_at(0, &mut back).unwrap(), 300_000);
            assert!((0..300_000).all(|at| usize::from(back[at]) == at % 251), "{done}");
        }
    }
}

fn used(volume: &Relayout, names: &[&str]) -> [u64; 3] {
    let mut all = [0; 3];
    for file in changes(volume, names) {
        all.iter_mut().zip(&file.used).for_each(|(all, used)| *all += used);
    }
    all
}

fn inode(volume: &Relayout, path: &Path) -> u64 {
    std::fs::metadata(volume.origin().namespace_dir().join(path)).unwrap().ino()
}

#[test]
fn where_there_is_no_room_anywhere_it_is_said_how_much_is_missing_on_which_servers() {
    let names = ["first", "second", "third"];
    let scratch = tempfile::tempdir().unwrap();
    let volume = in_a_circle(scratch.path(), &names);
    let files = changes(&volume, &names);
    let error = moves_in(room([100_000; 3]), volume.origin(), &files).unwrap_err().to_string();
    let missing = "server-1: 100000 bytes are free there, besides 16384 for directories and notes, 303104 are needed at once when it \
         moves: 203104 are missing";
    for part in ["first cannot be moved", missing, "so it is with 2 other files"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    // A server without inodes has room, but not for a file.
    let full = Room { no_files: vec![false, true, false], ..room([100_000, 0, 100_000]) };
    let error = moves_in(full, volume.origin(), &files).unwrap_err().to_string();
    assert!(error.contains("server-1 is on a file system without free inodes (df -i)"), "{error}");
    assert!(!error.contains("bytes are free there"), "{error}");
    let moves = moves_in(room([400_000, 200_000, 200_000]), volume.origin(), &files);
    assert_eq!(moves.unwrap().len(), 3, "one server has room for a copy");
    // Nowhere is room for all of one.
    let pieces = moves_in(room([250_000; 3]), volume.origin(), &files).unwrap();
    assert_eq!(pieces.len(), 4, "{pieces:?}");
    assert!(pieces[0].is_detour && pieces[0].makes_room_for.is_some(), "{pieces:?}");
    assert!(pieces[0].change.planned.iter().filter(|bytes| **bytes > 0).count() > 1, "{pieces:?}");
}

/// One large file and many small ones change places: the small ones make way.
#[test]
fn the_fewest_bytes_make_way() {
    let names = ["large", "small", "smaller"];
    let scratch = tempfile::tempdir().unwrap();
    let made = Origin::open_or_create(scratch.path(), SHAPE, &|_, device| device).unwrap();
    for (name, size) in names.iter().zip([900_000, 300_000, 250_000]) {
        make(&made, name, size);
    }
    drop(made);
    let volume = volume(scratch.path());
    for (name, server) in names.iter().zip([0, 1, 1]) {
        let there = named_at(&volume, name, on(server));
        volume.relayout(&there, &mut |_| Ok(()), &mut |_| ()).unwrap();
    }
    let wished = names.iter().zip([1, 0, 0]);
    let files: Vec<_> = wished.map(|(name, server)| named_at(&volume, name, on(server))).collect();
    let moves = moves_in(room([40_000, 400_000, 4 << 20]), volume.origin(), &files).unwrap();
    let ways: Vec<_> = moves.iter().filter(|it| it.is_detour).map(|it| &it.change.path).collect();
    assert_eq!(ways, ["small", "smaller"].map(Path::new), "{moves:?}");
    assert_eq!(moves.len(), 5);
}

/// Regression: on ext2 and ext3 a file takes more than its blocks, so that the last ones of a plan that was said to fit did not.
#[test]
fn what_blocks_for_numbers_take_is_needed_before_anything_moves() {
    let scratch = tempfile::tempdir().unwrap();
    let made = Origin::open_or_create(scratch.path(), SHAPE, &|_, device| device).unwrap();
    make(&made, "file", 300_000);
    drop(made);
    let volume = volume(scratch.path());
    let file = file_at(&volume, [0, 0, 65_536]);
    let data = stored_bytes(300_000);
    let moved = |free: u64, indirect: Option<IndirectBlocks>| {
        let mut room = room([2 * NOTE_BYTES, 0, free]);
        room.indirect[2] = indirect;
        let moves = moves_in(room, volume.origin(), std::slice::from_ref(&file));
        moves.map(|moves| moves.len()).map_err(|error| error.to_string())
    };
    assert_eq!(moved(data, None), Ok(1));
    let indirect = Some(IndirectBlocks { block_bytes: 4096 });
    let told = moved(data, indirect).unwrap_err();
    assert!(told.contains("besides 16384 for directories and notes"), "{told}");
    assert!(told.contains("4096 are missing"), "{told}");
    assert_eq!(moved(data + 4096, indirect), Ok(1));
}
