//! Which of several files that claim a name gets it.
//!
//! Who may write a file can write any list of names into it, so between owners a list is no evidence: a file that lies at
//! the name comes before one that lists it and lies elsewhere. Of one owner's, one that lies beside the name, with its
//! number behind it, comes before one at the name: it was put there because the other one, which a node had yet to take
//! away, was still there. A name with a number can be given only by who may change names in that directory. Of several of
//! one owner's at the name, on different disks, the one that was changed last comes first: the others are on SSDs that were
//! not reached when they lost it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::Claim;
use super::owner::Owner;
use crate::places::own_xattrs::NameIn;
use crate::places::tree::candidates;
use crate::repair::scan::Item;

/// Whether a file lists names, all in directories with an owner: so none where it lies, if that directory was removed.
pub(super) fn has_names_elsewhere(file: &Item, owners: &BTreeMap<u64, Owner>) -> bool {
    !file.names.is_empty() && file.names.iter().all(|name| owners.contains_key(&name.0))
}

/// In the order in which they get their names.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Beside,
    Newest,
    Plain,
    ListsAnothers,
}

/// Orders the claims. `places` returns where a claim's file lies: for each path the directory's number, and the last
/// name.
pub(super) fn order(claims: &mut [Claim], places: &dyn Fn(&Claim) -> Vec<NameIn>) {
    // Who lies at a name that is claimed: numbers, owners, and when they were changed.
    let mut there: BTreeMap<NameIn, BTreeSet<(u64, u32, i64)>> = BTreeMap::new();
    for claim in &*claims {
        let lies_at = places(claim);
        let file = &claim.file;
        for name in file.names.iter().filter(|name| lies_at.contains(name)) {
            let of = &file.attributes;
            there.entry(name.clone()).or_default().insert((file.number, of.uid, of.ctime_ns));
        }
    }
    claims.sort_by_cached_key(|claim| {
        let (number, of) = (claim.file.number, &claim.file.attributes);
        let (uid, ctime_ns) = (of.uid, of.ctime_ns);
        let lies_at = places(claim);
        let is_beside = |(directory, name): &NameIn| {
            let [_, numbered] = candidates(name, number);
            lies_at.contains(&(*directory, numbered))
        };
        let rank_of = |name: &NameIn| {
            let mut others = there.get(name).into_iter().flatten().filter(|it| it.0 != number);
            match others.clone().next() {
                None => Rank::Plain,
                Some(_) if is_beside(name) && others.all(|it| it.1 == uid) => Rank::Beside,
                Some(_) if lies_at.contains(name) => {
                    let is_newest =
                        claim.file.is_numbered && others.all(|it| it.1 == uid && it.2 < ctime_ns);
                    if is_newest { Rank::Newest } else { Rank::Plain }
                }
                Some(_) => Rank::ListsAnothers,
            }
        };
        // A file with a name of another one waits, whatever its other names are.
        let ranks: Vec<Rank> = claim.file.names.iter().map(rank_of).collect();
        let of_another = ranks.contains(&Rank::ListsAnothers).then_some(Rank::ListsAnothers);
        of_another.or_else(|| ranks.into_iter().min()).unwrap_or(Rank::Plain)
    });
}

/// Which of several files with one number was the last to be left by a move or copied, as their claims say. A copy that became
/// the file may have been changed, moved to another SSD and copied again since: numbers of the store only grow.
pub(super) fn left_last(leaving: impl Iterator<Item = Option<u64>>) -> Option<usize> {
    let all = leaving.enumerate().filter_map(|(at, number)| Some((number?, Reverse(at))));
    all.max().map(|(_, Reverse(at))| at)
}

/// Whether a file of which a clean copy was made, but which no move left, may be newer than the chosen one with its number: their
/// order cannot be told if their numbers are the same, or if it was written later.
pub(super) fn may_be_newer(item: &Item, chosen: &Item) -> bool {
    let is_later = item.attributes.mtime_ns > chosen.attributes.mtime_ns;
    item.is_only_copied && (is_later || item.leaving == chosen.leaving)
}
