//! The origin: a directory tree with data, plain or striped.
//!
//! Plain: the directory itself, whose files hold their data. Striped: the tree is in `namespace/` with sparse files of
//! the real size, and the data in objects on the servers, so that renaming, linking and changing attributes only touch
//! the tree. `docs/FORMAT.md` describes the format.

mod attestation;
mod creation;
mod cut_mark;
pub mod earlier_times;
mod file;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod giving;
mod identity;
mod label;
mod layouts;
pub mod marking;
mod move_notes;
mod not_own;
mod object_binding;
mod object_family;
mod orphans;
pub mod relayout;
pub mod removals;
mod server_marks;
pub(super) mod sparse_copy;
mod tree_mark;
mod tree_record;
pub(super) mod tree_walk;
pub mod unnamed;
mod volume_directory;
pub mod volume_parts;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use halocline_model::striping::Striping;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use super::{Decorate, Server, Volume};
use crate::device::NamedFile;
use halocline_api::config::{VolumeKind, VolumeShape};
use halocline_os::error::{Error, Result};
use halocline_os::leased_files::open_at;
use halocline_os::locked_file::LockedFile;
use halocline_os::private::PrivateDir;
use halocline_vfs::Stat;

pub use file::OriginFile;
pub use identity::ObjectId;
pub use orphans::{Misnamed, NamedObjects, UnreadableFile};

use creation::{check_can_become_striped, create_striped, open_servers, server_name};
use file::{Data, SizeLocks, Striped};
use label::{Use, VolumeLabel};
use object_binding::{Believed, bind, not_bound};
use orphans::Orphans;
use removals::Removals;
use tree_record::TreeRecord;
use volume_directory::VolumeDir;

/// An origin, opened.
#[derive(Debug)]
pub struct Origin {
    dir: PathBuf,
    volume: Volume,
    striping: Striping,
    striped: bool,
    /// The device number of the file system of a striped volume's tree.
    tree_device: u64,
    locks: Arc<SizeLocks>,
    /// Whether the objects' names have the inode numbers of this tree.
    is_bound: bool,
    /// What the marks call a striped volume, if it has any.
    name: Option<String>,
    /// Objects of removed files. Before the lock: what is left goes while that is held.
    removals: Arc<Removals>,
    /// Lock on a striped volume in use: shared by mounts, exclusive for removing unnamed objects.
    in_use: Option<LockedFile>,
}

impl Origin {
    /// Opens the origin in `dir`; `decorate` decorates the devices of its servers. A directory that is a striped volume
    /// is opened according to its label; an empty directory becomes one if `shape` asks for that. For a plain origin,
    /// `shape` describes how the file system below distributes files: costs are computed from it, and data goes to the
    /// one directory.
    pub fn open_or_create(dir: &Path, shape: VolumeShape, decorate: Decorate<'_>) -> Result<Self> {
        if let Some(origin) = Self::open_unless_new(dir, shape, decorate)? {
            return Ok(origin);
        }
        let volume_dir = VolumeDir::open(dir)?;
        let label = create_striped(&volume_dir, shape)?;
        Self::open_striped(&volume_dir, label, Use::Shared, decorate)
    }

