//! Asserts again what this node holds of a file, for a store that may have forgotten it.

use halocline_model::token::{Held, Tokens};

use super::File;
use crate::store::{Result, Roll, StoreError, Swap};

/// Lost races after which this is postponed.
const RACES: u32 = 64;

impl File {
    /// Drops everything that is not exclusive, whatever the store says. `false` if it must be tried again.
    pub(in crate::agent) fn drop_what_is_unsure(&self) -> bool {
        let ranges = self.state.lock().pieces.unsure();
        ranges.into_iter().all(|range| self.drop_range(range))
    }

    /// Asserts what the node holds of the file. `false` if the epoch changed again.
    pub(in crate::agent) fn assert(&self, roll: &Roll) -> Result<bool> {
        let epoch = roll.partitions[self.shared.store.partition(self.id)];
        let session = self.shared.session;
        let held = self.all().into_iter().map(|(range, mode)| Held { session, mode, range });
        let held: Vec<_> = held.collect();
        self.state.lock().last = None;
        if held.is_empty() {
            return Ok(true);
        }
        let mut value = Tokens::new(epoch);
        for _ in 0..RACES {
            let mut new = value.clone();
            new.assert(session, &held, epoch);
            self.shared.begin_versions(&value, &mut new);
            match self.shared.store.swap(self.id, value.version, &new)? {
                Swap::Taken => return Ok(true),
                Swap::Other(reading) if reading.epoch != epoch => return Ok(false),
                Swap::Other(reading) => value = reading.tokens,
            }
        }
        Err(StoreError::NoAnswer("others change the tokens of a file all the time".to_owned()))
    }
}
