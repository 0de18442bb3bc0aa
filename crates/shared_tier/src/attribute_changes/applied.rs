//! What a change of attributes makes of those in the store.

use std::time::{Duration, UNIX_EPOCH};

use halocline_cluster::names::attributes::{Attributes, Kind};
use halocline_vfs::{SetAttr, SetTime};

use crate::acl::{ACCESS, Acl};
use crate::places::users_xattrs::CAPABILITY;
use crate::stat_conversion::time_ns;

/// A time of attributes in the form of the system call.
pub(super) fn at(ns: i64) -> SetTime {
    let since = Duration::from_nanos(ns.unsigned_abs());
    SetTime::At(if ns < 0 { UNIX_EPOCH - since } else { UNIX_EPOCH + since })
}

/// Applies a change to attributes, except for the size.
pub(super) fn apply(change: &SetAttr, attributes: &mut Attributes, now_ns: i64) {
    let is_given = change.uid.is_some() || change.gid.is_some();
    let is_given = is_given && attributes.kind != Kind::Directory;
    if let Some(mode) = change.mode {
        attributes.mode = mode & 0o7777;
    } else if is_given {
        // A new owner does not get the rights of the old one.
        attributes.mode &= !libc::S_ISUID;
        if attributes.mode & libc::S_IXGRP != 0 {
            attributes.mode &= !libc::S_ISGID;
        }
    }
    if is_given {
        attributes.xattrs.remove(CAPABILITY);
    }
    attributes.uid = change.uid.unwrap_or(attributes.uid);
    attributes.gid = change.gid.unwrap_or(attributes.gid);
    if let Some(time) = change.atime {
        attributes.atime_ns = time_ns(time, now_ns);
    }
    if let Some(time) = change.mtime {
        attributes.mtime_ns = time_ns(time, now_ns);
    }
    attributes.ctime_ns = attributes.ctime_ns.max(now_ns);
    if let Some(acl) =
        change.mode.and(attributes.xattrs.get(ACCESS)).and_then(|acl| Acl::parse(acl))
    {
        attributes.xattrs.insert(ACCESS.to_vec(), acl.with_mode(attributes.mode).to_value());
    }
}
