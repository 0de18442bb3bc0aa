//! Which of two files that claim a name gets it.

use std::collections::BTreeSet;

use super::Claim;
use crate::places::own_xattrs::NameIn;

/// Of two files of one owner, one that `lists` the name comes before one that only lies there: it lists it because the
/// other one's bytes, which a node had yet to take away, were still at the name. An owner cannot take another one's name
/// by such a list.
pub(super) fn order(claims: &mut [Claim], lists: &dyn Fn(&Claim) -> bool) {
    let keys = |claim: &Claim| {
        let uid = claim.file.attributes.uid;
        claim.file.names.iter().map(|name| (name.clone(), uid)).collect::<Vec<_>>()
    };
    let listed: BTreeSet<(NameIn, u32)> =
        claims.iter().filter(|claim| lists(claim)).flat_map(keys).collect();
    claims.sort_by_cached_key(|claim| {
        !lists(claim) && keys(claim).iter().any(|key| listed.contains(key))
    });
}
