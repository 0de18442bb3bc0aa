//! The file that describes servers, as commands are given it with `--servers`.

use std::fs;
use std::path::Path;

use halocline_os::bounded;
use halocline_os::error::Error;
use halocline_sim::{ServerSet, Sides, TracedFiles};
use halocline_storage::volume::Origin;
use halocline_storage::volume::origin::relayout::OVERHEAD_BYTES;

use crate::failure::Failure;
use crate::print::tell;
use crate::text;

/// The most bytes of a description of servers.
const SERVERS_BYTES_MAX: u64 = 1 << 24;

/// The servers that the file at `path` describes.
pub(crate) fn read(path: &Path) -> Result<ServerSet, Failure> {
    let content = bounded::read_to_string(path, SERVERS_BYTES_MAX);
    let content = content.map_err(|error| Failure::unreadable(path, &error))?;
    ServerSet::parse(&content, path).map_err(Failure::refused)
}

/// The space of a directory that is a server, in bytes.
pub(crate) struct ServerSpace {
    /// What is free.
    pub(crate) free: u64,
    /// What the files of a striped volume have, if that is one of its servers: a plan may move them.
    pub(crate) own: u64,
}

impl ServerSpace {
    /// That of `dir` now.
    pub(crate) fn of(dir: &Path) -> Result<Self, Failure> {
        let space = rustix::fs::statvfs(dir).map_err(std::io::Error::from);
        let space = space.map_err(Error::at(dir, "ask for free space"))?;
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        let dir = fs::canonicalize(dir).map_err(Error::at(dir, "look at"))?;
        Ok(Self { free, own: bytes_of_volume(&dir)? })
    }

    /// What a plan may use of it, so that `apply` has what it needs; a server without space is refused there.
    pub(crate) const fn capacity(&self) -> u64 {
        self.free.saturating_add(self.own).saturating_sub(OVERHEAD_BYTES)
    }
}

/// Bytes that the files of a striped volume use in `dir`, if that is one of its servers.
fn bytes_of_volume(dir: &Path) -> Result<u64, Failure> {
    let volume = dir.parent().and_then(|volume| Origin::open_to_look(volume).ok());
    let Some(origin) = volume else { return Ok(0) };
    let server = origin.servers().iter().position(|server| server.dir() == dir);
    Ok(server.map_or(Ok(0), |server| origin.object_bytes(server))?)
}

/// Tells of servers that the file at `path` says to have more capacity than their directories have room for a plan. What is
/// not there, or cannot be looked at, need not be there to plan.
pub(crate) fn tell_if_fuller(path: &Path, set: &ServerSet) {
    for server in set.servers() {
        let space = server.directory.as_deref().and_then(|dir| ServerSpace::of(dir).ok());
        let Some(space) = space.filter(|space| space.capacity() < server.capacity) else {
            continue;
        };
        tell!(
            "{}: server {}: its capacity is {} bytes, and its directory has room for {} of a plan: what is free and what the volume's files \
             have, less {OVERHEAD_BYTES} that `apply` keeps; it refuses a plan that needs more",
            text::path(path),
            text::line(&server.name),
            server.capacity,
            space.capacity()
        );
    }
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
