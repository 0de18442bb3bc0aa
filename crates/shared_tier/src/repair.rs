//! `halocline cluster fsck --tier`: compares the names in the store with the disks, or rebuilds them from the disks.
//!
//! What must hold:
//! - Without `repair` nothing is changed.
//! - A store that may have forgotten names is rebuilt from the disks. In a sound one no name is removed or changed:
//!   files on a node that is not reached keep their names, and files of a node that was missing at a rebuild get
//!   theirs when it is back.
//! - The only files removed are copies whose own attributes say that a move left them, whose file has the same owner
//!   and another place in the store. Everything else without a name is set aside, in `.halocline/leftovers`.
//! - A killed repair leaves a store that is not used, and that the next repair rebuilds.

mod build;
mod confirmed;
mod conflicts;
mod copies;
mod disks;
mod findings;
mod found_elsewhere;
mod leftovers;
mod links_and_devices;
mod long_lists;
mod looks;
mod lost;
mod merge;
mod named;
mod numbering;
mod numbers;
pub(crate) mod refused;
mod report;
pub(crate) mod scan;
mod settle;
mod ssd_numbers;
mod stored_attributes;
mod unfinished_changes;
mod unread;
mod unseen;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use halocline_cluster::names::{NameStore, NamesError, State, check};
use halocline_model::namespace::Name;
use halocline_model::token::Session;
use halocline_os::error::{Error, Result};
use halocline_os::shown_name::shown_name;

use crate::disk_users::Alone;
use crate::entry_names::may_name;
use crate::errors;
use crate::places::tree::candidates;
use build::Build;
use conflicts::conflict;
use copies::{CleanCopies, StandIn};
use disks::{Disk, Disks};
use findings::{About, Finding, Findings, note};
use leftovers::{Leftovers, PutBack};
use looks::look;
use merge::{At, FoundDirectory, FoundFile, FoundNames, Numbers, is_in, merge};
use numbering::Unnamed;
use numbers::StoreNumbers;
use refused::Refused;
use scan::{Item, tell};
use stored_attributes::Differing;
use unfinished_changes::{UnfinishedChanges, lies_at, unfinished_changes};
use view::{View, positions};

pub use confirmed::confirm;
pub use looks::check;
pub use report::Report;

fn of_store(error: impl Into<NamesError>) -> Error {
    match error.into() {
        error @ NamesError::Stale => Error::Cluster {
            what: error.to_string(),
            remedy: "wait until no other check or repair runs, and begin again".to_owned(),
        },
        error => errors::of_store(&error),
    }
}

/// Compares the names of the tier at `root` with its disks, or, with `repair`, repairs them. Other nodes' SSDs are
/// reached by the pattern `peers`. With `repair`, no node may use the tier meanwhile.
///
/// # Errors
/// If the store does not answer, or the shared disk cannot be read.
pub fn run(
    root: &Path,
    peers: Option<&str>,
    store: &dyn NameStore,
    repair: Option<&Alone>,
) -> Result<Report> {
    if repair.is_none() {
        return look((root, peers), store, &BTreeSet::new()).map(Findings::report);
    }
    let disks = Disks::read(root, peers)?;
    let state = store.refresh().map_err(of_store)?;
    let is_sound = is_sound(&state, &disks)?;
    if is_sound {
        check::clean(store).map_err(of_store)?;
    } else {
        disks.refuse_unread()?;
        numbering::refuse_to_lose(&disks)?;
        disks.set_rebuilding(true)?;
    }
    store.begin_epoch(true).map_err(of_store)?;
    let done = leftovers::put_back((root, peers), disks, store, is_sound)
        .and_then(|(disks, back)| change(disks, store, (is_sound, back)));
    // In a sound store no name was removed or changed: nodes use it as before, whatever has failed.
    if is_sound || done.is_ok() {
        store.begin_epoch(false).map_err(of_store)?;
    }
    done.map_err(|error| if is_sound { error } else { refused::half_rebuilt(error) })
}

