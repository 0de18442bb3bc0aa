//! The space that moves take, and the way of a file whose copy does not fit beside it.
//!
//! Each file needs the space of its copy until its old object is removed. Where a server lacks it because of files that are
//! to leave it, these go first. Where it lacks it only because the file is there itself, the file moves to the others first,
//! and from these to its layout: two moves, each of which can be interrupted like any other.

use std::fs;
use std::os::unix::fs::MetadataExt;

use halocline_model::file_layout::{FileLayout, stored_bytes};
use halocline_os::error::{Error, Result};

use super::{LayoutChange, Origin, Wish, change};
use crate::volume::Distribution;

/// Space that a file system may need besides the blocks of files: directories, and the notes about moves.
const OVERHEAD_BYTES: u64 = 16 << 10;

/// What the layout of a file takes, or the notes.
const NOTE_BYTES: u64 = stored_bytes(1);

/// Limit of the servers that are looked at for all files in all rounds, which see whether what has moved leaves room to others.
const TRIED: usize = 1 << 27;
/// There are so many rounds at least.
const ROUNDS_MIN: usize = 2;

/// A move of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    /// From where, and to where.
    pub change: LayoutChange,
    /// The file does not stay there: the next one is the move to its layout.
    pub is_detour: bool,
}

/// The moves of the `files` that do not lie as wished, once so many bytes were `freed` on each server: those of what
/// interrupted moves have left, which comes first. They are in the order of the files, but those whose copies have no room
/// come after those that give them room.
///
/// # Errors
/// If a server lacks space for one of them, or cannot be written.
pub fn moves(origin: &Origin, files: &[LayoutChange], freed: &[u64]) -> Result<Vec<Move>> {
    let mut room = Room::of(origin)?;
    room.free(freed);
    moves_in(room, origin, files)
}

fn moves_in(mut room: Room, origin: &Origin, files: &[LayoutChange]) -> Result<Vec<Move>> {
    let mut waiting: Vec<&LayoutChange> = files.iter().filter(|file| !file.agrees()).collect();
    for file in &waiting {
        room.check_writable(origin, file)?;
    }
    let mut rounds = (TRIED / (files.len() * origin.servers().len()).max(1)).max(ROUNDS_MIN);
    let mut moves = Vec::new();
    while !waiting.is_empty() {
        let before = waiting.len();
        if rounds > 0 {
            rounds -= 1;
            move_beside(&mut room, &mut waiting, &mut moves);
        }
        if waiting.len() == before {
            let (at, detour) = room.first_possible(origin, &waiting)?;
            // Those that were refused are asked again last.
            waiting.rotate_left(at);
            let change = waiting.remove(0).clone();
            moves.extend(detour.map(|change| Move { change, is_detour: true }));
            moves.push(Move { change, is_detour: false });
        }
    }
    Ok(moves)
}

/// Moves the files whose copies have room beside them, each of which may leave room to others. In both directions: where
/// each file waits for the one behind it, one pass is enough.
fn move_beside(room: &mut Room, waiting: &mut Vec<&LayoutChange>, moves: &mut Vec<Move>) {
    for _ in 0..2 {
        waiting.retain(|file| {
            let has_room = room.move_beside(file).is_ok();
            if has_room {
                moves.push(Move { change: (*file).clone(), is_detour: false });
            }
            !has_room
        });
        waiting.reverse();
    }
}

/// What a file with so many bytes on each server takes.
fn stored(bytes: &[u64]) -> Vec<u64> {
    bytes.iter().copied().map(stored_bytes).collect()
}

/// A server without the space for a copy.
#[derive(Debug, Clone, Copy)]
struct Lack {
    server: usize,
    available: u64,
    taken: i128,
}

impl Lack {
    fn error(self, origin: &Origin, file: &LayoutChange) -> Error {
        let Self { server, available, taken } = self;
        let (dir, name) = (origin.servers()[server].dir().display(), file.path.display());
        let what = format!(
            "{dir}: {available} bytes are free there, and moving files up to {name} takes {taken} at once"
        );
        Error::invalid(what, "free space there, or plan with less of it")
    }
}

