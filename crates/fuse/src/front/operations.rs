//! The operations that take more than one engine call or a loop.

use std::sync::Arc;
use std::time::Duration;

use fuser::{
    Errno, FileAttr, FileHandle, Generation, INodeNo, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEntry, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use halocline_core::device::Allocate;
use halocline_core::engine::{Engine, SetAttr, SetTime, Stat};
use halocline_core::error::Error;

use super::{Answer, Front, Refused, attributes, caller, privileges};
use crate::inode_table::Inode;

/// A file that was just opened.
type Opened<E> = (Arc<Inode<<E as Engine>::Node>>, <E as Engine>::Handle);

impl<E: Engine> Front<E> {
    pub(super) fn entry(&self, reply: ReplyEntry, found: Result<(E::Node, Stat), Error>) {
        match found {
            Ok((node, stat)) => {
                let (inode, mut attr) = self.remember(node, &stat);
                // Here the number is the kernel's name of the node, also for the root.
                attr.ino = INodeNo(inode.number);
                let timeout = self.timeout(&inode, &attr);
                reply.entry(&timeout, &attr, Generation(inode.generation));
            }
            Err(error) => reply.error(Refused::from(error).0),
        }
    }

    pub(super) fn attributes(
        &self,
        number: INodeNo,
        handle: Option<FileHandle>,
    ) -> Answer<(Duration, FileAttr)> {
        let inode = self.inode(number)?;
        let file = handle.and_then(|handle| self.files.get(handle));
        let stat = self.engine.stat(&inode.node, file.as_ref().map(|file| &file.handle))?;
        let attr = Self::attr(&inode, &stat);
        Ok((self.timeout(&inode, &attr), attr))
    }

    pub(super) fn set_attributes(
        &self,
        request: &Request,
        number: INodeNo,
        handle: Option<FileHandle>,
        change: &SetAttr,
    ) -> Answer<(Duration, FileAttr)> {
        let inode = self.inode(number)?;
        let file = handle.and_then(|handle| self.files.get(handle));
        let handle = file.as_ref().map(|file| &file.handle);
        let caller = caller(request);
        if change.size.is_some() && caller.uid != 0 {
            self.drop_privileges(&inode, handle, caller)?;
        }
        privileges::forget(&inode);
        let stat = self.engine.set_attr(&inode.node, handle, change, caller)?;
        privileges::forget(&inode);
        let attr = Self::attr(&inode, &stat);
        Ok((self.timeout(&inode, &attr), attr))
    }

    pub(super) fn open_file(
        &self,
        request: &Request,
        number: INodeNo,
        flags: i32,
    ) -> Answer<Opened<E>> {
        let inode = self.inode(number)?;
        let caller = caller(request);
        if flags & libc::O_TRUNC != 0 && caller.uid != 0 {
            self.drop_privileges(&inode, None, caller)?;
        }
        let handle = self.engine.open(&inode.node, flags, caller)?;
        Ok((inode, handle))
    }

    pub(super) fn write_bytes(
        &self,
        request: &Request,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Answer<u32> {
        let file = self.file(handle)?;
        let caller = caller(request);
        if flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
            self.drop_privileges(&file.inode, Some(&file.handle), caller)?;
        }
        let target = if flags.contains(WriteFlags::FUSE_WRITE_CACHE) {
            file.for_pages(&self.engine, caller)?
        } else {
            &file.handle
        };
        self.engine.write(target, offset, data, caller)?;
        Ok(u32::try_from(data.len()).expect("a request is at most 1 MiB"))
    }

    pub(super) fn list(
        &self,
        dir: FileHandle,
        parent: INodeNo,
        offset: u64,
        reply: &mut ReplyDirectory,
    ) -> Answer<()> {
        let dir = self.dir(dir)?;
        let parent = self.inode(parent)?;
        self.engine.read_dir(&dir, offset, &mut |entry| {
            let kind = attributes::entry_kind(entry.kind).or_else(|| {
                let found = self.engine.lookup(&parent.node, &entry.name);
                found.ok().map(|(_, stat)| attributes::kind(stat.raw.st_mode))
            });
            let Some(kind) = kind else { return true };
            !reply.add(INodeNo(entry.inode), entry.next, kind, &entry.name)
        })?;
        Ok(())
    }

    pub(super) fn list_plus(
        &self,
        dir: FileHandle,
        parent: INodeNo,
        offset: u64,
        reply: &mut ReplyDirectoryPlus,
    ) -> Answer<()> {
        let dir = self.dir(dir)?;
        let parent = self.inode(parent)?;
        self.engine.read_dir(&dir, offset, &mut |entry| {
            if entry.name == "." || entry.name == ".." {
                // The kernel takes name and number of these and counts no lookup.
                let attr = attributes::named_only(entry.inode);
                let none = Duration::ZERO;
                return !reply.add(attr.ino, entry.next, &entry.name, &none, &attr, Generation(0));
            }
            let Ok((node, stat)) = self.engine.lookup(&parent.node, &entry.name) else {
                // Gone since the directory was read.
                return true;
            };
            let (inode, mut attr) = self.remember(node, &stat);
            attr.ino = INodeNo(inode.number);
            let (generation, timeout) = (Generation(inode.generation), self.timeout(&inode, &attr));
            let full = reply.add(attr.ino, entry.next, &entry.name, &timeout, &attr, generation);
            if full {
                self.inodes.forget(inode.number, 1, |node| self.engine.key(node));
            }
            !full
        })?;
        Ok(())
    }
}

/// Answers a request for an extended attribute or their list, whose size may be asked for first.
pub(super) fn sized(reply: ReplyXattr, size: u32, value: Answer<Vec<u8>>) {
    match value {
        Ok(value) if size == 0 => {
            reply.size(u32::try_from(value.len()).expect("at most 64 KiB"));
        }
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(Refused(errno)) => reply.error(errno),
    }
}

pub(super) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(at) => SetTime::At(attributes::time_from_kernel(at)),
    }
}

/// `fallocate(2)`'s mode; `None` for what no engine does.
pub(super) fn allocation(mode: i32) -> Option<Allocate> {
    const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
    const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | KEEP;
    const ZERO_KEEP: i32 = libc::FALLOC_FL_ZERO_RANGE | KEEP;
    Some(match mode {
        0 => Allocate::Reserve,
        KEEP => Allocate::ReserveKeepSize,
        PUNCH => Allocate::PunchHole,
        libc::FALLOC_FL_ZERO_RANGE => Allocate::Zero { keep_size: false },
        ZERO_KEEP => Allocate::Zero { keep_size: true },
        _ => return None,
    })
}

/// Names of extended attributes without those that only root may see.
pub(super) fn untrusted(names: &[u8]) -> Vec<u8> {
    let each = names.split_inclusive(|byte| *byte == 0);
    each.filter(|name| !name.starts_with(b"trusted.")).flatten().copied().collect()
}
