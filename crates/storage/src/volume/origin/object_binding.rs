//! Binds the objects of a striped origin to the files that refer to them: if no version has done so yet, or if inode
//! numbers are new because the tree was copied.
//!
//! What must hold: only a file that is known to have referred to an object gets it, where the volume knows that of its files
//! ([`attestation`](super::attestation)); an object to which two such files refer belongs to neither, because one of them may
//! refer to it to reach the other's data; and in a tree whose files have their objects none is taken from a file that is not
//! found, because it may be elsewhere for the moment. What a move has left that was killed, and that no file names, becomes an
//! object of the file that has the move's other one, as it was in the tree that was copied. The tree is only read; an interrupted
//! pass is repeated.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use halocline_os::counted::counted_with;
use halocline_os::process_user::own_uid;
use rustix::io::Errno;

use super::identity::{ObjectId, ObjectNumber};
use super::move_notes::MoveNotes;
use super::orphans::ids_on;
use super::tree_walk::{FileState, FoundFile, each_file};
use crate::volume::{Server, object_paths};
use halocline_os::error::{Error, Result};

/// An inode number, and a birth time, that no file has.
const NOBODY: (u64, u64) = (0, 0);

/// Whose reference to an object counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Believed {
    /// That of any file: the volume does not know better.
    All,
    /// That of a file whose reference is attested. Who is not root sees no attestation: that of his own files, because he
    /// reads the objects anyway.
    Attested,
}

/// What the reference of a file says of whose the object is. More beats less.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Weight {
    /// Nothing.
    #[default]
    Nothing,
    /// It is as good as that of any other file.
    Written,
    /// Root made it so.
    Attested,
}

impl Believed {
    fn weight(
        self,
        file: &FoundFile<'_>,
        state: &FileState,
        number: ObjectNumber,
    ) -> Result<Weight> {
        let is_attested = number.is_attested(&file.path());
        if is_attested.map_err(Error::at(&file.shown, "read the attributes of"))? {
            return Ok(Weight::Attested);
        }
        let own = own_uid();
        let is_own = own != 0 && state.owner == own;
        Ok(if self == Self::All || is_own { Weight::Written } else { Weight::Nothing })
    }
}

/// The files that refer to an object.
#[derive(Default)]
struct Claims {
    /// The greatest weight of a reference.
    weight: Weight,
    /// The inode numbers and birth times of those with this weight, if it is any, without duplicates.
    files: Vec<(u64, u64)>,
    /// A name of the first of them, and of the last of the others.
    paths: Vec<PathBuf>,
    /// Those of all, as far as they may have the object already.
    all: BTreeSet<(u64, u64)>,
    /// A name of the last that is not believed.
    unbelieved: Option<PathBuf>,
}

impl Claims {
    fn take(&mut self, file: &FoundFile<'_>, state: &FileState, weight: Weight) {
        let key = (state.inode, state.born_ns);
        self.all.insert(key);
        if weight > self.weight {
            self.weight = weight;
            self.files.clear();
            self.paths.clear();
        }
        if weight == Weight::Nothing {
            self.unbelieved = Some(file.shown.clone());
        } else if weight == self.weight && !self.files.contains(&key) {
            self.files.push(key);
            self.paths.truncate(1);
            self.paths.push(file.shown.clone());
        }
    }

    /// The file whose object with this `number` is among `objects` under its name. Nobody chooses a birth time.
    fn has_its_own(
        &self,
        number: ObjectNumber,
        objects: &BTreeSet<ObjectId>,
    ) -> Option<(u64, u64)> {
        let has = |(inode, born_ns): &(u64, u64)| {
            let is_known = number.has_birth && *born_ns != 0;
            is_known && objects.contains(&ObjectId::of_file(number, *inode, *born_ns))
        };
        self.all.iter().copied().find(has)
    }

    /// Whether there is one file that it can be, because that is attested, or because all files are this user's.
    fn is_known(&self) -> bool {
        self.files.len() == 1 && (self.weight == Weight::Attested || own_uid() != 0)
    }

