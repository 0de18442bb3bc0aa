//! The least that a mount without kernel passthrough can be with this FUSE library: one directory
//! of existing files, one system call for a read or a write. What it loses against another mount,
//! the library and the kernel lose, not what we do with a request.
//!
//! `bare_relay DIRECTORY MOUNTPOINT [THREADS]`

#[path = "bare/attributes.rs"]
mod attributes;
#[path = "bare/directory.rs"]
mod directory;

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, IntoRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use directory::Directory;
use fuser::{
    Config, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyWrite, Request, SessionACL, WriteFlags,
};

const TTL: Duration = Duration::from_mins(1);
const REQUEST_MAX: u32 = 1 << 20;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; REQUEST_MAX as usize]);
}

struct Relay(Directory);

/// The open file behind a handle, whose number is the descriptor.
fn file(handle: FileHandle) -> ManuallyDrop<File> {
    let descriptor = RawFd::try_from(handle.0).expect("we gave a descriptor");
    // SAFETY: `open` made the descriptor and gave it away; it is open until `release` closes it,
    // which the kernel asks for after the last request with this handle. Nothing here closes it.
    ManuallyDrop::new(unsafe { File::from_raw_fd(descriptor) })
}

impl Filesystem for Relay {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let missing = |_| io::Error::other("the kernel lacks a feature");
        config
            .add_capabilities(InitFlags::FUSE_BIG_WRITES | InitFlags::FUSE_ASYNC_DIO)
            .map_err(missing)?;
        config.set_max_write(REQUEST_MAX).expect("fits the library's buffer");
        Ok(())
    }

    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.0.find(name) {
            Ok(attr) => reply.entry(&TTL, &attr, Generation(0)),
            Err(error) => reply.error(error.into()),
        }
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.0.attributes(&self.0.path(number)) {
            Ok(attr) => reply.attr(&TTL, &attr),
            Err(error) => reply.error(error.into()),
        }
    }

    fn open(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match File::options().read(true).write(true).open(self.0.path(number)) {
            Ok(file) => {
                let descriptor = u64::try_from(file.into_raw_fd()).expect("not negative");
                let direct = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
                reply.opened(FileHandle(descriptor), direct);
            }
            Err(error) => reply.error(error.into()),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        BUFFER.with_borrow_mut(|buffer| {
            match file(handle).read_at(&mut buffer[..size as usize], offset) {
                Ok(count) => reply.data(&buffer[..count]),
                Err(error) => reply.error(error.into()),
            }
        });
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match file(handle).write_at(data, offset) {
            Ok(count) => reply.written(u32::try_from(count).expect("at most a request")),
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
        drop(ManuallyDrop::into_inner(file(handle)));
        reply.ok();
    }
}

fn main() -> io::Result<()> {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let (dir, mountpoint, threads) = match arguments.as_slice() {
        [dir, mountpoint] => (dir, mountpoint, 2),
        [dir, mountpoint, threads] => {
            let threads = threads.to_str().and_then(|text| text.parse().ok());
            (dir, mountpoint, threads.ok_or_else(|| io::Error::other("THREADS is not a number"))?)
        }
        _ => return Err(io::Error::other("DIRECTORY and MOUNTPOINT are missing: give both")),
    };
    let relay = Relay(Directory::open(dir)?);
    let mut config = Config::default();
    config.acl = SessionACL::Owner;
    config.n_threads = Some(threads);
    config.clone_fd = true;
    fuser::mount(relay, mountpoint, &config)
}
