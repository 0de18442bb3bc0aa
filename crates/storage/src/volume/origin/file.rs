//! The data of one open origin file, plain or striped.
//!
//! A striped file's size is that of its sparse namespace file. What must hold: no object holds bytes beyond that size,
//! so that a file that grows later reads zeros there, unless the file is marked ([`CutMark`]). Hence a write extends the size
//! before it writes data, and a truncate marks the file and sets the size; who makes a marked file longer cuts its data
//! first. A crash in between leaves zeros for a write that was not acknowledged, never old bytes, and a truncate
//! that was not has happened or has not.
//!
//! The namespace file and the local files may be on file systems that lose their power with different changes unsynced. What
//! must hold: nothing is cut before the mark and the size are durable, or a file that has its old length again would have zeros there;
//! and the file does not grow, and loses its mark, before the cut is durable, or bytes that were cut off would be there again.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock};

use halocline_model::request::ByteRange;
use halocline_model::striping::Striping;
use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;

use super::cut_mark::CutMark;
use super::identity::ObjectId;
use super::layouts;
use super::not_own::NotOwn;
use super::object_family::not_own;
use super::removals::Removals;
use crate::device::{NamedFile, SECTOR};
use crate::volume::run_writes::{Plan, Runs, write_runs};
use crate::volume::{Distribution, Server, Volume, VolumeFile};
use halocline_os::client_pages;
use halocline_vfs::Allocate;
use halocline_vfs::Seek;

/// Locks that guard sizes, each shared by many objects: they are held only for a system call or two, and for a sync where one
/// that was truncated grows.
pub(super) type SizeLocks = [Mutex<()>; 64];

/// What a truncate cuts off at once, because a sync is little beside it. Less than that stays until the file grows.
const CUT_AT_ONCE_BYTES: u64 = 1 << 20;

/// What is freed of a namespace file's blocks: whole ones of any file system.
const FREED_BYTES: u64 = 64 << 10;

/// The data of an open origin file.
///
/// The caller guarantees that no two calls change overlapping ranges at the same time, and that a truncate runs alone.
#[derive(Debug)]
pub struct OriginFile(pub(super) Data);

#[derive(Debug)]
pub(super) enum Data {
    Plain { server: Arc<Server>, file: NamedFile },
    Striped(Box<Striped>),
}

/// A namespace file and, once it has data, its object.
#[derive(Debug)]
pub(super) struct Striped {
    pub(super) volume: Volume,
    pub(super) striping: Striping,
    pub(super) locks: Arc<SizeLocks>,
    pub(super) removals: Arc<Removals>,
    pub(super) namespace_file: NamedFile,
    pub(super) object: OnceLock<(ObjectId, VolumeFile)>,
}

/// The object to which a file refers.
enum ObjectReference<'a> {
    /// It refers to none.
    Absent,
    /// Its own, which may have no data yet.
    Own(&'a VolumeFile),
    /// Data that is not this file's.
    NotOwn(NotOwn),
}

impl OriginFile {
    /// The open file that has the attributes: the file itself if the origin is plain.
    pub fn namespace_file(&self) -> &File {
        match &self.0 {
            Data::Plain { file, .. } => file.file(),
            Data::Striped(striped) => striped.namespace_file.file(),
        }
    }

