//! The disks that a check reads: the shared one, and the SSDs, as far as reached, of all nodes that have ever mounted
//! the tier.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use halocline_cluster::names::NamesError;
use halocline_cluster::names::attributes::{Attributes, Kind, RelativePath};
use halocline_os::error::{Error, Result};
use halocline_os::private::PrivateDir;
use halocline_vfs::namespace::{stat_descriptor, xattr};
use rustix::fs::AtFlags;

use super::refused::{Refused, error_of};
use super::scan::{Scanned, scan};
use crate::acl::ACCESS;
use crate::disk_users::{self, CHECK};
use crate::errors::of_store;
use crate::joining::set_formatted;
use crate::mount_counts;
use crate::places::directory_times::newest;
use crate::places::missed::{MissedNote, MissedNotes};
use crate::places::peers::{self, MISSING, Peers};
use crate::places::shared_disk::links_and_devices::beside::{self, Beside};
use crate::places::shared_disk::links_and_devices::several_names;
use crate::places::steps::Steps;
use crate::places::tree::{LEFTOVERS, Tree, candidates, fresh};

/// How many of the things that cannot be read are named.
const UNREAD_MAX: usize = 50;

/// On the shared disk: a rebuild is under way, so the store has only a part of the names.
const REBUILDING: &str = "rebuilding";

/// All disks that are reached.
#[derive(Debug)]
pub(crate) struct Disks {
    /// The shared disk comes first.
    pub(crate) all: Vec<Disk>,
    /// Nodes whose SSDs are not reached, and why.
    pub(crate) missing: Vec<(String, String)>,
    /// Nodes whose SSDs are reached, and that the shared disk does not note: it is another one than they were mounted with.
    pub(crate) unnoted: BTreeSet<String>,
    /// State of unfinished rebuilds.
    check: PrivateDir,
}

impl Disks {
    /// Reads all disks that the node whose tier is at `root` can reach.
    pub(crate) fn read(root: &Path, peers: Option<&str>) -> Result<Self> {
        let shared = Tree::open(&root.join("hdd"), Steps::default())?;
        let tier = peers::tier_id(&shared.private)?;
        let noted: BTreeSet<String> = peers::nodes(&shared.private)?.into_iter().collect();
        let check = shared.private.sub(CHECK)?;
        let own = root.join("ssd");
        peers::refuse_files_of_others(&own, &tier)?;
        let own_node = peers::node_of(&own, &tier);
        let reached = peers.map_or_else(Vec::new, peers::reached);
        let reached = reached.into_iter().filter(|found| found.tier == tier);
        let mut unnoted: BTreeSet<String> = reached.map(|found| found.node).collect();
        unnoted.extend(own_node.clone());
        unnoted.retain(|node| !noted.contains(node));
        let peers = Peers::new(peers, tier, Steps::default())?;
        let path = shared.path.display().to_string();
        let mut all = vec![read(shared, None).map_err(|error| error_of(&path, "read it", error))?];
        let mut missing = Vec::new();
        for node in noted.into_iter().chain(unnoted.clone()) {
            let tree = if own_node.as_deref() == Some(&node) {
                Tree::open(&own, Steps::default())
            } else {
                peers.tree(&node)
            };
            match tree.and_then(|tree| read(tree, Some(node.clone()))) {
                Ok(disk) => all.push(disk),
                Err(error) => missing.push((node, error.to_string())),
            }
        }
        Ok(Self { all, missing, unnoted, check })
    }

    /// Notes that the tier has names: from now on, an empty store has lost them.
    pub(crate) fn set_formatted(&self) -> Result<()> {
        match self.all.first() {
            Some(shared) => set_formatted(&shared.tree.private),
            None => Ok(()),
        }
    }

    /// Nodes that were missing in the last rebuild, or that it cannot have known.
    pub(crate) fn were_missing(&self) -> Result<BTreeSet<String>> {
        let names = self.check.sub(MISSING)?.names()?;
        let noted = names.iter().filter_map(|name| name.to_str().map(str::to_owned));
        Ok(noted.chain(self.unnoted.iter().cloned()).collect())
    }

    /// Notes on the shared disk the nodes that it does not know and whose SSDs have files.
    pub(super) fn note_nodes(&self) -> Result<()> {
        let Some(shared) = self.all.first() else { return Ok(()) };
        let unnoted = |disk: &&Disk| disk.node.as_ref().is_some_and(|it| self.unnoted.contains(it));
        let with_files = |disk: &&Disk| !disk.scanned.items.is_empty();
        let mut nodes = self.all.iter().filter(unnoted).filter(with_files);
        nodes.try_for_each(|disk| match &disk.node {
            Some(node) => peers::note(&shared.tree.private, node),
            None => Ok(()),
        })
    }

    /// Records which nodes are missing now.
    pub(crate) fn keep_missing(&self, missing: &[String]) -> Result<()> {
        let dir = self.check.sub(MISSING)?;
        for node in missing {
            dir.overwrite(node, b"")?;
        }
        for name in dir.names()? {
            if !missing.iter().any(|node| name == *node.as_str()) {
                dir.remove(&name)?;
            }
        }
        Ok(())
    }

