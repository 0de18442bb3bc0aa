//! The space that moves take, and the way of a file whose copy does not fit beside it.
//!
//! Each file needs the space of its copy until its old object is removed. Where a server lacks it only because the file is
//! there itself, the file moves to the others first, and from these to its layout: two moves, each of which can be
//! interrupted like any other.

use std::fs;
use std::os::unix::fs::MetadataExt;

use halocline_model::file_layout::FileLayout;
use halocline_os::error::{Error, Result};

use super::{LayoutChange, Origin, Wish, change};
use crate::volume::Distribution;

/// Space that a file system may need besides the bytes of a file: its inode, and partly filled blocks.
const OVERHEAD_BYTES: u64 = 16 << 10;

/// A move of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    /// From where, and to where.
    pub change: LayoutChange,
    /// The file does not stay there: the next one is the move to its layout.
    pub is_detour: bool,
}

/// The moves of the `files` that do not lie as wished, in their order, once so many bytes were `freed` on each server: those of
/// what interrupted moves have left, which comes first.
///
/// # Errors
/// If a server lacks space for one of them, or cannot be written.
pub fn moves(origin: &Origin, files: &[LayoutChange], freed: &[u64]) -> Result<Vec<Move>> {
    let mut room = Room::of(origin)?;
    room.free(freed);
    moves_in(room, origin, files)
}

fn moves_in(mut room: Room, origin: &Origin, files: &[LayoutChange]) -> Result<Vec<Move>> {
    let mut moves = Vec::new();
    for file in files.iter().filter(|file| !file.agrees()) {
        room.check_writable(origin, file)?;
        room.take_note(file).map_err(|lack| lack.error(origin, file))?;
        if let Err(lack) = room.take(&file.planned) {
            let refused = |lack: Lack| lack.error(origin, file);
            let detour = room.detour(origin, file)?.ok_or_else(|| refused(lack))?;
            room.take(&detour.planned).map_err(|_| refused(lack))?;
            room.free(&file.used);
            room.take(&file.planned).map_err(refused)?;
            room.free(&with_overhead(&detour.planned));
            moves.push(Move { change: detour, is_detour: true });
        } else {
            room.free(&file.used);
        }
        moves.push(Move { change: file.clone(), is_detour: false });
    }
    Ok(moves)
}

/// What a file with so many bytes on each server takes.
fn with_overhead(bytes: &[u64]) -> Vec<u64> {
    let taken = |bytes: &u64| if *bytes > 0 { bytes.saturating_add(OVERHEAD_BYTES) } else { 0 };
    bytes.iter().map(taken).collect()
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
                room.systems.push((if space.no_files { 0 } else { space.available }, 0));
            }
        }
        Ok(room)
    }

    /// Takes the space of a file with so many bytes on each server, or nothing if there is not so much.
    fn take(&mut self, bytes: &[u64]) -> Result<(), Lack> {
        let mut systems = self.systems.clone();
        for (server, bytes) in with_overhead(bytes).into_iter().enumerate() {
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

    /// Takes the space of the note about a move, and of the new layout: on the first server that has it.
    fn take_note(&mut self, file: &LayoutChange) -> Result<(), Lack> {
        let has_space = |server: &usize| {
            let (available, taken) = self.systems[self.of_server[*server]];
            !self.read_only[*server] && taken + i128::from(OVERHEAD_BYTES) <= i128::from(available)
        };
        let Some(server) = (0..self.of_server.len()).find(has_space) else {
            let (available, taken) = self.systems[self.of_server[0]];
            return Err(Lack { server: 0, available, taken: taken + i128::from(OVERHEAD_BYTES) });
        };
        if matches!(file.wished, Distribution::Varied(_)) {
            self.systems[self.of_server[server]].1 += i128::from(OVERHEAD_BYTES);
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
            needed[self.of_server[server]].1 += i128::from(*bytes);
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
}
