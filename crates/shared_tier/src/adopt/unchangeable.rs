//! What an adoption refuses before it changes anything, because a disk would refuse it: names would have to stay behind.

use halocline_cluster::names::attributes::Kind;
use halocline_os::error::{Error, Result};
use halocline_os::process_user::own_uid;
use rustix::io::Errno;

use super::OnSsd;
use super::files_below;
use super::links::{Link, Links};
use super::shared_names::SharedNames;
use crate::places::refused_changes::{is_above_owners, of_attributes, of_owner, remedy};
use crate::places::tree::Tree;
use crate::repair::scan::{Scanned, shown};

/// The most paths in a message.
const SHOWN_MAX: usize = 10;
/// The room that a new directory or link takes at least on the shared disk, in bytes.
const BYTES_MIN: u64 = 512;

/// Refuses to adopt what it could not change.
///
/// # Errors
/// [`Error::Invalid`] with the paths and the remedy.
pub(super) fn check(
    (ssd, shared): (&Tree, &Tree),
    links: &Links,
    (names, disk): (&Scanned, &Scanned),
) -> Result<()> {
    let there = SharedNames::new(names, disk, |_| false);
    let mut refused: Vec<(String, Errno)> = Vec::new();
    let mut add = |tree: &Tree, path: &str, why: Option<Errno>| {
        let path = format!("{}/{}", tree.path.display(), shown(path));
        refused.extend(why.map(|why| (path, why)));
    };
    for tree in [ssd, shared] {
        add(tree, "", tree.look(None).ok().and_then(|fd| of_owner(&fd)));
    }
    let mut made = 0;
    for item in OnSsd::all(names) {
        let path = item.path();
        let text = path.to_string();
        match (item.attributes.kind, links.read(&item.attributes)) {
            (Kind::File, _) => {
                add(ssd, &text, ssd.look(Some(&path)).ok().and_then(|fd| of_attributes(&fd)));
            }
            (Kind::Directory, _) => {
                add(ssd, &text, ssd.look(Some(&path)).ok().and_then(|fd| of_owner(&fd)));
                if there.at(item.at).is_some() {
                    let fd = shared.look(Some(&path)).ok();
                    add(shared, &text, fd.and_then(|fd| of_owner(&fd)));
                } else {
                    made += 1;
                }
            }
            (Kind::Symlink, Link::Below(place)) => {
                // Others refuse what cannot be opened.
                let fd = files_below::open(shared, &item, &place).ok().flatten();
                add(shared, &place.to_string(), fd.and_then(|fd| of_attributes(&fd)));
            }
            _ => {
                let is_ours = item.attributes.uid == own_uid() || is_above_owners();
                add(ssd, &text, (!is_ours).then_some(Errno::PERM));
                made += 1;
            }
        }
    }
    if let Some((_, why)) = refused.first() {
        let shown: Vec<_> = refused
            .iter()
            .take(SHOWN_MAX)
            .map(|(path, why)| format!("{path}: {}", std::io::Error::from(*why)))
            .collect();
        let more = match refused.len().saturating_sub(SHOWN_MAX) {
            0 => String::new(),
            more => format!(" ({more} more)"),
        };
        return Err(Error::invalid(
            format!(
                "{}{more}: an adoption has to change it; nothing was changed",
                shown.join(", ")
            ),
            format!("{}; then begin again", remedy(why.raw_os_error())),
        ));
    }
    check_room(shared, made)
}

/// Refuses a shared disk that certainly has no room for so many directories and links.
fn check_room(shared: &Tree, made: u64) -> Result<()> {
    let totals = shared.totals()?;
    let has_inodes = totals.f_files == 0 || totals.f_favail >= made;
    if has_inodes && totals.f_bavail.saturating_mul(totals.f_frsize) >= made * BYTES_MIN {
        return Ok(());
    }
    Err(Error::invalid(
        format!(
            "{}: there is no room for {made} directories and links; nothing was changed",
            shared.path.display()
        ),
        format!("{}; then begin again", remedy(libc::ENOSPC)),
    ))
}
