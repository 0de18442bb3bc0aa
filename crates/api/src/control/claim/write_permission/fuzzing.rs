//! The fuzz target of ACLs: a directory that another user's process claims has one that its owner wrote.

use halocline_os::posix_acl::{self, Entry, tag};

use super::Directory;

/// An ACL: the decoded one has all entries unchanged, and admits exactly those whom an entry lets write.
pub fn acl(bytes: &[u8]) {
    let Some(entries) = posix_acl::decode(bytes) else { return };
    assert_eq!(bytes, posix_acl::encode(&entries));
    let named: Vec<u32> = entries.iter().map(|entry| entry.id).chain([0, 50, u32::MAX]).collect();
    let dir = Directory { uid: 1, gid: 50, mode: 0o750, acl: entries };
    for user in &named {
        for group in &named {
            let lets_in = dir.lets_in(*user, |gid| gid == *group);
            let is_for = |entry: &Entry| match entry.tag {
                tag::USER => entry.id == *user,
                tag::GROUP => entry.id == *group,
                tag::OWNING_GROUP => dir.gid == *group,
                _ => false,
            };
            let mut entries = dir.acl.iter();
            let may = entries.any(|entry| entry.bits & posix_acl::WRITE != 0 && is_for(entry));
            assert_eq!(lets_in, may, "user {user}, group {group}: {:?}", dir.acl);
        }
    }
}

/// ACLs as the kernel writes them.
#[cfg(test)]
pub(crate) fn seeds() -> [(&'static str, Vec<u8>); 3] {
    let entry = |tag, bits, id| Entry { tag, bits, id };
    let of_class = |tag, bits| entry(tag, bits, u32::MAX);
    let owner = of_class(tag::OWNER, 7);
    let (mask, other) = (of_class(tag::MASK, 7), of_class(tag::OTHER, 5));
    let group = |bits| of_class(tag::OWNING_GROUP, bits);
    let named = [owner, entry(tag::USER, 7, 1000), group(5), mask, other];
    let groups = [owner, group(7), entry(tag::GROUP, 7, 60), mask, other];
    let encode = posix_acl::encode;
    [("user", encode(&named)), ("groups", encode(&groups)), ("empty", encode(&[]))]
}
