//! Gives files that were restored the objects that they name, as one who knows them says.
//!
//! What must hold: nothing is given unless all that is asked for can be; and until all servers have followed no file has
//! an object of which some have the bytes and others zeros, which nobody could tell from holes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use rustix::fs::XattrFlags;

use super::Origin;
use super::earlier_times::note_if_needed;
use super::identity::{ObjectId, ObjectNumber, by_descriptor};
use super::object_binding::rename_objects;
use super::orphans::ids_on;
use super::tree_walk::{TreeEntry, file};
use crate::volume::object_paths::LAYOUTS;
use halocline_os::error::{Error, Result};

/// The objects on each server.
type Objects = Vec<BTreeSet<ObjectId>>;

/// What is done to the files.
const NOTE: &str = "note the object of";

/// An object, and the file that gets it.
struct Gift<'g> {
    object: ObjectId,
    relative: &'g Path,
    /// The inode number and birth time of the file.
    file: (u64, u64),
}

impl Gift<'_> {
    /// The file, if its path still leads to it.
    fn open(&self, origin: &Origin) -> Result<TreeEntry> {
        let found = file(origin, self.relative, "leave it out")?;
        if identity(&found, self.object.number)? == self.file {
            return Ok(found);
        }
        let what = format!("{} was changed meanwhile", found.shown.display());
        Err(Error::invalid(what, "end what changes it, and give the same again"))
    }
}

/// Gives objects by their names to files by their paths, as [`Origin::give_objects`].
pub(super) fn give(origin: &Origin, pairs: &[(String, PathBuf)]) -> Result<()> {
    origin.check_bound()?;
    let mut objects = Objects::new();
    let mut all = BTreeSet::new();
    for server in origin.servers().iter().filter(|_| origin.striped) {
        let ids =
            |root| ids_on(server, root).map_err(Error::at(server.dir(), "list the objects in"));
        objects.push(ids(ObjectId::ROOT)?.into_iter().collect());
        // One of which there is a layout alone is given, too: a check tells it like those that have data.
        all.extend(ids(LAYOUTS)?);
    }
    all.extend(objects.iter().flatten().copied());
    let mut numbers: BTreeMap<ObjectNumber, usize> = BTreeMap::new();
    for id in &all {
        *numbers.entry(id.number).or_default() += 1;
    }
    let mut gifts = Vec::with_capacity(pairs.len());
    let (mut given, mut files) = (BTreeMap::new(), BTreeMap::new());
    for (object, relative) in pairs {
        let found = gift(origin, (object, relative), &all, &numbers)?;
        check_free(origin, &found, &objects)?;
        if let Some(other) = files.insert(found.file, object) {
            let what = format!("{} is given both {other} and {object}", relative.display());
            return refused(what);
        }
        if given.insert(found.object, found.file).is_some() {
            return refused(format!("{object} is given twice"));
        }
        gifts.push(found);
    }
    if gifts.is_empty() {
        return Ok(());
    }
    for gift in &gifts {
        let file = gift.open(origin)?;
        let noted = note_if_needed(origin, Path::new(&by_descriptor(&file.fd)));
        noted.map_err(Error::at(&file.shown, "note the times of"))?;
        gift.object.number.announce_to(&file.fd).map_err(Error::at(&file.shown, NOTE))?;
    }
    origin.sync_names()?;
    rename_objects(origin.servers(), &|id| given.get(&id).copied())?;
    for gift in &gifts {
        let file = gift.open(origin)?;
        let named = gift.object.number.name_by(&file.fd, XattrFlags::REPLACE);
        named.map_err(Error::at(&file.shown, NOTE))?;
    }
    origin.sync_names()
}

fn refused<T>(what: String) -> Result<T> {
    Err(Error::invalid(what, "give each pair as `halocline fsck CACHE` tells them, once"))
}

/// One that is asked for. `numbers` says how many of `all` objects have each number.
fn gift<'g>(
    origin: &Origin,
    (object, relative): (&str, &'g Path),
    all: &BTreeSet<ObjectId>,
    numbers: &BTreeMap<ObjectNumber, usize>,
) -> Result<Gift<'g>> {
    let missing = || refused(format!("the origin has no object {object}"));
    let given = ObjectId::parse(object).filter(|id| numbers.contains_key(&id.number));
    let Some(given) = given else { return missing() };
    let found = file(origin, relative, "leave it out")?;
    let named = ObjectNumber::named_by(Path::new(&by_descriptor(&found.fd)));
    let named = named.map_err(Error::at(&found.shown, "read the object of"))?;
    // Names that are older than a move have the number before it.
    let Some(named) = named.number().filter(|it| it.family() == given.number.family()) else {
        return refused(format!("{} does not name the object {object}", found.shown.display()));
    };
    let identity = identity(&found, given.number)?;
    let own = ObjectId::of_file(given.number, identity.0, identity.1);
    // A layout alone is that of a file with holes alone.
    let has = |number| all.contains(&ObjectId::of_file(number, identity.0, identity.1));
    if named != given.number && has(named) {
        let what = format!("{} has its data, the object {named}", found.shown.display());
        return Err(Error::invalid(what, "leave it as it is"));
    }
    // After an interrupted call the whole object may have the file's name.
    let object = if all.contains(&given) { given } else { own };
    if !all.contains(&object) {
        return missing();
    }
    // Or both may be there; what is left decides.
    if object == own && numbers.get(&given.number).is_some_and(|count| *count > 1) {
        return refused(format!("{given} is a part of the object that was being given"));
    }
    Ok(Gift { object, relative, file: identity })
}

/// Inode number and birth time of a file, as far as an object with this number has them.
fn identity(file: &TreeEntry, number: ObjectNumber) -> Result<(u64, u64)> {
    let id = ObjectId::bound(number, &file.fd).map_err(Error::at(&file.shown, "stat"))?;
    Ok((id.inode.unwrap_or(0), id.born_ns.unwrap_or(0)))
}

/// Checks that the object can become that of the file.
///
/// # Errors
/// [`Error::Invalid`] if a server has both this object and one of that file with the same number.
fn check_free(origin: &Origin, gift: &Gift<'_>, objects: &Objects) -> Result<()> {
    let id = gift.object;
    let own = ObjectId::of_file(id.number, gift.file.0, gift.file.1);
    for (server, there) in origin.servers().iter().zip(objects) {
        if own != id && there.contains(&own) && there.contains(&id) {
            let what = format!(
                "{}: the file has an object of its own, {own}, beside {id}",
                server.dir().display()
            );
            return Err(Error::invalid(what, "leave it as it is, or remove the file's own one"));
        }
    }
    Ok(())
}
