//! What the names and files of a tier must be, whatever fails: what the last acknowledged change made of them, or one that
//! was not answered.
//!
//! Only one program at a time changes an item, on whichever node, so that its changes are made in their order: one that
//! comes too late, from a node that lost its lease, is seen as something that nobody acknowledged. Folders are renamed at any time, also while
//! others change what is in them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, TryLockError};
use std::time::Instant;

use crate::mount_contents::MountContents;

/// Files, each with some names.
pub(crate) const FILES: usize = 40;
/// Directories that are made, renamed and removed, behind the files.
pub(crate) const DIRECTORIES: usize = 8;
/// Directories in which all of these are.
pub(crate) const FOLDERS: usize = 4;
/// Of how many folders it may be unknown where they are: in the others there is always something to do.
const DOUBTFUL_MAX: usize = FOLDERS - 1;
/// Where folders are.
pub(crate) const PLACES: [&str; 2] = ["here", "there"];
/// A file beside them that is always there, and never has bytes: who opens it to write sees whether changes are made.
pub(crate) const PROBE: &str = "probe";
/// The longest file, in words.
pub(crate) const WORDS_MAX: usize = 2000;
pub(crate) const WORD: usize = 8;

/// A name in a folder.
pub(crate) type Name = (usize, String);

/// What an item is.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) names: BTreeSet<Name>,
    /// Of a file: which write each of its words is of.
    pub(crate) words: Vec<u64>,
    /// A write that was not answered: its first word, its number, and the first word behind it.
    pub(crate) unanswered: Option<(usize, u64, usize)>,
}

/// With the words of one write as one.
impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = self.words.chunk_by(|one, next| one == next);
        let words: Vec<String> = words.map(|of| format!("{} of {}", of.len(), of[0])).collect();
        write!(f, "names {:?}, words {}", self.names, words.join(", "))?;
        match self.unanswered {
            Some((start, write, end)) => {
                write!(f, ", {start} to {end} perhaps of {write}")
            }
            None => Ok(()),
        }
    }
}

impl Version {
    /// The same with one more name.
    pub(crate) fn with(&self, name: &Name) -> Self {
        let mut more = self.clone();
        more.names.insert(name.clone());
        more
    }

    /// The same without a name; nothing, if that was its last one.
    pub(crate) fn without(&self, name: &Name) -> Self {
        let mut less = self.clone();
        less.names.remove(name);
        if less.names.is_empty() { Self::default() } else { less }
    }

    fn may_be(&self, names: &BTreeSet<Name>, words: &[u64]) -> bool {
        let (start, write, end) = self.unanswered.unwrap_or_default();
        let may_be = |(at, word): (usize, &u64)| {
            self.words.get(at) == Some(word) || *word == write && (start..end).contains(&at)
        };
        let longest = self.words.len().max(end);
        *names == self.names
            && (self.words.len()..=longest).contains(&words.len())
            && words.iter().enumerate().all(may_be)
    }
}

/// A change that was not answered: either all of it was made, or nothing.
#[derive(Debug)]
struct Unanswered {
    items: Vec<usize>,
    /// What each of them may be.
    alternatives: Vec<Vec<Version>>,
}

/// What is known of all items.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// `None` until it is seen what became of an item.
    items: Vec<Mutex<Option<Version>>>,
    folders: Vec<RwLock<Vec<String>>>,
    /// How many of them are being renamed, or may have been.
    doubtful: Mutex<usize>,
    unanswered: Mutex<Vec<Unanswered>>,
    fresh: AtomicU64,
    counts: Mutex<BTreeMap<&'static str, u64>>,
    /// The changes that were not answered, for people.
    errors: Mutex<Vec<String>>,
    begun: Instant,
}

/// An item that nobody else changes meanwhile.
pub(crate) struct Held<'a> {
    pub(crate) item: usize,
    known: MutexGuard<'a, Option<Version>>,
}

