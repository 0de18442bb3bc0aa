//! The space that moves take, and the way of a file whose copy does not fit beside it.
//!
//! Each file needs the space of its copy until its old object is removed. Where a server lacks it because of files that are
//! to leave it, these go first. Where it lacks it only because the file is there itself, the file moves to the others first,
//! and from these to its layout: two moves, each of which can be interrupted like any other. Files that change places on full
//! servers are in the way of each other: then some of them move to where there is room first (`places`).

mod indirect_blocks;
mod places;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use halocline_model::file_layout::{FileLayout, stored_bytes};
use halocline_os::counted::counted;
use halocline_os::error::{Error, Result};

use super::{LayoutChange, Origin, Wish, change};
use crate::volume::Distribution;
use indirect_blocks::IndirectBlocks;
use places::Places;

/// Space that a file system may need besides the blocks of files: directories, and the notes about moves.
pub const OVERHEAD_BYTES: u64 = 16 << 10;

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
    /// The file does not stay there: a later one is the move to its layout.
    pub is_detour: bool,
    /// The file for which a detour makes room; `None` if for the file itself.
    pub makes_room_for: Option<PathBuf>,
}

impl Move {
    const fn to_its_layout(change: LayoutChange) -> Self {
        Self { change, is_detour: false, makes_room_for: None }
    }
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
    let to_move = files.iter().filter(|file| !file.agrees());
    let mut waiting: Vec<Cow<'_, LayoutChange>> = to_move.map(Cow::Borrowed).collect();
    for file in &waiting {
        room.check_writable(origin, file)?;
    }
    let mut places = Places::default();
    let mut rounds = (TRIED / (files.len() * origin.servers().len()).max(1)).max(ROUNDS_MIN);
    let mut moves = Vec::new();
    while !waiting.is_empty() {
        let before = waiting.len();
        if rounds > 0 {
            rounds -= 1;
            move_beside(&mut room, &mut waiting, &mut moves);
        }
        if waiting.len() == before {
            let Some((at, detour)) = room.first_possible(origin, &waiting)? else {
                if places.make_room(&mut room, origin, &mut waiting, &mut moves)? {
                    continue;
                }
                return Err(room.refusal(origin, &waiting));
            };
            // Those that were refused are asked again last.
            waiting.rotate_left(at);
            let change = waiting.remove(0).into_owned();
            let detour =
                detour.map(|change| Move { is_detour: true, ..Move::to_its_layout(change) });
            moves.extend(detour);
            moves.push(Move::to_its_layout(change));
        }
    }
    Ok(moves)
}

/// Moves the files whose copies have room beside them, each of which may leave room to others. In both directions: where
/// each file waits for the one behind it, one pass is enough.
fn move_beside(room: &mut Room, waiting: &mut Vec<Cow<'_, LayoutChange>>, moves: &mut Vec<Move>) {
    for _ in 0..2 {
        waiting.retain(|file| {
            let has_room = room.move_beside(file).is_ok();
            if has_room {
                moves.push(Move::to_its_layout(file.clone().into_owned()));
            }
            !has_room
        });
        waiting.reverse();
    }
}

/// A server without the space for a copy.
#[derive(Debug, Clone, Copy)]
struct Lack {
    server: usize,
    available: u64,
    taken: i128,
}

impl Lack {
    fn told(self, origin: &Origin, room: &Room) -> String {
        let Self { server, available, taken } = self;
        if room.no_files[server] {
            let dir = origin.servers()[server].dir().display();
            return format!("{dir} is on a file system without free inodes (df -i)");
        }
        let (dir, missing) =
            (origin.servers()[server].dir().display(), taken - i128::from(available));
        format!(
            "{dir}: {available} bytes are free there, besides {OVERHEAD_BYTES} for directories and notes, {taken} are needed at once when it \
             moves: {missing} are missing"
        )
    }
}

/// The file systems of the servers, some of which may share one.
#[derive(Debug, Clone)]
struct Room {
    /// Free bytes, and those that moves have taken so far.
    systems: Vec<(u64, i128)>,
    of_server: Vec<usize>,
    /// Whether nothing can be written on the server.
    read_only: Vec<bool>,
    /// Whether the file system of a server has no inode left.
    no_files: Vec<bool>,
    /// The blocks of those servers whose files have blocks for the numbers of their blocks.
    indirect: Vec<Option<IndirectBlocks>>,
}

