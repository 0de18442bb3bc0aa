//! Which object holds a file's data: determined by an extended attribute of its namespace file, that file's inode
//! number and, because inode numbers come round again, its birth time. What must hold: nothing that others can write determines
//! alone whose data is accessed.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use halocline_os::birth_time::born_ns_of;
use halocline_os::random::random_bytes;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_64;

use super::attestation;
use crate::volume::object_paths;

pub(super) const ATTRIBUTE: &str = "user.halocline.object";

/// The attribute's value: 128 bits, most of them random, so that a copied tree or a restored backup never assigns one object to two
/// files by restarting a counter. Anyone who may write to a file can set this to any value.
///
/// The first 64 bits are the number's family, which a file keeps when it gets another object: a number of which there is
/// no object, because it was copied or restored, leads to the file's present one by that. The last 32 are a checksum of the others and of
/// the file that got the number: a file without an object that got its own number has no data yet, and one that has another's had some.
/// All 128 are random in numbers of earlier versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ObjectNumber {
    random: u128,
    /// Whether the object has its own layout, without which its bytes would be read in the wrong order; so the number
    /// itself records that there must be one.
    pub(super) has_layout: bool,
    /// Whether the object's name has the birth time of its file, as all that this version makes. Who takes the suffix away past
    /// the mount names another object.
    pub(super) has_birth: bool,
}

/// Where the bits of the family begin, and how many those of the checksum are.
const FAMILY_AT: u32 = 64;
const CHECKSUM_BITS: u32 = 32;

/// Suffix of a number that has a layout.
const HAS_LAYOUT: char = 'v';
/// Suffix, behind that, of a number whose object has a birth time in its name. Neither is a hexadecimal digit.
const HAS_BIRTH: char = 't';
/// Suffix of a whole number in an attribute whose file is being given the object. Earlier versions know no such number.
const BEING_GIVEN: char = 'g';

impl fmt::Display for ObjectNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.random)?;
        let suffixes = [(self.has_layout, HAS_LAYOUT), (self.has_birth, HAS_BIRTH)];
        suffixes.iter().filter(|it| it.0).try_for_each(|(_, suffix)| write!(f, "{suffix}"))
    }
}

impl ObjectNumber {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_suffix(HAS_BIRTH);
        let (rest, has_birth) = (rest.unwrap_or(text), rest.is_some());
        let digits = rest.strip_suffix(HAS_LAYOUT);
        let (digits, has_layout) = (digits.unwrap_or(rest), digits.is_some());
        let random = u128::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 32);
        random.map(|random| Self { random, has_layout, has_birth })
    }

    /// A number that no object has had before, for the file with this inode number and birth time: one of the family of `former`,
    /// that of the file until now, if it has one.
    pub(super) fn for_file(
        (inode, born_ns): (u64, u64),
        has_layout: bool,
        former: Option<Self>,
    ) -> io::Result<Self> {
        let is_same = |random: u128| {
            former.is_some_and(|it| it.random >> CHECKSUM_BITS == random >> CHECKSUM_BITS)
        };
        loop {
            let mut random = u128::from_be_bytes(random_bytes()?);
            if let Some(former) = former {
                let own = random & ((1 << FAMILY_AT) - 1);
                random = u128::from(former.family()) << FAMILY_AT | own;
            }
            if !is_same(random) {
                let random = checksummed(random, inode, born_ns);
                return Ok(Self { random, has_layout, has_birth: true });
            }
        }
    }

    /// What the numbers of a file have in common.
    pub(super) fn family(self) -> u64 {
        u64::try_from(self.random >> FAMILY_AT).expect("64 bits are left")
    }

    /// Whether it was made for the file with this inode number and birth time. False of nearly all numbers of earlier versions.
    pub(super) fn is_made_for(self, inode: u64, born_ns: u64) -> bool {
        self.has_birth && checksummed(self.random, inode, born_ns) == self.random
    }

    /// The directory, below a directory of a server, in which what belongs to the object is.
    pub(super) fn directory_in(self, root: &str) -> PathBuf {
        Path::new(root).join(&self.to_string()[..2])
    }

    /// Makes a namespace file refer to the object with this number, atomically, and attests that where it is possible.
    pub(super) fn name_by(self, namespace_file: impl AsFd, how: XattrFlags) -> io::Result<()> {
        let (path, value) = (by_descriptor(&namespace_file), self.to_string());
        rustix::fs::setxattr(&path, ATTRIBUTE, value.as_bytes(), how)?;
        // It counts in copies of the volume alone.
        if let Err(error) = self.attest(Path::new(&path)) {
            tracing::debug!("not attested: {error}");
        }
        Ok(())
    }

    /// Attests that the namespace file at `path` refers to this object.
    pub(super) fn attest(self, path: &Path) -> io::Result<()> {
        attestation::write(path, &self.to_string())
    }

    /// Whether that is attested.
    pub(super) fn is_attested(self, path: &Path) -> io::Result<bool> {
        attestation::is_there(path, &self.to_string())
    }

    /// Makes a namespace file refer to nothing, atomically, until it is [named](Self::name_by) again: it is being given the object
    /// with this number, of which servers may have parts under both names.
    pub(super) fn announce_to(self, namespace_file: impl AsFd) -> io::Result<()> {
        let (path, value) = (by_descriptor(&namespace_file), format!("{self}{BEING_GIVEN}"));
        Ok(rustix::fs::setxattr(path, ATTRIBUTE, value.as_bytes(), XattrFlags::empty())?)
    }

    /// What the namespace file at `path` refers to.
    pub(super) fn named_by(path: &Path) -> io::Result<Reference> {
        let mut value = [0_u8; 64];
        let len = match rustix::fs::getxattr(path, ATTRIBUTE, &mut value) {
            Ok(len) => len,
            Err(Errno::NODATA) => return Ok(Reference::None),
            // Longer than any number.
            Err(Errno::RANGE) => return Ok(Reference::Nonsense),
            Err(errno) => return Err(errno.into()),
        };
        let Ok(text) = std::str::from_utf8(&value[..len]) else { return Ok(Reference::Nonsense) };
        let given = text.strip_suffix(BEING_GIVEN).and_then(Self::parse).map(Reference::BeingGiven);
        let number = given.or_else(|| Self::parse(text).map(Reference::Object));
        Ok(number.unwrap_or(Reference::Nonsense))
    }
}

