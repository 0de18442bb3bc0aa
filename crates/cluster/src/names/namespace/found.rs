//! What an operation found at its names just before it was done.

use halocline_model::namespace::{Entry, InodeNumber, Links, ReadName};

use super::super::NamesError;
use super::super::attributes::Attributes;
use super::super::coding::decode_attributes;
use super::Result;

/// What a name leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredInode {
    /// Its number.
    pub inode: InodeNumber,
    /// Its attributes.
    pub attributes: Attributes,
    /// Number of names; always 1 for a directory, as on btrfs.
    pub links: u32,
}

/// What a name of a file led to before it was removed or replaced, with the number of names left.
pub(super) fn replaced(found: &ReadName) -> Result<Option<StoredInode>> {
    with_links(found, |before| before.saturating_sub(1))
}

/// What has got one more name; the first of the names that were found is the one that it had.
pub(super) fn linked(found: &[ReadName]) -> Result<StoredInode> {
    let file = found.first().map(|from| with_links(from, |before| before.saturating_add(1)));
    file.transpose()?
        .flatten()
        .ok_or_else(|| NamesError::Unsound("a link to nothing".into()).into())
}

fn with_links(found: &ReadName, links: impl FnOnce(u32) -> u32) -> Result<Option<StoredInode>> {
    let (inode, attributes, before) = match (&found.entry, &found.links) {
        (Some(Entry::Single(inode, attributes)), _) => (*inode, attributes, 1),
        (Some(Entry::Linked(inode, _)), Some(Links { count, attributes })) => {
            (*inode, attributes, *count)
        }
        _ => return Ok(None),
    };
    let (attributes, links) = (decode_attributes(attributes)?, links(before));
    Ok(Some(StoredInode { inode, attributes, links }))
}
