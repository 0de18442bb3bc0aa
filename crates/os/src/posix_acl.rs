//! POSIX ACLs in the form of the kernel's extended attributes (`linux/posix_acl_xattr.h`).

/// The attribute with the ACL of an inode.
pub const ACCESS: &str = "system.posix_acl_access";
/// The attribute with the ACL that new inodes in a directory get.
pub const DEFAULT: &str = "system.posix_acl_default";

/// The permission to write, of an entry's bits.
pub const WRITE: u16 = 0o2;

/// The form of the attributes.
const VERSION: u32 = 2;

/// Who an entry is for, by its tag.
pub mod tag {
    /// The inode's owner.
    pub const OWNER: u16 = 1;
    /// The user with the entry's id.
    pub const USER: u16 = 2;
    /// The inode's group.
    pub const OWNING_GROUP: u16 = 4;
    /// The group with the entry's id.
    pub const GROUP: u16 = 8;
    /// The most that named users and all groups get.
    pub const MASK: u16 = 16;
    /// All others.
    pub const OTHER: u16 = 32;
}

/// An entry of an ACL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Who it is for.
    pub tag: u16,
    /// Permission bits.
    pub bits: u16,
    /// The id, if it is for a named user or group.
    pub id: u32,
}

/// The entries in an attribute's value, whatever their tags and bits; `None` if it is not of this form.
pub fn decode(value: &[u8]) -> Option<Vec<Entry>> {
    let (version, rest) = value.split_first_chunk::<4>()?;
    let (entries, rest) = rest.as_chunks::<8>();
    if u32::from_le_bytes(*version) != VERSION || !rest.is_empty() {
        return None;
    }
    let entry = |[a, b, c, d, id @ ..]: &[u8; 8]| Entry {
        tag: u16::from_le_bytes([*a, *b]),
        bits: u16::from_le_bytes([*c, *d]),
        id: u32::from_le_bytes(*id),
    };
    Some(entries.iter().map(entry).collect())
}

/// The value of an attribute with these entries.
pub fn encode(entries: &[Entry]) -> Vec<u8> {
    let mut value = VERSION.to_le_bytes().to_vec();
    for entry in entries {
        value.extend(entry.tag.to_le_bytes());
        value.extend(entry.bits.to_le_bytes());
        value.extend(entry.id.to_le_bytes());
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acl_is_read_as_the_kernel_writes_it() {
        let bytes =
            [&[2, 0, 0, 0][..], &[2, 0, 7, 0, 7, 0, 0, 0], &[8, 0, 5, 0, 1, 2, 0, 0]].concat();
        let entries = [
            Entry { tag: tag::USER, bits: 7, id: 7 },
            Entry { tag: tag::GROUP, bits: 5, id: 0x201 },
        ];
        assert_eq!(decode(&bytes), Some(entries.to_vec()));
        assert_eq!(encode(&entries), bytes);
        assert_eq!(decode(&[2, 0, 0, 0]), Some(Vec::new()));
        for wrong in [&[1, 0, 0, 0][..], &[], &bytes[..bytes.len() - 1]] {
            assert_eq!(decode(wrong), None, "{wrong:?}");
        }
    }
}
