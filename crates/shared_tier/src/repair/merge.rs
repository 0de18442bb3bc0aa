//! Merges what was found on each disk into one set of names.
//!
//! Attributes are claims: a file's owner can write them if he reaches the disk. What must hold: a claim gives nobody
//! a name in a directory that he could not write to, another owner, or another's number. Whatever is where a sound
//! store has it, with its number, is that file or directory, no matter who else claims the number, as copies made by
//! `cp -a` past the mounts do.

mod copied_directories;
mod directory_names;
mod directory_times;
mod half_made_renames;
mod links_and_devices;
mod missed_changes;
mod owner;
mod precedence;
mod put_back;
mod ssd_directories;
mod unbelieved_names;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use halocline_cluster::names::attributes::{Attributes, Kind, Location};
use halocline_model::namespace::{Name, ROOT};
use halocline_os::error::Result;
use halocline_os::process_user::own_uid;

use super::conflicts::conflict;
use super::disks::Disk;
use super::findings::{About, Finding, note};
pub(crate) use super::numbers::Numbers;
use super::scan::Item;
use super::view::View;
use crate::narrower_attributes::owner_only;
use crate::places::own_xattrs::{NameIn, NotedKind, TwoNames};
use crate::places::tree::candidates;
use crate::places::{SHARED, SSD};
use half_made_renames::Claim;
pub(crate) use links_and_devices::FoundOther;
use missed_changes::MissedChanges;
use owner::Owner;

/// Permission bits of everybody but the owner.
const NOT_OWNER: u32 = 0o077;

/// Something on a disk: which disk, and which item of it.
pub(crate) type At = (usize, usize);

/// A directory.
#[derive(Debug)]
pub(crate) struct FoundDirectory {
    pub(crate) number: u64,
    pub(crate) parent: u64,
    pub(crate) name: Name,
    pub(crate) attributes: Attributes,
    /// The directory on the shared disk; `None` if it is missing there.
    pub(crate) at: Option<At>,
    /// Whether it has its number there.
    pub(crate) is_numbered: bool,
}

/// A file.
#[derive(Debug)]
pub(crate) struct FoundFile {
    pub(crate) number: u64,
    pub(crate) names: Vec<(u64, Name)>,
    /// With the file's location.
    pub(crate) attributes: Attributes,
    pub(crate) at: At,
    /// All its paths on that disk: an unfinished rename leaves two.
    pub(crate) paths: Vec<At>,
    /// Whether it has its number there.
    pub(crate) is_numbered: bool,
}

/// All names.
#[derive(Debug, Default)]
pub(crate) struct FoundNames {
    /// Parents come before what is in them.
    pub(crate) directories: Vec<FoundDirectory>,
    /// The same by where they are on the shared disk: it is asked for each file.
    directory_at: HashMap<usize, u64>,
    pub(crate) files: Vec<FoundFile>,
    pub(crate) others: Vec<FoundOther>,
    /// The number of each directory of each disk.
    pub(crate) directory_of: BTreeMap<At, u64>,
    /// Copies that moves left, with their files' numbers.
    pub(crate) left_copies: Vec<(At, u64)>,
    /// Copies of files that were removed during a move, and files that were replaced by something else.
    pub(crate) never_arrived: Vec<(At, u64)>,
    /// Files and directories that get another name than they say, because something else has that: if they get one, with
    /// their numbers.
    pub(crate) conflicts: Vec<(u64, Finding)>,
    /// What is told of directories that get names, with their numbers.
    pub(crate) told_if_named: Vec<(u64, Finding)>,
    /// Names that a rebuild does not give back.
    pub(crate) not_rebuilt: Vec<String>,
    /// Inconsistent things that were left alone.
    pub(crate) told: Vec<Finding>,
}

