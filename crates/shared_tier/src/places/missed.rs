//! Changes of names that the SSD of a file has missed, because it was not reached, or refused them: the shared disk has
//! a note of each, until the SSD has followed.
//!
//! A note is a file in `.halocline/missed`, which is closed to others: `NUMBER.HASH`, with the file's number and the hash
//! of the name. It says what the change is (`+` or `-` and the name, or `x` if the file has lost its last one), and where
//! the bytes are. Nodes that note changes of one name replace each other's notes; which one is right, the store says.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use halocline_cluster::names::attributes::Location;
use halocline_os::error::{Error, Result};
use halocline_os::private::PrivateDir;
use rustix::fs::{AtFlags, renameat, statat};
use rustix::io::Errno;

use super::own_xattrs::{self, NameIn};
use super::tree::{Tree, fresh};
use super::{Places, SSD};

/// The directory with the notes.
const DIRECTORY: &str = "missed";
/// The most bytes of a note: a name, and a path.
const BYTES_MAX: u64 = 16 << 10;

/// What an SSD has missed of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MissedChange {
    /// It has lost its last name.
    Gone,
    Has(NameIn),
    Lost(NameIn),
}

/// A note.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MissedNote {
    /// The name of the note.
    pub(crate) note: OsString,
    /// The file's number.
    pub(crate) number: u64,
    pub(crate) change: MissedChange,
    /// Where the bytes were.
    pub(crate) place: Location,
}

/// All notes on a shared disk.
#[derive(Debug)]
pub(crate) struct MissedNotes<'a> {
    dir: PrivateDir,
    tree: &'a Tree,
}

impl<'a> MissedNotes<'a> {
    pub(crate) fn on(tree: &'a Tree) -> Result<Self> {
        Ok(Self { dir: tree.private.sub(DIRECTORY)?, tree })
    }

    pub(crate) fn of(places: &'a Places) -> Result<Self> {
        Self::on(&places.shared.tree)
    }

    /// Notes a change of the file with a number, whose bytes are at a place. The note has its name once it is whole.
    pub(crate) fn note(&self, number: u64, change: &MissedChange, place: &Location) -> Result<()> {
        self.note_all(number, std::slice::from_ref(change), place)
    }

    /// The same for several changes: none of them is noted before there is room for all, so that a rename is not noted by
    /// halves.
    pub(crate) fn note_all(
        &self,
        number: u64,
        changes: &[MissedChange],
        place: &Location,
    ) -> Result<()> {
        let all: Vec<_> = changes.iter().map(|change| (change, fresh("new", number))).collect();
        self.tree.step("noting a change that an SSD has missed", || {
            let write = |(change, fresh): &(&MissedChange, String)| {
                self.dir.overwrite(fresh, &content(change, place))
            };
            let name = |(change, fresh): &(&MissedChange, String)| {
                let name = file_name(number, change);
                renameat(&self.dir, fresh, &self.dir, name).map_err(Error::from)
            };
            let noted = all.iter().try_for_each(write).and_then(|()| all.iter().try_for_each(name));
            noted.inspect_err(|_| {
                for (_, fresh) in &all {
                    let _gone = self.dir.remove(fresh);
                }
            })
        })
    }

    /// The names of all notes.
    pub(crate) fn names(&self) -> Result<Vec<OsString>> {
        let names = self.dir.names()?.into_iter();
        Ok(names.filter(|name| number_in(name).is_some()).collect())
    }

    /// Reads a note; `None` if it is gone, or no node can have written it.
    pub(crate) fn read(&self, note: &OsStr) -> Result<Option<MissedNote>> {
        let Some(bytes) = self.dir.read(note, BYTES_MAX)? else { return Ok(None) };
        let read = number_in(note).zip(parse(&bytes));
        Ok(read.map(|(number, (change, place))| MissedNote {
            note: note.to_owned(),
            number,
            change,
            place,
        }))
    }

    /// All of them.
    pub(crate) fn all(&self) -> Result<Vec<MissedNote>> {
        self.names()?.iter().filter_map(|name| self.read(name).transpose()).collect()
    }

    /// The SSD has followed.
    pub(crate) fn remove(&self, note: &OsStr) -> Result<()> {
        self.tree.step("forgetting a change that an SSD has missed", || self.dir.remove(note))
    }
}