    /// Reads at `offset`; the result is short only at the end of the file.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        match &self.0 {
            Data::Plain { server, file } => {
                server.device().read_at(file.on_server(), offset, &mut [IoSliceMut::new(buf)])
            }
            Data::Striped(striped) => striped.read_at(offset, buf),
        }
    }

    /// Writes all of `data` at `offset`; extends the file if that is beyond its end.
    pub fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        match &self.0 {
            Data::Plain { server, file } => {
                server.device().write_at(file.on_server(), offset, &[IoSlice::new(data)])
            }
            Data::Striped(striped) => striped.with_room(|it| it.write_at(offset, data)),
        }
    }

    /// Prepares a write that makes the file longer, up to `end`, while others do so through any descriptor on any node:
    /// neither makes it shorter. (Writing a plain file never does.)
    pub fn prepare_growth(&self, end: u64) -> io::Result<()> {
        match &self.0 {
            Data::Plain { .. } => Ok(()),
            Data::Striped(striped) => striped.with_room(|it| it.extend(end)),
        }
    }

    /// Writes `runs`, all inside the file, as [`VolumeFile::rewrite`] does.
    pub fn rewrite(&self, runs: Runs<'_>, plan: Plan<'_>) -> io::Result<()> {
        match &self.0 {
            Data::Plain { server, file } => {
                let whole = runs.by_server(&Striping::new(1, 1).into()).swap_remove(0);
                write_runs(server.device().as_ref(), file.on_server(), &whole, plan)
            }
            Data::Striped(striped) => striped.with_room(|it| {
                it.grow(0)?;
                it.created()?.rewrite(runs, plan)
            }),
        }
    }

    /// Sets the size.
    pub fn truncate(&self, len: u64) -> io::Result<()> {
        match &self.0 {
            Data::Plain { server, file } => server.device().truncate(file.on_server(), len),
            Data::Striped(striped) => striped.with_room(|it| it.truncate(len)),
        }
    }

    /// Punches, reserves or zeroes `range`, as `fallocate(2)`.
    pub fn allocate(&self, range: ByteRange, how: Allocate) -> io::Result<()> {
        match &self.0 {
            Data::Plain { server, file } => server.device().allocate(file.on_server(), range, how),
            Data::Striped(striped) => striped.with_room(|it| it.allocate(range, how)),
        }
    }

    /// Makes data and size durable; other attributes too unless `data_only`.
    pub fn sync(&self, data_only: bool) -> io::Result<()> {
        match &self.0 {
            Data::Plain { server, file } => server.device().sync(file.on_server(), data_only),
            Data::Striped(striped) => striped.sync(data_only),
        }
    }

    /// The next data or hole at or after `offset`; `ENXIO` if there is none, as for `lseek(2)`.
    pub fn seek(&self, offset: u64, what: Seek) -> io::Result<u64> {
        match &self.0 {
            Data::Plain { file, .. } => file.on_server().seek(what.at(offset)),
            Data::Striped(striped) => striped.seek(offset, what),
        }
    }

    /// Blocks of 512 bytes in use.
    pub fn blocks(&self) -> io::Result<u64> {
        match &self.0 {
            Data::Plain { file, .. } => Ok(file.on_server().allocated()? / SECTOR),
            Data::Striped(striped) => match striped.find()? {
                ObjectReference::Own(object) => Ok(object.allocated_bytes()? / SECTOR),
                ObjectReference::Absent | ObjectReference::NotOwn(_) => Ok(0),
            },
        }
    }
}

impl OriginFile {
    /// Makes the kernel drop its pages of a range, or of more of the file where it keeps some together. `false` if it still
    /// has some of `range`, because requests are using them.
    pub fn forget_pages(&self, range: ByteRange) -> io::Result<bool> {
        let file = match &self.0 {
            Data::Plain { file, .. } => file.file(),
            Data::Striped(striped) => {
                return striped.existing()?.map_or(Ok(true), VolumeFile::forget_pages);
            }
        };
        let len = range.len().max(1);
        client_pages::drop_range(file, range.start, len)?;
        if client_pages::are_gone(file, range.start, len)? == Some(true) {
            return Ok(true);
        }
        // Pages that are kept together with others outside go with these. Where the kernel cannot say what it has, that
        // is all that can be done.
        client_pages::drop_all(file)?;
        Ok(client_pages::are_gone(file, range.start, len)?.unwrap_or(true))
    }

    /// How the file is distributed over the servers of a striped origin.
    pub(super) fn distribution(&self) -> io::Result<Distribution> {
        match &self.0 {
            Data::Plain { .. } => Ok(Striping::new(1, 1).into()),
            Data::Striped(striped) => striped.distribution(),
        }
    }
}

impl Striped {
    /// Does `work`, with the room of files that were removed before.
    fn with_room<T>(&self, work: impl Fn(&Self) -> io::Result<T>) -> io::Result<T> {
        self.removals.with_room(io::Error::raw_os_error, || work(self))
    }

    fn size(&self) -> io::Result<u64> {
        self.namespace_file.on_server().size()
    }

