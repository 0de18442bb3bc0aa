//! Finds the files on this node's SSD by reading it.

use std::ops::ControlFlow;

use halocline_api::control::tier::PRIVATE;
use halocline_cluster::names::attributes::RelativePath;
use halocline_model::namespace::{EntryName, InodeNumber, Name, ROOT};
use halocline_os::beneath;
use halocline_os::error::Result;
use halocline_vfs::namespace::stat_descriptor;
use rustix::fs::{Mode, OFlags, openat};

use super::residents::Resident;
use crate::places::own_xattrs;
use crate::places::tree::Tree;

use std::os::unix::ffi::OsStrExt;

/// A file that was found.
#[derive(Debug)]
pub(super) struct ScannedFile {
    pub(super) number: u64,
    pub(super) resident: Resident,
    /// When it was last changed, in seconds since 1970.
    pub(super) mtime: i64,
}

/// Reports each file on an SSD that has a number. Unreadable files are skipped: nobody moves them.
///
/// # Errors
/// If the SSD itself cannot be read.
pub(super) fn scan(ssd: &Tree, each: &mut dyn FnMut(ScannedFile) -> ControlFlow<()>) -> Result<()> {
    let mut todo: Vec<(Option<RelativePath>, u64)> = vec![(None, ROOT.0)];
    while let Some((path, directory)) = todo.pop() {
        let names = match names(ssd, path.as_ref()) {
            Err(error) if path.is_none() => return Err(error),
            names => names.unwrap_or_default(),
        };
        for name in names.iter().filter(|name| path.is_some() || name.as_os_str() != PRIVATE) {
            let Some(path) = RelativePath::below(path.as_ref(), name.as_bytes()) else { continue };
            let Ok(fd) = ssd.look_at_link(&path) else { continue };
            let Ok(stat) = stat_descriptor(&fd) else { continue };
            match stat.kind() {
                libc::S_IFDIR => {
                    if let Some(number) = own_xattrs::number(&fd, own_xattrs::DIRECTORY) {
                        todo.push((Some(path), number));
                    }
                }
                libc::S_IFREG => {
                    let Some(number) = own_xattrs::number(&fd, own_xattrs::INODE) else { continue };
                    // Its names are listed if its place does not give them.
                    let listed = own_xattrs::names(&fd).into_iter().next();
                    let (directory, name) =
                        listed.unwrap_or_else(|| (directory, Name::from(path.last())));
                    let name = EntryName { directory: InodeNumber(directory), name };
                    let resident = Resident { name, bytes: stat.disk_bytes() };
                    if each(ScannedFile { number, resident, mtime: stat.raw.st_mtime }).is_break() {
                        return Ok(());
                    }
                }
                _ => {}
            }
        }
    }
    Ok(())
}

fn names(ssd: &Tree, path: Option<&RelativePath>) -> Result<Vec<std::ffi::OsString>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(beneath::names(openat(&ssd.look(path)?, ".", flags, Mode::empty())?)?)
}