    /// Whose the object is; `None` if its name stays.
    fn owner(&self, number: ObjectNumber, objects: &BTreeSet<ObjectId>) -> Option<(u64, u64)> {
        if let Some(own) = self.has_its_own(number, objects) {
            return Some(own);
        }
        match self.files[..] {
            [file] => Some(file),
            // The name has a file that is not in the tree, and which no other one can be.
            [] if number.has_birth => None,
            _ => Some(NOBODY),
        }
    }
}

/// Durably binds the objects on `servers`, whose names have the inode numbers of another tree, or none, to the files below `tree`
/// that are `believed`.
///
/// # Errors
/// If a directory cannot be read: the file whose object it is could be there, and another one name it.
pub(super) fn bind(tree: &Path, servers: &[Arc<Server>], believed: Believed) -> Result<()> {
    let claims = claims(tree, believed)?;
    let mut objects = BTreeSet::new();
    for server in servers {
        for root in [object_paths::LAYOUTS, ObjectId::ROOT] {
            let ids = ids_on(server, root);
            objects.extend(ids.map_err(Error::at(server.dir(), "list the objects in"))?);
        }
    }
    tell_of_others(&claims, &objects);
    let are_written = claims.values().any(|named| named.weight == Weight::Written);
    if believed == Believed::All && are_written && own_uid() == 0 {
        tracing::warn!(
            "{}: which data is whose is known by attributes alone that whoever could write to a file could set; `halocline \
             mark-servers` marks the files of the original, before it is copied",
            tree.display()
        );
    }
    let left = left_by_moves(&claims, servers, &objects)?;
    for (number, owner) in &left.without_data {
        make_empty(ObjectId::of_file(*number, owner.0, owner.1), servers);
    }
    rename_objects(servers, &|id| match claims.get(&id.number) {
        Some(named) => named.owner(id.number, &objects),
        None => left.unnamed.get(&id.number).copied(),
    })
}

/// The objects of moves that did not end, with the inode numbers and birth times of their files.
#[derive(Default)]
struct LeftByMoves {
    /// Those that no file names: the file has another one of the move.
    unnamed: HashMap<ObjectNumber, (u64, u64)>,
    /// Those that their files name, and that need no layout, of which no server has anything: the file had holes alone.
    without_data: HashMap<ObjectNumber, (u64, u64)>,
}

/// Makes a local file without a byte of an object without data. In a copy of a volume no number is that of its file, so that this alone
/// tells that the file has holes alone.
fn make_empty(id: ObjectId, servers: &[Arc<Server>]) {
    for server in servers {
        match server.directory().create(&id.path()) {
            Ok(_) => return,
            // Another one may take it.
            Err(error) => {
                tracing::warn!(
                    "{}: cannot make {}: {error}",
                    server.dir().display(),
                    id.path().display()
                );
            }
        }
    }
}

/// Of moves that did not end: the objects of which one file is known to be the owner. All numbers of a note are one file's. Whoever wrote a number past the mount would have the rest of that file removed with the next move, so the file must
/// be known to be the one, as [`Claims::is_known`] says.
fn left_by_moves(
    claims: &HashMap<ObjectNumber, Claims>,
    servers: &[Arc<Server>],
    objects: &BTreeSet<ObjectId>,
) -> Result<LeftByMoves> {
    let mut left = LeftByMoves::default();
    let are_there: BTreeSet<_> = objects.iter().map(|id| id.number).collect();
    for note in MoveNotes::read(servers)?.all() {
        let named = note.iter().filter_map(|number| Some((number, claims.get(number)?)));
        let named: Vec<_> = named.collect();
        let owners: BTreeSet<_> =
            named.iter().map(|(number, named)| named.owner(**number, objects)).collect();
        let are_known = named.iter().all(|(_, named)| named.is_known());
        if let (1, Some(Some(owner)), true) = (owners.len(), owners.first(), are_known) {
            let unnamed = note.iter().filter(|number| !claims.contains_key(number));
            left.unnamed.extend(unnamed.map(|number| (*number, *owner)));
            let named = named.iter().map(|(number, _)| **number);
            let without_data = named.filter(|it| !it.has_layout && !are_there.contains(it));
            left.without_data.extend(without_data.map(|number| (number, *owner)));
        }
    }
    Ok(left)
}