/// Puts names and disks in order. Nobody else uses them.
fn change(
    mut disks: Disks,
    store: &dyn NameStore,
    (is_sound, back): (bool, PutBack),
) -> Result<Report> {
    let mut numbers = StoreNumbers::new(store)?;
    let mut view = if is_sound { View::read(store).map_err(of_store)? } else { View::default() };
    if is_sound {
        long_lists::read_by_name(&mut disks, &view);
    }
    let disks = &disks;
    let mut found = merge(&disks.all, &view, &mut numbers)?;
    let mut clean = CleanCopies::read(disks, (&mut found, &view), !is_sound, &numbers)?;
    let moved = found_elsewhere::follow(disks, &mut view, &found);
    let nobody = BTreeSet::new();
    let mut repair = Repair::new(disks, view, (!is_sound, &nobody))?;
    let mut findings = repair.plan(&found)?;
    found_elsewhere::tell(&moved, &repair, &mut findings);
    clean.plan(&repair, &found, &mut findings);
    let mut report = findings.report();
    let mut refused = Refused::default();
    let planned = repair.counts();
    numbering::number(&mut repair, (&found, &clean.stand_ins), &mut refused)?;
    let are = repair.counts();
    report.named.iter_mut().zip(planned).zip(are).for_each(|((named, all), is)| *named -= all - is);
    ssd_numbers::give((disks, &repair.unnamed), &found, &mut refused);
    let names = (&found, &*clean.stand_ins);
    repair.write(names, store, &mut numbers, &mut report.conflicts)?;
    clean.clear_away(disks, &mut refused)?;
    found_elsewhere::write(&moved, disks, (store, &repair.view), &mut refused)?;
    let given = stored_attributes::give_disks(&repair, &mut refused)?;
    stored_attributes::take(store, &repair.view, &given).map_err(of_store)?;
    settle::clear_move_xattrs(&disks.all, &found, &mut refused)?;
    repair.clear_away(&mut refused)?;
    settle::directories(&disks.all[0], &found, store, &mut refused)?;
    let missing = disks.missing.iter().map(|(node, _)| node.clone());
    let missing = missing.filter(|node| repair.is_missed(node));
    let missing: Vec<String> = missing.chain(numbering::nodes_to_wait_for(&repair)).collect();
    disks.note_nodes()?;
    disks.keep_missing(&missing)?;
    disks.forget_missed(&refused)?;
    disks.agree_on_counts(&mut refused)?;
    disks.set_formatted()?;
    disks.set_rebuilding(false)?;
    refused.add_to(&mut report);
    back.done.into_iter().for_each(|line| tell(&mut report.attributes, line));
    back.refused.into_iter().for_each(|line| tell(&mut report.told, line));
    Ok(report)
}

fn is_sound(state: &State, disks: &Disks) -> Result<bool> {
    Ok(matches!(state, State::Confirmed | State::Held) && !disks.is_rebuilding()?)
}

/// The work to be done.
struct Repair<'a> {
    disks: &'a Disks,
    view: View,
    is_rebuilt: bool,
    /// Sessions that may be at work.
    live: &'a BTreeSet<Session>,
    /// Nodes whose files may have lost their names in the last rebuild.
    were_missing: BTreeSet<String>,
    /// Indices of items that get names.
    directories: Vec<usize>,
    files: Vec<usize>,
    others: Vec<usize>,
    aside: Vec<(At, u64)>,
    copies: Vec<At>,
    differing: Vec<Differing>,
    unfinished_changes: UnfinishedChanges,
    unnamed: Unnamed,
    /// Files that are lost, and were set aside.
    leftovers: Leftovers,
}

impl<'a> Repair<'a> {
    fn new(
        disks: &'a Disks,
        view: View,
        (is_rebuilt, live): (bool, &'a BTreeSet<Session>),
    ) -> Result<Self> {
        let were_missing = disks.were_missing()?;
        let leftovers = leftovers::find(disks, &view)?;
        Ok(Self {
            disks,
            view,
            is_rebuilt,
            live,
            were_missing,
            directories: Vec::new(),
            files: Vec::new(),
            others: Vec::new(),
            aside: Vec::new(),
            copies: Vec::new(),
            differing: Vec::new(),
            unfinished_changes: UnfinishedChanges::default(),
            unnamed: Unnamed::default(),
            leftovers,
        })
    }

    fn disk(&self, at: At) -> &'a Disk {
        &self.disks.all[at.0]
    }

