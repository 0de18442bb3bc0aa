//! Files that wait to be archived, and copies that are not where their files are.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::copy_records::CopyRecords;
use super::foundation::Foundation;
use super::inode::Inode;
use super::options::TierOptions;
use super::residents::{Resident, Residents};
use super::tiers::{Entry, Tiers};
use halocline_api::config::Copies;
use halocline_api::control::tier::Moved;
use halocline_os::clock::Clock;

#[derive(Debug, Default)]
struct State {
    waiting: FxHashMap<Entry, Waiting>,
    /// Files whose copies are not at the paths of their names.
    strayed: HashSet<Entry>,
    /// Any file may have strayed: a directory was renamed.
    all_strayed: bool,
    /// Why a file was not archived, the last time that happened.
    trouble: Option<String>,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    since: Instant,
    /// It is not examined before this time.
    at: Instant,
}

/// For `status`: the files that have no clean copy yet.
#[derive(Debug, Default)]
pub(super) struct Unarchived {
    pub(super) files: Moved,
    /// How long the oldest has waited.
    pub(super) oldest: Option<Duration>,
    pub(super) trouble: Option<String>,
}

/// What waits to be archived.
#[derive(Debug)]
pub(super) struct ArchiveQueue {
    tiers: Arc<Tiers>,
    residents: Arc<Residents>,
    copy_records: Arc<CopyRecords>,
    options: Arc<TierOptions>,
    clock: Clock,
    state: Mutex<State>,
}

impl ArchiveQueue {
    /// Built over the components that it uses.
    pub(super) fn new(base: &Foundation) -> Self {
        Self {
            tiers: base.tiers.clone(),
            residents: base.residents.clone(),
            copy_records: base.copy_records.clone(),
            options: base.options.clone(),
            clock: base.clock.clone(),
            state: Mutex::default(),
        }
    }

    fn archives(&self) -> bool {
        self.options.copies == Copies::Archive
    }

    /// Notes that a file on the SSD has no clean copy.
    pub(super) fn add(&self, entry: Entry, resident: &Resident) {
        if !self.archives() || resident.clean.waits.swap(true, Ordering::AcqRel) {
            return;
        }
        let now = self.clock.instant();
        let waiting = Waiting { since: now, at: now + self.options.archive_after };
        self.state.lock().waiting.entry(entry).or_insert(waiting);
    }

    /// The same for a file that was just created.
    pub(super) fn add_made(&self, inode: &Inode) {
        let place = inode.place.read();
        if let Some(resident) = &place.resident {
            self.add(place.entry.key(), resident);
        }
    }

    /// Called before a file is examined: one that changes from now on waits again, whatever is found.
    pub(super) fn begin(resident: &Resident) {
        // The change that is forgotten here is seen by the examination.
        resident.clean.waits.swap(false, Ordering::AcqRel);
    }

    /// Notes that an examined file needs no copy, if it has not changed since.
    pub(super) fn needless(&self, entry: Entry, resident: &Resident) {
        let mut state = self.state.lock();
        if !resident.clean.waits.load(Ordering::Acquire) {
            state.waiting.remove(&entry);
        }
    }

    /// Notes that a file has a clean copy. Nobody can change the file meanwhile.
    pub(super) fn done(&self, entry: Entry, resident: &Resident) {
        resident.clean.waits.store(false, Ordering::Release);
        self.state.lock().waiting.remove(&entry);
    }

    /// Notes that a file with a copy was renamed.
    pub(super) fn strayed(&self, entry: Entry) {
        self.state.lock().strayed.insert(entry);
    }

    /// Notes that a directory was renamed.
    pub(super) fn all_strayed(&self) {
        if (1..self.tiers.dirs().len()).any(|tier| self.copy_records.bytes_on(tier) > 0) {
            self.state.lock().all_strayed = true;
        }
    }

    /// Files that should have a clean copy but have none.
    pub(super) fn unarchived(&self) -> Unarchived {
        let (waiting, trouble) = {
            let state = self.state.lock();
            let waiting: Vec<_> =
                state.waiting.iter().map(|(entry, of)| (*entry, of.since)).collect();
            (waiting, state.trouble.clone())
        };
        let mut told = Unarchived { trouble, ..Unarchived::default() };
        for (entry, since) in waiting {
            let Some(resident) = self.residents.get(entry) else { continue };
            told.files.files += 1;
            told.files.bytes += resident.bytes();
            told.oldest = told.oldest.max(Some(self.clock.elapsed(since)));
        }
        told
    }

    /// Files that may be archived by now.
    pub(super) fn due(&self) -> Vec<(Entry, Arc<Resident>)> {
        let now = self.clock.instant();
        let mut due = Vec::new();
        self.state.lock().waiting.retain(|entry, waiting| {
            let resident = self.residents.get(*entry);
            due.extend(
                resident.iter().filter(|_| waiting.at <= now).map(|it| (*entry, it.clone())),
            );
            resident.is_some()
        });
        due
    }

    /// Postpones the next examination of a file until `after` has passed.
    pub(super) fn put_off(&self, entry: Entry, after: Duration) {
        if let Some(waiting) = self.state.lock().waiting.get_mut(&entry) {
            waiting.at = self.clock.instant() + after;
        }
    }

    /// Notes why a file was not archived.
    pub(super) fn failed(&self, trouble: String) {
        self.state.lock().trouble = Some(trouble);
    }

    /// Files whose copies may not be at the paths of their names.
    pub(super) fn take_strayed(&self) -> HashSet<Entry> {
        let (mut strayed, all) = {
            let mut state = self.state.lock();
            (std::mem::take(&mut state.strayed), std::mem::take(&mut state.all_strayed))
        };
        if all {
            let residents = self.residents.all();
            let with_copy = residents.into_iter().filter(|(_, resident)| resident.clean.has_copy());
            strayed.extend(with_copy.map(|(entry, _)| entry));
        }
        strayed
    }
}
