//! The least that names cost on any FUSE mount: it keeps them in memory and does nothing for a request
//! but answer it. What a create takes here, the kernel and waking the two sides in turn take.
//!
//! `bare_names MOUNTPOINT [THREADS]`

#[path = "bare/attributes.rs"]
mod attributes;

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::Mutex;
use std::time::Duration;

use attributes::attributes;
use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyCreate, ReplyEmpty, ReplyEntry, ReplyOpen,
    Request, SessionACL,
};

const TTL: Duration = Duration::from_mins(1);
const NOTHING: Generation = Generation(0);

#[derive(Default)]
struct Names {
    known: HashMap<(u64, OsString), FileAttr>,
    by_number: HashMap<u64, FileAttr>,
}

struct BareNames(Mutex<Names>);

impl BareNames {
    fn make(&self, parent: INodeNo, name: &OsStr, kind: FileType) -> FileAttr {
        let mut names = self.0.lock().expect("no panic");
        let made = attributes(names.by_number.len() as u64 + 2, kind);
        names.known.insert((parent.0, name.to_owned()), made);
        names.by_number.insert(made.ino.0, made);
        made
    }

    fn remove(&self, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = (parent.0, name.to_owned());
        match self.0.lock().expect("no panic").known.remove(&name) {
            Some(_) => reply.ok(),
            None => reply.error(Errno::ENOENT),
        }
    }
}

impl Filesystem for BareNames {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = (parent.0, name.to_owned());
        match self.0.lock().expect("no panic").known.get(&name) {
            Some(attr) => reply.entry(&TTL, attr, NOTHING),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn forget(&self, _: &Request, _: INodeNo, _: u64) {}

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let known = self.0.lock().expect("no panic").by_number.get(&number.0).copied();
        reply.attr(&TTL, &known.unwrap_or_else(|| attributes(number.0, FileType::Directory)));
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        reply.entry(&TTL, &self.make(parent, name, FileType::Directory), NOTHING);
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        _: u32,
        _: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        let made = self.make(parent, name, FileType::RegularFile);
        reply.created(&TTL, &made, NOTHING, FileHandle(0), FopenFlags::empty());
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove(parent, name, reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove(parent, name, reply);
    }
}

fn main() -> io::Result<()> {
    let mut args = std::env::args().skip(1);
    let mountpoint = args.next().ok_or_else(|| io::Error::other("name the mount point"))?;
    let mut config = Config::default();
    config.acl = SessionACL::All;
    config.mount_options = vec![MountOption::DefaultPermissions];
    config.n_threads = Some(args.next().and_then(|threads| threads.parse().ok()).unwrap_or(2));
    config.clone_fd = true;
    fuser::mount(BareNames(Mutex::default()), mountpoint, &config)
}
