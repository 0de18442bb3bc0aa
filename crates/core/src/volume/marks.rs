//! Marks on the servers of a cache volume: each says which cache it belongs to, and its place.
//!
//! A server whose device is not mounted, or was replaced, is an empty directory; a striped object
//! would read zeros where its bytes were. Without its mark a server is not trusted (I1, I6).

use std::fs;
use std::io;
use std::path::PathBuf;

use super::Volume;
use crate::bounded;
use crate::error::{Error, Result};

/// Name of the mark in a server's directory.
const NAME: &str = "halocline-server";

/// What the mark of a server says.
fn mark(cache_id: &str, index: usize) -> String {
    format!("cache {cache_id} server {index}\n")
}

/// The directories of the servers that do not have the mark of the cache `cache_id`. One server
/// alone needs none: the cache's identity lies in the same directory.
pub fn unmarked(volume: &Volume, cache_id: &str) -> Result<Vec<PathBuf>> {
    let servers = volume.servers();
    let mut unmarked = Vec::new();
    for (index, server) in servers.iter().enumerate().filter(|_| servers.len() > 1) {
        let path = server.dir().join(NAME);
        match bounded::read_to_string(&path, bounded::SMALL_FILE_BYTES_MAX) {
            Ok(found) if found == mark(cache_id, index) => {}
            Ok(found) => {
                return Err(Error::invalid(
                    format!("{} says {:?}: it is another server's", path.display(), found.trim()),
                    "mount each server of the cache in its own place",
                ));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                unmarked.push(server.dir().to_owned());
            }
            Err(error) => return Err(Error::at(path, "read the mark of the server")(error)),
        }
    }
    Ok(unmarked)
}

/// Marks all servers of the cache `cache_id`. The caller knows that no record names bytes on a
/// server that has no mark.
pub fn write(volume: &Volume, cache_id: &str) -> Result<()> {
    let servers = volume.servers();
    for (index, server) in servers.iter().enumerate().filter(|_| servers.len() > 1) {
        let path = server.dir().join(NAME);
        let written = fs::write(&path, mark(cache_id, index))
            .and_then(|()| fs::File::open(&path)?.sync_all())
            .and_then(|()| fs::File::open(server.dir())?.sync_all());
        written.map_err(Error::at(path, "mark the server"))?;
    }
    Ok(())
}
