//! Makes an empty directory a striped volume, and opens the directories of its servers.

use std::fs::File;
use std::os::unix::fs::MetadataExt;

use super::REGISTRY;
use super::attestation;
use super::label::{self, Use, VolumeLabel};
use super::server_marks;
use super::tree_mark;
use super::tree_record::{TreeRecord, is_record};
use super::volume_directory::VolumeDir;
use halocline_api::config::VolumeShape;
use halocline_os::error::{Error, Result};
use halocline_os::private::PrivateDir;

/// Refuses a directory with anything but what an interrupted creation of a striped volume leaves.
pub(super) fn check_can_become_striped(volume_dir: &VolumeDir) -> Result<()> {
    volume_dir.check_empty(|name| {
        let is_ours = name == label::NAMESPACE || name.starts_with("server-");
        is_ours || [REGISTRY, "lost+found"].contains(&name) || name.starts_with(label::NAME)
    })
}

/// Makes an empty directory a striped volume, or continues an interrupted creation. The label comes last: without it
/// there is no volume.
pub(super) fn create_striped(volume_dir: &VolumeDir, shape: VolumeShape) -> Result<VolumeLabel> {
    check_can_become_striped(volume_dir)?;
    for index in 0..shape.servers {
        let is_ours = |name: &str| server_marks::is_mark(name) || is_record(name);
        volume_dir.make_directory(&server_name(index), is_ours)?;
    }
    // The tree's root gets the owner and mode of the directory.
    let namespace = volume_dir.make_directory(label::NAMESPACE, |_| false)?;
    volume_dir.liken(&namespace, label::NAMESPACE)?;
    let (inode, changed_ns) = tree_and_time(volume_dir, &namespace)?;
    let label = VolumeLabel::new(shape.servers, shape.stripe, inode, changed_ns);
    if let Some(volume) = label.volume() {
        let servers = open_servers(volume_dir, shape.servers, Use::Alone)?;
        server_marks::write(&volume, &servers)?;
        let path = volume_dir.path().join(label::NAMESPACE);
        tree_mark::write(&namespace, &volume).map_err(Error::at(&path, "mark the tree"))?;
        let record = TreeRecord::of(&namespace, attestation::is_possible(&namespace));
        record.map_err(Error::at(path, "stat"))?.write(&servers[0])?;
    }
    label.write(volume_dir)?;
    Ok(label)
}

/// What names a volume: the inode number of its tree, and when that was last changed.
pub(super) fn tree_and_time(volume_dir: &VolumeDir, tree: &File) -> Result<(u64, u64)> {
    let found = tree.metadata().map_err(Error::at(volume_dir.path(), "stat the tree in"))?;
    let changed_ns = found.mtime().wrapping_mul(1_000_000_000).wrapping_add(found.mtime_nsec());
    Ok((found.ino(), changed_ns.cast_unsigned()))
}

pub(super) fn server_name(index: u32) -> String {
    format!("server-{index}")
}

/// The directories of the servers. Anyone who could put objects there could make us read and write files of their choice.
pub(super) fn open_servers(
    volume_dir: &VolumeDir,
    servers: u32,
    how: Use,
) -> Result<Vec<PrivateDir>> {
    let open = if how == Use::Look { PrivateDir::open_to_read } else { PrivateDir::open };
    let open = |index| {
        let path = volume_dir.path().join(server_name(index));
        open(&path).map_err(|error| match error.errno() {
            libc::ENOENT => Error::invalid(
                format!("{}: this server of the volume is not there", path.display()),
                "move or mount it there, or restore it from a backup",
            ),
            _ => error,
        })
    };
    (0..servers).map(open).collect()
}