/// Merges the disks.
struct Builder<'a> {
    disks: &'a [Disk],
    /// The names in a sound store.
    view: &'a View,
    numbers: &'a mut dyn Numbers,
    found: FoundNames,
    /// Names that are taken, with the numbers of those that are directories.
    taken: BTreeMap<(u64, Name), Option<u64>>,
    /// The number of each directory of each disk.
    directory_of: BTreeMap<At, u64>,
    owners: BTreeMap<u64, Owner>,
    /// Directories on SSDs that are copies of others there.
    copied_directories: BTreeSet<At>,
    /// Numbers of files.
    used: BTreeSet<u64>,
    /// Those of files that were found where a sound store has them.
    at_places: BTreeSet<u64>,
    /// Files, with the names that they claim.
    claims: Vec<Claim>,
    missed: MissedChanges,
}

/// Merges the names of all disks; the first one is the shared disk. `view` is what the store says, if it is sound.
pub(crate) fn merge(disks: &[Disk], view: &View, numbers: &mut dyn Numbers) -> Result<FoundNames> {
    let mut builder = Builder {
        disks,
        view,
        numbers,
        found: FoundNames::default(),
        taken: BTreeMap::new(),
        directory_of: BTreeMap::new(),
        owners: BTreeMap::new(),
        copied_directories: BTreeSet::new(),
        used: BTreeSet::new(),
        at_places: BTreeSet::new(),
        claims: Vec::new(),
        missed: MissedChanges::of(disks),
    };
    if let Some(root) = disks.first().and_then(|shared| shared.scanned.root.as_ref()) {
        builder.owners.insert(ROOT.0, Owner::of(root));
    }
    builder.shared_directories()?;
    ssd_directories::add(&mut builder)?;
    directory_times::set(&mut builder);
    builder.files()?;
    links_and_devices::add(&mut builder);
    builder.found.directory_of = builder.directory_of;
    Ok(builder.found)
}

/// Whether what lies in this directory of the shared disk lies in the one with this number.
pub(super) fn is_in(above: Option<usize>, base: u64, found: &FoundNames) -> bool {
    match above {
        None => base == ROOT.0,
        Some(above) => found.directory_at.get(&above) == Some(&base),
    }
}

pub(super) fn name_of(item: &Item) -> Name {
    item.name.clone()
}