    /// The object that the file currently has.
    fn find(&self) -> io::Result<ObjectReference<'_>> {
        if let Some((_, object)) = self.object.get() {
            return Ok(ObjectReference::Own(object));
        }
        let Some(id) = ObjectId::of(self.namespace_file.file())? else {
            return Ok(ObjectReference::Absent);
        };
        let found = self.object(id)?;
        if !found.as_ref().is_some_and(VolumeFile::is_anywhere)
            && let Some(other) = not_own(id, found.is_some(), &self.volume)?
        {
            return Ok(ObjectReference::NotOwn(other));
        }
        let object = found.ok_or_else(|| layouts::missing(id))?;
        Ok(ObjectReference::Own(self.attach(id, object)))
    }

    /// The object; `None` if the file never had data.
    fn existing(&self) -> io::Result<Option<&VolumeFile>> {
        match self.find()? {
            ObjectReference::Own(object) => Ok(Some(object)),
            ObjectReference::Absent => Ok(None),
            ObjectReference::NotOwn(_) if self.size()? == 0 => Ok(None),
            ObjectReference::NotOwn(other) => Err(other.into()),
        }
    }

    /// The object; the namespace file refers to it before there is data. An empty file that refers to another file's
    /// object gets its own.
    fn created(&self) -> io::Result<&VolumeFile> {
        if let Some((_, object)) = self.object.get() {
            return Ok(object);
        }
        let _given_once = self.size_lock().lock();
        let id = match self.find()? {
            ObjectReference::Own(object) => return Ok(object),
            ObjectReference::Absent => ObjectId::ensure(self.namespace_file.file())?,
            ObjectReference::NotOwn(other) => self.give_own(other)?,
        };
        let object = self.object(id)?.ok_or_else(|| layouts::missing(id))?;
        Ok(self.attach(id, object))
    }

    /// Gives a file that refers to `other` data an object of its own, if it is empty. That must be before it has a size: with one, it
    /// would be a file whose data is gone. The caller has the lock of the size.
    fn give_own(&self, other: NotOwn) -> io::Result<ObjectId> {
        if self.size()? > 0 {
            return Err(other.into());
        }
        ObjectId::give(self.namespace_file.file(), XattrFlags::REPLACE)
    }

    /// The object `id` in its layout; `None` if the layout is missing.
    fn object(&self, id: ObjectId) -> io::Result<Option<VolumeFile>> {
        let distribution = layouts::distribution_of(id, &self.volume, self.striping)?;
        Ok(distribution
            .map(|distribution| VolumeFile::lazy(&self.volume, 0, distribution, &id.path())))
    }

    /// How the file is distributed over the servers.
    fn distribution(&self) -> io::Result<Distribution> {
        Ok(self.existing()?.map_or(self.striping.into(), |object| object.distribution().clone()))
    }

    fn attach(&self, id: ObjectId, object: VolumeFile) -> &VolumeFile {
        &self.object.get_or_init(|| (id, object)).1
    }

    fn size_lock(&self) -> &Mutex<()> {
        // All open files of one object share the inode, even before there is an object.
        let at = self.namespace_file.on_server().inode() % self.locks.len() as u64;
        &self.locks[usize::try_from(at).expect("a small number")]
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let inside = self.size()?.saturating_sub(offset).min(buf.len() as u64);
        let inside = usize::try_from(inside).expect("no more than the buffer's length");
        let buf = &mut buf[..inside];
        match self.existing()? {
            Some(object) if inside > 0 => object.read_filled(offset, buf)?,
            _ => buf.fill(0),
        }
        Ok(inside)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let object = self.created()?;
        let end = offset.checked_add(data.len() as u64).ok_or(Errno::FBIG)?;
        let before = self.grow(end)?;
        object.write_at(offset, data).inspect_err(|_| {
            if before < end {
                self.shrink_back(object, before.max(offset), end);
            }
        })
    }

    /// Makes the size at least `end` and sets the modification time; returns the previous size.
    fn grow(&self, end: u64) -> io::Result<u64> {
        let _size = self.size_lock().lock();
        let before = self.size()?;
        if before < end {
            self.finish_cut(before)?;
            // Another node may have made it longer meanwhile.
            if self.size()? < end {
                self.set_size(end)?;
            }
        } else {
            self.touch()?;
        }
        Ok(before)
    }

    /// Makes the size at least `end`, without setting it, which would undo what others have made longer since it was
    /// read. A byte of the namespace file, which has no data, is written, and its block is freed again if that is
    /// possible.
    fn extend(&self, end: u64) -> io::Result<()> {
        let _size = self.size_lock().lock();
        let before = self.size()?;
        if before >= end {
            return Ok(());
        }
        if before == 0
            && let ObjectReference::NotOwn(other) = self.find()?
        {
            self.give_own(other)?;
        }
        self.finish_cut(before)?;
        let file = self.namespace_file.file();
        file.write_all_at(&[0], end - 1)?;
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let _ =
            rustix::fs::fallocate(file, how, (end - 1) / FREED_BYTES * FREED_BYTES, FREED_BYTES);
        Ok(())
    }

    /// Undoes the growth of a failed write, unless another write extended the file further. Only the write's own range
    /// is cut: no one else writes there now.
    fn shrink_back(&self, object: &VolumeFile, len: u64, end: u64) {
        let _size = self.size_lock().lock();
        if self.size().is_ok_and(|size| size == end) && object.cut(len).is_ok() {
            // The caller must see the write's own error.
            let _ = self.set_size(len);
        }
    }

    fn set_size(&self, len: u64) -> io::Result<()> {
        Ok(rustix::fs::ftruncate(self.namespace_file.file(), len)?)
    }

    /// Sets the modification time as a write to the namespace file would.
    fn touch(&self) -> io::Result<()> {
        let time = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
        let times = Timestamps {
            last_access: time(rustix::fs::UTIME_OMIT),
            last_modification: time(rustix::fs::UTIME_NOW),
        };
        Ok(rustix::fs::futimens(self.namespace_file.file(), &times)?)
    }

    /// Before the file of this size grows: cuts what a truncate has left beyond it. The caller has the lock of the size.
    fn finish_cut(&self, size: u64) -> io::Result<()> {
        if !CutMark(self.namespace_file.file()).is_set()? {
            return Ok(());
        }
        match self.existing()? {
            Some(object) => self.cut_and_unmark(object, size),
            None => Ok(()),
        }
    }

    /// Cuts the object at the file's `size`, and removes the mark, each when what must come before is durable.
    fn cut_and_unmark(&self, object: &VolumeFile, mut size: u64) -> io::Result<()> {
        loop {
            self.sync_namespace_file(false)?;
            match self.size()?.cmp(&size) {
                std::cmp::Ordering::Less => size = self.size()?,
                std::cmp::Ordering::Equal => break,
                // Another node has made it longer, and done this before.
                std::cmp::Ordering::Greater => return Ok(()),
            }
        }
        object.cut_durably(size)?;
        CutMark(self.namespace_file.file()).clear();
        Ok(())
    }

    /// After an error the file has its old size or the new one, and its bytes below both. What is cut off of the data on the servers
    /// stays there, if it is little, until the file grows; a server that cannot be cut keeps it from growing.
    fn truncate(&self, len: u64) -> io::Result<()> {
        let _size = self.size_lock().lock();
        let object = match self.find()? {
            ObjectReference::Own(object) => Some(object),
            ObjectReference::NotOwn(other) if len > 0 => {
                self.give_own(other)?;
                None
            }
            // The object has no data of this file to cut.
            ObjectReference::NotOwn(_) | ObjectReference::Absent => None,
        };
        let Some(object) = object else { return self.set_size(len) };
        let before = self.size()?;
        let mark = CutMark(self.namespace_file.file());
        if len >= before {
            if mark.is_set()? || object.bytes_beyond(before)? > 0 {
                self.cut_and_unmark(object, before)?;
            }
            return self.set_size(len);
        }
        let cut_off = object.bytes_beyond(len)?;
        if cut_off == 0 {
            return self.set_size(len);
        }
        if let Err(error) = mark.set() {
            // A truncate must be possible where there is no room for the mark.
            tracing::debug!("a kill may leave zeros at the end of the file: {error}");
            object.cut(len)?;
            return self.set_size(len);
        }
        self.set_size(len)?;
        if cut_off >= CUT_AT_ONCE_BYTES {
            self.sync_namespace_file(false)?;
            if let Err(error) = object.cut(len) {
                tracing::warn!("what was cut off of a file still takes space: {error}");
            }
        }
        Ok(())
    }

    fn allocate(&self, range: ByteRange, how: Allocate) -> io::Result<()> {
        let (on_object, grows) = match how {
            Allocate::PunchHole => (Allocate::PunchHole, false),
            Allocate::Reserve => (Allocate::ReserveKeepSize, true),
            Allocate::ReserveKeepSize => (Allocate::ReserveKeepSize, false),
            Allocate::Zero { keep_size } => (Allocate::Zero { keep_size: true }, !keep_size),
        };
        if how != Allocate::PunchHole {
            self.created()?.allocate(range, on_object)?;
        } else if let Some(object) = self.existing()? {
            object.punch(range)?;
        }
        self.grow(if grows { range.end } else { 0 }).map(drop)
    }

    /// Data first, so that a durable size never covers bytes that are not durable.
    fn sync(&self, data_only: bool) -> io::Result<()> {
        if let Some(object) = self.existing()? {
            object.sync(data_only)?;
        }
        self.sync_namespace_file(data_only)
    }

    fn sync_namespace_file(&self, data_only: bool) -> io::Result<()> {
        self.volume.servers()[0].device().sync(self.namespace_file.on_server(), data_only)
    }

    fn seek(&self, offset: u64, what: Seek) -> io::Result<u64> {
        let size = self.size()?;
        if offset >= size {
            return Err(Errno::NXIO.into());
        }
        let found = match self.existing()? {
            Some(object) => object.seek(offset, what == Seek::Data)?,
            None => (what == Seek::Hole).then_some(offset),
        };
        match what {
            Seek::Data => found.filter(|at| *at < size).ok_or_else(|| Errno::NXIO.into()),
            Seek::Hole => Ok(found.unwrap_or(size).min(size)),
        }
    }
}