    /// Forgets what SSDs have missed, once they have the names of the store; those that are not
    /// reached, or refuse them, miss it still.
    pub(super) fn forget_missed(&self, refused: &Refused) -> Result<()> {
        let Some(shared) = self.all.first() else { return Ok(()) };
        let notes = MissedNotes::on(&shared.tree)?;
        let is_missing = |note: &&MissedNote| {
            self.missing.iter().any(|(node, _)| note.place.node.as_ref() == Some(node))
        };
        let is_followed = |note: &&MissedNote| !is_missing(note) && !refused.has(note.number);
        let mut followed = shared.missed.iter().filter(is_followed);
        followed.try_for_each(|note| notes.remove(&note.note))
    }

    /// Which nodes' sessions an SSD or the shared disk is older than, and what is said of it.
    ///
    /// # Errors
    /// If what they count cannot be read.
    pub(super) fn older(&self) -> Result<Vec<String>> {
        let Some(shared) = self.all.first() else { return Ok(Vec::new()) };
        let mut told = Vec::new();
        for disk in &self.all {
            let Some(node) = &disk.node else { continue };
            let older = mount_counts::older(&disk.tree.private, &shared.tree.private, node)?;
            told.extend(older.map(|older| mount_counts::told(older, node)));
        }
        Ok(told)
    }

    /// What was put back of a disk is compared now: mounts say no longer that it is older.
    pub(super) fn agree_on_counts(&self, refused: &mut Refused) -> Result<()> {
        let Some(shared) = self.all.first() else { return Ok(()) };
        for disk in &self.all {
            let Some(node) = &disk.node else { continue };
            let agreed = mount_counts::agree(&disk.tree.private, &shared.tree.private, node);
            let path = disk.tree.path.display().to_string();
            refused.is_made((&path, 0), "mounts go on saying that a disk is older", agreed)?;
        }
        Ok(())
    }

    /// The root's attributes.
    pub(crate) fn root(&self) -> Attributes {
        let shared = self.all.first().map(|disk| &disk.scanned);
        let attributes = shared.and_then(|shared| shared.root.clone());
        let mut attributes =
            attributes.unwrap_or_else(|| Attributes::new(Kind::Directory, 0o755, 0));
        let times = self.all.iter().filter_map(|disk| Some(disk.scanned.root.as_ref()?.mtime_ns));
        let dated = shared.and_then(|shared| shared.root_dated);
        attributes.mtime_ns = newest(dated, times).unwrap_or(attributes.mtime_ns);
        attributes
    }

    /// The files of whose names an SSD has missed a change.
    pub(crate) fn missed(&self) -> BTreeSet<u64> {
        let notes = self.all.first().into_iter().flat_map(|disk| &disk.missed);
        notes.map(|note| note.number).collect()
    }

    /// Refuses to rebuild over unreadable directories, whose content would be forgotten, and while somebody changes them.
    pub(crate) fn refuse_unread(&self) -> Result<()> {
        let vanished = |disk: &Disk| Some((disk.tree.path.clone(), disk.scanned.vanished.clone()?));
        if let Some((disk, path)) = self.all.iter().find_map(vanished) {
            return Err(Error::invalid(
                format!("{}/{path}: it was moved or removed while it was read", disk.display()),
                "see that nobody changes the disks, and repair again",
            ));
        }
        refuse(self.all.iter().flat_map(|disk| {
            disk.scanned.unread().map(|line| format!("{}/{line}", disk.tree.path.display()))
        }))
    }

    /// Why the names in the store are held.
    ///
    /// # Errors
    /// If that cannot be found out.
    pub(super) fn why_held(&self) -> Result<Error> {
        let repaired = disk_users::repaired_by_another(&self.check)?;
        Ok(repaired.unwrap_or_else(|| of_store(&NamesError::Held)))
    }

    /// Whether a rebuild was begun and not finished.
    pub(crate) fn is_rebuilding(&self) -> Result<bool> {
        Ok(self.check.read(REBUILDING, 0)?.is_some())
    }

    /// Records whether a rebuild is under way.
    pub(crate) fn set_rebuilding(&self, is: bool) -> Result<()> {
        if is { self.check.replace(REBUILDING, b"") } else { self.check.remove(REBUILDING) }
    }
}

/// Refuses a rebuild if there is anything that cannot be read.
fn refuse(mut unread: impl Iterator<Item = String>) -> Result<()> {
    let named: Vec<String> = unread.by_ref().take(UNREAD_MAX).collect();
    if named.is_empty() {
        return Ok(());
    }
    Err(Error::invalid(
        format!(
            "{}: what cannot be read would have no name ({} more)",
            named.join(", "),
            unread.count()
        ),
        "make it readable for this user, or move it away, and repair again",
    ))
}

