//! Moves files of a striped origin to other layouts: a width for each server, in parts of the file.
//!
//! An object keeps one layout for its lifetime, so a file moves by getting another object: a copy of its data in the
//! new layout, durable before the file refers to it. What must hold: the cutover to it is one system call, so a kill at
//! any time leaves the file either in its old layout or in its new one; and both objects are noted, durably, before
//! anything of the new one is created, so that the superfluous one is found. Names, owner, mode, times and attributes
//! belong to the namespace file, which stays.

mod leftovers;
mod moving;
#[cfg(test)]
mod power_loss;
mod space;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use halocline_model::file_layout::FileLayout;
use halocline_model::request::ByteRange;
use parking_lot::Mutex;
use rustix::io::Errno;

use super::identity::ObjectId;
use super::label::{self, Use};
use super::layouts;
use super::move_notes::MoveNotes;
use super::tree_walk::file;
use super::volume_directory::VolumeDir;
use super::{Origin, OriginFile};
use crate::volume::{Distribution, Server};
use halocline_os::chattr;
use halocline_os::error::{Error, Result};
use halocline_os::process_user::own_uid;
use halocline_vfs::Seek;

use moving::Moving;

pub use leftovers::Leftovers;
pub use space::{Move, OVERHEAD_BYTES, moves};

/// What can be done with a path of a plan that is no file's.
const LEAVE_OUT: &str = "leave it out of the plan";

/// A file, and the layout that it should have.
#[derive(Debug, Clone)]
pub struct Wish {
    /// Its path below the mount.
    pub path: PathBuf,
    /// The layout, over all servers.
    pub layout: FileLayout,
}

/// The current and the wished layout of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayoutChange {
    /// Its path below the mount.
    pub path: PathBuf,
    /// The current layout.
    pub now: Distribution,
    /// The wished layout.
    pub wished: Distribution,
    /// Its size in bytes.
    pub size: u64,
    /// Bytes of blocks that it uses on each server.
    pub used: Vec<u64>,
    /// Bytes of data, without holes, on each server in the wished layout.
    pub planned: Vec<u64>,
    /// Bytes of the whole file, holes included, on each server in the wished layout.
    pub sized: Vec<u64>,
    /// Bytes, holes included, that the current layout has on servers where nothing is of the file's data: these are holes,
    /// unless that is lost. 0 for the others, and for a file to which nothing was ever written.
    pub absent: Vec<u64>,
    /// The file system, and the number on it.
    device: u64,
    inode: u64,
}

impl LayoutChange {
    /// Whether nothing needs to be moved: each byte has the place that is wished for, whatever the widths that say so.
    pub fn agrees(&self) -> bool {
        self.now.places_alike(&self.wished)
    }

    /// Which file it is, whatever its name: the number of its file system, and its number there.
    pub fn identity(&self) -> (u64, u64) {
        (self.device, self.inode)
    }

    /// Bytes of its data, without holes.
    pub fn data_bytes(&self) -> u64 {
        self.planned.iter().sum()
    }
}

/// The steps of a move, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Noting both objects.
    Note,
    /// Making the new layout durable.
    Layout,
    /// Copying the data.
    Copy,
    /// Making the copy durable.
    Sync,
    /// Making the file refer to the new object: it now has its new layout.
    CutOver,
    /// Making that durable: the old object may be removed.
    Settle,
    /// Removing the old object.
    Remove,
    /// Removing the note.
    Forget,
}

/// Called before each step, and before each piece of the copy; if it returns an error, that is not done.
pub type Before<'a> = &'a mut dyn FnMut(Step) -> Result<()>;

/// A file that was moved: it has its new layout, also after a power loss.
#[derive(Debug)]
pub struct Moved {
    /// Why its former object was not removed. It stays noted, and takes space.
    pub left: Option<Error>,
}

/// A move that failed.
#[derive(Debug)]
pub struct Stopped {
    /// Why.
    pub error: Error,
    /// Whether the file may have its new layout, perhaps in memory only; then both objects stay for the next
    /// [`Relayout::clear_moves`]. Else it has its old layout, and nothing of the new one stays.
    pub cut_over: bool,
}

impl From<Stopped> for Error {
    fn from(stopped: Stopped) -> Self {
        stopped.error
    }
}

