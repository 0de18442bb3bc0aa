//! Which object holds a file's data: an extended attribute of its namespace file.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::XattrFlags;
use rustix::io::Errno;

/// Everything that Halocline keeps in extended attributes begins like this.
const PREFIX: &[u8] = b"user.halocline.";

const ATTRIBUTE: &str = "user.halocline.object";

/// Whether an extended attribute is Halocline's own and hidden from programs.
pub fn hidden_xattr(name: &OsStr) -> bool {
    name.as_bytes().starts_with(PREFIX)
}

/// NUL-terminated names of extended attributes without the hidden ones.
pub(crate) fn shown_xattrs(all: &[u8]) -> Vec<u8> {
    let names = all.split_inclusive(|&byte| byte == 0);
    names.filter(|name| !hidden_xattr(OsStr::from_bytes(name))).flatten().copied().collect()
}

/// Names the object with a file's data: 128 random bits, so that a copied tree or a restored
/// backup never gives two files one object by counting anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId(u128);

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl ObjectId {
    /// The directory of all objects below each server.
    pub(super) const ROOT: &'static str = "objects";

    /// Where the object lies below each server.
    pub(super) fn path(self) -> PathBuf {
        let name = self.to_string();
        Path::new(Self::ROOT).join(&name[..2]).join(name)
    }

    /// The object with this name.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let number = u128::from_str_radix(text, 16).ok().filter(|_| text.len() == 32);
        number.map(Self)
    }

    /// The object of a namespace file, if it has one. The descriptor may be an `O_PATH` one.
    pub(super) fn of(node: impl AsFd) -> io::Result<Option<Self>> {
        Self::named_by(Path::new(&by_descriptor(&node)))
    }

    /// The object of the namespace file at `path`, if it has one.
    pub(super) fn named_by(path: &Path) -> io::Result<Option<Self>> {
        let mut value = [0_u8; 64];
        let len = match rustix::fs::getxattr(path, ATTRIBUTE, &mut value) {
            Ok(len) => len,
            Err(Errno::NODATA) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        let id = std::str::from_utf8(&value[..len]).ok().and_then(Self::parse);
        id.map(Some).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, format!("{ATTRIBUTE} is no object number"))
        })
    }

    /// The object of a namespace file; gives it one if it has none.
    pub(super) fn ensure(node: impl AsFd) -> io::Result<Self> {
        if let Some(id) = Self::of(&node)? {
            return Ok(id);
        }
        let mut random = [0; 16];
        File::open("/dev/urandom")?.read_exact(&mut random)?;
        let id = Self(u128::from_be_bytes(random));
        let (path, value) = (by_descriptor(&node), id.to_string());
        match rustix::fs::setxattr(path, ATTRIBUTE, value.as_bytes(), XattrFlags::CREATE) {
            Ok(()) => Ok(id),
            // Somebody else gave it one at the same time.
            Err(Errno::EXIST) => Self::of(node)?.ok_or_else(|| Errno::NODATA.into()),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// A path that reaches what an `O_PATH` descriptor stands for, its name gone or not.
pub(super) fn by_descriptor(node: impl AsFd) -> String {
    format!("/proc/self/fd/{}", node.as_fd().as_raw_fd())
}
