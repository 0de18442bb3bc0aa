//! The names of a file, as they are recorded with its bytes.

use halocline_cluster::names::attributes::Location;
use halocline_cluster::names::namespace::{Failure, Namespace};
use halocline_model::namespace::{EntryName, InodeNumber};
use halocline_os::error::Result;
use rustix::io::Errno;

use crate::errors::of_names;
use crate::places::Places;

/// How often to retry recording a file's names with its bytes while others change them.
const TRIES: usize = 16;
/// How many further names, which nobody changed just now, are then compared with the store.
const LOOKED_AT_MAX: usize = 8;

/// Records with a file's bytes whether these names lead to it in the store. Repeats this until both agree,
/// because other nodes change names and move files meanwhile.
pub(crate) fn tell_names(
    (names, places): (&Namespace, &Places),
    number: InodeNumber,
    place: Result<&Location>,
    (is, was): (&[&EntryName], &[&EntryName]),
) -> Result<()> {
    let mut place = place?.clone();
    let changed = [is, was].concat();
    // At once: the store may fail before it can confirm them.
    let keys = [is, was].map(|of| -> Vec<_> {
        of.iter().map(|name| (name.directory.0, name.name.clone())).collect()
    });
    match places.listed_names().change(&place, number.0, (&keys[0], &keys[1])) {
        Err(error) if error.errno() == libc::ENOENT => {}
        changed => changed?,
    }
    for _ in 0..TRIES {
        let listed = match places.listed_names().of(&place, number.0) {
            Err(error) if error.errno() == libc::ENOENT => Vec::new(),
            listed => listed?,
        };
        let (mut now, mut add, mut remove) = (None, Vec::new(), Vec::new());
        let listed_names = listed.iter().map(|(directory, name)| EntryName {
            directory: InodeNumber(*directory),
            name: name.clone(),
        });
        let others = listed_names.filter(|name| !changed.contains(&name)).take(LOOKED_AT_MAX);
        for name in changed.iter().map(|name| (*name).clone()).chain(others) {
            let key = (name.directory.0, name.name.clone());
            let is_listed = listed.contains(&key);
            match names.lookup(&name) {
                Ok(found) if found.inode == number => {
                    now = found.attributes.location;
                    add.extend((!is_listed).then_some(key));
                }
                Ok(_) | Err(Failure::Refused(_)) => remove.extend(is_listed.then_some(key)),
                Err(failure) => return Err(of_names(failure)),
            }
        }
        let is_there = now.as_ref().is_none_or(|now| *now == place);
        if is_there && add.is_empty() && remove.is_empty() {
            return Ok(());
        }
        let is_without_names = now.is_none() && remove.len() == listed.len();
        place = now.unwrap_or(place);
        match places.listed_names().change(&place, number.0, (&add, &remove)) {
            // It was moved or removed meanwhile.
            Err(error) if error.errno() == libc::ENOENT => {}
            changed => changed?,
        }
        if is_without_names {
            // Whoever took the last name removes the file. A list cannot say that it has none.
            return Ok(());
        }
    }
    Err(Errno::BUSY.into())
}
