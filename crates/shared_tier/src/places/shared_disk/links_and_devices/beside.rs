//! Links, pipes, sockets and devices that lie beside their names on the shared disk, as `NAME~NUMBER`, because a file or
//! directory that another node has yet to move away has the name there, or a file with other names lies at it.
//!
//! They carry no attribute that says so, and programs may give such names, too. What must hold:
//! - Before one is put beside its name, that is noted. So a name without a note is what the disk shows.
//! - Nothing is taken for one that lies beside its name if the store has a link, pipe, socket or device that is called so.
//! - Whoever puts one beside its name looks afterwards whether the note is there, and whoever takes the note away looks
//!   afterwards whether nothing lies beside the name: of two at once, one sees the other.
//!
//! A note is a symbolic link in `.halocline/beside` that leads nowhere: `NUMBER.HASH`, with the object's number and the hash
//! of its name, and as its target `/DIRECTORY/NAME`. Each node that is mounted looks at all of them now and then, whoever made
//! them: their node may have died.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use halocline_model::namespace::{Name, ROOT};
use halocline_os::error::Result;
use halocline_os::private::PrivateDir;
use rustix::fs::{readlinkat, symlinkat};
use rustix::io::Errno;

use crate::places::own_xattrs::{self, NameIn, parse_number};
use crate::places::shared_disk::notes;
use crate::places::tree::{FoundDirectory, Tree};

/// The directory with the notes, in the private one of the shared disk.
const DIRECTORY: &str = "beside";

/// Whether the store has a link, pipe, socket or device at a name in the directory with a number.
pub(crate) type HasName<'a> = &'a dyn Fn(u64, &Name) -> Result<bool>;

/// What may lie beside its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Beside {
    /// The name of the note.
    pub(crate) note: OsString,
    pub(crate) number: u64,
    pub(crate) name: NameIn,
}

/// Notes that the object with a number lies beside its name, or is about to; one that is noted already is so once.
///
/// # Errors
/// Those of `symlink(2)`.
pub(crate) fn note(tree: &Tree, (number, name): (u64, &NameIn)) -> Result<OsString> {
    let dir = tree.private.sub(DIRECTORY)?;
    let note = format!("{number}.{}", own_xattrs::hash(&own_xattrs::value(name.0, &name.1)));
    let target = notes::target(std::slice::from_ref(name));
    tree.step("noting what lies beside its name", || match symlinkat(&*target, &dir, &note) {
        Err(Errno::EXIST) => Ok(()),
        noted => noted,
    })?;
    Ok(note.into())
}

/// All notes.
///
/// # Errors
/// If the directory cannot be read.
pub(crate) fn all(tree: &Tree) -> Result<Vec<Beside>> {
    let dir = tree.private.sub(DIRECTORY)?;
    let names = dir.names()?.into_iter();
    names.filter_map(|note| read(&dir, note).transpose()).collect()
}

/// Reads a note; `None` if it is gone, or no node can have written it.
fn read(dir: &PrivateDir, note: OsString) -> Result<Option<Beside>> {
    let Some(number) = number_in(&note) else { return Ok(None) };
    let target = match readlinkat(dir, &note, Vec::new()) {
        Err(Errno::NOENT | Errno::INVAL) => return Ok(None),
        target => target?,
    };
    let name = notes::read(target.as_bytes()).into_iter().next();
    Ok(name.map(|name| Beside { note, number, name }))
}

fn number_in(note: &OsStr) -> Option<u64> {
    let mut parts = note.as_bytes().splitn(2, |byte| *byte == b'.');
    parse_number(parts.next()?).filter(|_| parts.next().is_some())
}

/// Removes a note; one that is gone is no error.
///
/// # Errors
/// Those of `unlink(2)`.
pub(crate) fn forget(tree: &Tree, note: &OsStr) -> Result<()> {
    let dir = tree.private.sub(DIRECTORY)?;
    tree.step("forgetting what lay beside its name", || dir.remove(note))
}

/// The number of a directory on the shared disk.
///
/// # Errors
/// `ESTALE` if it has none any more.
pub(super) fn number_of(directory: &FoundDirectory) -> Result<u64> {
    let number = match directory.1 {
        None => Some(ROOT.0),
        Some(_) => own_xattrs::number(&directory.0, own_xattrs::DIRECTORY),
    };
    number.ok_or_else(|| Errno::STALE.into())
}