    fn path(&self, at: At) -> String {
        self.disk(at).shown(at.1)
    }

    /// Whether files of a node that is missing now may be without names afterwards.
    fn is_missed(&self, node: &str) -> bool {
        self.is_rebuilt || self.were_missing.contains(node)
    }

    /// Plans the work.
    fn plan(&mut self, found: &FoundNames) -> Result<Findings> {
        let mut findings = Findings {
            is_rebuilt: self.is_rebuilt,
            missing: lost::missing(self),
            read: self.disks.all.iter().filter_map(|disk| disk.node.clone()).collect(),
            told: found.told.clone(),
            not_rebuilt: found.not_rebuilt.clone(),
            ..Findings::default()
        };
        unread::tell_all(self, &mut findings);
        long_lists::tell_all(self, &mut findings);
        for line in self.disks.older()? {
            findings.is_disk_older = true;
            note(&mut findings.told, Finding::new(About::Line, line));
        }
        let mut places = BTreeMap::new();
        for (at, file) in found.files.iter().enumerate() {
            places.insert(file.number, (file, file.attributes.location.clone()));
            if self.view.files.contains_key(&file.number) {
                let item = &self.disk(file.at).scanned.items[file.at.1];
                let is_moving = item.leaving.is_some() || item.arriving.is_some();
                if is_moving && self.leads_elsewhere(file.at, file.number, found) {
                    self.left_copy((file.at, file.number), &mut findings);
                }
                continue;
            }
            if self.is_rebuilt || !file.is_numbered || self.was_missing(file) {
                self.files.push(at);
            } else {
                let about = About::Numbered(file.number, 0);
                note(&mut findings.set_aside, Finding::new(about, self.path(file.at)));
                self.aside.push((file.at, file.number));
            }
        }
        for (at, number) in &found.never_arrived {
            self.note(&mut findings.set_aside, *at);
            if let Some(last) = findings.set_aside.last_mut() {
                last.add(&named::where_its_file_is(self, (*at, *number), found));
            }
        }
        self.aside.extend(&found.never_arrived);
        numbering::leave_out_files(self, found, &mut findings);
        self.plan_directories(found, &mut findings);
        numbering::leave_out_directories(self, found, &mut findings)?;
        self.differing = stored_attributes::compare(self, found, &mut findings);
        lost::look_at_places(self, &places, found, &mut findings);
        for (at, number) in &found.left_copies {
            let is_elsewhere = self.is_rebuilt || self.leads_elsewhere(*at, *number, found);
            if is_elsewhere && places.contains_key(number) {
                self.left_copy((*at, *number), &mut findings);
            }
        }
        self.name(found, &mut findings);
        named::tell(self, found, &mut findings);
        self.plan_unfollowed(found, &mut findings);
        Ok(findings)
    }

