//! Marks the servers of a volume of an earlier format, whose servers have no marks, and the files of one whose files have none.
//!
//! What must hold: the directories are marked only as what their contents show them to be. A mark on the mount point of a
//! server that is not mounted, or on a server in another one's place, would make the wrong state the right one for good.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use halocline_model::request::ByteRange;

use super::creation::{open_servers, tree_and_time};
use super::identity::{ObjectId, ObjectNumber};
use super::label::{self, Use, VolumeLabel};
use super::object_family::Families;
use super::tree_record::TreeRecord;
use super::tree_walk::{FileState, FoundFile, each_file};
use super::volume_directory::VolumeDir;
use super::{
    Origin, attestation, cut_mark, earlier_times, layouts, orphans, server_marks, tree_mark,
};
use crate::volume::Server;
use halocline_os::chattr;
use halocline_os::error::{Error, Result};
use halocline_os::private::PrivateDir;

/// What makes one a server of the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evidence {
    /// Its contents.
    Contents,
    /// Somebody who knows it: contents that no server in its place could have are refused nevertheless.
    UserKnows,
}

/// What one server has of the files that have a part on it.
#[derive(Debug, Default, Clone, Copy)]
struct PartCounts {
    present: u64,
    missing: u64,
}

/// A file that names data and is not marked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnmarkedFile {
    /// Its path below the mount.
    pub path: PathBuf,
    /// Why, for people.
    pub reason: String,
    /// Whether the data is its own: in a copy of the volume it would not get it.
    pub has_data: bool,
}

/// What of a volume is marked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marked {
    /// Whether its servers had no marks before.
    pub servers: bool,
    /// Files that were attested to refer to their objects; `None` if nobody but root can, or the tree's file system has no such
    /// attributes.
    pub files: Option<usize>,
    /// The files that name data and were not: it is not theirs, or the attribute cannot be set. While there is one that has its
    /// data, the volume does not say that its files are attested.
    pub unmarked: Vec<UnmarkedFile>,
}

/// Marks the servers of the striped volume in `dir`, if they are not marked, and its files, whose references count in copies of
/// the volume then. If it is interrupted, the volume is as it was, and the same call goes on.
///
/// # Errors
/// [`Error::Invalid`] if it is mounted or not a striped volume, if a directory has bytes that its server cannot have, or
/// nothing of what it should have; and if it is a copy that was not mounted yet. Else if a directory of the tree cannot be read.
pub fn mark_servers(dir: &Path, evidence: Evidence) -> Result<Marked> {
    let volume_dir = VolumeDir::open(dir)?;
    let label = VolumeLabel::required(&volume_dir)?;
    let origin = Origin::open_striped(&volume_dir, label, Use::Alone, &|_, device| device)?;
    origin.check_bound()?;
    origin.check_tree()?;
    let servers = open_servers(&volume_dir, label.servers, Use::Alone)?;
    let tree = volume_dir.tree(label::NAMESPACE, |inode| label.is_bound_to(inode))?;
    let is_new = label.volume().is_none();
    if is_new {
        mark(&origin, (&volume_dir, label), (&servers, &tree), evidence)?;
    }
    let (files, unmarked) = attest(&origin, &servers[0], &tree)?;
    Ok(Marked { servers: is_new, files, unmarked })
}

/// Marks the `servers`, and `tree`.
fn mark(
    origin: &Origin,
    (volume_dir, label): (&VolumeDir, VolumeLabel),
    (servers, tree): (&[PrivateDir], &File),
    evidence: Evidence,
) -> Result<()> {
    server_marks::check_leftover(servers)?;
    check_contents(origin, evidence)?;
    let (inode, changed_ns) = tree_and_time(volume_dir, tree)?;
    let marked = label.marked(inode, changed_ns);
    if let Some(volume) = marked.volume() {
        server_marks::write(&volume, servers)?;
        // Any mark counts while the volume has no name.
        tree_mark::write(tree, &volume).map_err(Error::at(origin.namespace_dir(), "mark"))?;
    }
    // The label comes last: without it nothing asks for the marks.
    marked.write(volume_dir)
}

/// Attests the references of all files whose objects are there, and notes that on the first server. Returns how many were not
/// attested before, and those that are not now.
fn attest(
    origin: &Origin,
    first: &PrivateDir,
    tree: &File,
) -> Result<(Option<usize>, Vec<UnmarkedFile>)> {
    if !attestation::is_possible(tree) {
        return Ok((None, Vec::new()));
    }
    let objects = orphans::all(&origin.volume)?;
    let families = Families::of(objects.iter().copied(), &origin.volume)?;
    let mut files = 0;
    // Each once, whatever its names.
    let mut unmarked = BTreeMap::new();
    let unread = each_file(origin.namespace_dir(), &mut |file, state| {
        let key = (state.inode, state.born_ns);
        let id = state.reference.number().map(|it| ObjectId::of_file(it, key.0, key.1));
        // A number without an object is anybody's.
        let is_own = id.is_some_and(|id| objects.contains(&id));
        let reason = match state.reference.object().filter(|_| is_own) {
            Some(number) if number.is_attested(&file.path()).unwrap_or(false) => None,
            Some(number) => match attest_one(origin, file, number) {
                Ok(()) => {
                    files += 1;
                    None
                }
                Err(error) => Some(unattested(&file.shown, &error)),
            },
            None => orphans::unreadable(&origin.volume, state, is_own, &families),
        };
        if let Some(reason) = reason {
            let path = file.shown.strip_prefix(origin.namespace_dir()).unwrap_or(&file.shown);
            let has_data = is_own && state.reference.object().is_some();
            let found = UnmarkedFile { path: path.to_owned(), reason, has_data };
            unmarked.entry(key).or_insert(found);
        }
        Ok(())
    })?;
    unread.into_iter().next().map_or(Ok(()), Err)?;
    // A volume that says so has them all, also after a power loss.
    origin.sync_names()?;
    if !unmarked.values().any(|file| file.has_data) {
        let record = TreeRecord::of(tree, true);
        record.map_err(Error::at(origin.namespace_dir(), "stat"))?.write(first)?;
    }
    let mut unmarked: Vec<_> = unmarked.into_values().collect();
    unmarked.sort_by(|one, other| one.path.cmp(&other.path));
    Ok((Some(files), unmarked))
}

