//! What a listing shows.

use halocline_model::namespace::{InodeNumber, Name};

use super::Attributes;

/// A name in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Where the next listing continues after this name.
    pub cursor: u64,
    /// The name.
    pub name: Name,
    /// What it leads to.
    pub inode: InodeNumber,
    /// Its attributes, if stored with the name: not for directories, nor for files that have had several names.
    pub attributes: Option<Attributes>,
    /// Whether it is a directory.
    pub is_directory: bool,
}