impl<'a> Builder<'a> {
    fn item(&self, at: At) -> &'a Item {
        &self.disks[at.0].scanned.items[at.1]
    }

    fn told(&mut self, at: At, what: &str) {
        let line = format!("{}: {what}", self.disks[at.0].shown(at.1));
        let about = About::item(self.item(at));
        note(&mut self.found.told, Finding::new(about, line));
    }

    fn conflicts(&mut self, at: At, number: u64, line: String) {
        let finding = Finding::new(About::item(self.item(at)), line);
        self.found.conflicts.push((number, finding));
    }

    fn told_if_named(&mut self, at: At, number: u64, line: String) {
        let finding = Finding::new(About::item(self.item(at)), line);
        self.found.told_if_named.push((number, finding));
    }

    /// All items of a kind on a disk.
    fn of_kind(&self, disk: usize, is: impl Fn(Kind) -> bool) -> Vec<At> {
        let items = self.disks[disk].scanned.items.iter().enumerate();
        items.filter(|(_, item)| is(item.attributes.kind)).map(|(at, _)| (disk, at)).collect()
    }

    fn is_given(&self, number: u64) -> bool {
        number < self.numbers.first_unused()
    }

    /// The number of an item's parent directory.
    fn above(&self, at: At) -> u64 {
        match self.item(at).above {
            None => ROOT.0,
            Some(above) => self.directory_of.get(&(at.0, above)).copied().unwrap_or(ROOT.0),
        }
    }

    fn shared_directories(&mut self) -> Result<()> {
        let all = self.of_kind(0, |kind| kind == Kind::Directory);
        let mut claims: BTreeMap<u64, usize> = BTreeMap::new();
        for at in &all {
            if let Some(number) = self.item(*at).number {
                *claims.entry(number).or_default() += 1;
            }
        }
        let mut believed_of_several = BTreeSet::new();
        for at in all {
            let (item, claimed) = (self.item(at), self.item(at).number);
            let is_believed = |number: &u64| {
                claims.get(number) == Some(&1)
                    || self.is_stored_directory(*number, at) && believed_of_several.insert(*number)
            };
            let believed = claimed.filter(|number| self.is_given(*number)).filter(is_believed);
            if claimed.is_some() && believed.is_none() {
                self.told(at, "it says that it is another directory, and gets a number of its own");
            }
            let number = match believed {
                Some(number) => number,
                None => self.numbers.fresh()?,
            };
            self.directory_of.insert(at, number);
            let above = self.above(at);
            let name = match believed {
                Some(number) => directory_names::name_of_numbered(self, at, (above, number)),
                None => name_of(item),
            };
            self.directory(at, number, name, believed.is_some());
        }
        Ok(())
    }

    /// Whether an item on the shared disk is where the store has the directory with a number.
    fn is_stored_directory(&self, number: u64, at: At) -> bool {
        self.view.has_directory_at(number, self.above(at), &self.item(at).name)
    }

    /// Whether one of a file's paths is where the store has the file with a number.
    fn is_stored_file(&self, number: u64, paths: &[At]) -> bool {
        let stored = self.view.files.get(&number).map(|file| &file.attributes.location);
        let is_at = |place: &Location| paths.iter().any(|at| self.is_at(*at, place));
        stored.and_then(Option::as_ref).is_some_and(is_at)
    }

    fn is_at(&self, at: At, place: &Location) -> bool {
        let disk = &self.disks[at.0];
        let (tier, base) =
            if disk.node.is_some() { (SSD, ROOT.0) } else { (SHARED, self.above(at)) };
        (&disk.node, tier, base) == (&place.node, place.tier, place.base)
            && disk.is_path(at.1, &place.path)
    }

    /// Where a file with a number is found from now on.
    fn place(&self, at: At, number: u64) -> Option<Location> {
        let (disk, node) = (&self.disks[at.0], self.disks[at.0].node.clone());
        let (tier, base) = if node.is_some() { (SSD, ROOT.0) } else { (SHARED, self.above(at)) };
        disk.path_in_store(at.1, number).map(|path| Location { node, tier, base, path })
    }

    fn directory(&mut self, at: At, number: u64, name: Name, is_numbered: bool) {
        let (item, parent) = (self.item(at), self.above(at));
        let (is_shared, attributes) = (at.0 == 0, item.attributes.clone());
        self.taken.insert((parent, name.clone()), Some(number));
        self.owners.insert(number, Owner::of(&attributes));
        let at = is_shared.then_some(at);
        let directory = FoundDirectory { number, parent, name, attributes, at, is_numbered };
        if let Some((0, at)) = directory.at {
            self.found.directory_at.insert(at, directory.number);
        }
        self.found.directories.push(directory);
    }

    /// Groups the copies of each file; SSDs first, because their directories are closed to others.
    fn files(&mut self) -> Result<()> {
        let disks = (1..self.disks.len()).chain([0]);
        // A file may have several paths on one disk.
        let mut copies: BTreeMap<(usize, (u64, u64)), Vec<At>> = BTreeMap::new();
        let mut order = Vec::new();
        for disk in disks {
            for at in self.of_kind(disk, |kind| kind == Kind::File) {
                let key = (disk, self.item(at).key);
                let paths = copies.entry(key).or_default();
                if paths.is_empty() {
                    order.push(key);
                }
                paths.push(at);
            }
        }
        let mut numbered: BTreeMap<(u64, u32, u32), Vec<Vec<At>>> = BTreeMap::new();
        let (mut groups, mut unnumbered) = (Vec::new(), Vec::new());
        for key in order {
            let paths = copies.remove(&key).unwrap_or_default();
            let item = self.item(paths[0]);
            match item.number.filter(|number| self.is_given(*number)) {
                None => unnumbered.push(paths),
                Some(number) => {
                    // A copy has the same owner: nobody can make a copy with another owner's.
                    let key = (number, item.attributes.uid, item.attributes.gid);
                    let group = numbered.entry(key).or_default();
                    if group.is_empty() {
                        groups.push(key);
                    }
                    group.push(paths);
                }
            }
        }
        // The first group that claims a number gets it.
        groups.sort_by_key(|key| {
            !numbered[key].iter().any(|paths| self.is_stored_file(key.0, paths))
        });
        for key in groups {
            let copies = numbered.remove(&key).unwrap_or_default();
            self.copies(key.0, copies)?;
        }
        for paths in unnumbered {
            if self.item(paths[0]).number.is_some() {
                self.told(paths[0], "it says that it is a file that was never made");
            }
            self.file(None, &paths)?;
        }
        self.name_files();
        Ok(())
    }

    /// Chooses among copies that claim a number. Of two made by a move, the one not written since is left over.
    fn copies(&mut self, number: u64, mut copies: Vec<Vec<At>>) -> Result<()> {
        let is_gone = missed_changes::is_gone(self, number);
        if is_gone || copies.iter().all(|paths| self.has_never_arrived(number, paths)) {
            let all = copies.iter().flatten().map(|path| (*path, number));
            self.found.never_arrived.extend(all);
            return Ok(());
        }
        copies.sort_by_cached_key(|paths| self.is_in_copied_directory(paths[0]));
        let stored = copies.iter().position(|paths| self.is_stored_file(number, paths));
        self.at_places.extend(stored.map(|_| number));
        let all = self.disks;
        let moves_of = |paths: &Vec<At>| {
            let item = &all[paths[0].0].scanned.items[paths[0].1];
            (item.leaving, item.arriving)
        };
        let chosen = {
            let by = |is: &dyn Fn((Option<u64>, Option<u64>)) -> bool| {
                copies.iter().position(|copy| is(moves_of(copy)))
            };
            let leaving = copies.iter().map(|copy| moves_of(copy).0);
            let newest = copies.iter().filter_map(|copy| moves_of(copy).1).max();
            stored
                .or_else(|| by(&|moves| moves == (None, None)))
                .or_else(|| precedence::left_last(leaving))
                .or_else(|| by(&|(_, arriving)| arriving == newest))
                .unwrap_or_default()
        };
        let mut beside = Vec::new();
        for (at, paths) in copies.iter().enumerate() {
            let (item, moves) = (self.item(paths[0]), moves_of(paths));
            if (at == chosen || moves == (None, None)) && put_back::has_left(self, number, paths) {
                self.found.never_arrived.extend(paths.iter().map(|path| (*path, number)));
            } else if at == chosen {
                let is_first = self.used.insert(number);
                if !is_first {
                    self.told(paths[0], put_back::OF_ANOTHER);
                }
                self.file(is_first.then_some(number), paths)?;
            } else if moves == (None, None)
                || ((stored.is_none() || paths[0].0 == copies[chosen][0].0)
                    && precedence::may_be_newer(item, self.item(copies[chosen][0])))
            {
                self.told(paths[0], put_back::BESIDE);
                self.file(None, paths)?;
                beside.push(paths[0]);
            } else {
                self.found.left_copies.extend(paths.iter().map(|path| (*path, number)));
            }
        }
        put_back::narrow(self, number, &beside);
        Ok(())
    }

    fn is_in_copied_directory(&self, at: At) -> bool {
        let above = self.item(at).above;
        above.is_some_and(|above| self.copied_directories.contains(&(at.0, above)))
    }

    /// Whether this is a copy whose move was never made, while its source is gone: then the file was removed.
    /// (A completed move removes the copy's attribute before the source.)
    fn has_never_arrived(&self, number: u64, paths: &[At]) -> bool {
        let item = self.item(paths[0]);
        let is_read = |from: &Location| self.disks.iter().any(|disk| disk.node == from.node);
        item.leaving.is_none()
            && item.arriving.is_some()
            && item.from.as_ref().is_some_and(is_read)
            && !self.is_stored_file(number, paths)
    }

    fn file(&mut self, number: Option<u64>, paths: &[At]) -> Result<()> {
        let (names, item) = (self.believed_names(number, paths), self.item(paths[0]));
        let renaming = item.renaming.clone();
        let renaming = renaming.filter(|renaming| {
            let is_replaced = renaming.kind == NotedKind::IsReplaced;
            number.is_some_and(|number| !(is_replaced && self.is_stored_file(number, paths)))
                && self.is_believed(paths, renaming.to.0)
        });
        let is_numbered = number.is_some();
        let is_beside = !is_numbered && item.number.is_some_and(|claimed| self.is_given(claimed));
        let number = number.map_or_else(|| self.numbers.fresh(), Ok)?;
        let mut attributes = item.attributes.clone();
        if is_beside {
            owner_only(&mut attributes);
        }
        attributes.location = self.place(paths[0], number);
        let (at, paths) = (paths[0], paths.to_vec());
        let file = FoundFile { number, names, attributes, at, paths, is_numbered };
        self.claims.push(Claim { file, renaming });
        Ok(())
    }

    /// Names the files as they claim, or otherwise if a name is taken.
    fn name_files(&mut self) {
        let mut claims = std::mem::take(&mut self.claims);
        let others = links_and_devices::names(self);
        let is_others = |name: &NameIn| self.taken.contains_key(name) || others.contains(name);
        for gone in half_made_renames::settle(&mut claims, &is_others) {
            let paths = gone.paths.iter().map(|path| (*path, gone.number));
            self.found.never_arrived.extend(paths);
        }
        precedence::order(&mut claims, &|claim| {
            let paths = claim.file.paths.iter();
            paths.map(|at| (self.above(*at), name_of(self.item(*at)))).collect()
        });
        // What a sound store has keeps its names, whatever else claims them.
        let view = self.view;
        claims.sort_by_key(|claim| !view.files.contains_key(&claim.file.number));
        for Claim { mut file, .. } in claims {
            if let Some(stored) = view.files.get(&file.number) {
                self.taken.extend(stored.names.iter().map(|name| (name.clone(), None)));
                self.found.files.push(file);
                continue;
            }
            for place in &mut file.names {
                if self.taken.contains_key(place) || view.names.contains(place) {
                    let shown = self.disks[file.at.0].shown(file.at.1);
                    let line = conflict(&shown, &place.1, file.number);
                    self.conflicts(file.at, file.number, line);
                    let [_, numbered] = candidates(&place.1, file.number);
                    place.1 = numbered;
                }
                self.taken.insert(place.clone(), None);
            }
            self.found.files.push(file);
        }
    }

    /// The credible names of a file: those in its attributes, or else those of its places.
    fn believed_names(&mut self, number: Option<u64>, paths: &[At]) -> Vec<(u64, Name)> {
        if let Some(names) = missed_changes::names(self, number, paths) {
            return names;
        }
        let item = self.item(paths[0]);
        let of_places = paths.iter().map(|at| (self.above(*at), name_of(self.item(*at))));
        // Only our files list names. If one has two places, a rename left them: one is enough.
        let most = if number.is_some() { 1 } else { usize::MAX };
        let of_places: Vec<_> = of_places.take(most).collect();
        if number.is_none() || item.names.is_empty() {
            return of_places;
        }
        let (believed, others): (Vec<_>, Vec<_>) =
            item.names.iter().cloned().partition(|name| self.is_believed(paths, name.0));
        let instead = of_places.first().filter(|place| !others.contains(place));
        let instead = instead.filter(|_| believed.is_empty()).map(|(_, name)| name);
        unbelieved_names::tell_of(self, (paths[0], number), (&others, instead));
        if believed.is_empty() { of_places } else { believed }
    }

    /// Whether a file with these paths may claim a name in a directory.
    fn is_believed(&self, paths: &[At], directory: u64) -> bool {
        let (disk, item) = (&self.disks[paths[0].0], self.item(paths[0]));
        let is_root_closed =
            disk.scanned.root.as_ref().is_some_and(|root| root.mode & NOT_OWNER == 0);
        let is_closed = disk.node.is_some() && (is_root_closed || item.above.is_some());
        let file = &item.attributes;
        match self.owners.get(&directory) {
            None => false,
            // Directories on SSDs are closed (except for the root, the operator's), so only we can have listed these.
            Some(_) if is_closed || paths.iter().any(|at| self.above(*at) == directory) => true,
            Some(of) => (of.uid == file.uid || file.uid == own_uid()) && of.admits_writers_of(file),
        }
    }
}