/// Gives each object the name that it has as one of its `owner`, if that says whose it is.
pub(super) fn rename_objects(
    servers: &[Arc<Server>],
    owner: &dyn Fn(ObjectId) -> Option<(u64, u64)>,
) -> Result<()> {
    for server in servers {
        let failed = || Error::at(server.dir(), "bind the objects in");
        // A layout first: an object without one has no bytes that anybody could read.
        for root in [object_paths::LAYOUTS, ObjectId::ROOT] {
            for id in ids_on(server, root).map_err(failed())? {
                let Some((inode, born_ns)) = owner(id) else { continue };
                let bound = ObjectId::of_file(id.number, inode, born_ns);
                if bound == id {
                    continue;
                }
                match server.directory().rename(&id.path_in(root), &bound.path_in(root)) {
                    Err(error) if Errno::from_io_error(&error) == Some(Errno::EXIST) => {
                        let path = server.dir().join(id.path_in(root));
                        tracing::warn!("{}: left as it is, its file has another", path.display());
                    }
                    other => other.map_err(failed())?,
                }
            }
        }
        server.directory().sync_all().map_err(failed())?;
    }
    Ok(())
}

/// Tells of the files that do not get the objects to which they refer.
fn tell_of_others(claims: &HashMap<ObjectNumber, Claims>, objects: &BTreeSet<ObjectId>) {
    let numbers: BTreeSet<_> = objects.iter().map(|id| id.number).collect();
    let (mut unattested, mut example) = (0_usize, None);
    for (number, named) in claims.iter().filter(|(number, _)| numbers.contains(number)) {
        if named.has_its_own(*number, objects).is_some() {
            continue;
        }
        if let [first, last] = &named.paths[..] {
            tracing::warn!(
                "{} and {} name the same data: remove the one that was copied past the mount, then run \
                 halocline fsck, which tells how the other one gets it",
                first.display(),
                last.display()
            );
        } else if let ([], Some(path)) = (&named.files[..], &named.unbelieved) {
            unattested += 1;
            example = Some(path);
        }
    }
    let Some(example) = example else { return };
    tracing::warn!(
        "{} data of this volume, such as {}, and nothing attests that it was theirs: they do not get it. If the volume \
         was copied without the attributes trusted.*, copy it again, as root, with them (cp -a, rsync -aX, \
         tar --xattrs --xattrs-include='*'). If an earlier version of Halocline, or an ordinary user, has used the original, \
         run `halocline mark-servers` there, and copy it again. Else halocline fsck CACHE tells whom each names, and --repair --give gives it",
        counted_with(unattested, "file", ("names", "name")),
        example.display()
    );
}

/// The files that refer to each object.
fn claims(tree: &Path, believed: Believed) -> Result<HashMap<ObjectNumber, Claims>> {
    let mut claims: HashMap<ObjectNumber, Claims> = HashMap::new();
    let unread = each_file(tree, &mut |file, state| {
        let Some(number) = state.reference.object() else { return Ok(()) };
        let weight = believed.weight(file, state, number)?;
        claims.entry(number).or_default().take(file, state, weight);
        Ok(())
    })?;
    unread.into_iter().next().map_or(Ok(claims), Err)
}

/// Refuses a volume in `dir` whose objects are not bound to its files yet.
pub(super) fn not_bound(dir: &Path) -> Error {
    let what = format!(
        "{}: a copy of a striped volume, or one of an early version, whose objects are not yet those of its files",
        dir.display()
    );
    Error::invalid(
        what,
        "mount it once where it can be written: the first mount finds out whose each object is",
    )
}
