//! How paths travel in JSON: a string, or an array of bytes where a name is not UTF-8.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// A path as it appears on the wire.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum WirePath {
    Text(String),
    Bytes(Vec<u8>),
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

/// `#[serde(with)]` for one path.
pub(super) mod path {
    use std::path::{Path, PathBuf};

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::WirePath;

    pub(in crate::control) fn serialize<S: Serializer>(
        path: &Path,
        out: S,
    ) -> Result<S::Ok, S::Error> {
        WirePath::from(path).serialize(out)
    }

    pub(in crate::control) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<PathBuf, D::Error> {
        WirePath::deserialize(from).map(PathBuf::from)
    }
}

/// `#[serde(with)]` for a list of paths.
pub(super) mod paths {
    use std::path::PathBuf;

    use serde::{Deserialize, Deserializer, Serializer};

    use super::WirePath;

    pub(in crate::control) fn serialize<S: Serializer>(
        paths: &[PathBuf],
        out: S,
    ) -> Result<S::Ok, S::Error> {
        out.collect_seq(paths.iter().map(|path| WirePath::from(path.as_path())))
    }

    pub(in crate::control) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<PathBuf>, D::Error> {
        Ok(Vec::<WirePath>::deserialize(from)?.into_iter().map(PathBuf::from).collect())
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
