//! Paths in JSON: a string, or an array of bytes if a name is not UTF-8.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Longest path in bytes: longer than one system call accepts, because trees may be deeper than that.
const WIRE_PATH_BYTES_MAX: usize = 1 << 20;

/// Limit of the paths in one request.
pub(super) const PATHS_MAX: usize = 1 << 19;

/// A path as it appears on the wire.
enum WirePath {
    Text(String),
    Bytes(Vec<u8>),
}

impl Serialize for WirePath {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => out.serialize_str(text),
            Self::Bytes(bytes) => bytes.serialize(out),
        }
    }
}

/// Written by hand, so that nothing is stored that is not a path or is too long for one.
impl<'de> Deserialize<'de> for WirePath {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(PathVisitor)
    }
}

struct PathVisitor;

fn too_long<E: Error>() -> E {
    E::custom(format!("a path has more than {WIRE_PATH_BYTES_MAX} bytes"))
}

impl<'de> Visitor<'de> for PathVisitor {
    type Value = WirePath;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a path: text, or an array of its bytes")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<WirePath, E> {
        match text.len() {
            0..=WIRE_PATH_BYTES_MAX => Ok(WirePath::Text(text.to_owned())),
            _ => Err(too_long()),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<WirePath, A::Error> {
        let mut bytes = Vec::new();
        while let Some(byte) = seq.next_element()? {
            if bytes.len() == WIRE_PATH_BYTES_MAX {
                return Err(too_long());
            }
            bytes.push(byte);
        }
        Ok(WirePath::Bytes(bytes))
    }
}

impl From<&Path> for WirePath {
    fn from(path: &Path) -> Self {
        let name: &OsStr = path.as_os_str();
        match name.to_str() {
            Some(text) => Self::Text(text.to_owned()),
            None => Self::Bytes(name.as_bytes().to_owned()),
        }
    }
}

impl From<WirePath> for PathBuf {
    fn from(path: WirePath) -> Self {
        match path {
            WirePath::Text(text) => text.into(),
            WirePath::Bytes(bytes) => OsString::from_vec(bytes).into(),
        }
    }
}

/// Writes a path as in all answers: as text, or as a list of its bytes if it is not UTF-8.
///
/// # Errors
/// Those of `out`.
pub fn path_as_json<S: Serializer>(path: &Path, out: S) -> Result<S::Ok, S::Error> {
    path::serialize(path, out)
}

/// Writes a path, or null.
///
/// # Errors
/// Those of `out`.
pub fn path_or_null_as_json<S: Serializer>(
    path: &Option<PathBuf>,
    out: S,
) -> Result<S::Ok, S::Error> {
    path.as_deref().map(WirePath::from).serialize(out)
}

/// Writes a list of paths.
///
/// # Errors
/// Those of `out`.
pub(crate) fn paths_as_json<S: Serializer>(paths: &[PathBuf], out: S) -> Result<S::Ok, S::Error> {
    paths::serialize(paths, out)
}

/// For `#[serde(with)]` of one path.
pub mod path {
    use std::path::{Path, PathBuf};

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::WirePath;

    /// Writes it.
    pub fn serialize<S: Serializer>(path: &Path, out: S) -> Result<S::Ok, S::Error> {
        WirePath::from(path).serialize(out)
    }

    /// Reads it.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
        WirePath::deserialize(from).map(PathBuf::from)
    }
}

/// For `#[serde(with)]` of a list of paths, each with a number.
pub mod numbered_paths {
    use std::path::PathBuf;

    use serde::{Deserialize, Deserializer, Serializer};

    use super::WirePath;

    /// Writes it.
    pub fn serialize<S: Serializer>(paths: &[(PathBuf, usize)], out: S) -> Result<S::Ok, S::Error> {
        out.collect_seq(paths.iter().map(|(path, n)| (WirePath::from(path.as_path()), n)))
    }

    /// Reads it.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<(PathBuf, usize)>, D::Error> {
        let paths = Vec::<(WirePath, usize)>::deserialize(from)?;
        Ok(paths.into_iter().map(|(path, n)| (path.into(), n)).collect())
    }
}

/// For `#[serde(with)]` of a list of paths.
pub(super) mod paths {
    use std::path::PathBuf;

    use serde::{Deserializer, Serializer};

    use super::{PATHS_MAX, WirePath};

    pub(in crate::control) fn serialize<S: Serializer>(
        paths: &[PathBuf],
        out: S,
    ) -> Result<S::Ok, S::Error> {
        out.collect_seq(paths.iter().map(|path| WirePath::from(path.as_path())))
    }

    pub(in crate::control) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<PathBuf>, D::Error> {
        let paths = halocline_os::bounded::list::<_, WirePath, PATHS_MAX>(from)?;
        Ok(paths.into_iter().map(PathBuf::from).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use crate::control::Request;

    #[test]
    fn names_that_are_not_utf8_survive() {
        let odd = std::ffi::OsString::from_vec(vec![b'a', 0xff, b'/', b'b']);
        for path in [odd.into(), std::path::PathBuf::from("plain/name"), "".into()] {
            let sent = Request::Warm { paths: vec![path], dry_run: true };
            let line = serde_json::to_string(&sent).unwrap();
            assert_eq!(serde_json::from_str::<Request>(&line).unwrap(), sent, "{line}");
        }
    }
}
