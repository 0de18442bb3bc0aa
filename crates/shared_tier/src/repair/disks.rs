//! Which disks a check reads: the shared one, and the SSDs of all nodes that were ever mounted, as far as they are reached.

use std::path::Path;

use halocline_cluster::names::attributes::RelativePath;
use halocline_os::error::{Error, Result};
use halocline_os::private::PrivateDir;
use rustix::fs::AtFlags;

use super::scan::{Scanned, scan};
use crate::joining::set_formatted;
use crate::places::peers::{self, Peers};
use crate::places::steps::Steps;
use crate::places::tree::{Tree, fresh};

/// On the shared disk: nodes of the last rebuild whose SSDs were not reached.
const MISSING: &str = "missing";
/// On the shared disk: names are being built anew, and the store has only a part.
const REBUILDING: &str = "rebuilding";

/// All disks that are reached.
#[derive(Debug)]
pub(crate) struct Disks {
    /// The shared one is the first.
    pub(crate) all: Vec<Disk>,
    /// Nodes whose SSDs are not, and why.
    pub(crate) missing: Vec<(String, String)>,
    /// What a rebuild left undone.
    check: PrivateDir,
}

impl Disks {
    /// Reads all disks, as the node whose tier is at `root` reaches them.
    pub(crate) fn read(root: &Path, peers: Option<&str>) -> Result<Self> {
        let shared = Tree::open(&root.join("hdd"), Steps::default())?;
        let tier = peers::tier_id(&shared.private)?;
        let nodes = peers::nodes(&shared.private)?;
        let check = shared.private.sub("check")?;
        let own = root.join("ssd");
        let own_node = peers::node_of(&own, &tier);
        let peers = Peers::new(peers, tier, Steps::default())?;
        let mut all = vec![read(shared, None)?];
        let mut missing = Vec::new();
        for node in nodes {
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
        Ok(Self { all, missing, check })
    }

    /// The tier has names from now on: an empty store has lost them.
    pub(crate) fn set_formatted(&self) -> Result<()> {
        match self.all.first() {
            Some(shared) => set_formatted(&shared.tree.private),
            None => Ok(()),
        }
    }

    /// Nodes that were missing when the names were built last.
    pub(crate) fn were_missing(&self) -> Result<Vec<String>> {
        let dir = self.check.sub(MISSING)?;
        Ok(dir.names()?.iter().filter_map(|name| name.to_str().map(str::to_owned)).collect())
    }

    /// Keeps which nodes are missing now.
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

    /// What is unreadable would be forgotten.
    pub(crate) fn refuse_unread(&self) -> Result<()> {
        let mut unread = self.all.iter().flat_map(|disk| {
            disk.scanned.unread.iter().map(|line| format!("{}/{line}", disk.tree.path.display()))
        });
        match unread.next() {
            None => Ok(()),
            Some(first) => Err(Error::invalid(
                format!(
                    "{first}: what cannot be read would have no name ({} more)",
                    unread.count()
                ),
                "make it readable for this user, or move it away, and repair again",
            )),
        }
    }

    /// Whether a rebuild was begun and not ended.
    pub(crate) fn is_rebuilding(&self) -> Result<bool> {
        Ok(self.check.read(REBUILDING, 0)?.is_some())
    }

    /// Keeps whether one was.
    pub(crate) fn set_rebuilding(&self, is: bool) -> Result<()> {
        if is { self.check.replace(REBUILDING, b"") } else { self.check.remove(REBUILDING) }
    }
}

/// Whether a rebuild of the names of the tier at `root` was begun and not ended.
pub(crate) fn is_rebuilding(root: &Path) -> Result<bool> {
    let shared = Tree::open(&root.join("hdd"), Steps::default())?;
    Ok(shared.private.sub("check")?.read(REBUILDING, 0)?.is_some())
}

fn read(tree: Tree, node: Option<String>) -> Result<Disk> {
    let scanned: Scanned = scan(&tree)?;
    Ok(Disk { tree, node, scanned })
}

/// A disk that was read.
#[derive(Debug)]
pub(crate) struct Disk {
    pub(crate) tree: Tree,
    /// Whose SSD it is; of the shared disk, which is the first one, nobody's.
    pub(crate) node: Option<String>,
    pub(crate) scanned: Scanned,
}

impl Disk {
    /// Moves a file to where nobody looks for files of the tier; it is still there for people.
    pub(crate) fn set_aside(&self, path: &RelativePath, number: u64) -> Result<()> {
        let aside = self.tree.private.sub("leftovers")?;
        self.tree.rename_to(path, &aside, &fresh("leftover", number))
    }

    /// Removes a copy that a move left.
    pub(crate) fn remove(&self, path: &RelativePath) -> Result<()> {
        match self.tree.unlink(path, AtFlags::empty()) {
            Err(error) if error.errno() == libc::ENOENT => Ok(()),
            other => other,
        }
    }
}
