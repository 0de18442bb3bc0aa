//! The file that describes servers, as commands are given it with `--servers`.

use std::path::Path;

use halocline_os::bounded;
use halocline_sim::ServerSet;

use crate::failure::Failure;

/// The most bytes of a description of servers.
const SERVERS_BYTES_MAX: u64 = 1 << 24;

/// The servers that the file at `path` describes.
pub(crate) fn read(path: &Path) -> Result<ServerSet, Failure> {
    let content = bounded::read_to_string(path, SERVERS_BYTES_MAX);
    let content = content.map_err(|error| Failure::unreadable(path, &error))?;
    ServerSet::parse(&content, path).map_err(Failure::refused)
}
