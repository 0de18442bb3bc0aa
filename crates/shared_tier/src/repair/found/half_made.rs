//! Renames of two files that only one of them has followed on the disks: each is completed or dropped.

use std::collections::BTreeMap;

use super::FoundFile;
use crate::places::own_xattrs::{NameIn, TwoNames};

/// A file with the names that it claims, and the rename that is noted on it.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) file: FoundFile,
    pub(super) renaming: Option<TwoNames>,
}

/// Completes renames of two files that have begun on the disks.
///
/// An exchange has begun if the other file claims the old name; a replacement has begun if the other file no longer
/// claims the new name. A stale note of a finished rename has no effect: its file has another name.
pub(super) fn settle(claims: &mut [Claim]) {
    for claim in &mut *claims {
        let Some(renaming) = &claim.renaming else { continue };
        // A file's names are listed one after the other, so it may list both.
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
