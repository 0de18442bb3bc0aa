//! What an adoption refuses before it changes anything: names whose files or places it does not know for certain.

use std::collections::{BTreeMap, BTreeSet};

use halocline_cluster::names::attributes::{Kind, RelativePath};
use halocline_os::error::{Error, Result};
use halocline_os::shown_name::shown_name;
use halocline_vfs::namespace::stat_descriptor;

use super::files_below;
use super::links::{Link, Links};
use super::shared_names::SharedNames;
use super::{OnSsd, users_links};
use crate::places::tree::Tree;
use crate::repair::scan::{Scanned, shown};

/// The most names in a message.
const SHOWN_MAX: usize = 10;

/// Names that are refused for one reason.
struct Refused {
    names: Vec<String>,
    what: &'static str,
    remedy: &'static str,
}

impl Refused {
    const fn new(what: &'static str, remedy: &'static str) -> Self {
        Self { names: Vec::new(), what, remedy }
    }

    fn check(self, disk: &Tree) -> Result<()> {
        let Self { names, what, remedy } = self;
        if names.is_empty() {
            return Ok(());
        }
        let more = match names.len().saturating_sub(SHOWN_MAX) {
            0 => String::new(),
            more => format!(" ({more} more)"),
        };
        let shown = names[..names.len().min(SHOWN_MAX)].join(", ");
        let what = format!("{}: {what}: {shown}{more}; nothing was changed", disk.path.display());
        Err(Error::invalid(what, remedy))
    }
}

/// Refuses to adopt what would lose names or files.
///
/// # Errors
/// [`Error::Invalid`] with the names and the remedy.
pub(super) fn check(
    (ssd, shared): (&Tree, &Tree),
    links: &Links,
    (names, disk): (&Scanned, &Scanned),
) -> Result<()> {
    let is_partly_seen = !disk.unlisted.is_empty();
    let (places, keys) = files_below((ssd, shared), links, (names, is_partly_seen))?;
    forgotten((ssd, shared), links, names, &places)?;
    let will_leave: BTreeSet<_> =
        keys.iter().filter(|(_, stays)| !**stays).map(|(key, _)| *key).collect();
    let there = SharedNames::new(names, disk, |item| will_leave.contains(&item.key));
    let mut in_the_way = Refused::new(
        "on the disk below, something else has these names",
        "look at both, and rename one, or move what is below away; then begin again",
    );
    for item in OnSsd::all(names) {
        let Some(other) = there.at(item.at) else { continue };
        let fits = match (item.attributes.kind, links.read(&item.attributes)) {
            // A repair names two files that have one name.
            (Kind::File, _) => true,
            (Kind::Directory, _) => other.attributes.kind == Kind::Directory,
            (Kind::Symlink, Link::Below(_)) => keys.contains_key(&other.key),
            (Kind::Symlink, Link::Users(target)) => {
                let mut of = item.attributes.clone();
                of.target = target;
                users_links::is_same(&of, &other.attributes)
            }
            _ => users_links::is_same(&item.attributes, &other.attributes),
        };
        if !fits {
            in_the_way.names.push(names.shown(item.at));
        }
    }
    in_the_way.check(ssd)
}

/// The places of all files below; and the files, and whether they stay where they are.
type Places = (BTreeMap<RelativePath, u64>, BTreeMap<(u64, u64), bool>);

/// Finds the file of each link of ours.
fn files_below(
    (ssd, shared): (&Tree, &Tree),
    links: &Links,
    (names, is_partly_seen): (&Scanned, bool),
) -> Result<Places> {
    let (mut places, mut keys) = (BTreeMap::new(), BTreeMap::new());
    let mut lost = Refused::new(
        "the bytes of these files are not on the disk below",
        "bring back the disk that has them, or mount the tier without --cluster and remove these names",
    );
    let mut second = Refused::new(
        "these links lead to another name's file, or have names that Halocline did not give them",
        "mount the tier without --cluster and unmount it; what `halocline fsck` tells then, remove",
    );
    for item in OnSsd::all(names).filter(|item| item.attributes.kind == Kind::Symlink) {
        let Link::Below(place) = links.read(&item.attributes) else { continue };
        let told = || format!("{} ({})", names.shown(item.at), shown(&place.to_string()));
        let found = match files_below::open(shared, &item, &place) {
            // It is in a directory that a repair would open.
            Err(error) if error.errno() == libc::EACCES && is_partly_seen => continue,
            found => found?,
        };
        let Some(fd) = found else {
            lost.names.push(told());
            continue;
        };
        let is_at_name = names.is_path(item.at, &place);
        let is_single = || -> Result<bool> {
            Ok(stat_descriptor(&ssd.look_at_link(&item.path())?)?.raw.st_nlink == 1)
        };
        let is_one = *places.entry(place.clone()).or_insert(item.key.1) == item.key.1;
        if !is_one || !links.is_shared(&item.attributes) && !is_at_name && !is_single()? {
            second.names.push(told());
            continue;
        }
        *keys.entry(stat_descriptor(&fd)?.key()).or_insert(true) &= is_at_name;
    }
    lost.check(ssd)?;
    second.check(ssd)?;
    Ok((places, keys))
}

/// Refuses links that look like the tier's own, but lead to a directory that it does not know.
fn forgotten(
    (ssd, shared): (&Tree, &Tree),
    links: &Links,
    names: &Scanned,
    places: &BTreeMap<RelativePath, u64>,
) -> Result<()> {
    let mut refused = Refused::new(
        "these links look like those of files below, but lead to a directory that this tier does not know",
        "move the tier back to where they lead, mount it there once without --cluster, and unmount it; if they are links \
         of users, remove them, and make them again afterwards",
    );
    let is_below = |path: &RelativePath| {
        let is_file = || {
            shared
                .look(Some(path))
                .is_ok_and(|fd| stat_descriptor(&fd).is_ok_and(|stat| stat.kind() == libc::S_IFREG))
        };
        !places.contains_key(path) && is_file()
    };
    for item in OnSsd::all(names).filter(|item| item.attributes.kind == Kind::Symlink) {
        if links.is_forgotten(&item.attributes, is_below) {
            let target = shown_name(&item.attributes.target);
            refused.names.push(format!("{} -> {}", names.shown(item.at), shown(&target)));
        }
    }
    refused.check(ssd)
}