/// After a try to remove the bytes of a file that has lost its last name: what an SSD did not do is noted.
///
/// # Errors
/// If it cannot be noted, either.
pub(crate) fn or_gone(
    places: &Places,
    (place, number): (&Location, u64),
    removed: Result<()>,
) -> Result<()> {
    let Err(error) = removed else { return Ok(()) };
    if !has_missed(place, &error) {
        return Err(error);
    }
    let noted =
        MissedNotes::of(places).and_then(|notes| notes.note(number, &MissedChange::Gone, place));
    noted.map_err(|why| not_noted(places, place, (error, &why)))
}

/// Whether the SSD at a place has missed a change: not if the file is elsewhere by now, or only the store has failed.
pub(crate) fn has_missed(place: &Location, error: &Error) -> bool {
    place.tier == SSD && !matches!(error, Error::Cluster { .. }) && error.errno() != libc::ENOENT
}

/// The error of a change that neither disk has taken. Its own SSD a node may still follow later.
pub(crate) fn not_noted(places: &Places, place: &Location, (error, why): (Error, &Error)) -> Error {
    if place.node.as_deref() == Some(places.node()) {
        return error;
    }
    Error::Cluster {
        what: format!("{error}; and the change cannot be noted on the shared disk: {why}"),
        remedy: "make room there, or reach that SSD".to_owned(),
    }
}

/// Whether a change of a name of a file is noted.
///
/// # Errors
/// Those of `stat(2)`.
pub(crate) fn is_noted(places: &Places, number: u64, name: NameIn) -> Result<bool> {
    let note = format!("{DIRECTORY}/{}", file_name(number, &MissedChange::Has(name)));
    match statat(&places.shared.tree.private, note, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => Ok(false),
        found => Ok(found.map(|_| true)?),
    }
}

/// Whether a node's SSD is reached.
pub(crate) fn reaches(places: &Places, node: &str) -> bool {
    node == places.node || places.peers.tree(node).is_ok()
}

fn file_name(number: u64, change: &MissedChange) -> String {
    match change {
        MissedChange::Gone => format!("{number}.gone"),
        MissedChange::Has((directory, name)) | MissedChange::Lost((directory, name)) => {
            format!("{number}.{}", own_xattrs::hash(&own_xattrs::value(*directory, name)))
        }
    }
}

fn number_in(name: &OsStr) -> Option<u64> {
    let mut parts = name.as_bytes().splitn(2, |byte| *byte == b'.');
    own_xattrs::parse_number(parts.next()?).filter(|_| parts.next().is_some())
}

fn content(change: &MissedChange, place: &Location) -> Vec<u8> {
    let change = match change {
        MissedChange::Gone => b"x".to_vec(),
        MissedChange::Has((directory, name)) => {
            [b"+", &*own_xattrs::value(*directory, name)].concat()
        }
        MissedChange::Lost((directory, name)) => {
            [b"-", &*own_xattrs::value(*directory, name)].concat()
        }
    };
    [&change, &b"\0"[..], &own_xattrs::from_value(place)].concat()
}

fn parse(bytes: &[u8]) -> Option<(MissedChange, Location)> {
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    let change = match parts.next()?.split_first()? {
        (b'x', []) => MissedChange::Gone,
        (b'+', name) => MissedChange::Has(own_xattrs::parse_name(name)?),
        (b'-', name) => MissedChange::Lost(own_xattrs::parse_name(name)?),
        _ => return None,
    };
    Some((change, own_xattrs::parse_from(parts.next()?)?))
}

#[cfg(test)]
mod tests {
    use halocline_cluster::names::attributes::RelativePath;
    use halocline_model::namespace::Name;

    use super::*;

    #[test]
    fn what_no_node_wrote_is_no_note() {
        let path = RelativePath::new(b"d/a b").unwrap();
        let place = Location { node: Some("n1.x".to_owned()), tier: SSD, base: 1, path };
        let name = || (7, Name::from(&b"a\xff\n:~"[..]));
        for change in [MissedChange::Gone, MissedChange::Has(name()), MissedChange::Lost(name())] {
            let bytes = content(&change, &place);
            assert_eq!(parse(&bytes), Some((change.clone(), place.clone())));
            assert_eq!(parse(&bytes[..bytes.len() - 6]), None);
            assert_eq!(number_in(OsStr::new(&file_name(77, &change))), Some(77));
        }
        for wrong in ["", "x", "y\x000/1/n/a", "xx\x000/1/n/a", "+7:..\x000/1/n/a", "+\x000/1/n/a"]
        {
            assert_eq!(parse(wrong.as_bytes()), None, "{wrong:?}");
        }
        for wrong in ["7", "x.gone", "07.gone", ".gone", "new-7-3f"] {
            assert_eq!(number_in(OsStr::new(wrong)), None, "{wrong:?}");
        }
    }
}
