//! What a tier that nodes share has left on a lower tier, though this is one node's: a command that was to make it a shared one was
//! refused, or ended before it changed anything.
//!
//! What must hold: it gets no name, because the same command is to find it again, and people are not told of it. What users have
//! under such a name stays theirs.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::path::Path;

use super::survey::Survey;
use halocline_api::control::tier::PRIVATE;
use halocline_api::file_tier::shared_disk::{CHECK, MOUNTED, NODES, REGISTRY, TIER};
use halocline_os::process_user::own_uid;
use halocline_vfs::namespace::statx::stat_at;
use halocline_vfs::namespace::{Namespace, Vnode};

/// The file with the id of a list of sessions.
const LIST_ID: &str = "id";

/// Whether what is at a path of a lower tier is such a thing, and no name leads into it. A directory stands for what is in it, too.
pub(super) fn has(
    tree: &Namespace,
    (dir, name): (&Vnode, &OsStr),
    (tier, path): (usize, &Path),
    survey: &Survey,
) -> bool {
    let is_private = |ours: &str| path == Path::new(PRIVATE).join(ours);
    let is_ours = [TIER, NODES, MOUNTED, CHECK].into_iter().any(is_private)
        || path == Path::new(REGISTRY) && is_list(tree, dir, name);
    is_ours && !survey.named.keys().any(|(of, at)| *of == tier && at.starts_with(path))
}

/// Whether a directory is a list of sessions, which only this user can have made.
fn is_list(tree: &Namespace, dir: &Vnode, name: &OsStr) -> bool {
    let list = tree.lookup(dir, name).and_then(|(list, _)| tree.descriptor(&list));
    let id = list.and_then(|list| stat_at(list.as_fd(), OsStr::new(LIST_ID)));
    id.is_ok_and(|id| id.kind() == libc::S_IFREG && id.raw.st_uid == own_uid())
}
