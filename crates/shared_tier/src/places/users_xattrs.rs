//! Extended attributes that programs set.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use halocline_cluster::names::attributes::Attributes;
use halocline_cluster::names::coding::encode_attributes;
use halocline_os::error::Result;
use halocline_vfs::namespace::xattr;
use rustix::io::Errno;

use super::own_xattrs::{self, owner_permissions};
use super::tree::Tree;
use crate::acl::{ACCESS, Acl, DEFAULT};

/// Rights that a program gets when it is run from the file. Whoever changes a file's content takes them away, root, too.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

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

/// The extended attributes that programs see, except for those for which the store has no room.
pub(crate) fn all(fd: &impl AsFd, attributes: &Attributes) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let names = match xattr::list_on(fd) {
        Err(error) if error.errno() == libc::EOPNOTSUPP => return Ok(BTreeMap::new()),
        names => names?,
    };
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
    let names = match xattr::list_on(fd) {
        Err(error) if error.errno() == libc::EOPNOTSUPP => return Ok(()),
        names => names?,
    };
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
        || [ACCESS, DEFAULT, CAPABILITY].contains(&name);
    is_users && !xattr::hidden_xattr(OsStr::from_bytes(name))
}