    fn item(&self, at: At) -> &'a Item {
        &self.disk(at).scanned.items[at.1]
    }

    /// Notes something on a disk that does not belong there.
    fn note(&self, list: &mut Vec<Finding>, at: At) {
        let item = self.item(at);
        let line = match item.users_name() {
            Some(name) => format!("{}, called {}", self.path(at), shown_name(name)),
            None => self.path(at),
        };
        note(list, Finding::new(About::item(item), line));
    }

    /// A copy that a move has left, unless that move is under way.
    fn left_copy(&mut self, (at, number): (At, u64), findings: &mut Findings) {
        let mover = self.view.files.get(&number).and_then(|file| file.attributes.writer);
        if mover.is_some_and(|mover| self.live.contains(&mover)) {
            findings.under_way += 1;
            return;
        }
        self.note(&mut findings.left_copies, at);
        self.copies.push(at);
    }

    /// How many directories, files and other things get names.
    fn counts(&self) -> [u64; 3] {
        [&self.directories, &self.files, &self.others].map(|all| all.len() as u64)
    }

    /// What gets names.
    fn name(&self, found: &FoundNames, findings: &mut Findings) {
        findings.named = self.counts();
        if self.is_rebuilt {
            return;
        }
        let of = |at: Option<At>| at.map_or(About::Line, |at| About::item(self.item(at)));
        let directories = self.directories.iter().map(|at| of(found.directories[*at].at));
        let files = self.files.iter().map(|at| of(Some(found.files[*at].at)));
        let others = self.others.iter().map(|at| of(Some(found.others[*at].at)));
        findings.newly_named = [directories.collect(), files.collect(), others.collect()];
    }

    fn plan_unfollowed(&mut self, found: &FoundNames, findings: &mut Findings) {
        let gone = self.copies.iter().copied().chain(self.aside.iter().map(|(at, _)| *at));
        let all = unfinished_changes(self.disks, (&self.view, self.is_rebuilt), found, gone);
        all.left_paths(self.disks).for_each(|at| self.note(&mut findings.left_copies, at));
        let missed = self.disks.missed();
        for (at, _) in &all.relisted {
            let Some(number) = self.item(*at).number else { continue };
            // A node that lives is about to record them.
            if !self.live.is_empty() && missed.contains(&number) {
                findings.under_way += 1;
                continue;
            }
            let finding = Finding::new(self.view.about(number), self.path(*at));
            note(&mut findings.relisted, finding);
        }
        all.others.iter().for_each(|at| self.note(&mut findings.set_aside, *at));
        ssd_numbers::plan(self, found, findings);
        let shared = &self.disks.all[0];
        let found_by = (found, !self.live.is_empty());
        findings.under_way +=
            links_and_devices::tell_missing(shared, &self.view, found_by, &mut findings.remade);
        // Directories on SSDs are made as files need them, so they are no loss.
        let on_shared_disk = all.directories.iter().filter(|at| at.0 == 0);
        on_shared_disk.for_each(|at| self.note(&mut findings.left_directories, *at));
        self.unfinished_changes = all;
    }

    /// Directories and things without numbers. A numbered directory that a sound store does not know was removed, or
    /// its maker died: it gets its name back only if something in it needs it.
    fn plan_directories(&mut self, found: &FoundNames, findings: &mut Findings) {
        let all: BTreeMap<_, _> = found.directories.iter().map(|one| (one.number, one)).collect();
        let is_by_hand = |number: u64| all.get(&number).is_some_and(|one| !one.is_numbered);
        self.others = positions(&found.others, |one| {
            let is_new = !self.view.names.contains(&(one.directory, one.name.clone()));
            is_new && (self.is_rebuilt || is_by_hand(one.directory))
        });
        let of_files = self.files.iter().flat_map(|at| &found.files[*at].names);
        let of_others = self.others.iter().map(|at| found.others[*at].directory);
        let mut needed = BTreeSet::new();
        for mut number in of_files.map(|(directory, _)| *directory).chain(of_others) {
            while let Some(directory) = all.get(&number) {
                if !needed.insert(number) {
                    break;
                }
                number = directory.parent;
            }
        }
        // On SSDs, directories are only made as files need them.
        let is_put_there = |one: &FoundDirectory| !one.is_numbered && one.at.is_some();
        self.directories = positions(&found.directories, |one| {
            !self.view.directories.contains_key(&one.number)
                && (self.is_rebuilt || is_put_there(one) || needed.contains(&one.number))
        });
        for (number, (parent, name)) in &self.view.directories {
            let is_right = all
                .get(number)
                .is_some_and(|one| one.at.is_some() && one.parent == *parent && one.name == *name);
            if !is_right {
                let path = self.view.path(*parent, name);
                note(&mut findings.remade, Finding::new(self.view.about(*number), path));
            }
        }
    }

    fn was_missing(&self, file: &FoundFile) -> bool {
        let node = self.disk(file.at).node.as_ref();
        node.is_some_and(|node| self.were_missing.contains(node))
    }

    /// Whether the store has another place for a file than this copy's.
    fn leads_elsewhere(&self, at: At, number: u64, found: &FoundNames) -> bool {
        let Some(file) = self.view.files.get(&number) else { return false };
        let Some(place) = &file.attributes.location else { return false };
        let (disk, item) = (self.disk(at), &self.disk(at).scanned.items[at.1]);
        let is_here = disk.node == place.node
            && disk.is_path(at.1, &place.path)
            && (disk.node.is_some() || is_in(item.above, place.base, found));
        !is_here && lies_at(self.disks, place, number, found)
    }

    fn write(
        &self,
        (found, stand_ins): (&FoundNames, &[StandIn]),
        store: &dyn NameStore,
        numbers: &mut dyn Numbers,
        conflicts: &mut Vec<String>,
    ) -> Result<()> {
        let mut build = Build::new(store);
        if self.is_rebuilt {
            for shard in store.shards().map_err(of_store)? {
                store.remove(shard).map_err(of_store)?;
            }
            build.root(&self.disks.root()).map_err(of_store)?;
        }
        let mut taken = self.view.names.clone();
        let mut free = |directory: u64, name: &Name, number: u64| {
            let [plain, numbered] = candidates(name, number);
            // Whatever a scan found, no single name stops a rebuild.
            let is_taken = taken.contains(&(directory, plain.clone()));
            let is_free = !is_taken && may_name(directory, &plain);
            let name = if is_free { plain } else { numbered };
            taken.insert((directory, name.clone()));
            name
        };
        for at in &self.directories {
            let FoundDirectory { number, parent, name, attributes, .. } = &found.directories[*at];
            let name = free(*parent, name, *number);
            build.directory(*number, (*parent, name), attributes).map_err(of_store)?;
        }
        for at in &self.files {
            let FoundFile { number, names: wanted, attributes, at, .. } = &found.files[*at];
            let names = wanted
                .iter()
                .map(|(directory, name)| (*directory, free(*directory, name, *number)));
            let names: Vec<_> = names.collect();
            for ((_, wanted), (_, name)) in wanted.iter().zip(&names) {
                if name != wanted {
                    tell(conflicts, conflict(&self.path(*at), wanted, *number));
                }
            }
            build.file(*number, &names, attributes, numbers).map_err(of_store)?;
        }
        for StandIn { number, name: (directory, name), attributes } in stand_ins {
            let free = free(*directory, name, *number);
            if free != *name {
                let what = format!("the copy of {}", shown_name(name.as_bytes()));
                tell(conflicts, conflict(&what, name, *number));
            }
            build.file(*number, &[(*directory, free)], attributes, numbers).map_err(of_store)?;
        }
        let others: Vec<_> = self.others.iter().map(|at| &found.others[*at]).collect();
        let several = &self.disks.all[0].several;
        for one in links_and_devices::numbered(&others, (several, self.is_rebuilt), numbers)? {
            build.file(one.number, &one.names, &one.attributes, numbers).map_err(of_store)?;
        }
        build.end().map_err(of_store)
    }

    /// Runs after everything has its name.
    fn clear_away(&self, refused: &mut Refused) -> Result<()> {
        for at in &self.copies {
            // Without the copy, one of which an attribute says that it arrives would be a file that was removed.
            let number = self.item(*at).number.unwrap_or(0);
            let path = self.path(*at);
            if refused.has(number) {
                refused.add_path(path);
                continue;
            }
            let removed = self.disk(*at).remove(at.1);
            refused.is_made((&path, number), "the copy that a move left stays", removed)?;
        }
        for (at, number) in &self.aside {
            let (disk, path) = (self.disk(*at), self.path(*at));
            let aside = disk.set_aside(at.1, *number);
            refused.is_made((&path, *number), STAYS, aside)?;
        }
        self.unfinished_changes.put_right(self.disks, refused)
    }
}

/// What is said of something without a name that could not be set aside.
const STAYS: &str = "it cannot be set aside, and stays";

#[cfg(test)]
mod forged_tests;
#[cfg(test)]
pub(crate) mod tests;