impl Room {
    fn of(origin: &Origin) -> Result<Self> {
        let mut known: Vec<u64> = Vec::new();
        let mut room = Self {
            systems: Vec::new(),
            of_server: Vec::new(),
            read_only: Vec::new(),
            no_files: Vec::new(),
            indirect: Vec::new(),
        };
        for server in origin.servers() {
            let failed = |what| Error::at(server.dir(), what);
            let system = fs::metadata(server.dir()).map_err(failed("look at"))?.dev();
            let space = server.device().space().map_err(failed("ask for the space of"))?;
            let place = known.iter().position(|other| *other == system);
            room.of_server.push(place.unwrap_or(known.len()));
            room.read_only.push(space.is_read_only);
            room.no_files.push(space.no_files);
            room.indirect.push(IndirectBlocks::of(server.dir()));
            if place.is_none() {
                known.push(system);
                let available = space.available.saturating_sub(OVERHEAD_BYTES);
                room.systems.push((if space.no_files { 0 } else { available }, 0));
            }
        }
        Ok(room)
    }

    /// What a file with so many bytes on each server takes.
    fn stored(&self, bytes: &[u64]) -> Vec<u64> {
        let on = |(bytes, indirect): (&u64, &Option<IndirectBlocks>)| {
            let numbers = indirect.map_or(0, |blocks| blocks.bytes_for(*bytes));
            stored_bytes(*bytes).saturating_add(numbers)
        };
        bytes.iter().zip(&self.indirect).map(on).collect()
    }

