//! Renames of two things, at least one of them a file, that only one of them has followed on the disks: each is completed
//! or dropped.

use std::collections::BTreeMap;

use super::FoundFile;
use crate::places::own_xattrs::{NameIn, NotedKind, TwoNames};

/// A file with the names that it claims, and the rename that is noted on it.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) file: FoundFile,
    pub(super) renaming: Option<TwoNames>,
}

/// Completes renames of two things that have begun on the disks. `is_others` says whether something else than a file
/// has a name on the shared disk. Returns the files that have lost their last name to something else.
///
/// An exchange has begun if the other one claims the old name; a replacement has begun if the other file no longer
/// claims the new name, and a file has been replaced if a link or device has its name. A stale note of a finished rename
/// has no effect: its file has another name.
pub(super) fn settle(
    claims: &mut Vec<Claim>,
    is_others: &dyn Fn(&NameIn) -> bool,
) -> Vec<FoundFile> {
    for claim in &mut *claims {
        let Some(TwoNames { kind, from, to }) = &claim.renaming else { continue };
        let names = &mut claim.file.names;
        match kind {
            NotedKind::IsReplaced if is_others(to) => names.retain(|name| name != to),
            NotedKind::IsReplaced => {}
            // A file's names are listed one after the other, so it may list both.
            _ if names.contains(to) => names.retain(|name| name != from),
            _ => {}
        }
    }
    let mut counts: BTreeMap<NameIn, usize> = BTreeMap::new();
    for name in claims.iter().flat_map(|claim| &claim.file.names) {
        *counts.entry(name.clone()).or_default() += 1;
    }
    let count = |name: &NameIn| counts.get(name).copied().unwrap_or_default();
    for claim in &mut *claims {
        let Some(TwoNames { kind, from, to }) = &claim.renaming else { continue };
        let has_begun = match kind {
            NotedKind::Exchanges => count(from) > 1 || is_others(from),
            NotedKind::Replaces => count(to) == 0 && !is_others(to),
            NotedKind::IsReplaced => false,
        };
        if has_begun && let Some(name) = claim.file.names.iter_mut().find(|name| *name == from) {
            name.clone_from(to);
        }
    }
    let replaced = claims.extract_if(.., |claim| claim.file.names.is_empty());
    replaced.map(|claim| claim.file).collect()
}
