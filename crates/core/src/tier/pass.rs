//! Kernel passthrough: which open files the kernel serves by itself, and why others are not.

use std::collections::BTreeMap;

use crate::control::tier::PassthroughStatus;

use super::Core;

/// What is known of passthrough so far.
#[derive(Debug, Default)]
pub(super) struct Passing {
    pub(super) works: Option<bool>,
    pub(super) reason: Option<String>,
    pub(super) refused: BTreeMap<String, u64>,
}

impl Core {
    /// For people.
    pub(super) fn passthrough_status(&self) -> PassthroughStatus {
        let passing = self.passing.lock();
        PassthroughStatus {
            works: passing.works,
            reason: passing.reason.clone(),
            files: Vec::new(),
            refused: passing.refused.iter().map(|(why, count)| (why.clone(), *count)).collect(),
        }
    }
}
