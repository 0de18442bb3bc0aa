//! `halocline cluster fsck --tier --confirm`.

use std::path::Path;

use halocline_cluster::names::{NameStore, State, check};
use halocline_os::error::{Error, Result};

use super::view::View;
use super::{Alone, copies, disks, of_store};
use crate::remedies::REPAIR;

/// Confirms that the names in the store are right, though it may have forgotten some: the operator has checked them.
///
/// # Errors
/// If there are no names, or a rebuild was not finished.
pub fn confirm(
    root: &Path,
    peers: Option<&str>,
    store: &dyn NameStore,
    _alone: &Alone,
) -> Result<check::CheckFindings> {
    let state = store.refresh().map_err(of_store)?;
    if disks::is_rebuilding(root)? || state == State::Empty {
        return Err(Error::invalid(
            format!("{}: the store has none of its names, or only a part of them", root.display()),
            format!("have them built from the disks: {REPAIR}"),
        ));
    }
    if matches!(state, State::Doubtful(_)) {
        store.begin_epoch(true).map_err(of_store)?;
        copies::sweep(root, peers, &View::read(store).map_err(of_store)?)?;
        store.begin_epoch(false).map_err(of_store)?;
    }
    check::clean(store).map_err(of_store)
}
