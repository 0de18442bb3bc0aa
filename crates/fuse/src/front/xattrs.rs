//! Extended attributes.

use std::ffi::OsStr;
use std::sync::Arc;

use fuser::{Errno, INodeNo};
use halocline_os::posix_acl;
use halocline_vfs::{Caller, Engine};

use super::inode_table::Inode;
use super::inodes::Inodes;
use super::privileges::{self, Privileges};
use super::{Answer, Refused};

/// The answer to a request for a value or a list; a program may ask only for the size first.
#[derive(Debug)]
pub(crate) enum Value {
    /// Only the number of bytes.
    Size(u32),
    /// The bytes.
    Bytes(Vec<u8>),
}

/// Requests about extended attributes.
#[derive(Debug)]
pub(crate) struct Xattrs<E: Engine> {
    pub(super) engine: Arc<E>,
    pub(super) inodes: Arc<Inodes<E>>,
    pub(super) privileges: Arc<Privileges<E>>,
}

impl<E: Engine> Xattrs<E> {
    /// A value. `room` is the size of the caller's buffer in bytes, or 0 to ask for the size.
    pub(crate) fn get(&self, number: INodeNo, name: &OsStr, room: u32) -> Answer<Value> {
        let inode = self.inodes.get(number)?;
        let value = self.engine.get_xattr(&inode.vnode, name);
        sized(room, value.map_err(self.inodes.failed(&inode, "getxattr"))?)
    }

    /// NUL-terminated names; `room` as in [`Self::get`].
    pub(crate) fn list(&self, number: INodeNo, room: u32, caller: Caller) -> Answer<Value> {
        let inode = self.inodes.get(number)?;
        let names = self.engine.list_xattr(&inode.vnode);
        let names = names.map_err(self.inodes.failed(&inode, "listxattr"))?;
        sized(room, if caller.uid == 0 { names } else { untrusted(&names) })
    }

    /// `flags` are `setxattr(2)`'s.
    pub(crate) fn set(
        &self,
        number: INodeNo,
        (name, value): (&OsStr, &[u8]),
        flags: i32,
        caller: Caller,
    ) -> Answer<()> {
        let inode = self.inodes.get(number)?;
        self.may_change(&inode, name, caller)?;
        privileges::forget(&inode);
        let set = self.engine.set_xattr(&inode.vnode, name, value, flags);
        self.inodes.changed(&inode);
        set.map_err(self.inodes.failed(&inode, "setxattr"))?;
        privileges::forget(&inode);
        if name == posix_acl::ACCESS {
            self.privileges.after_acl_change(&inode, caller)?;
        }
        Ok(())
    }

    pub(crate) fn remove(&self, number: INodeNo, name: &OsStr, caller: Caller) -> Answer<()> {
        let inode = self.inodes.get(number)?;
        self.may_change(&inode, name, caller)?;
        let removed = self.engine.remove_xattr(&inode.vnode, name);
        self.inodes.changed(&inode);
        removed.map_err(self.inodes.failed(&inode, "removexattr"))
    }

    /// Refuses a caller who does not own the file to change its ACL. The kernel does not check those of kinds other than
    /// POSIX (`system.nfs4_acl` and the like), and for POSIX compares with the owner that it saw last; the file system
    /// below sees this process instead of the caller. An ordinary user's mount has only that user's rights there.
    fn may_change(&self, inode: &Inode<E::Vnode>, name: &OsStr, caller: Caller) -> Answer<()> {
        let name = name.as_encoded_bytes();
        if name.starts_with(b"system.") {
            self.privileges.check_owner(inode, caller)
        } else {
            Ok(())
        }
    }
}

fn sized(room: u32, value: Vec<u8>) -> Answer<Value> {
    match room {
        0 => Ok(Value::Size(u32::try_from(value.len()).expect("at most 64 KiB"))),
        room if value.len() > room as usize => Err(Refused(Errno::ERANGE)),
        _ => Ok(Value::Bytes(value)),
    }
}

/// Names of extended attributes without those that only root may see.
fn untrusted(names: &[u8]) -> Vec<u8> {
    let each = names.split_inclusive(|byte| *byte == 0);
    each.filter(|name| !name.starts_with(b"trusted.")).flatten().copied().collect()
}
