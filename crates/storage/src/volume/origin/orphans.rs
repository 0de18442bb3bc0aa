//! Objects of a striped origin to which no namespace file refers. An unlink, or a rename over another file, first
//! removes the name, and the object when the last open file is closed; a crash in between leaves the object, which only
//! takes space. But the object of a file that was moved out of the tree for a while, or whose file system below it is not
//! mounted, looks the same: nothing here knows which it is, so only people who do may have objects removed.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use halocline_model::striping::Striping;

use super::identity::{self, ObjectId, ObjectNumber, Reference};
use super::layouts;
use super::not_own::{OF_ANOTHER, gone};
use super::object_family::Families;
use super::tree_walk::{FileState, Unread, each_file_if_still};
use crate::volume::{Server, Volume, object_paths};
use halocline_os::error::{Error, Result};

/// Objects without a name, with the bytes of blocks that each uses on all servers.
pub(crate) type Orphans = BTreeMap<ObjectId, u64>;

/// Limit of the files that are told of one object.
const NAMES_MAX: usize = 8;

/// An object whose file is not found, and that other files name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misnamed {
    /// Its name.
    pub object: ObjectId,
    /// The paths of these files below the mount, with the numbers of their owners.
    pub named_by: Vec<(PathBuf, u32)>,
}

/// A file that has no data to read: every access to it fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadableFile {
    /// Its path below the mount.
    pub path: PathBuf,
    /// The number of its owner.
    pub owner: u32,
    /// Why, for people.
    pub reason: String,
}

/// Whose the objects of a volume are.
#[derive(Debug, Default)]
pub struct NamedObjects {
    /// Those that no file names; empty if not all names could be read.
    pub unnamed: Orphans,
    /// Those that are named by others than their own files alone: backups of these, or somebody who wants to reach their data.
    /// Nothing here can tell; empty if not all names could be read.
    pub misnamed: Vec<Misnamed>,
    /// Files without data that can be read, but for those that name a misnamed object; empty if not all names could be read.
    pub unreadable: Vec<UnreadableFile>,
    /// What could not be read of the tree.
    pub unread: Unread,
}

/// Finds out which objects of a striped volume no file below `tree` names, or others than their own alone.
///
/// # Errors
/// [`Error::Invalid`] while names of the tree change: the object without a name may be that of a file that was moved
/// meanwhile.
pub(super) fn find(volume: &Volume, tree: &Path) -> Result<NamedObjects> {
    let mut objects = Orphans::new();
    for server in volume.servers() {
        let failed = || Error::at(server.dir(), "list the objects in");
        for id in ids_on(server, ObjectId::ROOT).map_err(failed())? {
            *objects.entry(id).or_default() +=
                server.directory().allocated_of(&id.path()).map_err(failed())?;
        }
    }
    for server in volume.servers() {
        let layouts = ids_on(server, object_paths::LAYOUTS);
        for id in layouts.map_err(Error::at(server.dir(), "list the layouts in"))? {
            objects.entry(id).or_default();
        }
    }
    // The names are read second: a file created meanwhile has a name before it has an object.
    names(objects, volume, tree)
}

/// The objects of a volume, named or not: also those that have a layout and no data, because their files have holes alone.
pub(super) fn all(volume: &Volume) -> Result<BTreeSet<ObjectId>> {
    let mut all = BTreeSet::new();
    for server in volume.servers() {
        for root in [object_paths::LAYOUTS, ObjectId::ROOT] {
            let ids = ids_on(server, root);
            all.extend(ids.map_err(Error::at(server.dir(), "list the objects in"))?);
        }
    }
    Ok(all)
}

/// Bytes of blocks that objects use on a server, named or not.
pub(super) fn bytes_on(server: &Server) -> Result<u64> {
    let failed = || Error::at(server.dir(), "add up the objects in");
    let mut bytes = 0_u64;
    for id in ids_on(server, ObjectId::ROOT).map_err(failed())? {
        let used = server.directory().allocated_of(&id.path()).map_err(failed())?;
        bytes = bytes.saturating_add(used);
    }
    Ok(bytes)
}