    /// As [`Origin::open_or_create`], but makes no volume of a directory that could become one: `None`. Who has more to check
    /// does so before a refusal would leave the directory changed for good.
    pub fn open_unless_new(
        dir: &Path,
        shape: VolumeShape,
        decorate: Decorate<'_>,
    ) -> Result<Option<Self>> {
        if shape.servers == 0 || shape.stripe == 0 {
            let what = format!(
                "{}: an origin of {} servers with a stripe of {} bytes",
                dir.display(),
                shape.servers,
                shape.stripe
            );
            return Err(Error::invalid(what, "give at least one server and one byte"));
        }
        let volume_dir = VolumeDir::open(dir)?;
        volume_parts::check_is_none(dir)?;
        match (VolumeLabel::read(&volume_dir)?, shape.kind) {
            (Some(found), VolumeKind::Striped)
                if (found.servers, found.stripe) != (shape.servers, shape.stripe) =>
            {
                let what = format!(
                    "{}: striped over {} servers in units of {} bytes, not over {} in units of {}",
                    dir.display(),
                    found.servers,
                    found.stripe,
                    shape.servers,
                    shape.stripe
                );
                let remedy = "give the volume's own numbers, or unstripe it and stripe it anew";
                Err(Error::invalid(what, remedy))
            }
            (Some(found), _) => {
                Self::open_striped(&volume_dir, found, Use::Shared, decorate).map(Some)
            }
            (None, VolumeKind::Striped) => check_can_become_striped(&volume_dir).map(|()| None),
            (None, _) => {
                let servers = vec![Server::local(dir, "origin", 0, decorate)?];
                let volume = Volume::new(servers, shape.stripe);
                let striping = Striping::new(shape.servers, shape.stripe);
                Ok(Some(Self::over(dir, volume, striping, None)))
            }
        }
    }

    /// The shape with which the origin in `dir` is opened if `wanted` is requested: its own if it is a striped volume
    /// and no other is requested.
    pub fn shape_in(dir: &Path, wanted: VolumeShape) -> Result<VolumeShape> {
        let found = VolumeLabel::read(&VolumeDir::open(dir)?)?
            .filter(|_| wanted.kind != VolumeKind::Striped);
        Ok(found.map_or(wanted, |found| VolumeShape {
            kind: VolumeKind::Striped,
            servers: found.servers,
            stripe: found.stripe,
        }))
    }

    /// The striped volume in `dir`, without decorators; an error if there is none.
    pub fn open_volume(dir: &Path) -> Result<Self> {
        let volume_dir = VolumeDir::open(dir)?;
        let label = VolumeLabel::required(&volume_dir)?;
        Self::open_striped(&volume_dir, label, Use::Shared, &|_, device| device)
    }

    /// The same to look at: nothing in it is made or changed, and its servers may be read-only.
    ///
    /// # Errors
    /// As [`Origin::open_volume`], and [`Error::Invalid`] for a volume that was copied and not used since: its objects are
    /// not bound to its files yet, so it would look empty.
    pub fn open_to_look(dir: &Path) -> Result<Self> {
        let origin = Self::open_to_look_at_names(dir)?;
        origin.check_bound().map(|()| origin)
    }

    /// The same, also of such a volume: of its files all but the data can be looked at.
    pub(super) fn open_to_look_at_names(dir: &Path) -> Result<Self> {
        let volume_dir = VolumeDir::open(dir)?;
        let label = VolumeLabel::required(&volume_dir)?;
        Self::open_striped(&volume_dir, label, Use::Look, &|_, device| device)
    }

    /// Refuses a volume whose objects are not bound to its files yet.
    ///
    /// # Errors
    /// [`Error::Invalid`] with what binds them.
    pub fn check_bound(&self) -> Result<()> {
        let dir = self.dir.parent().unwrap_or(&self.dir);
        if self.is_bound { Ok(()) } else { Err(not_bound(dir)) }
    }

    /// Bytes of blocks that the files of a striped volume use on the server with this index.
    pub fn object_bytes(&self, server: usize) -> Result<u64> {
        orphans::bytes_on(&self.servers()[server])
    }

    /// The striped volume in `dir` for exclusive use; `None` if there is none. Refused while it is mounted. Nothing in
    /// it is changed: if its objects are not bound to this tree, files have no data. Whether that is its tree is not looked at:
    /// [`Origin::check_tree`].
    pub fn open_alone(dir: &Path) -> Result<Option<Self>> {
        let volume_dir = VolumeDir::open(dir)?;
        let label = VolumeLabel::read(&volume_dir)?;
        label
            .map(|label| Self::open_striped(&volume_dir, label, Use::Alone, &|_, device| device))
            .transpose()
    }