/// The file systems of the servers, some of which may share one.
#[derive(Debug)]
struct Room {
    /// Free bytes, and those that moves have taken so far.
    systems: Vec<(u64, i128)>,
    of_server: Vec<usize>,
    /// Whether nothing can be written on the server.
    read_only: Vec<bool>,
}

impl Room {
    fn of(origin: &Origin) -> Result<Self> {
        let mut known: Vec<u64> = Vec::new();
        let mut room = Self { systems: Vec::new(), of_server: Vec::new(), read_only: Vec::new() };
        for server in origin.servers() {
            let failed = |what| Error::at(server.dir(), what);
            let system = fs::metadata(server.dir()).map_err(failed("look at"))?.dev();
            let space = server.device().space().map_err(failed("ask for the space of"))?;
            let place = known.iter().position(|other| *other == system);
            room.of_server.push(place.unwrap_or(known.len()));
            room.read_only.push(space.is_read_only);
            if place.is_none() {
                known.push(system);
                let available = space.available.saturating_sub(OVERHEAD_BYTES);
                room.systems.push((if space.no_files { 0 } else { available }, 0));
            }
        }
        Ok(room)
    }

    /// Takes the space of a file with so many bytes on each server, or nothing if there is not so much.
    fn take(&mut self, bytes: &[u64]) -> Result<(), Lack> {
        let mut systems = self.systems.clone();
        for (server, bytes) in stored(bytes).into_iter().enumerate() {
            let (available, taken) = &mut systems[self.of_server[server]];
            *taken += i128::from(bytes);
            if bytes > 0 && *taken > i128::from(*available) {
                return Err(Lack { server, available: *available, taken: *taken });
            }
        }
        self.systems = systems;
        Ok(())
    }

    /// Gives back what lies on the servers; what cannot be removed stays.
    fn free(&mut self, bytes: &[u64]) {
        for (server, bytes) in bytes.iter().enumerate().filter(|it| !self.read_only[it.0]) {
            self.systems[self.of_server[server]].1 -= i128::from(*bytes);
        }
    }

    /// Takes the space of a file's move beside it and gives back where it was; changes nothing if a server lacks space.
    fn move_beside(&mut self, file: &LayoutChange) -> Result<(), Lack> {
        let before = self.systems.clone();
        let taken = self.take_note(file).and_then(|()| self.take(&file.planned));
        taken.inspect_err(|_| self.systems = before)?;
        self.free(&file.used);
        Ok(())
    }

    /// The first of `files` that can move, if need be by way of other servers, with this way. Takes the space of its moves.
    ///
    /// # Errors
    /// None can: what the first one lacks.
    fn first_possible(
        &mut self,
        origin: &Origin,
        files: &[&LayoutChange],
    ) -> Result<(usize, Option<LayoutChange>)> {
        let mut refused = None;
        for (at, file) in files.iter().enumerate() {
            let before = self.systems.clone();
            match self.move_by_way(origin, file)? {
                Ok(detour) => return Ok((at, detour)),
                Err(lack) => {
                    self.systems = before;
                    refused.get_or_insert_with(|| lack.error(origin, file));
                }
            }
        }
        Err(refused.expect("there are files"))
    }

    fn move_by_way(
        &mut self,
        origin: &Origin,
        file: &LayoutChange,
    ) -> Result<Result<Option<LayoutChange>, Lack>> {
        if let Err(lack) = self.take_note(file) {
            return Ok(Err(lack));
        }
        let Err(lack) = self.take(&file.planned) else {
            self.free(&file.used);
            return Ok(Ok(None));
        };
        let Some(detour) = self.detour(origin, file)? else { return Ok(Err(lack)) };
        if self.take(&detour.planned).is_err() {
            return Ok(Err(lack));
        }
        self.free(&file.used);
        Ok(self.take(&file.planned).map(|()| {
            self.free(&stored(&detour.planned));
            Some(detour)
        }))
    }

