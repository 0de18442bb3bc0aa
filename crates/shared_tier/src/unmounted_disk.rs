//! A shared disk that is not mounted, or was replaced by an empty one: the SSD is that of a node of a tier whose id the disk lacks.
//!
//! What must hold: nothing is made in a directory in which the disk may yet be mounted, and no names are built from it, unless
//! somebody has said that the disk is lost. A rebuild from an empty disk has none of its names; and without the list of nodes,
//! it reads those SSDs to which `--peers` leads.

use std::io;
use std::path::{Path, PathBuf};

use halocline_api::control::tier::PRIVATE;
use halocline_api::file_tier::shared_disk::{NODES, TIER};
use halocline_os::error::{Error, Result};
use halocline_os::private::PrivateDir;

use crate::entry_names::REGISTRY;
use crate::joining::{is_shared_disk, set_formatted};
use crate::places::peers::{self, Whose};
use crate::remedies::DISK_LOST;

/// Why the disk cannot be that of the SSD's tier.
enum Lacks {
    /// It has nothing.
    All,
    /// It has no id of a tier, but this.
    Id(PathBuf),
    /// It has another id, and nothing else: a mount that was refused has made it.
    AllButMarks,
}

/// Refuses to use the tier below a root whose SSD is that of a node, while the shared disk has no id of a tier; and one whose shared
/// disk is the SSD of a node.
///
/// # Errors
/// [`Error::Invalid`] asks whether the disk is mounted, and has the command for one that is lost.
pub fn refuse_unmounted(root: &Path) -> Result<()> {
    let [ssd, shared] = ["ssd", "hdd"].map(|disk| root.join(disk));
    if let Some(whose) = peers::of_ssd(&shared) {
        return Err(Error::invalid(
            format!("{}: this is the SSD of node {}", shared.display(), whose.node),
            "have hdd lead to the directory that all nodes share",
        ));
    }
    let Some(whose) = peers::of_ssd(&ssd) else { return Ok(()) };
    let Some(lacks) = lacks(&shared, &whose)? else { return Ok(()) };
    let found = match lacks {
        Lacks::All => "it is empty".to_owned(),
        Lacks::AllButMarks => "it has the id of another tier, and no files".to_owned(),
        Lacks::Id(name) => {
            format!("it has no id of a tier (but {})", name.display())
        }
    };
    Err(Error::invalid(
        format!(
            "{}: {found}, while {} is the SSD of node {} of a tier that nodes share: is the shared disk mounted?",
            shared.display(),
            ssd.display(),
            whose.node
        ),
        format!("mount it, and begin again; {DISK_LOST}"),
    ))
}

fn lacks(shared: &Path, whose: &Whose) -> Result<Option<Lacks>> {
    // Whatever else is wrong with it is told where it is opened.
    let is_there = std::fs::metadata(shared).is_ok_and(|found| found.is_dir());
    let id = match peers::id_of_disk(shared) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(_) => return Ok(None),
        Ok(id) if id == whose.tier => return Ok(None),
        Ok(id) => Some(id),
    };
    if !is_there || is_shared_disk(shared) && id.is_some() {
        return Ok(None);
    }
    let name = peers::foreign_name(shared, &[PRIVATE, REGISTRY])?;
    Ok(match (id, name) {
        (None, Some(name)) => Some(Lacks::Id(name)),
        (None, None) => Some(Lacks::All),
        (Some(_), Some(_)) => None,
        (Some(_), None) if has_nodes(shared) => None,
        (Some(_), None) => Some(Lacks::AllButMarks),
    })
}

fn has_nodes(shared: &Path) -> bool {
    let nodes = std::fs::read_dir(shared.join(PRIVATE).join(NODES));
    nodes.is_ok_and(|mut nodes| nodes.next().is_some())
}

/// What is said of a disk that is to be that of a new tier, though `peers` leads to SSDs of others: a new node whose shared disk is
/// not mounted looks like that.
#[must_use]
pub fn note_of_new_tier(root: &Path, peers: &str) -> Option<String> {
    let [ssd, shared] = ["ssd", "hdd"].map(|disk| root.join(disk));
    if peers::of_ssd(&ssd).is_some() || peers::id_of_disk(&shared).is_ok() {
        return None;
    }
    let nodes: Vec<String> = peers::reached(peers).into_iter().map(|found| found.node).collect();
    (!nodes.is_empty()).then(|| {
        format!(
            "{} has no id of a tier, so this becomes a new one; --peers leads to SSDs of another ({}). If this was to be a node of \
             that, unmount, empty {}, and mount the shared disk of that tier at hdd",
            shared.display(),
            nodes.join(", "),
            ssd.display()
        )
    })
}

/// What is said of an SSD that becomes that of a new node, of which nobody has given the name, in a tier that has nodes: one whose
/// SSD is not mounted looks like that.
#[must_use]
pub fn note_of_new_node(root: &Path) -> Option<String> {
    let [ssd, shared] = ["ssd", "hdd"].map(|disk| root.join(disk));
    if peers::of_ssd(&ssd).is_some() {
        return None;
    }
    let nodes = std::fs::read_dir(shared.join(PRIVATE).join(NODES)).ok()?.flatten();
    let mut nodes: Vec<String> =
        nodes.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    nodes.retain(|node| peers::check_node(node).is_ok());
    nodes.sort();
    (!nodes.is_empty()).then(|| {
        format!(
            "{} is the SSD of no node, so this becomes a new one; the tier has nodes already ({}). If this was to be one of them, \
             unmount, and mount its SSD there",
            ssd.display(),
            nodes.join(", ")
        )
    })
}

/// What is said if the pattern does not lead to the SSD of this node, which is mounted: then it is hardly right for others.
#[must_use]
pub fn note_of_peers(root: &Path, peers: &str) -> Option<String> {
    let own = peers::of_ssd(&root.join("ssd"))?;
    let path = peers::of_node(peers, &own.node);
    let found = peers::of_ssd(&path);
    (found.as_ref() != Some(&own)).then(|| {
        format!(
            "--peers leads to {} for this node, and its SSD is not there: if the pattern is wrong, files on the SSDs of other nodes \
             cannot be opened here",
            path.display()
        )
    })
}

/// Makes what is mounted as the shared disk that of the tier of the node whose SSD is below a root: the former disk is lost. The
/// names have to be built again. Nothing is changed if it is that disk already.
///
/// # Errors
/// [`Error::Invalid`] if the SSD is that of no node, or the disk that of another tier.
pub fn replace_lost(root: &Path) -> Result<()> {
    let [ssd, shared] = ["ssd", "hdd"].map(|disk| root.join(disk));
    let Some(whose) = peers::of_ssd(&ssd) else {
        return Err(Error::invalid(
            format!(
                "{}: it is the SSD of no node, so nothing says which tier this was",
                ssd.display()
            ),
            "give the ROOT of a node that has mounted the tier",
        ));
    };
    if lacks(&shared, &whose)?.is_none() {
        return Ok(());
    }
    let common = PrivateDir::make(&shared.join(PRIVATE))?;
    // First: a mount of a tier without names would format new ones.
    set_formatted(&common)?;
    common.replace(TIER, format!("{}\n", whose.tier).as_bytes())
}

#[cfg(test)]
mod tests;