    fn open_striped(
        volume_dir: &VolumeDir,
        label: VolumeLabel,
        how: Use,
        decorate: Decorate<'_>,
    ) -> Result<Self> {
        let names: Vec<_> = (0..label.servers).map(server_name).collect();
        let dirs = open_servers(volume_dir, label.servers, how)?;
        match label.volume() {
            Some(volume) => server_marks::check(&volume, &dirs)?,
            None if how == Use::Shared => {
                let dir = volume_dir.path().display();
                tracing::warn!(
                    "{dir}: its servers have no marks, so one that is not mounted would be taken for an empty one; \
                     `halocline mark-servers {dir}` marks them"
                );
            }
            None => {}
        }
        let in_use = label::lock(volume_dir, &dirs[0], how)?;
        let open = if how == Use::Look { Server::to_read } else { Server::private };
        let servers = dirs.iter().zip(&names).enumerate();
        let servers = servers.map(|(at, (dir, name))| open(dir, name, at, decorate));
        let servers = servers.collect::<Result<Vec<_>>>()?;
        let tree = volume_dir.tree(label::NAMESPACE, |inode| label.is_bound_to(inode))?;
        let namespace = volume_dir.path().join(label::NAMESPACE);
        let tree_device = tree.metadata().map_err(Error::at(&namespace, "stat"))?.dev();
        let volume = Volume::new(servers, label.stripe);
        let opened = Self::over(&namespace, volume, label.striping(), Some(in_use));
        let removals = Removals::of(opened.volume.clone(), &tree, &dirs);
        let removals = Arc::new(removals.map_err(Error::at(&namespace, "look at"))?);
        let opened = Self { tree_device, name: label.volume(), removals, ..opened };
        opened.bound(volume_dir, label, (&tree, &dirs[0]), how)
    }

    /// Checks that `tree` has the volume's names, and binds its objects to their files if they are not; `first` is the
    /// directory of the first server.
    fn bound(
        mut self,
        volume_dir: &VolumeDir,
        label: VolumeLabel,
        (tree, first): (&File, &PrivateDir),
        how: Use,
    ) -> Result<Self> {
        let namespace = &self.dir;
        let noted = TreeRecord::read(first)?;
        let is_attested = noted.is_some_and(|noted| noted.is_attested);
        let here = TreeRecord::of(tree, is_attested).map_err(Error::at(namespace, "stat"))?;
        let here = here.with_what_was(noted);
        let is_copy = noted.is_some_and(|noted| noted.is_copied_to(here));
        let was_bound = label.is_bound_to(here.inode) && !is_copy;
        let is_marked = how == Use::Alone || {
            let marked = (&self.volume, self.name.as_deref());
            tree_mark::check((tree, namespace), marked, was_bound)?
        };
        self.is_bound = was_bound || how == Use::Shared;
        if !was_bound && let (Use::Shared, Some(in_use)) = (how, &self.in_use) {
            label::relock(volume_dir, in_use, Use::Alone)?;
            tracing::info!("{}: finding out whose each object is", volume_dir.path().display());
            let believed = if is_attested { Believed::Attested } else { Believed::All };
            bind(namespace, self.servers(), believed)?;
            label.bound_to(here.inode).write(volume_dir)?;
            label::relock(volume_dir, in_use, how)?;
        }
        if how != Use::Shared {
            return Ok(self);
        }
        if noted != Some(here)
            && let Err(error) = here.write(first)
        {
            // A copy is bound anew by the next opening; where nothing is noted the label alone says whether it is one.
            tracing::debug!("{}: not noted: {error}", namespace.display());
        }
        if let (false, Some(name)) = (is_marked, &self.name)
            && let Err(error) = tree_mark::write(tree, name)
        {
            // Its own files show whose it is, at the next opening, too.
            tracing::debug!("{}: not marked: {error}", namespace.display());
        }
        Ok(self)
    }

    fn over(dir: &Path, volume: Volume, striping: Striping, in_use: Option<LockedFile>) -> Self {
        let locks = Arc::new(std::array::from_fn(|_| parking_lot::Mutex::default()));
        let (dir, striped, tree_device) = (dir.to_owned(), in_use.is_some(), 0);
        let (is_bound, name, removals) = (true, None, Arc::default());
        Self {
            dir,
            volume,
            striping,
            striped,
            tree_device,
            locks,
            is_bound,
            name,
            removals,
            in_use,
        }
    }

