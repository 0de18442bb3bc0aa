//! The capability of a file whose content is changed.

use std::fs::File;

use halocline_cluster::names::attributes::Attributes;
use halocline_cluster::names::namespace::Failure;
use halocline_os::error::Result;

use crate::base::Base;
use crate::errors::of_names;
use crate::inodes::Inode;
use crate::places::users_xattrs::{follow_capability, has_lost_capability};

/// The content of a file was changed: its capability, if it was known to have one, has gone with that on the disk, and
/// now goes in the store. If no name of the file is known, the close notes it.
///
/// # Errors
/// If the store does not answer.
pub(super) fn follow(base: &Base, inode: &Inode, file: &File) -> Result<()> {
    let has_lost = |last: &Attributes| has_lost_capability(last, file);
    if !inode.without_name.lock().last.as_ref().is_some_and(has_lost) {
        return Ok(());
    }
    for name in inode.names() {
        let changed = base.names.attributes().update_of((&name, inode.number), |attributes| {
            follow_capability(attributes, file);
            Ok(())
        });
        match changed {
            Err(Failure::Refused(_)) => {}
            changed => {
                inode.without_name.lock().last = Some(changed.map_err(of_names)?.attributes);
                break;
            }
        }
    }
    Ok(())
}
