//! Renames that change the names of two files, and that only one of both has followed on the disks: each is made, or is not.

use std::collections::BTreeMap;

use super::FoundFile;
use crate::places::own_xattrs::{NameIn, TwoNames};

/// A file, with the names that it claims, and a rename that is noted with it.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) file: FoundFile,
    pub(super) renaming: Option<TwoNames>,
}

/// Gives files the names that renames of two files make, where these have begun on the disks.
///
/// What tells that: of an exchange, that the other file claims the name; of a file that replaces another one, that the other one claims it
/// no more. A note that was left behind by a rename that is over says nothing then: its file has another name.
pub(super) fn settle(claims: &mut [Claim]) {
    for claim in &mut *claims {
        let Some(renaming) = &claim.renaming else { continue };
        // Its names are listed one after the other.
        if claim.file.names.contains(&renaming.to) {
            claim.file.names.retain(|name| *name != renaming.from);
        }
    }
    let mut counts: BTreeMap<NameIn, usize> = BTreeMap::new();
    for name in claims.iter().flat_map(|claim| &claim.file.names) {
        *counts.entry(name.clone()).or_default() += 1;
    }
    let count = |name: &NameIn| counts.get(name).copied().unwrap_or_default();
    for claim in claims {
        let Some(TwoNames { is_exchange, from, to }) = &claim.renaming else { continue };
        let has_begun = if *is_exchange { count(from) > 1 } else { count(to) == 0 };
        if has_begun && let Some(name) = claim.file.names.iter_mut().find(|name| *name == from) {
            name.clone_from(to);
        }
    }
}
