//! A file system whose server takes requests and does not answer them until it is told to, as that of a storage system
//! in trouble does. It shows one directory of files.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    BackgroundSession, Config, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyStatfs, ReplyWrite, Request, WriteFlags,
};
use rustix::mount::UnmountFlags;

/// Nothing is remembered by the kernel.
const TTL: Duration = Duration::ZERO;

/// What can be left without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stalled {
    /// Looking a name up.
    Lookup,
    /// Reading from a file: answered later with what it had at the time of the request.
    Read,
    /// Writing to a file: done when the server goes on.
    Write,
}

/// A mounted one. Dropped, it goes on and is unmounted.
#[derive(Debug)]
pub struct StallingServer {
    mountpoint: PathBuf,
    stall: Arc<Stall>,
    session: Option<BackgroundSession>,
}

impl StallingServer {
    /// Shows the files in `dir` at `mountpoint`, which is made.
    ///
    /// # Panics
    /// Where no file system can be mounted: only root may, or who has `fusermount3`.
    #[must_use]
    pub fn mount(dir: &Path, mountpoint: &Path) -> Self {
        Self::mount_with(dir, mountpoint, FopenFlags::FOPEN_DIRECT_IO)
    }

    /// The same, but the kernel keeps pages of files until it is told to drop them.
    ///
    /// # Panics
    /// As [`Self::mount`].
    #[must_use]
    pub fn mount_with_pages(dir: &Path, mountpoint: &Path) -> Self {
        Self::mount_with(dir, mountpoint, FopenFlags::FOPEN_KEEP_CACHE)
    }

    fn mount_with(dir: &Path, mountpoint: &Path, open: FopenFlags) -> Self {
        fs::create_dir(mountpoint).unwrap();
        let stall = Arc::<Stall>::default();
        let files =
            Files { dir: dir.to_owned(), stall: Arc::clone(&stall), open, names: Mutex::default() };
        let mut config = Config::default();
        config.n_threads = Some(4);
        let session = fuser::spawn_mount(files, mountpoint, &config).unwrap();
        Self { mountpoint: mountpoint.to_owned(), stall, session: Some(session) }
    }

    /// Requests of this kind are not answered from now on.
    pub fn stall(&self, what: Stalled) {
        self.stall.state().what = Some(what);
    }

    /// Whether files may be opened from now on; those that are open stay so.
    pub fn refuse_to_open(&self, refused: bool) {
        self.stall.state().refuses_to_open = refused;
    }

    /// How many wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.stall.state().waiting
    }

    /// All that waits is done, and answered.
    pub fn go_on(&self) {
        self.stall.state().what = None;
        self.stall.changed.notify_all();
    }
}

impl Drop for StallingServer {
    fn drop(&mut self) {
        self.go_on();
        let _gone = rustix::mount::unmount(&self.mountpoint, UnmountFlags::DETACH);
        drop(self.session.take());
    }
}

#[derive(Debug, Default)]
struct Stall {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    what: Option<Stalled>,
    refuses_to_open: bool,
    waiting: usize,
}

impl Stall {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn wait(&self, what: Stalled) {
        let mut state = self.state();
        state.waiting += 1;
        while state.what == Some(what) {
            state = self.changed.wait(state).unwrap();
        }
        state.waiting -= 1;
    }
}

/// The files, by the numbers of those that were looked up.
#[derive(Debug)]
struct Files {
    dir: PathBuf,
    stall: Arc<Stall>,
    open: FopenFlags,
    names: Mutex<HashMap<u64, OsString>>,
}

impl Files {
    fn path(&self, number: INodeNo) -> PathBuf {
        self.names
            .lock()
            .unwrap()
            .get(&number.0)
            .map_or(self.dir.clone(), |name| self.dir.join(name))
    }

    fn attributes(&self, number: INodeNo) -> io::Result<FileAttr> {
        Ok(attributes(number.0, &fs::symlink_metadata(self.path(number))?))
    }

    fn find(&self, name: &OsStr) -> io::Result<FileAttr> {
        let found = fs::symlink_metadata(self.dir.join(name))?;
        self.names.lock().unwrap().insert(found.ino(), name.to_owned());
        Ok(attributes(found.ino(), &found))
    }

    fn opened(&self, number: INodeNo) -> io::Result<File> {
        File::options().read(true).write(true).open(self.path(number))
    }

    fn entries(&self) -> io::Result<Vec<(u64, OsString)>> {
        let entries = fs::read_dir(&self.dir)?;
        entries
            .map(|entry| entry.and_then(|it| Ok((it.metadata()?.ino(), it.file_name()))))
            .collect()
    }
}

fn attributes(number: u64, found: &Metadata) -> FileAttr {
    let at = |seconds: i64, nanoseconds: i64| {
        let nanoseconds = u32::try_from(nanoseconds).unwrap_or(0);
        UNIX_EPOCH + Duration::new(seconds.unsigned_abs(), nanoseconds)
    };
    FileAttr {
        ino: INodeNo(number),
        size: found.len(),
        blocks: found.blocks(),
        atime: at(found.atime(), found.atime_nsec()),
        mtime: at(found.mtime(), found.mtime_nsec()),
        ctime: at(found.ctime(), found.ctime_nsec()),
        crtime: UNIX_EPOCH,
        kind: if found.is_dir() { FileType::Directory } else { FileType::RegularFile },
        perm: u16::try_from(found.mode() & 0o7777).unwrap_or(0),
        nlink: 1,
        uid: found.uid(),
        gid: found.gid(),
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

impl Filesystem for Files {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.stall.wait(Stalled::Lookup);
        match self.find(name) {
            Ok(found) => reply.entry(&TTL, &found, Generation(0)),
            Err(error) => reply.error(error.into()),
        }
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(number) {
            Ok(found) => reply.attr(&TTL, &found),
            Err(error) => reply.error(error.into()),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        if self.stall.state().refuses_to_open {
            return reply.error(fuser::Errno::EACCES);
        }
        reply.opened(FileHandle(0), self.open);
    }

    fn read(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut bytes = vec![0; size as usize];
        let found = self.opened(number).and_then(|file| file.read_at(&mut bytes, offset));
        self.stall.wait(Stalled::Read);
        match found {
            Ok(count) => reply.data(&bytes[..count]),
            Err(error) => reply.error(error.into()),
        }
    }

    fn write(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.stall.wait(Stalled::Write);
        match self.opened(number).and_then(|file| file.write_all_at(data, offset)) {
            Ok(()) => reply.written(u32::try_from(data.len()).unwrap_or(0)),
            Err(error) => reply.error(error.into()),
        }
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn readdir(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let entries = match self.entries() {
            Ok(entries) => entries,
            Err(error) => return reply.error(error.into()),
        };
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        for (at, (number, name)) in entries.iter().enumerate().skip(from) {
            if reply.add(INodeNo(*number), at as u64 + 1, FileType::RegularFile, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        match rustix::fs::statvfs(&self.dir) {
            Ok(all) => {
                let [unit, part] =
                    [all.f_bsize, all.f_frsize].map(|n| u32::try_from(n).unwrap_or(0));
                let (files, free) = (all.f_files, all.f_ffree);
                reply.statfs(all.f_blocks, all.f_bfree, all.f_bavail, files, free, unit, 255, part);
            }
            Err(errno) => reply.error(io::Error::from(errno).into()),
        }
    }
}