fn attest_one(origin: &Origin, file: &FoundFile<'_>, number: ObjectNumber) -> io::Result<()> {
    let path = file.path();
    earlier_times::note_if_needed(origin, &path)?;
    number.attest(&path)
}

/// Why a file whose object is there could not be attested, with what can be done.
fn unattested(shown: &Path, error: &io::Error) -> String {
    let remedy = match error.raw_os_error() {
        Some(libc::EPERM) => chattr::remedy(shown),
        Some(libc::ENOSPC | libc::E2BIG) => Some(
            "remove some of its attributes (getfattr -d lists them), or free space on the file system of the volume's tree"
                .to_owned(),
        ),
        _ => None,
    };
    let remedy = remedy.map_or_else(String::new, |remedy| format!("; {remedy}"));
    format!("its attribute cannot be set: {error}{remedy}")
}

/// Refuses servers whose contents are not those of a server in their place.
fn check_contents(origin: &Origin, evidence: Evidence) -> Result<()> {
    let mut held = vec![PartCounts::default(); origin.servers().len()];
    // What users keep others from reading says nothing; the other files do.
    let count =
        &mut |file: &FoundFile, state: &FileState| count_held(origin, file, state, &mut held);
    each_file(origin.namespace_dir(), count)?;
    let mut seen = origin.servers().iter().zip(held);
    let empty = seen.find(|(_, held)| held.present == 0 && held.missing > 0);
    let Some((server, held)) = empty.filter(|_| evidence == Evidence::Contents) else {
        return Ok(());
    };
    Err(Error::invalid(
        format!(
            "{}: nothing is there of {} files that have a part on this server",
            server.dir().display(),
            held.missing
        ),
        "mount the server there; if it is there, and these files have holes in its place, say so with --known",
    ))
}

/// Counts what each server has of a file.
fn count_held(
    origin: &Origin,
    file: &FoundFile,
    state: &FileState,
    held: &mut [PartCounts],
) -> Result<()> {
    let FoundFile { shown, .. } = file;
    let failed = || Error::at(shown, "look at the data of");
    let FileState { reference, inode, born_ns, len, .. } = *state;
    let Some(number) = reference.object() else { return Ok(()) };
    let id = ObjectId::of_file(number, inode, born_ns);
    let layout = layouts::distribution_of(id, &origin.volume, origin.striping());
    let Some(distribution) = layout.map_err(failed())? else {
        // A number that a file's owner made up has neither a layout nor an object.
        let lengths = origin.servers().iter().map(|server| length_on(server, id));
        let lengths = lengths.collect::<io::Result<Vec<_>>>().map_err(failed())?;
        if lengths.iter().all(|length| *length == 0) {
            return Ok(());
        }
        let (first, path) = (origin.servers()[0].dir().display(), shown.display());
        return Err(Error::invalid(
            format!("{first}: the layout of {path}, which is on the first server, is not there"),
            "mount the first server in its place",
        ));
    };
    let whole = ByteRange::new(0, len);
    // What a truncate has left beyond the file's size says nothing.
    let may_be_longer = cut_mark::is_marked(&file.path()).map_err(failed())?;
    let lengths = origin.servers().iter().map(|server| length_on(server, id));
    let lengths = lengths.collect::<io::Result<Vec<_>>>().map_err(failed())?;
    let sum = lengths.iter().copied().fold(0, u64::saturating_add);
    for (((server, held), length), index) in origin.servers().iter().zip(held).zip(lengths).zip(0..)
    {
        let room = distribution.local_range(index, whole).len();
        if length > room && !may_be_longer {
            let (server, path) = (server.dir().display(), shown.display());
            // Servers in others' places have no more of a file than it is long.
            if sum > len {
                return Err(Error::invalid(
                    format!(
                        "{path} is {len} bytes long, and the servers have {sum} of it: it was shortened past the mount, or \
                         {server} is not server {index} of this volume"
                    ),
                    "mount each server in its place; if they are, give the file its length again, past the mount, too \
                     (truncate -s), or remove it",
                ));
            }
            return Err(Error::invalid(
                format!(
                    "{server}: {length} bytes of {path} are there, and server {index} has {room} at most: it is another server"
                ),
                "mount each server in its place",
            ));
        }
        match (room, length) {
            (0, _) => {}
            (_, 0) => held.missing += 1,
            _ => held.present += 1,
        }
    }
    Ok(())
}

/// Length of the local file of an object; 0 if there is none.
fn length_on(server: &Server, id: ObjectId) -> io::Result<u64> {
    let file = server.directory().open(&id.path())?;
    file.map_or(Ok(0), |file| file.size())
}
