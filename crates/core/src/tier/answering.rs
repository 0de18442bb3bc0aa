//! Answers about tiers whose directory may hang: its device, or the server of a network file system.
//!
//! What must hold: who asks is answered in time, and told which directory does not answer. Whoever takes the state of
//! a tier may wait for a look at it, or for a lock of one who does.

use super::side::Side;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::wiring::Core;
use crate::control::tier::TierState;
use crate::control::{Health, Rules, TierStatus};
use crate::error::Result;

/// How long the state of tiers may take to be told without a look at them.
const MEMORY_TIMEOUT: Duration = Duration::from_secs(1);

/// What a status tells that may take a look at the tiers.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) health: Health,
    pub(super) rules: Rules,
    pub(super) files: u64,
    pub(super) notes: Vec<String>,
}

impl Core {
    /// Whether all tiers answer.
    ///
    /// # Errors
    /// `ETIMEDOUT`, with the first that does not.
    fn check_answers(&self) -> Result<()> {
        thread::scope(|scope| {
            let ask = |side| scope.spawn(move || Side::check_answers(side));
            let asked: Vec<_> = self.tiers.sides().iter().map(ask).collect();
            // A look has no panics of its own.
            asked.into_iter().filter_map(|asked| asked.join().ok()).collect()
        })
    }

    /// What `act` finds, however long it takes while all tiers answer.
    ///
    /// # Errors
    /// Those of `act`, and `ETIMEDOUT` where a tier does not answer; `act` goes on by itself then.
    pub(super) fn answered<T: Send + 'static>(
        self: &Arc<Self>,
        act: impl FnOnce(&Arc<Self>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let core = Arc::clone(self);
        self.looks.while_answered(|| self.check_answers(), move || act(&core))?
    }

    /// What a status tells; where a tier does not answer that, and nothing that might wait for it.
    pub(super) fn told(self: &Arc<Self>) -> Told {
        let told = self.answered(|core| {
            core.leftovers.free_old_copies();
            Ok(Told {
                health: core.health(),
                rules: core.rules(),
                files: core.residents.len() as u64,
                notes: core.defects.notes().into_iter().chain(core.lost.note()).collect(),
            })
        });
        told.unwrap_or_else(|error| Told {
            health: Health::Silent { reason: error.to_string() },
            rules: Rules { pin: Vec::new(), exclude: Vec::new() },
            files: 0,
            notes: Vec::new(),
        })
    }

    /// The state of the tiers; without what is free on them where one does not answer.
    pub(super) fn told_of_tiers(self: &Arc<Self>) -> TierStatus {
        let told = self.answered(|core| Ok(core.tier_status(true)));
        let known = || {
            let core = Arc::clone(self);
            self.looks.within(MEMORY_TIMEOUT, move || Some(core.tier_status(false)))
        };
        told.ok().or_else(known).unwrap_or_else(|| TierStatus {
            tiers: self.states(false),
            high_bytes: self.watermarks.high(),
            low_bytes: self.watermarks.low(),
            ..TierStatus::default()
        })
    }

    /// Each tier, with what is free on it where that is to be looked at.
    pub(super) fn states(&self, free: bool) -> Vec<TierState> {
        let sides = self.tiers.sides().iter();
        let state = |side: &Side| TierState {
            path: side.path.clone(),
            name: side.name(),
            free_bytes: free.then(|| side.room().ok()).flatten(),
        };
        sides.map(state).collect()
    }
}