/// Whether a rebuild of the names of the tier at `root` was begun and not finished.
pub(crate) fn is_rebuilding(root: &Path) -> Result<bool> {
    let shared = Tree::open(&root.join("hdd"), Steps::default())?;
    Ok(shared.private.sub(CHECK)?.read(REBUILDING, 0)?.is_some())
}

fn read(tree: Tree, node: Option<String>) -> Result<Disk> {
    let scanned: Scanned = scan(&tree)?;
    let (mut missed, mut several, mut beside) = (Vec::new(), BTreeMap::new(), Vec::new());
    if node.is_none() {
        missed = MissedNotes::on(&tree)?.all()?;
        beside = beside::all(&tree)?;
        for number in several_names::numbers(&tree)? {
            if let Some(inode) = several_names::open(&tree, number)? {
                several.insert(number, stat_descriptor(&inode)?.key());
            }
        }
    }
    Ok(Disk { tree, node, scanned, missed, several, beside })
}

/// A disk that was read.
#[derive(Debug)]
pub(crate) struct Disk {
    pub(crate) tree: Tree,
    /// The node whose SSD this is; `None` for the shared disk, which is the first.
    pub(crate) node: Option<String>,
    pub(crate) scanned: Scanned,
    /// On the shared disk: changes that SSDs have missed.
    pub(crate) missed: Vec<MissedNote>,
    /// On the shared disk: links and special files that have, or had, several names, by their numbers.
    pub(crate) several: BTreeMap<u64, (u64, u64)>,
    /// On the shared disk: links and special files that may lie beside their names.
    pub(crate) beside: Vec<Beside>,
}

impl Disk {
    /// Opens an item, but no symbolic link.
    pub(crate) fn look(&self, at: usize) -> rustix::io::Result<OwnedFd> {
        self.tree.look(Some(&self.scanned.path(at)))
    }

    /// Whether it keeps ACLs.
    pub(crate) fn keeps_acls(&self) -> bool {
        let found = self.tree.look(None).map_err(Error::from);
        let found = found.and_then(|root| xattr::get_on(&root, OsStr::from_bytes(ACCESS)));
        !found.is_err_and(|error| error.errno() == libc::EOPNOTSUPP)
    }

    /// An item's path, for people.
    pub(crate) fn shown(&self, at: usize) -> String {
        format!("{}/{}", self.tree.path.display(), self.scanned.shown(at))
    }

    /// Whether an item is at this path of a place: a whole one on an SSD, the last name on the shared disk.
    pub(crate) fn is_path(&self, at: usize, path: &RelativePath) -> bool {
        match self.node {
            Some(_) => self.scanned.is_path(at, path),
            None => self.scanned.items[at].name.as_bytes() == path.as_bytes(),
        }
    }

    /// The path in the place of a file with a number. On an SSD, one that is too long for the store is that to which
    /// [`bring_nearer`](Self::bring_nearer) moves the file.
    pub(crate) fn path_in_store(&self, at: usize, number: u64) -> Option<RelativePath> {
        let name = &self.scanned.items[at].name;
        if self.node.is_none() {
            return RelativePath::new(name.as_bytes());
        }
        let path = self.scanned.path(at);
        let [_, numbered] = candidates(name, number);
        if path.is_storable() { Some(path) } else { RelativePath::new(numbered.as_bytes()) }
    }

    /// Whether the store has no room for an item's path on this disk.
    pub(crate) fn is_too_far(&self, at: usize) -> bool {
        self.node.is_some() && !self.scanned.path(at).is_storable()
    }

    /// Moves a file on an SSD whose path is too long for the store to the root of the SSD. Its names must be listed with
    /// it. The tier of one node has such paths.
    pub(crate) fn bring_nearer(&self, at: usize, number: u64) -> Result<()> {
        let path = self.scanned.path(at);
        let [_, numbered] = candidates(&self.scanned.items[at].name, number);
        self.tree.rename(&path, &(self.tree.look(None)?, None), &numbered).map(drop)
    }

    /// Moves a file out of the tier, to where people still find it.
    pub(crate) fn set_aside(&self, at: usize, number: u64) -> Result<()> {
        let aside = self.tree.private.sub(LEFTOVERS)?;
        self.tree.rename_to(&self.scanned.path(at), &aside, &fresh("leftover", number))
    }

    /// Removes a copy that a move left.
    pub(crate) fn remove(&self, at: usize) -> Result<()> {
        match self.tree.unlink(&self.scanned.path(at), AtFlags::empty()) {
            Err(error) if error.errno() == libc::ENOENT => Ok(()),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: only the first one was named, so that each took one more run to be found.
    #[test]
    fn what_cannot_be_read_is_named_by_all_its_paths() {
        let lines = |count: usize| (0..count).map(|at| format!("hdd/{at}: why"));
        refuse(lines(0)).unwrap();
        let told = |count: usize| refuse(lines(count)).unwrap_err().to_string();
        assert!(told(2).contains("hdd/0: why, hdd/1: why: what cannot be read would have"));
        let many = told(UNREAD_MAX + 7);
        assert!(many.contains("hdd/49: why: ") && many.contains("(7 more)"), "{many}");
    }
}
