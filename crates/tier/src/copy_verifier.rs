//! Decides which records of clean copies are valid when the tiers are mounted or checked.
//!
//! What must hold: a doubtful copy is not believed. It is removed if it is still what we made and its file exists. A
//! copy that somebody changed, or whose file is gone although no mount removed it, is a file in its own right, like
//! anything else that was put there.

use std::path::PathBuf;
use std::sync::Arc;

use rustix::io::Errno;

use super::archive_queue::ArchiveQueue;
use super::copy_records::{CopyRecord, CopyRecords};
use super::foundation::Foundation;
use super::leftover_intents::{LeftoverIntent, LeftoverIntents};
use super::options::TierOptions;
use super::residents::Residents;
use super::stamp::{Stamp, is_closed};
use super::survey::Survey;
use super::tiers::Tiers;
use halocline_api::config::Copies;
use halocline_api::control::tier::Problem;
use halocline_os::error::Result;
use halocline_vfs::Stat;
use halocline_vfs::namespace::stat_descriptor;

/// A copy that is clean.
struct CleanCopy {
    /// On disk.
    bytes: u64,
    /// It is elsewhere than at the path of its file's name, or is closed because it was.
    astray: bool,
}

/// The validity of a record.
enum Verdict {
    /// Both are what they were.
    Clean(CleanCopy),
    /// The file has changed, or has another copy.
    Stale,
    /// The copy is gone.
    Gone,
    /// The copy is no longer ours.
    Void,
    /// Its tier does not answer.
    Unknown,
}

/// Decides which records are valid.
#[derive(Debug)]
pub(super) struct CopyVerifier {
    tiers: Arc<Tiers>,
    residents: Arc<Residents>,
    intents: Arc<LeftoverIntents>,
    copy_records: Arc<CopyRecords>,
    options: Arc<TierOptions>,
    archive_queue: Arc<ArchiveQueue>,
}

impl CopyVerifier {
    /// Built over the components that it uses.
    pub(super) fn new(base: &Foundation, archive_queue: &Arc<ArchiveQueue>) -> Self {
        Self {
            tiers: base.tiers.clone(),
            residents: base.residents.clone(),
            intents: base.intents.clone(),
            copy_records: base.copy_records.clone(),
            options: base.options.clone(),
            archive_queue: archive_queue.clone(),
        }
    }

    /// Judges records; with `mend`, attaches clean copies to their files and retires the other records. Returns what is
    /// now left over in addition to the `intents`.
    pub(super) fn verify(
        &self,
        records: Vec<CopyRecord>,
        intents: &[LeftoverIntent],
        survey: &mut Survey,
        mend: bool,
    ) -> Result<Vec<LeftoverIntent>> {
        if mend && (self.options.copies != Copies::None || !records.is_empty()) {
            let fresh = self.tiers.next_name();
            self.copy_records.begin_era(fresh)?;
        }
        let mut leftovers = Vec::new();
        for record in records {
            let place = (record.tier, record.place.clone());
            let other = self.tiers.dirs()[record.tier].path.join(&record.place);
            let verdict = self.judge(&record, intents, survey);
            let path = || {
                let file = survey.recorded.get(&record.file.inode).and_then(Option::as_ref);
                file.map_or_else(PathBuf::new, |file| file.path.clone())
            };
            match verdict {
                Verdict::Clean(CleanCopy { bytes: disk_bytes, astray }) => {
                    survey.copies.insert(place);
                    if let Some(Some(file)) = survey.recorded.get_mut(&record.file.inode) {
                        file.has_copy = true;
                    }
                    if mend {
                        self.attach(CopyRecord { disk_bytes, ..record }, astray);
                    }
                }
                // A copy that is gone may not be durably gone.
                Verdict::Stale | Verdict::Gone if mend => {
                    let id = format!("{}-stale", self.tiers.fresh_name());
                    leftovers.push(self.copy_records.retire(&record, &self.intents, id)?);
                }
                Verdict::Stale => {
                    let problem = Problem::CopyDiffers { path: path(), other };
                    survey.found.problems.push(problem);
                    survey.copies.insert(place);
                }
                Verdict::Void if mend => self.copy_records.forget(&record)?,
                Verdict::Gone => {
                    let problem = Problem::CopyGone { path: path(), other };
                    survey.found.problems.push(problem);
                }
                Verdict::Void | Verdict::Unknown => {}
            }
        }
        Ok(leftovers)
    }

    fn judge(&self, record: &CopyRecord, intents: &[LeftoverIntent], survey: &Survey) -> Verdict {
        let place = (record.tier, record.place.clone());
        if survey.named.contains_key(&place) || survey.copies.contains(&place) {
            return Verdict::Void;
        }
        let copy = match self.tiers.dirs()[record.tier].look(&record.place) {
            Ok(fd) => stat_descriptor(&fd),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Verdict::Gone,
            Err(errno) => Err(errno.into()),
        };
        let Ok(copy) = copy else { return Verdict::Unknown };
        let file = survey.recorded.get(&record.file.inode).and_then(Option::as_ref);
        match file {
            None => Verdict::Void,
            Some(_) if self.is_half_moved(record, &copy, intents) => Verdict::Stale,
            Some(_) if !record.copy.is(&copy) => Verdict::Void,
            Some(file) if record.file.is(&file.stat) && !file.has_copy => {
                let astray = file.path != record.place || is_closed(&copy);
                Verdict::Clean(CleanCopy { bytes: copy.disk_bytes(), astray })
            }
            Some(_) => Verdict::Stale,
        }
    }

    /// Whether a copy that nobody changed has a second name at the place of an intent: if rename supports no flags, a
    /// move is made by a link, and a mount that is killed in the middle leaves both names.
    fn is_half_moved(&self, record: &CopyRecord, copy: &Stat, intents: &[LeftoverIntent]) -> bool {
        let now = Stamp::of(copy);
        let is_same = |intent: &LeftoverIntent| {
            let found = self.tiers.dirs()[intent.tier].look(&intent.place).map(stat_descriptor);
            matches!(found, Ok(Ok(found)) if Stamp::of(&found) == now)
        };
        copy.kind() == libc::S_IFREG
            && copy.raw.st_nlink == 2
            && now == (Stamp { changed: now.changed, ..record.copy })
            && intents
                .iter()
                .any(|one| one.tier == record.tier && one.place != record.place && is_same(one))
    }

    /// Gives a file its copy.
    fn attach(&self, record: CopyRecord, astray: bool) {
        let entry = (self.tiers.ssd().device, record.file.inode);
        let Some(resident) = self.residents.get(entry) else { return };
        self.copy_records.count(&record);
        resident.clean.with(|slot| *slot = Some(record));
        self.archive_queue.done(entry, &resident);
        if astray {
            self.archive_queue.strayed(entry);
        }
    }
}