/// What a namespace file's attribute refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reference {
    /// It has none: the file has no object yet.
    None,
    /// An object with this number.
    Object(ObjectNumber),
    /// The object with this number is being given to the file: until all servers have its parts under the file's name, nobody
    /// gets any.
    BeingGiven(ObjectNumber),
    /// What the file's owner, or who else may write to it, wrote there past the mount. It refers to no object, and must
    /// keep nobody from using the other files.
    Nonsense,
}

impl Reference {
    /// The number that the attribute has, whether the file has its object or is being given it.
    pub(super) fn number(self) -> Option<ObjectNumber> {
        match self {
            Self::Object(number) | Self::BeingGiven(number) => Some(number),
            Self::None | Self::Nonsense => None,
        }
    }

    /// The number, if it refers to an object; nonsense refers to none.
    pub(super) fn object(self) -> Option<ObjectNumber> {
        match self {
            Self::Object(number) => Some(number),
            Self::None | Self::BeingGiven(_) | Self::Nonsense => None,
        }
    }
}

/// Identifies an object: the number in the file's attribute, and the inode number and birth time of the file whose data it is.
/// The latter cannot be chosen: a file that refers to another file's object gets none of its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId {
    pub(super) number: ObjectNumber,
    /// `None` for an object named by a version before format 2; it then belongs to no file.
    pub(super) inode: Option<u64>,
    /// In nanoseconds since 1970, 0 where the file system tells none; `None` for an object named by an earlier version.
    pub(super) born_ns: Option<u64>,
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.number)?;
        self.inode.map_or(Ok(()), |inode| write!(f, "-{inode}"))?;
        self.born_ns.map_or(Ok(()), |born_ns| write!(f, ".{born_ns}"))
    }
}

impl ObjectId {
    /// The directory of all objects below each server.
    pub(super) const ROOT: &'static str = object_paths::ROOT;

    /// The object's path below each server.
    pub(super) fn path(self) -> PathBuf {
        self.path_in(Self::ROOT)
    }

    /// The path, below a directory of a server, of what belongs to the object.
    pub(super) fn path_in(self, root: &str) -> PathBuf {
        let name = self.to_string();
        Path::new(root).join(&name[..2]).join(name)
    }