/// What became of what earlier moves had left.
#[derive(Debug, Default)]
pub struct Cleared {
    /// Objects that were removed.
    pub removed: usize,
    /// Moves that stay noted, because their files were not found, or a server cannot be changed.
    pub left: usize,
    /// Those of them that seem to have left objects whose files have others, but of a copy of the volume nothing tells it.
    pub likely: usize,
    /// Why an object could not be removed.
    pub error: Option<Error>,
    /// What could not be read of the tree: their files may be there.
    pub unread: Vec<Error>,
}

/// A striped volume that is used exclusively, so that its files may move.
#[derive(Debug)]
pub struct Relayout {
    origin: Origin,
    notes: Mutex<MoveNotes>,
}

impl Relayout {
    /// The striped volume in `dir`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is mounted, or is not a striped volume.
    pub fn open(dir: &Path) -> Result<Self> {
        let origin = Origin::open_volume(dir)?;
        let volume_dir = VolumeDir::open(dir)?;
        if let Some(in_use) = &origin.in_use {
            label::relock(&volume_dir, in_use, Use::Alone)?;
        }
        let notes = Mutex::new(MoveNotes::read(origin.servers())?);
        Ok(Self { origin, notes })
    }

    /// The volume.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Moves a file to its layout, and reports the bytes passed to `progress`. What an interrupted move of the file left may
    /// still be there.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the file is not the one for which `to` was found, or was changed meanwhile.
    pub fn relayout(
        &self,
        to: &LayoutChange,
        before: Before<'_>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Moved, Stopped> {
        let unmoved = |error| Stopped { error, cut_over: false };
        let mut moving = Moving::begin(&self.origin, to).map_err(unmoved)?;
        before(Step::Note).map_err(unmoved)?;
        let (old, new) = (moving.old(), moving.new);
        let noted = self.notes.lock().add(&self.origin, old.map(|old| old.number), new.number);
        let prepared = noted.and_then(|()| moving.prepare());
        let copied = prepared.and_then(|()| moving.copy(before, progress));
        if let Err(error) = copied.and_then(|()| moving.cut_over(before)) {
            let cut_over = moving.may_be_cut_over;
            if !cut_over && let Err(left) = self.remove_and_forget(new) {
                tracing::debug!("what the move left stays noted: {left}");
            }
            return Err(Stopped { error, cut_over });
        }
        moving.settle(before).map_err(|error| Stopped { error, cut_over: true })?;
        let removed = before(Step::Remove).and_then(|()| {
            let removed = old.map_or(Ok(()), |old| self.origin.remove_orphan(old));
            removed.and_then(|()| before(Step::Forget))
        });
        let gone = old.unwrap_or(new).number;
        let forgotten = removed.and_then(|()| self.notes.lock().forget_object(&self.origin, gone));
        Ok(Moved { left: forgotten.err() })
    }

    /// Makes durable that the former objects of moved files are gone, and forgets these moves. To be called after the last move; if
    /// it is not, or fails, [`Relayout::clear_moves`] does it.
    ///
    /// # Errors
    /// If a server does not sync, or the notes cannot be written.
    pub fn settle_removals(&self) -> Result<()> {
        self.notes.lock().settle_removals(&self.origin)
    }

    /// Removes the object to which no file has ever referred, and the note about its move.
    fn remove_and_forget(&self, new: ObjectId) -> Result<()> {
        self.origin.remove_orphan(new)?;
        self.notes.lock().forget_object(&self.origin, new.number)
    }

    /// Removes what earlier moves left that were killed, or whose former object could not be removed. What cannot be removed,
    /// or of which that is not known because its file is not found, stays noted. `before` is called before
    /// [`Step::Settle`], [`Step::Remove`] and [`Step::Forget`].
    ///
    /// # Errors
    /// If the names cannot be made durable; then nothing is removed. If the servers cannot; then all stays noted.
    pub fn clear_moves(&self, before: Before<'_>) -> Result<Cleared> {
        let mut notes = self.notes.lock();
        notes.settle_removals(&self.origin)?;
        let mut cleared = Cleared::default();
        if notes.all().is_empty() {
            return Ok(cleared);
        }
        let found = Leftovers::find(&self.origin, notes.all())?;
        // The reference that a killed or failed move made may be in memory only: an object to which no file refers must
        // be one to which none refers even after a power loss.
        before(Step::Settle)?;
        found.sync(&self.origin)?;
        before(Step::Remove)?;
        let mut stay = BTreeSet::new();
        for id in &found.objects {
            match self.origin.remove_orphan(*id) {
                Ok(()) => cleared.removed += 1,
                Err(error) => {
                    stay.insert(id.number);
                    cleared.error.get_or_insert(error);
                }
            }
        }
        // Also what is gone already: whoever removed it may have been killed before that was durable.
        self.origin.sync_servers()?;
        before(Step::Forget)?;
        notes.forget(&self.origin, |note| {
            !found.unknown.contains(note) && !note.iter().any(|number| stay.contains(number))
        })?;
        cleared.left = notes.all().len();
        cleared.likely = found.likely_moves();
        cleared.unread = found.unread;
        Ok(cleared)
    }

