//! The partitions of a store on a Redis Cluster, as its nodes have seen them.

use std::fmt;
use std::sync::Arc;

use halocline_model::token::Epoch;

use crate::store::redis::slots::PARTITIONS;
use crate::store::redis::{Result, StoreError, number};

/// The state of a partition when it was last seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PartitionState {
    /// The configuration epoch of its master: greater for each master that took the slot from another.
    pub(super) config: u64,
    /// The epoch in which it answered.
    pub(super) epoch: Epoch,
}

impl PartitionState {
    /// A partition not seen yet; no epoch of a partition has the number 0.
    pub(super) const UNSEEN: Self = Self { config: 0, epoch: Epoch(0) };

    /// Whether `seen` is newer than this. The epochs of one master follow each other; an older master that was cut off
    /// does not count.
    pub(super) fn is_followed_by(self, seen: Self) -> bool {
        seen.epoch != self.epoch && seen.config >= self.config
    }
}

/// The partitions as the members' master lists them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store::redis) struct PartitionStates(pub(super) [PartitionState; PARTITIONS]);

impl Default for PartitionStates {
    fn default() -> Self {
        Self([PartitionState::UNSEEN; PARTITIONS])
    }
}

impl fmt::Display for PartitionStates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts = self.0.map(|partition| format!("{}:{}", partition.config, partition.epoch.0));
        f.write_str(&texts.join(" "))
    }
}

impl PartitionStates {
    /// Parses what [`Display`](fmt::Display) writes.
    ///
    /// # Errors
    /// If the text is anything else.
    pub(in crate::store::redis) fn parse(text: &str) -> Result<Self> {
        let partition = |text: &str| {
            let (config, epoch) = text.split_once(':').unwrap_or_default();
            Ok(PartitionState { config: number(config)?, epoch: Epoch(number(epoch)?) })
        };
        let partitions: Vec<PartitionState> =
            text.split(' ').map(partition).collect::<Result<_>>()?;
        let partitions = <[PartitionState; PARTITIONS]>::try_from(partitions);
        Ok(Self(
            partitions.map_err(|_| StoreError::Unsound("a list of other partitions".to_owned()))?,
        ))
    }

    pub(super) fn epochs(&self) -> Arc<[Epoch]> {
        self.0.iter().map(|partition| partition.epoch).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_older_master_says_does_not_come_back_into_the_list() {
        let seen = |config: u64, epoch: u64| PartitionState { config, epoch: Epoch(epoch) };
        assert!(PartitionState::UNSEEN.is_followed_by(seen(0, 7)));
        assert!(seen(1, 7).is_followed_by(seen(4, 8)), "a replica was promoted");
        assert!(seen(4, 8).is_followed_by(seen(4, 9)), "it was restarted");
        assert!(!seen(4, 8).is_followed_by(seen(1, 7)), "the old one, which was stopped");
        assert!(!seen(4, 8).is_followed_by(seen(4, 8)) && !seen(4, 8).is_followed_by(seen(5, 8)));
    }

    #[test]
    fn a_list_of_parts_is_read_as_it_was_written() {
        let mut partitions = PartitionStates::default();
        partitions.0[5] = PartitionState { config: 3, epoch: Epoch(u64::MAX) };
        let text = partitions.to_string();
        assert_eq!(PartitionStates::parse(&text).unwrap(), partitions);
        for wrong in ["", "0:0", "x", &format!("{text} 0:0"), &text.replace(':', "")] {
            assert!(
                matches!(PartitionStates::parse(wrong), Err(StoreError::Unsound(_))),
                "{wrong}"
            );
        }
    }
}
