//! The origin: a directory tree with data, plain or striped.
//!
//! Plain: the directory itself, whose files hold their data. Striped: the tree is in `namespace/` with sparse files of
//! the real size, and the data in objects on the servers, so that renaming, linking and changing attributes only touch
//! the tree. `docs/FORMAT.md` describes the format.

mod file;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod identity;
mod label;
mod layouts;
pub mod marking;
mod object_binding;
mod orphans;
pub mod relayout;
mod server_marks;
pub(super) mod sparse_copy;
mod tree_mark;
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

use file::{Data, SizeLocks, Striped};
use label::{Use, VolumeLabel};
use object_binding::bind;
use orphans::Orphans;
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
        let label = required_label(&volume_dir)?;
        Self::open_striped(&volume_dir, label, Use::Shared, &|_, device| device)
    }

    /// The same to look at: nothing in it is made or changed, and its servers may be read-only.
    ///
    /// # Errors
    /// As [`Origin::open_volume`], and [`Error::Invalid`] for a volume that was copied and not used since: its objects are
    /// not bound to its files yet, so it would look empty.
    pub fn open_to_look(dir: &Path) -> Result<Self> {
        let volume_dir = VolumeDir::open(dir)?;
        let label = required_label(&volume_dir)?;
        let origin = Self::open_striped(&volume_dir, label, Use::Look, &|_, device| device)?;
        if origin.is_bound {
            return Ok(origin);
        }
        Err(not_bound(dir))
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
        let found = tree.metadata().map_err(Error::at(&namespace, "stat"))?;
        let (inode, tree_device) = (found.ino(), found.dev());
        let (volume, name) = (Volume::new(servers, label.stripe), label.volume());
        let is_marked = how == Use::Alone || {
            let marked = (&volume, name.as_deref());
            tree_mark::check((&tree, &namespace), marked, label.is_bound_to(inode))?
        };
        let is_bound = label.is_bound_to(inode) || how == Use::Shared;
        if !label.is_bound_to(inode) && is_bound {
            label::relock(volume_dir, &in_use, Use::Alone)?;
            tracing::info!("{}: finding out whose each object is", volume_dir.path().display());
            bind(&namespace, volume.servers())?;
            label.bound_to(inode).write(volume_dir)?;
            label::relock(volume_dir, &in_use, how)?;
        }
        if let (Use::Shared, false, Some(name)) = (how, is_marked, &name)
            && let Err(error) = tree_mark::write(&tree, name)
        {
            // Its own files show whose it is, at the next opening, too.
            tracing::debug!("{}: not marked: {error}", namespace.display());
        }
        let opened = Self::over(&namespace, volume, label.striping(), Some(in_use));
        Ok(Self { tree_device, is_bound, name, ..opened })
    }

    fn over(dir: &Path, volume: Volume, striping: Striping, in_use: Option<LockedFile>) -> Self {
        let locks = Arc::new(std::array::from_fn(|_| parking_lot::Mutex::default()));
        let (dir, striped, tree_device) = (dir.to_owned(), in_use.is_some(), 0);
        let (is_bound, name) = (true, None);
        Self { dir, volume, striping, striped, tree_device, locks, is_bound, name, in_use }
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

    /// Removes the data of a namespace file. The caller guarantees that its last name and its last open file are gone.
    pub fn remove_data(&self, namespace_file: impl AsFd) -> io::Result<()> {
        let Some(id) = self.object_of(namespace_file)? else { return Ok(()) };
        let path = id.path();
        self.servers()
            .iter()
            .map(|server| server.directory().remove(&path))
            .fold(Ok(()), Result::and)?;
        layouts::remove(id, &self.volume).map_err(|(_, error)| error)
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

    /// Removes an orphan from all servers. That no file refers to it must already be durable, by [`Origin::sync_names`]
    /// or a sync of the file that did: otherwise, after a power loss, the file would refer to an object that is gone.
    ///
    /// # Errors
    /// If a server does not remove it.
    pub fn remove_orphan(&self, id: ObjectId) -> Result<()> {
        orphans::remove(id, &self.volume)
    }

    /// Gives the object with this name to the file at `relative`, which names it, as is needed after the file was restored from a
    /// backup. Whether it is that file's nobody can tell but who asks for it: who may write to a file can have it name any object.
    /// The caller guarantees that the origin is not mounted ([`Origin::open_alone`]), and that the object's own file is gone.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such object or file, or the file does not name it; else if objects cannot be renamed.
    pub fn give_object(&self, object: &str, relative: &Path) -> Result<()> {
        object_binding::give_named(self, object, relative)
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

/// Refuses a directory with anything but what an interrupted creation of a striped volume leaves.
fn check_can_become_striped(volume_dir: &VolumeDir) -> Result<()> {
    volume_dir.check_empty(|name| {
        let is_ours = name == label::NAMESPACE || name.starts_with("server-");
        is_ours || [REGISTRY, "lost+found"].contains(&name) || name.starts_with(label::NAME)
    })
}

/// Makes an empty directory a striped volume, or continues an interrupted creation. The label comes last: without it
/// there is no volume.
fn create_striped(volume_dir: &VolumeDir, shape: VolumeShape) -> Result<VolumeLabel> {
    check_can_become_striped(volume_dir)?;
    for index in 0..shape.servers {
        volume_dir.make_directory(&server_name(index), server_marks::is_mark)?;
    }
    // The tree's root gets the owner and mode of the directory.
    let namespace = volume_dir.make_directory(label::NAMESPACE, |_| false)?;
    volume_dir.liken(&namespace, label::NAMESPACE)?;
    let (inode, changed_ns) = tree_and_time(volume_dir, &namespace)?;
    let label = VolumeLabel::new(shape.servers, shape.stripe, inode, changed_ns);
    if let Some(volume) = label.volume() {
        server_marks::write(&volume, &open_servers(volume_dir, shape.servers, Use::Alone)?)?;
        let path = volume_dir.path().join(label::NAMESPACE);
        tree_mark::write(&namespace, &volume).map_err(Error::at(path, "mark the tree"))?;
    }
    label.write(volume_dir)?;
    Ok(label)
}

/// What names a volume: the inode number of its tree, and when that was last changed.
fn tree_and_time(volume_dir: &VolumeDir, tree: &File) -> Result<(u64, u64)> {
    let found = tree.metadata().map_err(Error::at(volume_dir.path(), "stat the tree in"))?;
    let changed_ns = found.mtime().wrapping_mul(1_000_000_000).wrapping_add(found.mtime_nsec());
    Ok((found.ino(), changed_ns.cast_unsigned()))
}

fn server_name(index: u32) -> String {
    format!("server-{index}")
}

/// The directories of the servers. Anyone who could put objects there could make us read and write files of their choice.
fn open_servers(volume_dir: &VolumeDir, servers: u32, how: Use) -> Result<Vec<PrivateDir>> {
    let open = if how == Use::Look { PrivateDir::open_to_read } else { PrivateDir::open };
    let open = |index| {
        let path = volume_dir.path().join(server_name(index));
        open(&path).map_err(|error| match error.errno() {
            libc::ENOENT => Error::invalid(
                format!("{}: this server of the volume is not there", path.display()),
                "move or mount it there, or restore it from a backup",
            ),
            _ => error,
        })
    };
    (0..servers).map(open).collect()
}

/// The label of the volume in `volume_dir`.
fn required_label(volume_dir: &VolumeDir) -> Result<VolumeLabel> {
    VolumeLabel::read(volume_dir)?.ok_or_else(|| {
        let dir = volume_dir.path().display();
        let what = format!("{dir}: not a striped volume ({} is missing)", label::NAME);
        Error::invalid(what, "give the directory that was the origin of the mount")
    })
}

fn not_bound(dir: &Path) -> Error {
    let what = format!(
        "{}: a copy of a striped volume, whose objects are not yet those of its files",
        dir.display()
    );
    Error::invalid(what, "mount it once: the first mount finds out whose each object is")
}

fn reopen(namespace_file: BorrowedFd<'_>, flags: OFlags) -> rustix::io::Result<File> {
    let path = identity::by_descriptor(namespace_file);
    open_at(CWD, &*path, flags | OFlags::CLOEXEC, Mode::empty()).map(File::from)
}