    /// Moves that are noted, and have not ended.
    pub fn outstanding(&self) -> usize {
        self.notes.lock().outstanding()
    }
}

/// The current layouts of the files, and what moving them would take. Changes nothing. `to_move` requires that the
/// files may be changed.
///
/// # Errors
/// A file that is missing, not regular or not accessible, two names of one file, a layout for other servers, or
/// one that cannot be stored.
pub fn look(origin: &Origin, wishes: &[Wish], to_move: bool) -> Result<Vec<LayoutChange>> {
    look_at_each(origin, wishes, to_move)?.into_iter().map(|(_, found)| found).collect()
}

/// The same, with the path of each file and its own error: nobody keeps others' files from being looked at by what they do
/// to theirs.
///
/// # Errors
/// A layout for other servers, or one that cannot be stored.
pub fn look_at_each(
    origin: &Origin,
    wishes: &[Wish],
    to_move: bool,
) -> Result<Vec<(PathBuf, Result<LayoutChange>)>> {
    for wish in wishes {
        check_layout(origin, wish)?;
    }
    // The tree may go on over several file systems.
    let mut files = BTreeMap::new();
    let mut look = |wish: &Wish| {
        let change = change(origin, wish, to_move)?;
        if let Some(other) = files.insert(change.identity(), wish.path.clone()) {
            let what = format!(
                "{} and {} are two names of one file",
                other.display(),
                wish.path.display()
            );
            return Err(Error::invalid(what, "leave one of them out of the plan"));
        }
        Ok(change)
    };
    Ok(wishes.iter().map(|wish| (wish.path.clone(), look(wish))).collect())
}

/// Whether `error`, of looking at a file by its path, says that there is none: also where a file is in the place of a
/// directory above it, or where no file of the volume can have such a name.
pub fn is_missing(error: &Error) -> bool {
    [libc::ENOENT, libc::ENOTDIR, libc::ENAMETOOLONG].contains(&error.errno())
}

/// Bytes of blocks that the file uses on each server now.
///
/// # Errors
/// If it is no longer there.
pub fn used(origin: &Origin, of: &LayoutChange) -> Result<Vec<u64>> {
    let namespace_file = file(origin, &of.path, LEAVE_OUT)?;
    let data = namespace_file.open_data(origin, libc::O_RDONLY);
    let data = data.map_err(Error::at(&namespace_file.shown, "open"))?;
    used_by(origin, &data).map_err(Error::at(&namespace_file.shown, "look at the data of"))
}

fn used_by(origin: &Origin, data: &OriginFile) -> io::Result<Vec<u64>> {
    let path = origin.object_of(data.namespace_file())?.map(ObjectId::path);
    let used = |path: &Path| {
        origin.servers().iter().map(|server| server.directory().allocated_of(path)).collect()
    };
    path.map_or_else(|| Ok(vec![0; origin.servers().len()]), |path| used(&path))
}

/// Refuses a layout that no file of the volume can have.
fn check_layout(origin: &Origin, wish: &Wish) -> Result<()> {
    let refused = |what: String| {
        let what = format!("{}: {what}", wish.path.display());
        Error::invalid(what, "plan again for the servers of this volume")
    };
    let servers = origin.servers().len();
    if wish.layout.servers() != servers {
        let planned = wish.layout.servers();
        return Err(refused(format!("a layout over {planned} servers; there are {servers}")));
    }
    layouts::check(&wish.layout).map_err(refused)
}

