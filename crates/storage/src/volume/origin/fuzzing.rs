//! What stands on the servers of a striped volume: bodies of fuzz targets (`crate::fuzzing`).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::identity::{ObjectId, ObjectNumber};
use crate::volume::object_paths;
use halocline_vfs::namespace::xattr::{hidden_xattr, shown_xattrs};

pub use super::label::fuzzing::volume_label;
pub use super::layouts::fuzzing::layout;

/// Marks in directories that others may write, what the first server notes of the tree, and what is noted of the times of files.
pub fn server_mark(bytes: &[u8]) {
    super::earlier_times::fuzzing::earlier_times(bytes);
    super::server_marks::fuzzing::server_mark(bytes);
    super::tree_record::fuzzing::tree_record(bytes);
}

/// Names of objects, and names of extended attributes: a name that is accepted is the only one of its object, and leads
/// nowhere else.
pub fn object_name(bytes: &[u8]) {
    let name = OsStr::from_bytes(bytes);
    if let Some(key) = object_paths::parse(name) {
        let path = object_paths::path_of(key);
        assert!(path.is_relative() && path.file_name() == Some(name));
        assert_eq!(path.iter().count(), 3);
    }
    let shown = shown_xattrs(bytes);
    assert!(shown.len() <= bytes.len());
    assert!(!shown.split(|byte| *byte == 0).any(|name| hidden_xattr(OsStr::from_bytes(name))));
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Some(id) = ObjectId::parse(text) {
        assert_eq!(id.to_string(), text);
        assert_eq!(id.path().iter().count(), 3);
    }
    if let Some(number) = ObjectNumber::parse(text) {
        assert_eq!(ObjectNumber::parse(&number.to_string()), Some(number));
    }
}

/// The name of a cache's object.
#[cfg(test)]
pub(crate) fn cache_object() -> Vec<u8> {
    use halocline_model::layout::{Layout, Placement};

    let placement = Placement { layout: Layout::TwoD, group: 3 };
    let path = object_paths::path_of(crate::volume::ObjectKey { file: 0x1234, placement });
    path.file_name().unwrap().as_bytes().to_vec()
}

#[cfg(test)]
pub(crate) use super::layouts::fuzzing::seeds as layout_seeds;
/// Seeds of [`server_mark`].
#[cfg(test)]
pub(crate) fn mark_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let marks = super::server_marks::fuzzing::seeds();
    let notes = super::tree_record::fuzzing::seeds().into_iter();
    marks.into_iter().chain(notes).chain(super::earlier_times::fuzzing::seeds()).collect()
}
