//! Moves files of a striped origin to other layouts: a width for each server, in parts of the file.
//!
//! An object keeps one layout for its lifetime, so a file moves by getting another object: a copy of its data in the
//! new layout, durable before the file refers to it. What must hold: the cutover to it is one system call, so a kill at
//! any time leaves the file either in its old layout or in its new one; and both objects are noted, durably, before
//! anything of the new one is created, so that the superfluous one is found. Names, owner, mode, times and attributes
//! belong to the namespace file, which stays.

mod space;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use halocline_model::file_layout::FileLayout;
use halocline_model::request::ByteRange;
use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::identity::{ObjectId, ObjectNumber};
use super::label::{self, Use, VolumeLabel};
use super::layouts;
use super::orphans::ids_on;
use super::sparse_copy::copy_data;
use super::tree_walk::{each_file_if_still, file};
use super::volume_directory::VolumeDir;
use super::{Origin, OriginFile};
use crate::volume::{Distribution, VolumeFile, object_paths};
use halocline_os::error::{Error, Result};
use halocline_vfs::Seek;

pub use space::{Move, moves};

/// The note on the first server about the move in progress: the numbers of both objects. Empty if there is none.
const MOVING: &str = "halocline-moving";

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
    inode: u64,
}

impl LayoutChange {
    /// Whether nothing needs to be moved.
    pub fn agrees(&self) -> bool {
        self.now == self.wished
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

/// A striped volume that is used exclusively, so that its files may move.
#[derive(Debug)]
pub struct Relayout {
    origin: Origin,
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
        Ok(Self { origin })
    }

    /// The volume.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Moves a file to its layout, and reports the bytes passed to `progress`. The caller has cleared what an interrupted
    /// move left ([`Relayout::clear_moves`]); it does so again if this fails before [`Step::CutOver`]. After a later failure
    /// it leaves that to the next move: the object to which the file refers may so far be known in memory only.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the file is not the one for which `to` was found, or was changed meanwhile. Then, and
    /// after each failure before [`Step::CutOver`], it has its old layout.
    pub fn relayout(
        &self,
        to: &LayoutChange,
        before: Before<'_>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let namespace_file = file(&self.origin, &to.path, LEAVE_OUT)?;
        let changed = || {
            let what = format!("{} was changed meanwhile", namespace_file.shown.display());
            Error::invalid(what, "end what changes it, and apply the plan again")
        };
        let old = self
            .origin
            .open_data(namespace_file.fd.as_fd(), libc::O_RDWR)
            .map_err(Error::at(&namespace_file.shown, "open the data"))?;
        let state =
            State::of(&self.origin, &old).map_err(Error::at(&namespace_file.shown, "look at"))?;
        if state.inode != to.inode || state.size != to.size {
            return Err(changed());
        }
        let layout = match &to.wished {
            Distribution::Even(_) => None,
            Distribution::Varied(layout) => Some(layout),
        };
        let made =
            || ObjectId::bound(ObjectNumber::random(layout.is_some())?, old.namespace_file());
        let id = made().map_err(Error::at(&namespace_file.shown, "name an object for"))?;
        before(Step::Note)?;
        if layout.is_some() {
            self.allow_layouts()?;
        }
        self.note_move(state.object, id)?;
        let at = |what| Error::at(&namespace_file.shown, what);
        before(Step::Layout)?;
        if let Some(layout) = layout {
            layouts::write(id, layout, &self.origin.volume).map_err(at("write the layout of"))?;
        }
        before(Step::Copy)?;
        let copy = VolumeFile::lazy(&self.origin.volume, 0, to.wished.clone(), &id.path());
        let mut refused = None;
        let mut put = |offset, bytes: &[u8]| match before(Step::Copy) {
            Ok(()) => copy.write_at(offset, bytes),
            Err(error) => {
                refused = Some(error);
                Err(io::ErrorKind::Interrupted.into())
            }
        };
        let copied = copy_data(&old, to.size, &mut put, progress);
        refused.map_or(Ok(()), Err)?;
        copied.map_err(at("copy the data of"))?;
        before(Step::Sync)?;
        copy.sync(false).map_err(at("sync the new data of"))?;
        if State::of(&self.origin, &old).map_err(at("look at"))? != state {
            return Err(changed());
        }
        before(Step::CutOver)?;
        let how = state.object.map_or(XattrFlags::CREATE, |_| XattrFlags::REPLACE);
        id.number
            .name_by(old.namespace_file(), how)
            .map_err(at("give its new layout, in an extended attribute, to"))?;
        before(Step::Settle)?;
        old.namespace_file().sync_all().map_err(at("sync"))?;
        before(Step::Remove)?;
        if let Some(object) = state.object {
            self.origin.remove_orphan(object)?;
        }
        before(Step::Forget)?;
        self.origin.servers()[0].directory().set_label(MOVING, b"")
    }

    /// Removes what an interrupted move left, and returns whether there was one: of the two objects in its note, those
    /// to which no file refers; nothing while names of the tree change. `before` is called before [`Step::Settle`], [`Step::Remove`] and [`Step::Forget`].
    ///
    /// # Errors
    /// If the names cannot be made durable; then nothing is removed.
    pub fn clear_moves(&self, before: Before<'_>) -> Result<bool> {
        let first = &self.origin.servers()[0];
        let note = first.directory().label(MOVING)?.unwrap_or_default();
        let note = String::from_utf8_lossy(&note);
        let mut numbers: BTreeSet<_> =
            note.split_whitespace().filter_map(ObjectNumber::parse).collect();
        if note.is_empty() {
            return Ok(false);
        }
        let is_still = each_file_if_still(self.origin.namespace_dir(), &mut |file| {
            let named = ObjectNumber::named_by(&file.path);
            let named = named.map_err(Error::at(&file.shown, "read the object of"))?;
            if let Some(number) = named.object() {
                numbers.remove(&number);
            }
            Ok(())
        })?;
        if !is_still {
            // An object whose name was not found may be that of a file that was moved meanwhile. What is left takes space,
            // which a check frees.
            return Ok(false);
        }
        // The reference that a killed or failed move made may be in memory only: an object to which no file refers must
        // be one to which none refers even after a power loss.
        before(Step::Settle)?;
        self.origin.sync_names()?;
        before(Step::Remove)?;
        for server in self.origin.servers() {
            for root in [ObjectId::ROOT, object_paths::LAYOUTS] {
                let failed = || Error::at(server.dir(), "clear an interrupted move in");
                for id in ids_on(server, root).map_err(failed())? {
                    if numbers.contains(&id.number) {
                        server.directory().remove(&id.path_in(root)).map_err(failed())?;
                    }
                }
            }
        }
        before(Step::Forget)?;
        first.directory().set_label(MOVING, b"")?;
        Ok(true)
    }

    fn note_move(&self, old: Option<ObjectId>, new: ObjectId) -> Result<()> {
        let old = old.map_or_else(String::new, |old| format!("{} ", old.number));
        let note = format!("{old}{}\n", new.number);
        self.origin.servers()[0].directory().set_label(MOVING, note.as_bytes())
    }

    /// Marks the volume so that earlier versions, which do not know layouts, refuse it.
    fn allow_layouts(&self) -> Result<()> {
        let dir = self.origin.namespace_dir().parent().unwrap_or(Path::new("/"));
        let volume_dir = VolumeDir::open(dir)?;
        match VolumeLabel::read(&volume_dir)? {
            Some(label) if label != label.with_layouts() => label.with_layouts().write(&volume_dir),
            _ => Ok(()),
        }
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
    let mut inodes = BTreeMap::new();
    let mut look = |wish: &Wish| {
        let change = change(origin, wish, to_move)?;
        if let Some(other) = inodes.insert(change.inode, wish.path.clone()) {
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
    let data = origin.open_data(namespace_file.fd.as_fd(), libc::O_RDONLY);
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
    let data = origin
        .open_data(namespace_file.fd.as_fd(), flags)
        .map_err(Error::at(&namespace_file.shown, "open"))?;
    let failed = || Error::at(&namespace_file.shown, "look at the data of");
    let wished = distribution_for(origin, &wish.layout);
    let planned = bytes_by_server(&data, namespace_file.found.len(), &wished).map_err(failed())?;
    Ok(LayoutChange {
        path: wish.path.clone(),
        now: data.distribution().map_err(failed())?,
        wished,
        size: namespace_file.found.len(),
        used: used_by(origin, &data).map_err(failed())?,
        planned,
        inode: namespace_file.found.ino(),
    })
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