    /// The object with this name, which has only one valid form.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (number, file) =
            text.split_once('-').map_or((text, None), |(it, file)| (it, Some(file)));
        let (inode, born_ns) = match file.map(|file| file.split_once('.').ok_or(file)) {
            None => (None, None),
            Some(Err(inode)) => (Some(inode.parse().ok()?), None),
            Some(Ok((inode, born_ns))) => (Some(inode.parse().ok()?), Some(born_ns.parse().ok()?)),
        };
        let id = Self { number: ObjectNumber::parse(number)?, inode, born_ns };
        (id.number.has_birth == born_ns.is_some() && id.to_string() == text).then_some(id)
    }

    /// The object of a namespace file, if it has one. The descriptor may be `O_PATH`.
    pub(super) fn of(namespace_file: impl AsFd) -> io::Result<Option<Self>> {
        match ObjectNumber::named_by(Path::new(&by_descriptor(&namespace_file)))? {
            Reference::None => Ok(None),
            Reference::Object(number) => Self::bound(number, namespace_file).map(Some),
            Reference::BeingGiven(_) => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "it was being given its data, and not all servers have followed: `halocline fsck CACHE` tells how to go on",
            )),
            Reference::Nonsense => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                nonsense(rustix::fs::fstat(namespace_file)?.st_ino),
            )),
        }
    }

    /// The object with this number that belongs to a namespace file.
    pub(super) fn bound(number: ObjectNumber, namespace_file: impl AsFd) -> io::Result<Self> {
        let inode = rustix::fs::fstat(&namespace_file)?.st_ino;
        let born_ns = if number.has_birth { born_ns_of(namespace_file)? } else { 0 };
        Ok(Self::of_file(number, inode, born_ns))
    }

    /// The object with this number of the file with this inode number and birth time.
    pub(super) fn of_file(number: ObjectNumber, inode: u64, born_ns: u64) -> Self {
        Self { number, inode: Some(inode), born_ns: number.has_birth.then_some(born_ns) }
    }

    /// Whether it is an object of that file, whatever its number.
    pub(super) fn is_of(self, inode: u64, born_ns: u64) -> bool {
        self.inode == Some(inode) && self.born_ns.is_none_or(|born| born == born_ns)
    }

    /// The object of a namespace file; assigns one if it has none.
    pub(super) fn ensure(namespace_file: impl AsFd) -> io::Result<Self> {
        if let Some(id) = Self::of(&namespace_file)? {
            return Ok(id);
        }
        match Self::give(&namespace_file, XattrFlags::CREATE) {
            // Another thread or process assigned one at the same time.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::EXIST) => {
                Self::of(namespace_file)?.ok_or_else(|| Errno::NODATA.into())
            }
            other => other,
        }
    }

    /// Assigns to a namespace file an object that no file has had before.
    pub(super) fn give(namespace_file: impl AsFd, how: XattrFlags) -> io::Result<Self> {
        let id = Self::new(&namespace_file, false, None)?;
        id.number.name_by(namespace_file, how)?;
        Ok(id)
    }

    /// An object for a namespace file that no file has had before, as [`ObjectNumber::for_file`].
    pub(super) fn new(
        namespace_file: impl AsFd,
        has_layout: bool,
        former: Option<ObjectNumber>,
    ) -> io::Result<Self> {
        let inode = rustix::fs::fstat(&namespace_file)?.st_ino;
        let born_ns = born_ns_of(namespace_file)?;
        let number = ObjectNumber::for_file((inode, born_ns), has_layout, former)?;
        Ok(Self::of_file(number, inode, born_ns))
    }

    /// Whether its number was made for the file whose object it is.
    pub(super) fn is_first_of_its_number(self) -> bool {
        let file = self.inode.zip(self.born_ns);
        file.is_some_and(|(inode, born_ns)| self.number.is_made_for(inode, born_ns))
    }
}

/// The same with the checksum in its last bits.
fn checksummed(random: u128, inode: u64, born_ns: u64) -> u128 {
    let rest = random >> CHECKSUM_BITS << CHECKSUM_BITS;
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(&rest.to_be_bytes());
    bytes[16..24].copy_from_slice(&inode.to_be_bytes());
    bytes[24..].copy_from_slice(&born_ns.to_be_bytes());
    rest | u128::from(xxh3_64(&bytes)) & ((1 << CHECKSUM_BITS) - 1)
}

/// What is wrong with a file that refers to nonsense.
pub(super) fn nonsense(inode: u64) -> String {
    format!(
        "its {ATTRIBUTE} is not an object number: somebody set it past the mount; {}",
        remedy_for_number(inode)
    )
}

/// What to do about a file whose number was changed past the mount.
pub(super) fn remedy_for_number(inode: u64) -> String {
    format!(
        "set it to the number before `-{inode}` in the name of the file's object (server-*/objects/*/*-{inode}*), or \
         remove the file"
    )
}

/// A path that leads to what an `O_PATH` descriptor refers to, even if its name is gone.
pub(super) fn by_descriptor(namespace_file: impl AsFd) -> String {
    format!("/proc/self/fd/{}", namespace_file.as_fd().as_raw_fd())
}