fn change(origin: &Origin, wish: &Wish, to_move: bool) -> Result<LayoutChange> {
    let namespace_file = file(origin, &wish.path, LEAVE_OUT)?;
    let flags = if to_move { libc::O_RDWR } else { libc::O_RDONLY };
    let data = namespace_file.open_data(origin, flags);
    let data = data.map_err(|error| unopened(&namespace_file.shown, error))?;
    let failed = || Error::at(&namespace_file.shown, "look at the data of");
    let wished = distribution_for(origin, &wish.layout);
    let size = namespace_file.found.len();
    let planned = bytes_by_server(&data, size, &wished).map_err(failed())?;
    let now = data.distribution().map_err(failed())?;
    let absent = absent(origin, &data, &sized(&now, size)).map_err(failed())?;
    Ok(LayoutChange {
        path: wish.path.clone(),
        now,
        sized: sized(&wished, size),
        wished,
        size,
        used: used_by(origin, &data).map_err(failed())?,
        planned,
        absent,
        device: namespace_file.found.dev(),
        inode: namespace_file.found.ino(),
    })
}

/// Bytes that a file of `size` bytes has on each server, holes included.
fn sized(distribution: &Distribution, size: u64) -> Vec<u64> {
    (0..distribution.servers()).map(|server| distribution.local_len(server, size)).collect()
}

/// What of the `sized` bytes on each server is on those that have no local file for it.
fn absent(origin: &Origin, data: &OriginFile, sized: &[u64]) -> io::Result<Vec<u64>> {
    let Some(object) = origin.object_of(data.namespace_file())? else {
        return Ok(vec![0; sized.len()]);
    };
    let path = object.path();
    let on = |(server, bytes): (&Arc<Server>, &u64)| {
        let directory = server.directory();
        let is_there = || Ok::<_, io::Error>(directory.open_to_read(&path)?.is_some());
        let is_known = *bytes == 0 || directory.allocated_of(&path)? > 0 || is_there()?;
        Ok(if is_known { 0 } else { *bytes })
    };
    origin.servers().iter().zip(sized).map(on).collect()
}

/// Why a file could not be opened, with what its owner, or who runs it, can do.
fn unopened(shown: &Path, error: io::Error) -> Error {
    let remedy = match error.raw_os_error() {
        Some(libc::ETXTBSY) => "end the program that runs from it, past the mount",
        Some(libc::EPERM) if chattr::remedy(shown).is_some() => {
            return Error::at(shown, "open")(error);
        }
        Some(libc::EACCES | libc::EPERM) if own_uid() == 0 => {
            "look how its file system is mounted, and what its attributes and rules of the system forbid (lsattr, dmesg)"
        }
        Some(libc::EACCES | libc::EPERM) => {
            "give the volume's owner the permission to write it, or run this as root"
        }
        _ => return Error::at(shown, "open")(error),
    };
    Error::invalid(format!("{}: cannot be opened: {error}", shown.display()), remedy)
}

/// A layout with the common stripe is treated as that.
fn distribution_for(origin: &Origin, layout: &FileLayout) -> Distribution {
    let usual = origin.striping().stripe();
    match layout.parts() {
        [part] if part.striping.widths().iter().all(|width| *width == usual) => {
            origin.striping().into()
        }
        _ => layout.clone().into(),
    }
}

/// Attributes that must not change while a file moves.
#[derive(Debug, PartialEq, Eq)]
struct State {
    object: Option<ObjectId>,
    inode: u64,
    size: u64,
    changed: (i64, i64, i64, i64),
}

impl State {
    fn of(origin: &Origin, file: &OriginFile) -> io::Result<Self> {
        let found = File::metadata(file.namespace_file())?;
        let changed = (found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec());
        let (object, inode) = (origin.object_of(file.namespace_file())?, found.ino());
        Ok(Self { object, inode, size: found.len(), changed })
    }
}

/// Bytes of the file's data on each server in the layout `distribution`.
fn bytes_by_server(
    data: &OriginFile,
    size: u64,
    distribution: &Distribution,
) -> io::Result<Vec<u64>> {
    let mut bytes = vec![0; distribution.servers() as usize];
    let mut at = 0;
    while at < size {
        at = match data.seek(at, Seek::Data) {
            Ok(start) => start,
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NXIO) => break,
            Err(error) => return Err(error),
        };
        let end = data.seek(at, Seek::Hole)?.min(size);
        for (server, bytes) in (0..).zip(&mut bytes) {
            *bytes += distribution.local_range(server, ByteRange::new(at, end)).len();
        }
        at = end;
    }
    Ok(bytes)
}
