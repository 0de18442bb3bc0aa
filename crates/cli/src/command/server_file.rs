//! The file that describes servers, as commands are given it with `--servers`.

use std::path::Path;

use halocline_os::bounded;
use halocline_sim::{ServerSet, Sides, TracedFiles};

use crate::failure::Failure;

/// The most bytes of a description of servers.
const SERVERS_BYTES_MAX: u64 = 1 << 24;

/// The servers that the file at `path` describes.
pub(crate) fn read(path: &Path) -> Result<ServerSet, Failure> {
    let content = bounded::read_to_string(path, SERVERS_BYTES_MAX);
    let content = content.map_err(|error| Failure::unreadable(path, &error))?;
    ServerSet::parse(&content, path).map_err(Failure::refused)
}

/// Refuses disks that do not hold the `files` of a trace, which are there whatever a cache or a tier has of them.
pub(crate) fn check_disks_hold(
    files: &TracedFiles,
    sides: &Sides,
    set: &ServerSet,
) -> Result<(), Failure> {
    let (bytes, held) = (files.bytes(), sides.slow_bytes(set));
    if bytes > held {
        return Err(Failure::refused(format!(
            "the files of the trace have {bytes} bytes, and the disks hold {held} in equal parts: describe disks with more \
             capacity, or take `plan`"
        )));
    }
    Ok(())
}
