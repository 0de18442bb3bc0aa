//! Labels on the servers of a cache volume: each says which cache the server belongs to, and its position.
//!
//! A server whose device is not mounted, or was replaced, is an empty directory; a striped object would read zeros
//! instead of its bytes. Without its label a server is not trusted (I1, I6).

use std::path::PathBuf;

use super::Volume;
use halocline_os::error::{Error, Result};

/// Name of the label in a server's directory.
const NAME: &str = "halocline-server";

/// The label of a server.
fn label(cache_id: &str, index: usize) -> String {
    format!("cache {cache_id} server {index}\n")
}

/// The directories of the servers that do not have the label of the cache `cache_id`. A single server needs none: the
/// cache's identity is in the same directory.
pub fn unlabelled(volume: &Volume, cache_id: &str) -> Result<Vec<PathBuf>> {
    let servers = volume.servers();
    let mut unlabelled = Vec::new();
    for (index, server) in servers.iter().enumerate().filter(|_| servers.len() > 1) {
        let path = server.dir().join(NAME);
        let found = server.directory().label(NAME)?;
        match found.map(|found| String::from_utf8_lossy(&found).into_owned()) {
            Some(found) if found == label(cache_id, index) => {}
            Some(found) => {
                return Err(Error::invalid(
                    format!("{} says {:?}: it is another server's", path.display(), found.trim()),
                    "mount each server of the cache in its own place",
                ));
            }
            None => unlabelled.push(server.dir().to_owned()),
        }
    }
    Ok(unlabelled)
}

/// Labels all servers of the cache `cache_id`. The caller knows that no record refers to bytes on a server without a
/// label.
pub fn write(volume: &Volume, cache_id: &str) -> Result<()> {
    let servers = volume.servers();
    for (index, server) in servers.iter().enumerate().filter(|_| servers.len() > 1) {
        server.directory().set_label(NAME, label(cache_id, index).as_bytes())?;
    }
    Ok(())
}