/// The objects to which files below `root` on a server (data or layouts) belong. Names that are not ours are skipped.
pub(super) fn ids_on(server: &Server, root: &str) -> io::Result<Vec<ObjectId>> {
    let mut found = Vec::new();
    for dir in server.directory().names(Path::new(root))?.into_iter().filter(|dir| dir.len() == 2) {
        let dir = Path::new(root).join(dir);
        let names = server.directory().names(&dir)?;
        let ids = names.iter().filter_map(|name| Some((name, ObjectId::parse(name.to_str()?)?)));
        found.extend(ids.filter(|(name, id)| id.path_in(root) == dir.join(name)).map(|(_, id)| id));
    }
    Ok(found)
}

/// Who names these objects. What a file's owner can write is no error, or one user would keep all objects from being checked; of a
/// file that refers to nonsense, its own objects are kept, because whoever knows its number can write it again.
fn names(mut objects: Orphans, volume: &Volume, tree: &Path) -> Result<NamedObjects> {
    let families = Families::of(objects.keys().copied(), volume)?;
    let mut names = Names::default();
    let read = each_file_if_still(tree, &mut |file, state| {
        let path = file.shown.strip_prefix(tree).unwrap_or(&file.shown);
        let key = (state.inode, state.born_ns);
        let id = state.reference.number().map(|it| ObjectId::of_file(it, key.0, key.1));
        let is_own = id.is_some_and(|id| objects.contains_key(&id));
        let is_empty = |id: ObjectId| families.has(id.number) && !families.are_of_another(id);
        let is_known = is_own || id.is_some_and(is_empty);
        if matches!(state.reference, Reference::Nonsense) {
            names.nonsense.insert(key);
        } else if let Some(id) = id.filter(|id| families.has(id.number)) {
            // What is being given an object has none yet, also where some servers have followed.
            if is_known && matches!(state.reference, Reference::Object(_)) {
                names.found.insert(id);
            }
            names.add(id, (path, state.owner));
        }
        if let Some(reason) = unreadable(volume, state, is_own, &families) {
            let file = UnreadableFile { path: path.to_owned(), owner: state.owner, reason };
            names.unreadable.entry(key).or_insert(file);
        }
        Ok(())
    })?;
    let Some(unread) = read else {
        let what =
            format!("{}: names changed while objects without one were looked for", tree.display());
        return Err(Error::invalid(
            what,
            "end what renames, makes or removes files there, and look again",
        ));
    };
    if !unread.is_empty() {
        return Ok(NamedObjects { unread, ..NamedObjects::default() });
    }
    objects.retain(|id, _| !names.keep(id) && !names.found.contains(id));
    let of_others = Claims::of(&names);
    let misnamed: Vec<_> = objects.keys().filter_map(|id| of_others.misnamed(*id)).collect();
    objects.retain(|id, _| of_others.is_unnamed(*id));
    let told: BTreeSet<_> = misnamed.iter().flat_map(|it| &it.named_by).map(|it| &it.0).collect();
    let unreadable = names.unreadable.values().filter(|file| !told.contains(&file.path)).cloned();
    let unreadable = unreadable.collect();
    Ok(NamedObjects { unnamed: objects, misnamed, unreadable, unread })
}

/// What the files of a tree name.
#[derive(Default)]
struct Names {
    /// Objects whose files were found.
    found: BTreeSet<ObjectId>,
    /// The paths of others that name each, and their owners.
    named: BTreeMap<ObjectNumber, Vec<(PathBuf, u32)>>,
    /// The files that refer to nonsense, by inode numbers and birth times.
    nonsense: BTreeSet<(u64, u64)>,
    /// The files that cannot be read, by the same.
    unreadable: BTreeMap<(u64, u64), UnreadableFile>,
}