    /// Takes the space of a file with so many bytes on each server, or nothing if there is not so much.
    fn take(&mut self, bytes: &[u64]) -> Result<(), Lack> {
        let mut systems = self.systems.clone();
        for (server, bytes) in self.stored(bytes).into_iter().enumerate() {
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

    /// Takes the space of a file's move beside it and gives back where it was; changes nothing if a server lacks space. Answers
    /// what it has on each server then.
    fn move_beside(&mut self, file: &LayoutChange) -> Result<Vec<u64>, Lack> {
        let before = self.systems.clone();
        let taken = self.take_note(file).and_then(|layout_on| {
            self.take(&file.planned)?;
            Ok(layout_on)
        });
        let layout_on = taken.inspect_err(|_| self.systems = before)?;
        self.free(&file.used);
        let mut there = self.stored(&file.planned);
        if let Some(server) = layout_on {
            there[server] = there[server].saturating_add(NOTE_BYTES);
        }
        Ok(there)
    }

    /// The first of `files` that can move, if need be by way of other servers, with this way; `None` if none can. Takes the space
    /// of its moves.
    fn first_possible(
        &mut self,
        origin: &Origin,
        files: &[Cow<'_, LayoutChange>],
    ) -> Result<Option<(usize, Option<LayoutChange>)>> {
        for (at, file) in files.iter().enumerate() {
            if let Ok(detour) = self.move_by_way(origin, file)? {
                return Ok(Some((at, detour)));
            }
        }
        Ok(None)
    }

    /// Why none of `files` can move: what the first one lacks.
    fn refusal(mut self, origin: &Origin, files: &[Cow<'_, LayoutChange>]) -> Error {
        let file = &files[0];
        let note = self.take_note(file).err();
        let lacks = note.into_iter().chain(self.lacks(&file.planned));
        let lacks: Vec<String> = lacks.map(|lack| lack.told(origin, &self)).collect();
        let mut what = format!("{} cannot be moved: {}", file.path.display(), lacks.join("; "));
        if files.len() > 1 {
            let others = counted(files.len() - 1, "other file");
            let _ = write!(
                what,
                "; so it is with {others}, and no server has room for any of them meanwhile"
            );
        }
        Error::invalid(
            what,
            "free space (or inodes: df -i) there, or on any other server, or plan with less of it",
        )
    }

    /// The servers that lack space for a file with so many bytes on each, one of each file system.
    fn lacks(&self, bytes: &[u64]) -> Vec<Lack> {
        let mut systems = self.systems.clone();
        let mut lacks: BTreeMap<usize, Lack> = BTreeMap::new();
        for (server, bytes) in self.stored(bytes).into_iter().enumerate().filter(|it| it.1 > 0) {
            let system = self.of_server[server];
            let (available, taken) = &mut systems[system];
            *taken += i128::from(bytes);
            if *taken > i128::from(*available) {
                let lack = lacks.entry(system);
                lack.or_insert(Lack { server, available: *available, taken: 0 }).taken = *taken;
            }
        }
        lacks.into_values().collect()
    }

    /// As [`Self::move_beside`], if need be by way of other servers: answers that way.
    fn move_by_way(
        &mut self,
        origin: &Origin,
        file: &LayoutChange,
    ) -> Result<Result<Option<LayoutChange>, Lack>> {
        let Err(lack) = self.move_beside(file) else { return Ok(Ok(None)) };
        let before = self.systems.clone();
        let detour = self.detour(origin, file)?;
        let evenly = detour.and_then(|way| Some((self.move_beside(&way).ok()?, way)));
        if let Some((used, way)) = evenly
            && self.move_beside(&LayoutChange { used, ..file.clone() }).is_ok()
        {
            return Ok(Ok(Some(way)));
        }
        self.systems.clone_from(&before);
        // In pieces, if it is in its own way.
        let is_there = |lack: &Lack| self.used_on(self.of_server[lack.server], &file.used) > 0;
        if self.lacks(&file.planned).iter().any(is_there)
            && let Some((way, used)) = self.make_way(origin, file, file)?
            && self.move_beside(&LayoutChange { used, ..file.clone() }).is_ok()
        {
            return Ok(Ok(Some(way)));
        }
        self.systems = before;
        Ok(Err(lack))
    }

    /// What a file with so many bytes on each server has on a file system.
    fn used_on(&self, system: usize, used: &[u64]) -> u64 {
        let all = self.of_server.iter().zip(used).filter(|(of, _)| **of == system);
        all.map(|(_, used)| *used).fold(0, u64::saturating_add)
    }

    /// Moves a file to where there is room that `other` does not need, whatever its own layout is: over all such servers, or, where
    /// they have unequal room, in pieces. Takes the space of the move; answers it with what the file has on each server then, `None`
    /// if there is not enough.
    fn make_way(
        &mut self,
        origin: &Origin,
        file: &LayoutChange,
        other: &LayoutChange,
    ) -> Result<Option<(LayoutChange, Vec<u64>)>> {
        let mut needed = self.systems.clone();
        for (server, bytes) in self.stored(&other.planned).into_iter().enumerate() {
            needed[self.of_server[server]].1 += i128::from(bytes);
        }
        // Besides the data, a note and a layout may be there.
        let kept = 2 * i128::from(NOTE_BYTES);
        let room = |(available, taken): &(u64, i128)| {
            u64::try_from(i128::from(*available) - taken - kept).unwrap_or(0)
        };
        let room: Vec<u64> = needed.iter().map(room).collect();
        let stripe = origin.striping().stripe();
        for layout in places::ways(file.size, stripe, &room, (&self.of_server, &self.read_only)) {
            let way = change(origin, &Wish { path: file.path.clone(), layout }, true)?;
            let of = |system: usize| self.used_on(system, &way.planned);
            let fits = room.iter().enumerate().all(|(system, room)| of(system) <= *room);
            if fits && let Ok(used) = self.move_beside(&way) {
                return Ok(Some((way, used)));
            }
        }
        Ok(None)
    }

    /// Takes the space of the note about a move, and of the new layout: on the first server that has it. Answers which has the
    /// layout, if there is one.
    fn take_note(&mut self, file: &LayoutChange) -> Result<Option<usize>, Lack> {
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
            return Ok(Some(server));
        }
        Ok(None)
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
        for (server, bytes) in self.stored(&file.planned).into_iter().enumerate() {
            needed[self.of_server[server]].1 += i128::from(bytes);
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
mod tests;