impl Held<'_> {
    pub(crate) fn version(&self) -> &Version {
        self.known.as_ref().expect("only what is known is held")
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The word that a write has at a place of a file: one that lies elsewhere is no other place's.
pub(crate) fn word(item: usize, at: usize, write: u64) -> u64 {
    (item as u64 + 1) << 52 | (at as u64) << 40 | write
}

impl Ledger {
    pub(crate) fn new() -> Self {
        let item = || Mutex::new(Some(Version::default()));
        let folder = |folder| RwLock::new(vec![format!("{}/folder{folder}.0", PLACES[folder % 2])]);
        Self {
            items: std::iter::repeat_with(item).take(FILES + DIRECTORIES).collect(),
            folders: (0..FOLDERS).map(folder).collect(),
            doubtful: Mutex::default(),
            unanswered: Mutex::default(),
            fresh: AtomicU64::new(1),
            counts: Mutex::default(),
            errors: Mutex::default(),
            begun: Instant::now(),
        }
    }

    /// A number that none had before.
    pub(crate) fn fresh(&self) -> u64 {
        self.fresh.fetch_add(1, Ordering::SeqCst)
    }

    /// An item, if it is known and nobody else has it.
    pub(crate) fn hold(&self, item: usize) -> Option<Held<'_>> {
        let known = match self.items[item].try_lock() {
            Ok(known) => known,
            Err(TryLockError::WouldBlock) => return None,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
        };
        known.is_some().then_some(Held { item, known })
    }

    /// Where a folder is, while `act` looks: nobody renames it meanwhile. `None` if that is not known just now.
    pub(crate) fn in_folder<T>(&self, folder: usize, act: impl FnOnce(&str) -> T) -> Option<T> {
        let places = match self.folders[folder].try_read() {
            Ok(places) => places,
            Err(TryLockError::WouldBlock) => return None,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
        };
        match places.as_slice() {
            [place] => Some(act(place)),
            _ => None,
        }
    }

    /// Renames a folder by `act`. `None` if another one does just now, or it is not known where it is, or of too many.
    pub(crate) fn rename_folder(
        &self,
        folder: usize,
        to: String,
        act: impl FnOnce(&str, &str) -> io::Result<()>,
    ) -> Option<io::Result<()>> {
        let mut places = match self.folders[folder].try_write() {
            Ok(places) => places,
            Err(TryLockError::WouldBlock) => return None,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
        };
        let [from] = places.as_slice() else { return None };
        if !self.doubt_another() {
            return None;
        }
        let done = act(from, &to);
        self.count("renames of folders", done.is_ok());
        if done.is_err() {
            self.note_error(&format!("rename of {from} to {to}: {done:?}"));
            places.push(to);
        } else {
            *places = vec![to];
            *lock(&self.doubtful) -= 1;
        }
        Some(done)
    }

    /// Counts a folder that is about to be renamed; `false` if it must stay where it is.
    fn doubt_another(&self) -> bool {
        let mut doubtful = lock(&self.doubtful);
        let is_one_too_many = *doubtful == DOUBTFUL_MAX;
        *doubtful += usize::from(!is_one_too_many);
        !is_one_too_many
    }

    fn note_error(&self, error: &str) {
        let seconds = self.begun.elapsed().as_secs_f64();
        lock(&self.errors).push(format!("after {seconds:.3} s: {error}"));
    }

    /// Changes items by `act`, which makes `after` of them. Where it fails, they may be anything of `between`, or what they were.
    pub(crate) fn change(
        &self,
        what: &'static str,
        mut held: Vec<Held<'_>>,
        (after, between): (Vec<Version>, Vec<Vec<Version>>),
        act: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let done = act();
        self.count(what, done.is_ok());
        if done.is_ok() {
            for (held, after) in held.iter_mut().zip(after) {
                *held.known = Some(after);
            }
            return Ok(());
        }
        let before: Vec<Version> = held.iter().map(|held| held.version().clone()).collect();
        self.note_error(&format!("{what}: {done:?}, {before:?}"));
        let alternatives = [vec![before], between, vec![after]].concat();
        for held in &mut held {
            *held.known = None;
        }
        let items = held.iter().map(|held| held.item).collect();
        lock(&self.unanswered).push(Unanswered { items, alternatives });
        done
    }

    pub(crate) fn count(&self, what: &'static str, is_done: bool) {
        *lock(&self.counts).entry(if is_done { what } else { "not answered" }).or_default() += 1;
    }

    /// Holds what is seen, while nobody changes anything, against the ledger. What was not answered counts from now on as it was found.
    pub(crate) fn settle(&self, seen: &MountContents) {
        let mut directories = seen.directories.clone();
        for (folder, places) in self.folders.iter().enumerate() {
            let mut places = places.write().unwrap_or_else(PoisonError::into_inner);
            let there: Vec<String> =
                places.iter().filter(|place| directories.remove(*place)).cloned().collect();
            assert_eq!(there.len(), 1, "folder {folder} is at {there:?}, of {places:?}");
            *places = there;
        }
        *lock(&self.doubtful) = 0;
        for place in PLACES {
            assert!(directories.remove(place), "{place} is lost");
        }
        let mut found = seen.items(&directories, |path| self.folder_of(path));
        let mut take = |item: usize| found.remove(&item).unwrap_or_default();
        let (mut states, mut wrong) = (Vec::new(), Vec::new());
        for item in 0..self.items.len() {
            let version = take(item);
            if let Some(known) = &*lock(&self.items[item])
                && !known.may_be(&version.names, &version.words)
            {
                wrong.push(format!("item {item}: {}", differs(known, &version)));
            }
            states.push(version);
        }
        for one in lock(&self.unanswered).drain(..) {
            let is_one = |alternative: &Vec<Version>| {
                let mut all = alternative.iter().zip(&one.items);
                all.all(|(version, item)| {
                    version.may_be(&states[*item].names, &states[*item].words)
                })
            };
            if !one.alternatives.iter().any(is_one) {
                for (at, item) in one.items.iter().enumerate() {
                    let may_be =
                        one.alternatives.iter().map(|all| differs(&all[at], &states[*item]));
                    wrong.push(format!("item {item}: {:?}", may_be.collect::<Vec<_>>()));
                }
            }
        }
        assert!(found.is_empty(), "nobody made {found:?}");
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        for (item, version) in self.items.iter().zip(states) {
            *lock(item) = Some(version);
        }
    }

    fn folder_of(&self, path: &str) -> Option<usize> {
        self.folders.iter().position(|places| {
            *places.read().unwrap_or_else(PoisonError::into_inner) == [path.to_owned()]
        })
    }

    /// The latest changes that were not answered.
    pub(crate) fn errors(&self) -> Vec<String> {
        lock(&self.errors).iter().rev().take(20).cloned().collect()
    }

    /// For people: of how much it is known what it is. Who changes something has it meanwhile.
    pub(crate) fn known(&self) -> String {
        let items = self.items.iter().filter(|item| match item.try_lock() {
            Ok(known) => known.is_some(),
            Err(_) => true,
        });
        let folders = self.folders.iter().filter(|folder| match folder.try_read() {
            Ok(places) => places.len() == 1,
            Err(_) => true,
        });
        let (items, folders) = (items.count(), folders.count());
        format!(
            "{items} of {} items and {folders} of {FOLDERS} folders are known",
            self.items.len()
        )
    }

    /// For people.
    pub(crate) fn summary(&self) -> String {
        let counts = lock(&self.counts);
        let counts: Vec<String> =
            counts.iter().map(|(what, count)| format!("{count} {what}")).collect();
        counts.join(", ")
    }
}

/// For people: what should be, and what is there.
fn differs(known: &Version, seen: &Version) -> String {
    let at = (0..known.words.len().max(seen.words.len()))
        .find(|at| known.words.get(*at) != seen.words.get(*at));
    let Some(at) = at else {
        return format!("names {:?}, there are {:?}", known.names, seen.names);
    };
    format!(
        "names {:?} with {} words, there are {:?} with {}; word {at} is of {:?}, not of {:?} ({:?} was not answered)",
        known.names,
        known.words.len(),
        seen.names,
        seen.words.len(),
        seen.words.get(at),
        known.words.get(at),
        known.unanswered
    )
}
