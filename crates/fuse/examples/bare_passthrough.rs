//! The least that a mount with kernel passthrough can be: one directory whose files the kernel
//! serves by itself. What it loses against the directory, every such mount loses.
//!
//! `bare_passthrough DIRECTORY MOUNTPOINT`

#[path = "bare/attributes.rs"]
mod attributes;
#[path = "bare/directory.rs"]
mod directory;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use directory::Directory;
use fuser::{
    BackingId, BsdFileFlags, Config, Errno, FileHandle, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyCreate, ReplyEmpty,
    ReplyEntry, ReplyOpen, Request, SessionACL, TimeOrNow,
};

const TTL: Duration = Duration::from_mins(1);

struct Bare {
    directory: Directory,
    open: Mutex<HashMap<u64, BackingId>>,
    next: AtomicU64,
}

impl Filesystem for Bare {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let missing = |_| io::Error::other("the kernel lacks passthrough");
        config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).map_err(missing)?;
        let depth = config.set_max_stack_depth(1);
        depth.map(drop).map_err(|_| io::Error::other("no stacking"))
    }

    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.directory.find(name) {
            Ok(attr) => reply.entry(&TTL, &attr, Generation(0)),
            Err(error) => reply.error(error.into()),
        }
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.directory.attributes(&self.directory.path(number)) {
            Ok(attr) => reply.attr(&TTL, &attr),
            Err(error) => reply.error(error.into()),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        number: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<std::time::SystemTime>,
        _: Option<FileHandle>,
        _: Option<std::time::SystemTime>,
        _: Option<std::time::SystemTime>,
        _: Option<std::time::SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let path = self.directory.path(number);
        let sized = size.map_or(Ok(()), |size| {
            File::options().write(true).open(&path).and_then(|file| file.set_len(size))
        });
        match sized.and_then(|()| self.directory.attributes(&path)) {
            Ok(attr) => reply.attr(&TTL, &attr),
            Err(error) => reply.error(error.into()),
        }
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let path = self.directory.path(parent).join(name);
        let made = File::options().read(true).write(true).create(true).truncate(false).open(path);
        let opened =
            made.and_then(|file| Ok((self.directory.find(name)?, reply.open_backing(&file)?)));
        match opened {
            Ok((attr, backing)) => {
                let number = self.next.fetch_add(1, Ordering::Relaxed);
                let (handle, flags) = (FileHandle(number), FopenFlags::empty());
                reply.created_passthrough(&TTL, &attr, Generation(0), handle, flags, &backing);
                self.open.lock().expect("no panic").insert(number, backing);
            }
            Err(error) => reply.error(error.into()),
        }
    }

    fn open(&self, _: &Request, inode: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let opened = File::options().read(true).write(true).open(self.directory.path(inode));
        match opened.and_then(|file| reply.open_backing(&file)) {
            Ok(backing) => {
                let number = self.next.fetch_add(1, Ordering::Relaxed);
                reply.opened_passthrough(FileHandle(number), FopenFlags::empty(), &backing);
                self.open.lock().expect("no panic").insert(number, backing);
            }
            Err(error) => reply.error(error.into()),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        drop(self.open.lock().expect("no panic").remove(&handle.0));
        reply.ok();
    }
}

fn main() -> io::Result<()> {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [dir, mountpoint] = arguments.as_slice() else {
        return Err(io::Error::other("DIRECTORY and MOUNTPOINT are missing: give both"));
    };
    let bare =
        Bare { directory: Directory::open(dir)?, open: Mutex::default(), next: AtomicU64::new(1) };
    let mut config = Config::default();
    config.acl = SessionACL::Owner;
    config.n_threads = Some(2);
    fuser::mount(bare, mountpoint, &config)
}
