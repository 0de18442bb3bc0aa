//! The label in each directory of a tier of one node, which says what belongs together. The tier writes it, and who makes the
//! tier one of many nodes reads it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::control::wire;

/// File in each tier's private directory that says which set the tier belongs to.
pub const LABEL: &str = "tier.json";

/// What [`LABEL`] says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Label {
    /// Identity of the set.
    pub set: String,
    /// Which tier of the set this is, 0 the fastest.
    pub tier: usize,
    /// Roots that links may name, with their tiers; on the first tier only.
    #[serde(default, with = "wire::numbered_paths")]
    pub roots: Vec<(PathBuf, usize)>,
}