    /// The directory within the origin `dir` that contains the tree that programs see.
    pub fn tree_in(dir: &Path) -> Result<PathBuf> {
        let striped = VolumeLabel::read(&VolumeDir::open(dir)?)?.is_some();
        Ok(if striped { dir.join(label::NAMESPACE) } else { dir.to_owned() })
    }

    /// The directory that contains the tree that programs see.
    pub fn namespace_dir(&self) -> &Path {
        &self.dir
    }

    /// How files are distributed: by us, or by the file system below a plain origin.
    pub const fn striping(&self) -> Striping {
        self.striping
    }

    /// Servers over which the file system below distributes what we write to one of our servers.
    pub const fn servers_below(&self) -> u32 {
        if self.striped { 1 } else { self.striping.servers() }
    }

    /// The servers that data goes to: one for a plain origin.
    pub fn servers(&self) -> &[Arc<Server>] {
        self.volume.servers()
    }

    /// Whether we stripe the data.
    pub const fn is_striped(&self) -> bool {
        self.striped
    }

    /// Opens the data of a namespace file. `namespace_file` may be an `O_PATH` descriptor; `flags` are those of `open(2)` and are
    /// passed unchanged to the file of a plain origin.
    ///
    /// # Errors
    /// `EAGAIN` if a program's lease of the file would have to be waited for ([`halocline_os::leased_files`]).
    pub fn open_data(&self, namespace_file: BorrowedFd<'_>, flags: i32) -> io::Result<OriginFile> {
        let flags = OFlags::from_bits_retain(flags.cast_unsigned());
        if !self.striped {
            return self.adopt_data(reopen(namespace_file, flags)?);
        }
        let access = flags & OFlags::ACCMODE;
        let reads_too = if access == OFlags::WRONLY { OFlags::RDWR } else { access };
        let file = match reopen(namespace_file, reads_too) {
            // A file that its owner may write but not read.
            Err(Errno::ACCESS) if reads_too != access => reopen(namespace_file, access),
            other => other,
        };
        self.adopt_data(file?)
    }

    /// The data of a namespace file that is already open, with the access it was opened with.
    pub fn adopt_data(&self, namespace_file: File) -> io::Result<OriginFile> {
        let namespace_file = NamedFile::new(namespace_file)?;
        if !self.striped {
            let server = Arc::clone(&self.volume.servers()[0]);
            return Ok(OriginFile(Data::Plain { server, file: namespace_file }));
        }
        tree_walk::check_file_system(namespace_file.file(), self.tree_device)?;
        Ok(OriginFile(Data::Striped(Box::new(Striped {
            volume: self.volume.clone(),
            striping: self.striping,
            locks: Arc::clone(&self.locks),
            removals: Arc::clone(&self.removals),
            namespace_file,
            object: OnceLock::new(),
        }))))
    }

    /// The object with a namespace file's data, if it has one.
    pub fn object_of(&self, namespace_file: impl AsFd) -> io::Result<Option<ObjectId>> {
        if !self.striped {
            return Ok(None);
        }
        tree_walk::check_file_system(&namespace_file, self.tree_device)?;
        ObjectId::of(namespace_file)
    }

    /// Removes the data of a namespace file, as soon as it is durable that it has no name. The caller guarantees that its last name
    /// and its last open file are gone.
    pub fn remove_data(&self, namespace_file: impl AsFd) -> io::Result<()> {
        if let Some(id) = self.object_of(&namespace_file)? {
            self.removals.add(id, rustix::fs::fstat(namespace_file)?.st_dev);
        }
        Ok(())
    }

    /// The objects that [`Origin::remove_data`] has not removed yet.
    pub fn removals(&self) -> &Removals {
        &self.removals
    }

