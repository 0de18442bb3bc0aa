//! Attributes of inodes, and totals of the file system that contains them.

use std::sync::Arc;
use std::time::Duration;

use fuser::{FileAttr, FileHandle, INodeNo};
use halocline_vfs::{Caller, Engine, SetAttr};

use super::Answer;
use super::inodes::{Inodes, attr};
use super::lease_waits::LeaseWaits;
use super::open_files::OpenFiles;
use super::privileges::{self, Privileges};

/// Requests about attributes.
#[derive(Debug)]
pub(crate) struct Attributes<E: Engine> {
    pub(super) engine: Arc<E>,
    pub(super) inodes: Arc<Inodes<E>>,
    pub(super) open: Arc<OpenFiles<E>>,
    pub(super) privileges: Arc<Privileges<E>>,
    pub(super) leases: Arc<LeaseWaits>,
}

impl<E: Engine> Attributes<E> {
    pub(crate) fn get(
        &self,
        number: INodeNo,
        handle: Option<FileHandle>,
    ) -> Answer<(Duration, FileAttr)> {
        let inode = self.inodes.get(number)?;
        let file = handle.and_then(|handle| self.open.find(handle));
        let stat = self.engine.stat(&inode.vnode, file.as_ref().map(|file| &file.handle));
        let stat = stat.map_err(self.inodes.failed(&inode, "stat"))?;
        let attr = attr(&inode, &stat);
        let timeout = self.inodes.timeout(&inode, &attr).max(self.inodes.briefly(&inode, &stat));
        Ok((timeout, attr))
    }

    pub(crate) fn set(
        &self,
        number: INodeNo,
        handle: Option<FileHandle>,
        change: &SetAttr,
        caller: Caller,
    ) -> Answer<(Duration, FileAttr)> {
        let inode = self.inodes.get(number)?;
        let file = handle.and_then(|handle| self.open.find(handle));
        let handle = file.as_ref().map(|file| &file.handle);
        self.privileges.check_owner_for(&inode, handle, change, caller)?;
        if change.size.is_some() && caller.uid != 0 {
            self.privileges.drop_all(&inode, handle, caller)?;
        }
        privileges::forget(&inode);
        let change = &self.privileges.with_what_falls(&inode, handle, change, caller)?;
        // To set a size the file may have to be opened.
        let set = || self.engine.set_attr(&inode.vnode, handle, change, caller);
        let stat = self.leases.wait(caller, set);
        let stat = stat.map_err(self.inodes.failed(&inode, "change of attributes"))?;
        privileges::forget(&inode);
        let attr = attr(&inode, &stat);
        Ok((self.inodes.timeout(&inode, &attr), attr))
    }

    pub(crate) fn totals(&self, number: INodeNo) -> Answer<libc::statvfs64> {
        Ok(self.engine.statfs(&self.inodes.get(number)?.vnode)?)
    }
}
