//! Marks on the servers of a striped volume: which volume, and which of its servers, a directory is.
//!
//! A server without bytes of a file has no local file, so an empty directory is a server on which all files have holes.
//! What must hold: a directory that is not the server, such as the mount point of one that is not mounted, or that of
//! another server, is refused, because its holes would be read, and copied, as data.

use halocline_os::bounded;
use halocline_os::error::{Error, Result};
use halocline_os::private::PrivateDir;

/// Name of the mark in the directory of a server.
pub(super) const NAME: &str = "halocline-server";

/// Whether a mark, or what an interrupted write of one left, has this name.
pub(super) fn is_mark(name: &str) -> bool {
    name.strip_prefix(NAME).is_some_and(|rest| rest.is_empty() || rest == ".new")
}

fn mark(volume: &str, index: usize) -> String {
    format!("{volume} {index}\n")
}

/// Marks the servers of the volume called `volume`, durably.
pub(super) fn write(volume: &str, servers: &[PrivateDir]) -> Result<()> {
    let mut servers = servers.iter().enumerate();
    servers.try_for_each(|(index, dir)| dir.replace(NAME, mark(volume, index).as_bytes()))
}

/// Refuses directories that are not the servers of the volume called `volume`, in their order.
pub(super) fn check(volume: &str, servers: &[PrivateDir]) -> Result<()> {
    for (index, dir) in servers.iter().enumerate() {
        let wanted = mark(volume, index);
        let what = match dir.read(NAME, bounded::SMALL_FILE_BYTES_MAX)? {
            Some(found) if found == wanted.as_bytes() => continue,
            Some(_) => "is another server",
            None => "has no mark of a server",
        };
        let path = dir.path().display();
        return Err(Error::invalid(
            format!("{path} {what}: it is not server {index} of this volume"),
            format!(
                "mount that server there; where its data is lost for good, let {NAME} in it be the \
                 line `{}`, and the files have holes in its place",
                wanted.trim_end()
            ),
        ));
    }
    Ok(())
}

/// Refuses marks that say of a directory that it is another server than the one in its place, or of two directories that they
/// are servers of two volumes: what an interrupted marking, or the lost label of another volume, has left.
pub(super) fn check_leftover(servers: &[PrivateDir]) -> Result<()> {
    let mut volumes = Vec::new();
    for (index, dir) in servers.iter().enumerate() {
        let Some(found) = dir.read(NAME, bounded::SMALL_FILE_BYTES_MAX)? else { continue };
        let volume = volume_marked(&found, index);
        let is_other = volume.is_none();
        volumes.extend(volume);
        if is_other || volumes.windows(2).any(|pair| pair[0] != pair[1]) {
            return Err(Error::invalid(
                format!(
                    "{}: its mark {NAME} says that it is another server, or one of another volume, than server {index} of this one",
                    dir.path().display()
                ),
                "mount each server in its place; remove a mark that you know to be wrong",
            ));
        }
    }
    Ok(())
}

/// The volume whose server `index` a directory with this mark is; `None` if it says anything else.
fn volume_marked(mark: &[u8], index: usize) -> Option<String> {
    let found = String::from_utf8_lossy(mark);
    let (volume, place) = found.trim_end().split_once(' ')?;
    (place == index.to_string()).then(|| volume.to_owned())
}

/// Marks in directories that others may write: body of a fuzz target (`crate::fuzzing`).
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing {
    use super::{mark, volume_marked};

    /// A mark: it is of one server at most, and the same when it is written again.
    pub(crate) fn server_mark(bytes: &[u8]) {
        let found: Vec<_> =
            (0..16).filter_map(|index| Some((index, volume_marked(bytes, index)?))).collect();
        assert!(found.len() <= 1, "{found:?}");
        for (index, volume) in found {
            assert_eq!(volume_marked(mark(&volume, index).as_bytes(), index), Some(volume));
        }
    }

    /// Seeds of [`server_mark`].
    #[cfg(test)]
    pub(crate) fn seeds() -> [(&'static str, Vec<u8>); 2] {
        [("mark", mark("0e1c2d3f", 3).into_bytes()), ("other", mark("a b", 15).into_bytes())]
    }
}
