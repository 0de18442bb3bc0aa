//! Extended attributes that programs set.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use halocline_cluster::names::attributes::{Attributes, Kind};
use halocline_cluster::names::coding::encode_attributes;
use halocline_os::error::Result;
use halocline_vfs::namespace::xattr;
use rustix::io::Errno;

use super::own_xattrs::{self, owner_permissions};
use super::tree::Tree;
use crate::acl::{ACCESS, Acl, DEFAULT};

/// Rights that a program gets when it is run from the file. Whoever changes a file's content takes them away, root, too.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";
/// The extended attributes that decide access.
const DECIDING: [&[u8]; 3] = [ACCESS, DEFAULT, CAPABILITY];

/// How much the names of a file or directory may take of the list of the names of its extended attributes, of which the kernel returns
/// no more than 64 KiB. The rest is for Halocline's own, for those that decide access, for labels of security modules, and for what
/// nodes set at the same time.
const LISTED_BYTES_MAX: usize = 60 << 10;
/// How much extended attributes may take in the store, where all attributes have 72 KiB. The rest is for what opens and moves add.
const STORED_BYTES_MAX: usize = (64 << 10) + 512;
/// What the store keeps with each of them: the lengths of name and value.
const STORED_LENGTHS_BYTES: usize = 8;

/// How much of the list of names of something with so many links is used.
fn listed_bytes(of: &Attributes, links: u32) -> usize {
    let links = if of.kind == Kind::File { links as usize } else { 0 };
    let names = of.xattrs.keys().filter(|name| !DECIDING.contains(&name.as_slice()));
    let names = names.map(|name| name.len() + 1);
    names.sum::<usize>() + links * own_xattrs::NAME_LISTED_BYTES
}

/// Whether a file cannot have so many names, because its disk could list its extended attributes no more.
pub(crate) fn are_too_many_names(of: &Attributes, links: u32) -> bool {
    listed_bytes(of, links) > LISTED_BYTES_MAX
}

/// Refuses extended attributes that could not be listed on the disk, or for which the store has no room: file systems keep more. What
/// was there before may stay, and become less.
///
/// # Errors
/// `ENOSPC`.
pub(crate) fn check_room(before: &Attributes, after: &Attributes, links: u32) -> Result<()> {
    let listed = |of| listed_bytes(of, links);
    let stored = |of: &Attributes| {
        let each = of.xattrs.iter();
        each.map(|(name, value)| name.len() + value.len() + STORED_LENGTHS_BYTES).sum::<usize>()
    };
    let has_room = listed(after) <= LISTED_BYTES_MAX.max(listed(before))
        && stored(after) <= STORED_BYTES_MAX.max(stored(before));
    if has_room { Ok(()) } else { Err(Errno::NOSPC.into()) }
}

/// The names of the extended attributes of something, each followed by a zero byte. If it has more than the kernel lists, those that
/// decide access: they can be read all the same.
///
/// # Errors
/// Those of `listxattr(2)`.
pub(crate) fn names_on(fd: &impl AsFd) -> Result<Vec<u8>> {
    match xattr::list_on(fd) {
        Err(error) if error.errno() == libc::EOPNOTSUPP => Ok(Vec::new()),
        Err(error) if error.errno() == own_xattrs::LIST_TOO_LONG => Ok(DECIDING.join(&0)),
        names => names,
    }
}

/// Takes a file's capability from its attributes if the file with the bytes has lost it.
pub(crate) fn follow_capability(attributes: &mut Attributes, file: &File) {
    if has_lost_capability(attributes, file) {
        attributes.xattrs.remove(CAPABILITY);
    }
}

/// Whether attributes have a capability that the file with the bytes has not.
pub(crate) fn has_lost_capability(attributes: &Attributes, file: &File) -> bool {
    attributes.xattrs.contains_key(CAPABILITY)
        && !xattr::is_set(file, OsStr::from_bytes(CAPABILITY))
}

/// Refuses own attributes, which programs may not touch.
fn check_xattr(name: &OsStr) -> Result<()> {
    if xattr::hidden_xattr(name) { Err(Errno::PERM.into()) } else { Ok(()) }
}

pub(crate) fn set_xattr(
    tree: &Tree,
    fd: &OwnedFd,
    name: &OsStr,
    value: &[u8],
    flags: i32,
) -> Result<()> {
    check_xattr(name)?;
    tree.step("setting an extended attribute", || {
        owner_permissions::set_on(fd, name, value, flags)?;
        let is_acl = name.as_bytes() == ACCESS;
        if is_acl { owner_permissions::follow_acl(fd) } else { Ok(()) }
    })
}

pub(crate) fn remove_xattr(tree: &Tree, fd: &OwnedFd, name: &OsStr) -> Result<()> {
    check_xattr(name)?;
    tree.step("removing an extended attribute", || owner_permissions::remove_on(fd, name))
}

/// The extended attributes that programs see, except for those for which the store has no room, and for those that the kernel does
/// [not list](names_on).
pub(crate) fn all(fd: &impl AsFd, attributes: &Attributes) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let names = names_on(fd)?;
    let mut with = attributes.clone();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        if xattr::hidden_xattr(OsStr::from_bytes(name)) {
            continue;
        }
        if let Ok(mut value) = owner_permissions::get_on(fd, OsStr::from_bytes(name)) {
            if name == ACCESS
                && owner_permissions::withheld(fd) != 0
                && let Some(acl) = Acl::parse(&value)
            {
                value = acl.with_mode(attributes.mode).to_value();
            }
            with.xattrs.insert(name.to_vec(), value);
            if encode_attributes(&with).is_none() {
                with.xattrs.remove(name);
                tracing::warn!(name = %name.escape_ascii(), "an extended attribute that is too long is left out");
            }
        }
    }
    Ok(with.xattrs)
}

/// Gives something exactly these extended attributes, as far as programs and users of the file system set them: labels of
/// security modules stay.
///
/// # Errors
/// Those of `setxattr(2)` and `removexattr(2)`.
pub(crate) fn replace(fd: &impl AsFd, wanted: &BTreeMap<Vec<u8>, Vec<u8>>) -> Result<()> {
    let names = names_on(fd)?;
    for name in names.split(|byte| *byte == 0).filter(|name| is_replaced(name)) {
        if !wanted.contains_key(name) {
            own_xattrs::clear(fd, OsStr::from_bytes(name))?;
        }
    }
    wanted.iter().try_for_each(|(name, value)| own_xattrs::set_users(fd, name, value))
}

fn is_replaced(name: &[u8]) -> bool {
    let begins = |with: &[u8]| name.starts_with(with);
    let is_users = begins(b"user.")
        || begins(b"trusted.") && !begins(b"trusted.overlay.")
        || DECIDING.contains(&name);
    is_users && !xattr::hidden_xattr(OsStr::from_bytes(name))
}
