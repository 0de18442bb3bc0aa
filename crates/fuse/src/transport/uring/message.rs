//! A request as the kernel put it into a buffer.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;

use fuser::Errno;
use halocline_vfs::{Caller, Maker};
use zerocopy::{FromBytes, Immutable, KnownLayout};

use super::wire::InHeader;
use crate::front::{Answer, Refused};

/// A request that the kernel put into the buffer.
#[derive(Debug)]
pub(super) struct Message<'a> {
    pub(super) header: InHeader,
    /// The operation's own fields; bytes of earlier requests follow them.
    pub(super) fields: &'a [u8],
    /// Length of the names or data at the beginning of the payload, in bytes.
    pub(super) payload: usize,
}

impl Message<'_> {
    /// The operation's own fields.
    pub(super) fn fields<T: FromBytes + KnownLayout + Immutable>(&self) -> Answer<&T> {
        T::ref_from_prefix(self.fields).map(|(fields, _)| fields).map_err(|_| Refused(Errno::EIO))
    }

    /// The only or the first name of a request.
    pub(super) fn name<'a>(&self, room: &'a [u8]) -> Answer<&'a OsStr> {
        let name = CStr::from_bytes_until_nul(&room[..self.payload]);
        name.map(|name| OsStr::from_bytes(name.to_bytes())).map_err(|_| Refused(Errno::EINVAL))
    }

    pub(super) fn two_names<'a>(&self, room: &'a [u8]) -> Answer<(&'a OsStr, &'a OsStr)> {
        let first = self.name(room)?;
        let rest = &room[first.len() + 1..self.payload];
        let second = CStr::from_bytes_until_nul(rest).map_err(|_| Errno::EINVAL)?;
        Ok((first, OsStr::from_bytes(second.to_bytes())))
    }

    pub(super) fn caller(&self) -> Caller {
        Caller { uid: self.header.uid, gid: self.header.gid, pid: self.header.pid }
    }

    pub(super) fn maker(&self, umask: u32) -> Maker {
        Maker { caller: self.caller(), umask }
    }
}
