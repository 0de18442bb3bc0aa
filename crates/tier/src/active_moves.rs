//! Moves of this tier's files that are in progress; they are named by their names on the SSD when the move began.

use halocline_vfs::namespace::Vnode;

/// All moves in progress.
pub(super) type ActiveMoves = halocline_api::file_tier::ActiveMoves<Vnode>;
/// One of them.
pub(super) type ActiveMove<'a> = halocline_api::file_tier::ActiveMove<'a, Vnode>;