impl Names {
    fn add(&mut self, id: ObjectId, (path, owner): (&Path, u32)) {
        let paths = self.named.entry(id.number).or_default();
        // As many as anybody would look at.
        let is_new = || paths.len() < NAMES_MAX && !paths.iter().any(|it| it.0 == path);
        if !self.found.contains(&id) && is_new() {
            paths.push((path.to_owned(), owner));
        }
    }

    /// Whether an object may be that of a file that refers to nonsense; nobody can tell whose one of an earlier format is.
    fn keep(&self, id: &ObjectId) -> bool {
        id.inode.map_or(!self.nonsense.is_empty(), |_| {
            self.nonsense.iter().any(|(inode, born_ns)| id.is_of(*inode, *born_ns))
        })
    }
}

/// Which objects others name than their own files. A number whose object is gone leads to the one that its file got since,
/// which has a number of the same family.
struct Claims<'n> {
    named: &'n BTreeMap<ObjectNumber, Vec<(PathBuf, u32)>>,
    by_family: BTreeMap<u64, Vec<ObjectNumber>>,
    /// The numbers, and families, of objects whose files were found.
    own: (BTreeSet<ObjectNumber>, BTreeSet<u64>),
}

impl<'n> Claims<'n> {
    fn of(names: &'n Names) -> Self {
        let mut by_family: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for number in names.named.keys() {
            by_family.entry(number.family()).or_default().push(*number);
        }
        let numbers = names.found.iter().map(|id| id.number);
        let own = (numbers.clone().collect(), numbers.map(ObjectNumber::family).collect());
        Self { named: &names.named, by_family, own }
    }

    /// The numbers by which an object may be named.
    fn numbers(&self, id: ObjectId) -> Vec<ObjectNumber> {
        let (number, family) = (id.number, id.number.family());
        if self.own.1.contains(&family) || self.named.contains_key(&number) {
            return vec![number];
        }
        self.by_family.get(&family).cloned().unwrap_or_default()
    }

    fn is_unnamed(&self, id: ObjectId) -> bool {
        !self.numbers(id).iter().any(|number| self.named.contains_key(number))
    }

    fn misnamed(&self, object: ObjectId) -> Option<Misnamed> {
        if self.own.0.contains(&object.number) {
            return None;
        }
        let named_by = self.numbers(object).into_iter().filter_map(|it| self.named.get(&it));
        let named_by: Vec<_> = named_by.flatten().take(NAMES_MAX).cloned().collect();
        (!named_by.is_empty()).then_some(Misnamed { object, named_by })
    }
}

/// Why a file of a tree cannot be read, if it cannot; `is_own` if its own object, or the layout of that, is there. `families` are
/// those of all objects of the volume.
pub(super) fn unreadable(
    volume: &Volume,
    state: &FileState,
    is_own: bool,
    families: &Families,
) -> Option<String> {
    let number = match state.reference {
        Reference::Nonsense => return Some(identity::nonsense(state.inode)),
        Reference::BeingGiven(number) => {
            return Some(format!(
                "it was being given the data of an object {number}, and not all servers have followed: give it that again"
            ));
        }
        Reference::Object(number) if state.len > 0 || is_own => number,
        Reference::Object(_) | Reference::None => return None,
    };
    let id = ObjectId::of_file(number, state.inode, state.born_ns);
    if is_own {
        let layout = layouts::distribution_of(id, volume, Striping::new(1, 1));
        let found = layout.and_then(|found| found.ok_or_else(|| layouts::missing(id)));
        return found.err().map(|error| error.to_string());
    }
    if families.are_of_another(id) {
        return Some(format!("{OF_ANOTHER}; empty or remove it"));
    }
    let is_empty = !number.has_layout && number.is_made_for(state.inode, state.born_ns);
    (!is_empty).then(|| gone(state.inode))
}
