//! The mark on an origin that nodes of a cluster share, which says which list of sessions is theirs.
//!
//! That list is a directory in the origin, which anything that may write there can rename or remove: `rsync --delete`, a
//! restored backup, a person. Without the mark the next node would begin an empty list, and two groups of nodes that do
//! not know each other would cache the same files.
//!
//! The mark is an extended attribute of the origin's directory. It stays when the last node has left. Without support by
//! the file system or the permissions, there is no such protection.

use std::fs::File;
use std::io;

use serde::{Deserialize, Serialize};

use super::OriginKey;
use super::origin_attribute::OriginAttribute;
use halocline_os::birth_time::born_ns;

/// The subject of the attribute.
const WHAT: &str = "cluster";
/// A mark is short; a longer value is not a mark.
const MARK_BYTES_MAX: usize = 1024;

/// The contents of a mark: identifies the marked directory, because a copy with its attributes has another inode.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct MarkContent {
    origin_inode: u64,
    origin_born_ns: u64,
    /// The nodes' user. Lists of other users are nobody's here, and so are their marks, which anybody can make who may write
    /// to the directory.
    user: u32,
}

impl MarkContent {
    fn of(origin: &File) -> io::Result<Self> {
        use std::os::unix::fs::MetadataExt;
        let found = origin.metadata()?;
        let key = OriginKey { inode: found.ino(), born_ns: born_ns(&found) };
        let user = rustix::process::geteuid().as_raw();
        Ok(Self { origin_inode: key.inode, origin_born_ns: key.born_ns, user })
    }

    /// Whether both are of one directory and one user. Some nodes may not be shown birth times.
    const fn is_alike(&self, other: &Self) -> bool {
        let (one, two) = (self.origin_born_ns, other.origin_born_ns);
        self.user == other.user
            && self.origin_inode == other.origin_inode
            && (one == two || one == 0 || two == 0)
    }

    /// Whether `value`, which anybody may have written, is this mark.
    fn is_in(&self, value: &[u8]) -> bool {
        serde_json::from_slice(value).is_ok_and(|mark: Self| mark.is_alike(self))
    }
}

/// Marks an origin as shared by the nodes in the list with this id; `false` if it takes no mark.
///
/// # Errors
/// If the origin cannot be written just now.
pub fn set(origin: &File, list_id: &str) -> io::Result<bool> {
    let mark = serde_json::to_vec(&MarkContent::of(origin)?)?;
    let attribute = OriginAttribute::new(origin.try_clone()?, WHAT, list_id)?;
    // What cannot be read, such as a longer value, is not a mark of ours.
    if attribute.read_own(MARK_BYTES_MAX).is_ok_and(|found| found == mark) {
        // A change of the directory would be taken for one of its names by who searches it.
        return Ok(true);
    }
    match attribute.write(&mark) {
        Ok(()) => Ok(true),
        Err(error) => {
            let never = [libc::EOPNOTSUPP, libc::EPERM, libc::EACCES, libc::ENOSPC];
            let is_refused = error.raw_os_error().is_some_and(|errno| never.contains(&errno));
            if is_refused { Ok(false) } else { Err(error) }
        }
    }
}

/// The ids of the lists that an origin is marked with, each with the name of the attribute, as far as these marks were
/// made for this directory and can be believed.
///
/// # Errors
/// If its attributes cannot be read.
pub fn found_on(origin: &File) -> io::Result<Vec<(String, String)>> {
    let own = MarkContent::of(origin)?;
    let mut found = Vec::new();
    for id in OriginAttribute::caches(origin, WHAT)? {
        let attribute = OriginAttribute::new(origin.try_clone()?, WHAT, &id)?;
        let is_plain = id.chars().all(|letter| letter.is_ascii_alphanumeric());
        let name = attribute.believed(MARK_BYTES_MAX, |value| own.is_in(value));
        if let Some(name) = name.filter(|_| is_plain) {
            found.push((id, name));
        }
    }
    Ok(found)
}

/// Whether an origin is marked with the list with this id: also where it has more attributes than the kernel lists.
///
/// # Errors
/// If it cannot be looked at.
pub fn is_marked(origin: &File, list_id: &str) -> io::Result<bool> {
    let own = MarkContent::of(origin)?;
    let attribute = OriginAttribute::new(origin.try_clone()?, WHAT, list_id)?;
    Ok(attribute.believed(MARK_BYTES_MAX, |value| own.is_in(value)).is_some())
}

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;

#[cfg(test)]
mod tests {
    use rustix::fs::{XattrFlags, fgetxattr, fsetxattr};

    use super::*;

    /// Whoever may write to the directory kept all nodes from mounting it: a longer value could not be read.
    #[test]
    fn a_value_that_is_too_long_is_replaced() {
        let place = tempfile::tempdir().unwrap();
        let origin = File::open(place.path()).unwrap();
        if !set(&origin, "abc").unwrap() {
            return halocline_testkit::skipping::skip("no extended attributes here");
        }
        let (_, name) = found_on(&origin).unwrap().remove(0);
        let long = vec![b' '; MARK_BYTES_MAX + 1];
        fsetxattr(&origin, name.as_str(), &long, XattrFlags::empty()).unwrap();
        assert_eq!(found_on(&origin).unwrap(), []);
        assert!(set(&origin, "abc").unwrap());
        assert_eq!(found_on(&origin).unwrap(), [("abc".to_owned(), name)]);
    }

    #[test]
    fn a_copy_of_a_marked_directory_is_not_marked() {
        let places = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [marked, copy] = places.each_ref().map(|dir| File::open(dir.path()).unwrap());
        if !set(&marked, "abc").unwrap() {
            return halocline_testkit::skipping::skip("no extended attributes here");
        }
        let found = found_on(&marked).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        let (id, name) = &found[0];
        assert_eq!(id, "abc");
        let mut value = vec![0; MARK_BYTES_MAX];
        let length = fgetxattr(&marked, name.as_str(), &mut value).unwrap();
        fsetxattr(&copy, name.as_str(), &value[..length], XattrFlags::empty()).unwrap();
        assert_eq!(found_on(&copy).unwrap(), []);
        fsetxattr(&copy, name.as_str(), b"{}", XattrFlags::empty()).unwrap();
        assert_eq!(found_on(&copy).unwrap(), []);
    }
}
