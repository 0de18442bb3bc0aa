//! Which files should be on this node's SSD: the policy, and what overrides it. It plans; the
//! [executor](super::executor) moves.

use std::path::Path;

use halocline_api::jobs::{Ahead, FileFacts, Jobs, Openers};
use halocline_model::tier::{self, Keep, Transfers};
use halocline_os::clock::Clock;
use halocline_os::error::{Error, Result};
use parking_lot::{Mutex, MutexGuard};

use super::paths::Paths;
use super::residents::Residents;
use super::rules::Rules;

/// The most files that are considered for demotion.
const VICTIMS_MAX: usize = 1 << 20;

/// The policy, the rules and the jobs.
#[derive(Debug)]
pub(crate) struct Planner {
    policy: Mutex<Box<dyn Keep>>,
    /// Uses here of files on other nodes.
    transfers: Mutex<Transfers>,
    pub(crate) rules: Rules,
    jobs: Mutex<Jobs>,
    openers: Openers,
    clock: Clock,
}

/// Room on an SSD for a file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    /// Bytes that are free.
    pub(crate) free: u64,
    /// Bytes that must leave so that the file fits.
    pub(crate) missing: u64,
}

impl Planner {
    /// # Errors
    /// If there is no such policy.
    pub(crate) fn new(
        policy: &str,
        limit: u64,
        rules: Rules,
        jobs: Jobs,
        clock: &Clock,
    ) -> Result<Self> {
        let mut policy = tier::by_name(policy).map_err(|unknown| {
            Error::invalid(unknown.to_string(), "choose one of them with --policy")
        })?;
        policy.holds(limit);
        Ok(Self {
            policy: Mutex::new(policy),
            transfers: Mutex::default(),
            rules,
            jobs: Mutex::new(jobs),
            openers: Openers::default(),
            clock: clock.clone(),
        })
    }

    /// Tells the policy that a file was used.
    pub(crate) fn referenced(&self, number: u64, bytes: u64) {
        self.policy.lock().referenced(number, bytes);
    }

    /// Tells the policy that a file has come to the SSD, or left it.
    pub(crate) fn moved(&self, number: u64, to_ssd: bool) {
        self.policy.lock().moved(number, to_ssd);
        self.transfers.lock().forget(number);
    }

    /// Tells the policy that a file is gone.
    pub(crate) fn removed(&self, number: u64) {
        self.policy.lock().removed(number);
        self.transfers.lock().forget(number);
    }

    /// Whether a use of a file on another node's SSD justifies moving it here.
    pub(crate) fn is_worth_the_way(&self, number: u64, ahead: Option<&Ahead>) -> bool {
        let announced = ahead.map_or(0, |ahead| ahead.later(u64::MAX));
        self.transfers.lock().used(number, announced)
    }

    /// The announced jobs.
    pub(crate) fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock()
    }

    /// Whether any decision depends on the paths of files.
    pub(crate) fn goes_by_paths(&self) -> bool {
        self.rules.has_pins() || self.jobs.lock().any()
    }

    /// Tells jobs that a thread opens or makes a file; returns what is announced for it, if this is a job's own use.
    pub(crate) fn follow_jobs(&self, path: &Path, by: u32) -> Option<Ahead> {
        let opener = self.openers.of_thread(by, self.clock.instant());
        self.jobs.lock().opened(path, &opener).1
    }

    /// The files that may be demoted, with what is known of them: neither pinned nor in `except`.
    fn candidates(
        &self,
        residents: &Residents,
        except: &dyn Fn(u64) -> bool,
        paths: &Paths<'_>,
    ) -> FileFacts {
        let mut known = FileFacts::default();
        let goes_by_paths = self.goes_by_paths();
        for (number, resident) in residents.all().into_iter().take(VICTIMS_MAX) {
            if except(number) || resident.bytes == 0 {
                continue;
            }
            if goes_by_paths {
                // Without its path we cannot tell that it is not pinned.
                let path = paths.of(&resident.name);
                if path.is_none() && !paths.is_too_deep(&resident.name)
                    || path.as_ref().is_some_and(|path| self.rules.pins(path))
                {
                    continue;
                }
                if let Some(ahead) = path.and_then(|path| self.jobs.lock().ahead(&path)) {
                    known.ahead.insert(number, ahead);
                }
            }
            known.sizes.insert(number, resident.bytes);
        }
        known
    }

    /// All files that may be demoted, in the policy's order.
    pub(crate) fn plan_room(
        &self,
        residents: &Residents,
        except: &dyn Fn(u64) -> bool,
        paths: &Paths<'_>,
    ) -> Vec<u64> {
        let known = self.candidates(residents, except, paths);
        let files = known.sizes.keys().copied().collect();
        self.policy.lock().leaving(files, &known)
    }

    /// Which files to demote so that one of `bytes` bytes fits; `None` if it should be served where it is.
    pub(crate) fn plan_promotion(
        &self,
        (number, bytes): (u64, u64),
        ahead: Option<Ahead>,
        room: Room,
        (residents, paths): (&Residents, &Paths<'_>),
    ) -> Option<Vec<u64>> {
        let mut known = match room.missing {
            0 => FileFacts::default(),
            _ => self.candidates(residents, &|other| other == number, paths),
        };
        let cached: Vec<u64> = known.sizes.keys().copied().collect();
        known.sizes.insert(number, bytes.max(room.free.saturating_add(room.missing)));
        known.announced = ahead.is_some();
        known.ahead.insert(number, ahead.unwrap_or_default());
        self.policy.lock().make_room(number, room.free, &|| cached.clone(), &known)
    }
}
