//! The fuzz target of ACLs: a directory that another user's process claims has one that its owner wrote.

use super::{ACL_GROUP, ACL_GROUP_OWNER, ACL_USER, ACL_VERSION, ACL_WRITE, Directory, parse_acl};

/// The value of an attribute with these entries.
fn written(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut value = ACL_VERSION.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        value.extend_from_slice(&tag.to_le_bytes());
        value.extend_from_slice(&permissions.to_le_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    }
    value
}

/// An ACL: the parsed one has all complete entries unchanged, and admits exactly those whom an entry lets write.
pub fn acl(bytes: &[u8]) {
    let Some(entries) = parse_acl(bytes) else { return };
    let again = written(&entries);
    assert!(bytes.starts_with(&again) && bytes.len() - again.len() < 8);
    let named: Vec<u32> = entries.iter().map(|(_, _, id)| *id).chain([0, 50, u32::MAX]).collect();
    let dir = Directory { uid: 1, gid: 50, mode: 0o750, acl: entries };
    for user in &named {
        for group in &named {
            let lets_in = dir.lets_in(*user, |gid| gid == *group);
            let is_for = |tag, id| match tag {
                ACL_USER => id == *user,
                ACL_GROUP => id == *group,
                ACL_GROUP_OWNER => dir.gid == *group,
                _ => false,
            };
            let mut entries = dir.acl.iter();
            let may = entries.any(|(tag, may, id)| may & ACL_WRITE != 0 && is_for(*tag, *id));
            assert_eq!(lets_in, may, "user {user}, group {group}: {:?}", dir.acl);
        }
    }
}

/// ACLs as the kernel writes them.
#[cfg(test)]
pub(crate) fn seeds() -> [(&'static str, Vec<u8>); 3] {
    let owner = (0x01, 7, u32::MAX);
    let (mask, other) = ((0x10, 7, u32::MAX), (0x20, 5, u32::MAX));
    let named = [owner, (ACL_USER, 7, 1000), (ACL_GROUP_OWNER, 5, u32::MAX), mask, other];
    let groups = [owner, (ACL_GROUP_OWNER, 7, u32::MAX), (ACL_GROUP, 7, 60), mask, other];
    [("user", written(&named)), ("groups", written(&groups)), ("empty", written(&[]))]
}
