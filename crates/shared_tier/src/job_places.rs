//! Where the files of a job are: a hint for a scheduler, which may start the job's processes near their data.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use halocline_api::control::{JobPlaces, NodeBytes};
use halocline_api::jobs::files_on_all_nodes;
use halocline_cluster::names::attributes::Kind;
use halocline_cluster::names::namespace::Failure;
use halocline_model::namespace::{EntryName, InodeNumber, Name, ROOT};
use halocline_os::error::{Error, Result};
use rustix::io::Errno;

use crate::base::Base;
use crate::errors::of_names;

/// The most files of a job that are looked up.
const FILES_MAX: usize = 100_000;

/// The directories above a path, the deepest last.
type Ancestors = Vec<(PathBuf, InodeNumber)>;

/// Nodes by the bytes of a job's files, the node with the most first; those on the shared disk count for no node.
///
/// # Errors
/// If the text is no job file, or the store does not answer.
pub(crate) fn of(base: &Base, job: &str) -> Result<JobPlaces> {
    let files = files_on_all_nodes(job)?;
    if files.len() > FILES_MAX {
        return Err(Error::invalid(
            format!("the job has {} files, more than {FILES_MAX}", files.len()),
            "ask for a part of it",
        ));
    }
    let mut nodes: BTreeMap<Option<String>, (u64, u64)> = BTreeMap::new();
    let (mut places, mut ancestors) = (JobPlaces::default(), Vec::new());
    // In order, so that files of one directory are adjacent.
    for file in &files {
        let found = directory(base, &mut ancestors, file.parent().unwrap_or(Path::new("")))?;
        let found = found.map(|directory| {
            let name = file.file_name().unwrap_or_default();
            let name = Name::from(name.as_encoded_bytes());
            base.names.lookup(&EntryName { directory, name })
        });
        let attributes = match found {
            None | Some(Err(Failure::Refused(_))) => None,
            Some(found) => Some(found.map_err(of_names)?.attributes),
        };
        let of = attributes.filter(|of| of.kind == Kind::File);
        let Some(place) = of.as_ref().and_then(|of| of.location.as_ref()) else {
            places.missing_files += 1;
            continue;
        };
        let sum = nodes.entry(place.node.clone()).or_default();
        *sum = (sum.0 + 1, sum.1.saturating_add(of.as_ref().map_or(0, |of| of.size)));
    }
    let one = |(node, (files, bytes))| NodeBytes { node, files, bytes };
    places.nodes = nodes.into_iter().map(one).collect();
    places.nodes.sort_by(|one, other| other.bytes.cmp(&one.bytes).then(one.node.cmp(&other.node)));
    Ok(places)
}

/// The directory at a path; `None` if there is none. Ancestors shared with the path before are not looked up again.
fn directory(base: &Base, ancestors: &mut Ancestors, path: &Path) -> Result<Option<InodeNumber>> {
    while ancestors.last().is_some_and(|(known, _)| !path.starts_with(known)) {
        ancestors.pop();
    }
    let (mut known, mut at) = ancestors.last().cloned().unwrap_or((PathBuf::new(), ROOT));
    let rest = path.strip_prefix(&known).map_err(|_| Errno::INVAL)?.to_owned();
    for part in &rest {
        let name = Name::from(part.as_encoded_bytes());
        let found = match base.names.lookup(&EntryName { directory: at, name }) {
            Err(Failure::Refused(_)) => return Ok(None),
            found => found.map_err(of_names)?,
        };
        if found.attributes.kind != Kind::Directory {
            return Ok(None);
        }
        at = found.inode;
        known.push(part);
        ancestors.push((known.clone(), at));
    }
    Ok(Some(at))
}
