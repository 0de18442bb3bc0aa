//! Paths below a directory, as stored: anyone who can write to the store must not be able to lead us out of the
//! directory.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use halocline_os::shown_name::shown_name;

use super::NAME_BYTES_MAX;

/// At least one name, none of them `.` or `..`, separated by single slashes and relative to some directory.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RelativePath(Arc<[u8]>);

impl RelativePath {
    /// The longest one that the store keeps, as in Linux. Directories on disks may be deeper: programs move them below one
    /// another.
    pub const BYTES_MAX: usize = 4095;

    /// A path that was stored; `None` if it is anything else, or too long.
    #[must_use]
    pub fn stored(bytes: &[u8]) -> Option<Self> {
        Self::new(bytes).filter(Self::is_storable)
    }

    /// Whether the store keeps it.
    #[must_use]
    pub fn is_storable(&self) -> bool {
        self.0.len() <= Self::BYTES_MAX
    }

    /// A path of any length; `None` if it is anything else.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let is_name = |name: &[u8]| {
            !matches!(name, b"" | b"." | b"..")
                && name.len() <= NAME_BYTES_MAX
                && !name.contains(&0)
        };
        let is_path = bytes.split(|byte| *byte == b'/').all(is_name);
        is_path.then(|| Self(Arc::from(bytes)))
    }

    /// The path of a name in a directory; `None` for the directory means where paths begin.
    ///
    /// `None` if it is none.
    #[must_use]
    pub fn below(directory: Option<&Self>, name: &[u8]) -> Option<Self> {
        let name = Self::new(name)?;
        Some(match directory {
            None => name,
            Some(directory) => Self(Arc::from([&directory.0, &b"/"[..], &name.0].concat())),
        })
    }

    /// Its bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// As an operating system path.
    #[must_use]
    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }

    /// Its first name.
    #[must_use]
    pub fn first(&self) -> &[u8] {
        self.0.split(|byte| *byte == b'/').next().unwrap_or_default()
    }

    /// Its last name.
    #[must_use]
    pub fn last(&self) -> &[u8] {
        self.0.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
    }
}

impl fmt::Debug for RelativePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl fmt::Display for RelativePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown_name(&self.0))
    }
}
