//! Inconsistencies of the tiers, for people and scripts.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use crate::control::path_as_json;

/// An inconsistency of the tiers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "problem", rename_all = "kebab-case")]
pub enum Problem {
    /// Both the SSD and a lower tier have something under this path; the SSD's is authoritative (I10).
    Conflict {
        /// Path below both roots.
        #[serde(serialize_with = "path_as_json")]
        path: PathBuf,
        /// The file that programs do not see.
        #[serde(serialize_with = "path_as_json")]
        other: PathBuf,
    },
    /// A link refers to a file that does not exist.
    Lost {
        /// The link's path.
        #[serde(serialize_with = "path_as_json")]
        path: PathBuf,
        /// Where its file should be.
        #[serde(serialize_with = "path_as_json")]
        place: PathBuf,
    },
    /// Two links refer to the same file; this one is treated as a user's link.
    SecondLink {
        /// The link's path.
        #[serde(serialize_with = "path_as_json")]
        path: PathBuf,
        /// The file.
        #[serde(serialize_with = "path_as_json")]
        place: PathBuf,
    },
    /// A link in our form that the mounting user did not make, or a second name of one: it is treated as a user's link.
    #[serde(rename = "strange-link")]
    UnownedLink {
        /// The link's path.
        #[serde(serialize_with = "path_as_json")]
        path: PathBuf,
        /// The file that it names.
        #[serde(serialize_with = "path_as_json")]
        place: PathBuf,
    },
    /// Something on a lower tier that is not a regular file and cannot be created on the SSD: it is left where it is.
    NotAFile {
        /// What.
        #[serde(serialize_with = "path_as_json")]
        other: PathBuf,
    },
    /// A copy, or data of a removed file, left by a killed mount; the next mount removes it.
    Leftover {
        /// The file.
        #[serde(serialize_with = "path_as_json")]
        other: PathBuf,
    },
    /// A mount was killed while it moved a file with several names; this name still refers to the old copy, which is
    /// identical. The next mount continues.
    #[serde(rename = "unswitched")]
    NotCutOver {
        /// The name.
        #[serde(serialize_with = "path_as_json")]
        path: PathBuf,
    },
    /// A file on a lower tier to which no link refers; the next mount adopts it.
    Unlinked {
        /// The file.
        #[serde(serialize_with = "path_as_json")]
        other: PathBuf,
    },
    /// A file's clean copy is gone; the next mount does not use it.
    CopyGone {
        /// The file's path.
        #[serde(serialize_with = "path_as_json")]
        path: PathBuf,
        /// Where the copy was.
        #[serde(serialize_with = "path_as_json")]
        other: PathBuf,
    },
    /// A file has changed since it got its clean copy; the next mount removes the copy.
    CopyDiffers {
        /// The file's path.
        #[serde(serialize_with = "path_as_json")]
        path: PathBuf,
        /// The copy.
        #[serde(serialize_with = "path_as_json")]
        other: PathBuf,
    },
    /// Files that were put on a lower tier with several names there: programs see each name as a separate file.
    ManyNames {
        /// Names of such files.
        names: u64,
        /// One of them.
        #[serde(serialize_with = "path_as_json")]
        other: PathBuf,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Conflict { path, other } => write!(
                f,
                "{}: the SSD has something else under this path, which programs see; {} is kept \
                 and not shown: compare them, then move or delete one",
                path.display(),
                other.display()
            ),
            Self::Lost { path, place } => write!(
                f,
                "{}: its file {} is gone: restore it there, or remove the name",
                path.display(),
                place.display()
            ),
            Self::SecondLink { path, place } => write!(
                f,
                "{}: another name has the file {} already: this one is a symbolic link to it",
                path.display(),
                place.display()
            ),
            Self::UnownedLink { path, place } => write!(
                f,
                "{}: this link to {} was made by another user, or is a second name of a link: it is \
                 a symbolic link to programs; if it is yours, chown -h it on the SSD, or remove it",
                path.display(),
                place.display()
            ),
            Self::NotAFile { other } => {
                write!(
                    f,
                    "{}: a special file that this user may not make, left where it is and not shown",
                    other.display()
                )
            }
            Self::Leftover { other } => {
                write!(
                    f,
                    "{}: left by a mount that was killed, or could not remove it",
                    other.display()
                )
            }
            Self::NotCutOver { path } => write!(
                f,
                "{}: a mount was killed while it moved the names of this file: the next one goes on",
                path.display()
            ),
            Self::Unlinked { other } => {
                write!(f, "{}: no name on the SSD yet", other.display())
            }
            Self::CopyGone { path, other } => {
                write!(f, "{}: its clean copy {} is gone", path.display(), other.display())
            }
            Self::CopyDiffers { path, other } => write!(
                f,
                "{}: was changed past the mount since its clean copy {} was made",
                path.display(),
                other.display()
            ),
            Self::ManyNames { names, other } => write!(
                f,
                "{}: hard links on a lower tier are a file each to programs, which may read old \
                 bytes by one name after a write by another; {names} such names were found: copy \
                 what is to be changed",
                other.display()
            ),
        }
    }
}
