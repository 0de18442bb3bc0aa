//! The bytes of a file that has lost its last name.

use halocline_cluster::names::namespace::StoredInode;
use halocline_model::namespace::EntryName;
use halocline_os::error::Result;

use crate::base::Base;
use crate::clean_copies;
use crate::files::Files;
use crate::late_names::Late;
use crate::places::missed;
use crate::renames::follow;

/// Removes them, with the file's clean copy. Programs of this node that have it open can still use it.
///
/// # Errors
/// Those of the store; and if an SSD has missed the removal, and that cannot be noted.
pub(super) fn remove(
    base: &Base,
    files: &Files,
    name: &EntryName,
    gone: &StoredInode,
) -> Result<()> {
    if let Some(vnode) = base.table.find(gone.inode) {
        vnode.0.without_name.lock().last = Some(gone.attributes.clone());
    }
    follow("unlink", name, clean_copies::removed(&base.places, gone))?;
    let removed = gone.attributes.location.as_ref().map(|place| {
        let removed = files.remove_data(place, gone.inode.0);
        let removed = missed::or_gone(&base.places, (place, gone.inode.0), removed);
        base.late.add(removed, || vec![Late::File(place.clone(), gone.inode)])
    });
    follow("unlink", name, removed.unwrap_or(Ok(())))
}
