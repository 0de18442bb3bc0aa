//! Which object holds a file's data: an extended attribute of its namespace file, and that file's inode number. What
//! must hold: nothing that others can write decides alone whose data is reached.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use crate::volume::object_paths;

/// Everything that Halocline keeps in extended attributes begins like this.
const PREFIXES: [&[u8]; 2] = [b"user.halocline.", b"trusted.halocline."];

const ATTRIBUTE: &str = "user.halocline.object";

/// Whether an extended attribute is Halocline's own and hidden from programs.
pub fn hidden_xattr(name: &OsStr) -> bool {
    PREFIXES.iter().any(|prefix| name.as_bytes().starts_with(prefix))
}

/// NUL-terminated names of extended attributes without the hidden ones.
pub fn shown_xattrs(all: &[u8]) -> Vec<u8> {
    let names = all.split_inclusive(|&byte| byte == 0);
    names.filter(|name| !hidden_xattr(OsStr::from_bytes(name))).flatten().copied().collect()
}

/// The attribute's value: 128 random bits, so that a copied tree or a restored backup never gives two files the same
/// object by counting again. Anybody who may write to a file can set it to anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ObjectNumber {
    random: u128,
    /// The object has a layout of its own, without which its bytes would be read in the wrong order; so the
    /// number itself says that there must be one.
    pub(super) has_layout: bool,
}

/// What follows the digits of a number that has a layout.
const HAS_LAYOUT: char = 'v';

impl fmt::Display for ObjectNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.random)?;
        if self.has_layout { write!(f, "{HAS_LAYOUT}") } else { Ok(()) }
    }
}

impl ObjectNumber {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_suffix(HAS_LAYOUT);
        let (digits, has_layout) = (digits.unwrap_or(text), digits.is_some());
        let random = u128::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 32);
        random.map(|random| Self { random, has_layout })
    }

    /// A number that no object had before.
    pub(super) fn random(has_layout: bool) -> io::Result<Self> {
        let mut random = [0; 16];
        File::open("/dev/urandom")?.read_exact(&mut random)?;
        Ok(Self { random: u128::from_be_bytes(random), has_layout })
    }

    /// The directory below each server in which the object's local files are.
    pub(super) fn directory(self) -> PathBuf {
        Path::new(ObjectId::ROOT).join(&self.to_string()[..2])
    }

    /// Makes a namespace file name the object with this number: all at once, or not at all.
    pub(super) fn name_by(self, node: impl AsFd, how: XattrFlags) -> io::Result<()> {
        let (path, value) = (by_descriptor(&node), self.to_string());
        Ok(rustix::fs::setxattr(path, ATTRIBUTE, value.as_bytes(), how)?)
    }

    /// What the namespace file at `path` says, if anything.
    pub(super) fn named_by(path: &Path) -> io::Result<Option<Self>> {
        let mut value = [0_u8; 64];
        let len = match rustix::fs::getxattr(path, ATTRIBUTE, &mut value) {
            Ok(len) => len,
            Err(Errno::NODATA) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        let number = std::str::from_utf8(&value[..len]).ok().and_then(Self::parse);
        number.map(Some).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, format!("{ATTRIBUTE} is no object number"))
        })
    }
}

/// Names an object: the number that the file's attribute says, and the inode number of the file
/// whose data it is. The second cannot be chosen: a file that names the object of another gets none
/// of its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId {
    pub(super) number: ObjectNumber,
    /// `None` where versions before format 2 named the object; it then belongs to no file.
    pub(super) inode: Option<u64>,
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.inode {
            Some(inode) => write!(f, "{}-{inode}", self.number),
            None => write!(f, "{}", self.number),
        }
    }
}

impl ObjectId {
    /// The directory of all objects below each server.
    pub(super) const ROOT: &'static str = object_paths::ROOT;

    /// Where the object lies below each server.
    pub(super) fn path(self) -> PathBuf {
        self.path_in(Self::ROOT)
    }

    /// Where what belongs to the object lies below a directory of a server.
    pub(super) fn path_in(self, root: &str) -> PathBuf {
        let name = self.to_string();
        Path::new(root).join(&name[..2]).join(name)
    }

    /// The object with this name, which is written in one way only.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (number, inode) = match text.split_once('-') {
            Some((number, inode)) => (number, Some(inode.parse().ok()?)),
            None => (text, None),
        };
        let id = Self { number: ObjectNumber::parse(number)?, inode };
        (id.to_string() == text).then_some(id)
    }

    /// The object of a namespace file, if it has one. The descriptor may be an `O_PATH` one.
    pub(super) fn of(node: impl AsFd) -> io::Result<Option<Self>> {
        let number = ObjectNumber::named_by(Path::new(&by_descriptor(&node)))?;
        number.map(|number| Self::bound(number, &node)).transpose()
    }

    /// The object with this number that is a namespace file's.
    pub(super) fn bound(number: ObjectNumber, node: impl AsFd) -> io::Result<Self> {
        let inode = Some(rustix::fs::fstat(node)?.st_ino);
        Ok(Self { number, inode })
    }

    /// The object of a namespace file; gives it one if it has none.
    pub(super) fn ensure(node: impl AsFd) -> io::Result<Self> {
        if let Some(id) = Self::of(&node)? {
            return Ok(id);
        }
        match Self::give(&node, XattrFlags::CREATE) {
            // Somebody else gave it one at the same time.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::EXIST) => {
                Self::of(node)?.ok_or_else(|| Errno::NODATA.into())
            }
            other => other,
        }
    }

    /// Gives a namespace file an object that no file had before.
    pub(super) fn give(node: impl AsFd, how: XattrFlags) -> io::Result<Self> {
        let number = ObjectNumber::random(false)?;
        number.name_by(&node, how)?;
        Self::bound(number, node)
    }
}

/// A path that reaches what an `O_PATH` descriptor stands for, its name gone or not.
pub(super) fn by_descriptor(node: impl AsFd) -> String {
    format!("/proc/self/fd/{}", node.as_fd().as_raw_fd())
}