    /// Takes the space of the note about a move, and of the new layout: on the first server that has it.
    fn take_note(&mut self, file: &LayoutChange) -> Result<(), Lack> {
        let has_space = |server: &usize| {
            let (available, taken) = self.systems[self.of_server[*server]];
            !self.read_only[*server] && taken + i128::from(NOTE_BYTES) <= i128::from(available)
        };
        let Some(server) = (0..self.of_server.len()).find(has_space) else {
            let (available, taken) = self.systems[self.of_server[0]];
            return Err(Lack { server: 0, available, taken: taken + i128::from(NOTE_BYTES) });
        };
        if matches!(file.wished, Distribution::Varied(_)) {
            self.systems[self.of_server[server]].1 += i128::from(NOTE_BYTES);
        }
        Ok(())
    }

    /// Refuses a file that would get bytes on a server on which nothing can be written.
    fn check_writable(&self, origin: &Origin, file: &LayoutChange) -> Result<()> {
        let mut servers = origin.servers().iter().zip(&file.planned).zip(&self.read_only);
        let refused = servers.find(|((_, bytes), is_read_only)| **bytes > 0 && **is_read_only);
        let Some(((server, _), _)) = refused else { return Ok(()) };
        let (dir, name) = (server.dir().display(), file.path.display());
        let what = format!("{dir} is read-only, and {name} would have a part there");
        Err(Error::invalid(what, "mount it for writing, or plan without it"))
    }

    /// The move of the file to the servers that have space for their part of the copy; `None` if there are none, or the file
    /// takes nothing of the others.
    fn detour(&self, origin: &Origin, file: &LayoutChange) -> Result<Option<LayoutChange>> {
        let mut needed = self.systems.clone();
        for (server, bytes) in file.planned.iter().enumerate() {
            needed[self.of_server[server]].1 += i128::from(stored_bytes(*bytes));
        }
        let is_full = |server: usize| {
            let (available, taken) = needed[self.of_server[server]];
            self.read_only[server] || taken + i128::from(OVERHEAD_BYTES) > i128::from(available)
        };
        let frees = file.used.iter().enumerate().any(|(server, used)| *used > 0 && is_full(server));
        let stripe = origin.striping().stripe();
        let width = |server| if is_full(server) { 0 } else { stripe };
        let widths: Vec<u64> = (0..origin.servers().len()).map(width).collect();
        if !frees || widths.iter().all(|width| *width == 0) {
            return Ok(None);
        }
        let there = |what| Error::invalid(what, "plan with less space");
        let layout = FileLayout::uniform(widths).map_err(there)?;
        change(origin, &Wish { path: file.path.clone(), layout }, true).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::path::Path;

    use halocline_api::config::{VolumeKind, VolumeShape};

    use super::*;
    use crate::volume::origin::relayout::{Relayout, look};

    const SHAPE: VolumeShape = VolumeShape { kind: VolumeKind::Striped, servers: 3, stripe: 4096 };

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
        let layout = FileLayout::uniform(widths.to_vec()).expect("a layout");
        let wishes = [Wish { path: "file".into(), layout }];
        look(volume.origin(), &wishes, true).expect("the file").remove(0)
    }

    /// Two disks and an SSD with so much free on each.
    fn room(free: [u64; 3]) -> Room {
        let systems = free.map(|free| (free, 0)).to_vec();
        Room { systems, of_server: vec![0, 1, 2], read_only: vec![false; 3] }
    }

    /// Regression: a file that is on the SSD could get no more of it, because its own bytes were in the way.
    #[test]
    fn a_file_whose_copy_does_not_fit_beside_it_moves_by_way_of_the_others() {
        let scratch = tempfile::tempdir().unwrap();
        let made = Origin::open_or_create(scratch.path(), SHAPE, &|_, device| device).unwrap();
        let path = made.namespace_dir().join("file");
        let node = File::options().create_new(true).read(true).write(true).open(path).unwrap();
        let content: Vec<u8> = (0..300_000_u32).map(|at| (at % 251) as u8).collect();
        made.adopt_data(node).unwrap().write_at(0, &content).unwrap();
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
}