    /// Refuses a striped volume with the tree of another one, or of none: its data would seem to belong to no file.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is not the volume's tree; else if that cannot be found out.
    pub fn check_tree(&self) -> Result<()> {
        if !self.striped {
            return Ok(());
        }
        let tree = File::open(&self.dir).map_err(Error::at(&self.dir, "open"))?;
        let volume = (&self.volume, self.name.as_deref());
        tree_mark::check((&tree, &self.dir), volume, self.is_bound).map(drop)
    }

    /// Number of objects of a striped volume, named or not.
    ///
    /// # Errors
    /// If a server cannot be read.
    pub fn object_count(&self) -> Result<usize> {
        if self.striped { Ok(orphans::all(&self.volume)?.len()) } else { Ok(0) }
    }

    /// Finds out which objects no file names, in a tree of the volume ([`Origin::check_tree`]); a plain origin has none. The caller guarantees that the origin is not
    /// mounted ([`Origin::open_alone`]): an open file without a name would count as an orphan.
    ///
    /// # Errors
    /// If a server cannot be read, and [`Error::Invalid`] while names of the tree change.
    pub fn named_objects(&self) -> Result<NamedObjects> {
        if self.striped {
            orphans::find(&self.volume, &self.dir)
        } else {
            Ok(NamedObjects::default())
        }
    }

    /// Those to which nothing refers.
    ///
    /// # Errors
    /// As [`Origin::named_objects`], and if a name cannot be read: one that cannot be seen must not make its object an orphan.
    pub fn orphans(&self) -> Result<Orphans> {
        let NamedObjects { unnamed, unread, .. } = self.named_objects()?;
        unread.into_iter().next().map_or(Ok(unnamed), Err)
    }

    /// Makes durable the names of all files, and the objects to which they refer, on each file system of the tree.
    ///
    /// # Errors
    /// If one does not sync, or directories are renamed meanwhile.
    pub fn sync_names(&self) -> Result<()> {
        tree_walk::sync_file_systems(self.namespace_dir())
    }

    /// Makes durable what was made and removed on the servers.
    ///
    /// # Errors
    /// If one does not sync.
    pub fn sync_servers(&self) -> Result<()> {
        let sync = |server: &Arc<Server>| server.directory().sync_all();
        let mut servers = self.servers().iter();
        servers.try_for_each(|server| sync(server).map_err(Error::at(server.dir(), "sync")))
    }

    /// Removes an orphan from all servers. That no file refers to it must already be durable, by [`Origin::sync_names`]
    /// or a sync of the file that did: otherwise, after a power loss, the file would refer to an object that is gone.
    ///
    /// # Errors
    /// If a server does not remove it.
    pub fn remove_orphan(&self, id: ObjectId) -> Result<()> {
        removals::remove(id, &self.volume)
    }

    /// Gives each object with such a name to the file at the path beside it, below the mount, which names it, as is needed after
    /// files were restored from a backup. Whether it is that file's nobody can tell but who asks for it: who may write to a file
    /// can have it name any object. The caller guarantees that the origin is not mounted ([`Origin::open_alone`]), and that the
    /// objects' own files are gone.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such object or file, a file does not name it, or one of either is there twice: then nothing
    /// is given. Else if objects cannot be renamed.
    pub fn give_objects(&self, pairs: &[(String, PathBuf)]) -> Result<()> {
        giving::give(self, pairs)
    }

    /// Corrects wrong attributes from the namespace for a regular file: a striped file's blocks are elsewhere. They are
    /// reported as if the file had no holes, because programs assume that a file without blocks has no data;
    /// [`OriginFile::blocks`] counts them.
    pub fn complete_stat(&self, stat: &mut Stat) {
        if self.striped {
            stat.raw.st_blocks = stat.raw.st_size.saturating_add(511) / 512;
        }
    }
}

/// Where the nodes of an origin are listed, below it, possibly before it becomes a striped volume. Hidden from
/// programs.
pub const REGISTRY: &str = ".halocline-cluster";

fn reopen(namespace_file: BorrowedFd<'_>, flags: OFlags) -> rustix::io::Result<File> {
    let path = identity::by_descriptor(namespace_file);
    open_at(CWD, &*path, flags | OFlags::CLOEXEC, Mode::empty()).map(File::from)
}
