//! The client of `GlusterFS` has caches of its own, which do not hear of other clients and cannot be dropped from
//! outside: nodes over such clients would read stale bytes.
//!
//! The client lists its translators in `.meta`, a directory below the root of its mount.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use halocline_api::control::mount;
use halocline_os::bounded;
use halocline_os::error::{Error, Result};

/// Where the client shows its translators, below the root of its mount.
const GRAPH: &str = ".meta/graphs/active";
/// The most translators that are examined; a client has about twenty.
const TRANSLATORS_MAX: usize = 1024;
/// The most bytes of a translator's type.
const TYPE_BYTES_MAX: u64 = 256;
/// Performance translators that cache nothing: threads for the client's requests.
const HARMLESS: [&str; 1] = ["performance/io-threads"];

/// The client that serves an origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Client {
    /// Not `GlusterFS`.
    Other,
    /// `GlusterFS` without caches.
    Plain,
    /// `GlusterFS` with these caches, as `gluster volume set` calls them.
    Caching(Vec<String>),
    /// `GlusterFS`, but its caches cannot be seen.
    Unseen,
}

impl Client {
    /// The client that serves a directory.
    ///
    /// # Errors
    /// If the origin, or the list of mounts, cannot be examined.
    pub fn of(origin: &Path) -> Result<Self> {
        let found = fs::metadata(origin).map_err(Error::at(origin, "see what serves"))?;
        let root = mount::root_of("fuse.glusterfs", found.dev())?;
        Ok(root.map_or(Self::Other, |root| Self::shown_below(&root)))
    }

    /// The client that `.meta` below this root describes.
    fn shown_below(root: &Path) -> Self {
        let Ok(translators) = fs::read_dir(root.join(GRAPH)) else { return Self::Unseen };
        let mut caches = Vec::new();
        let mut is_seen = false;
        for translator in translators.take(TRANSLATORS_MAX) {
            let Ok(translator) = translator else { return Self::Unseen };
            let path = translator.path().join("type");
            let Ok(kind) = bounded::read_to_string(&path, TYPE_BYTES_MAX) else { continue };
            is_seen |= kind.trim_end() == "protocol/client";
            caches.extend(cache_of(kind.trim_end()));
        }
        caches.sort_unstable();
        caches.dedup();
        match (is_seen, caches.is_empty()) {
            (_, false) => Self::Caching(caches),
            (true, true) => Self::Plain,
            // There are translators, but not those of a client that we know.
            (false, true) => Self::Unseen,
        }
    }

    /// Refuses a client with caches that other nodes' changes do not reach. If its caches cannot be seen, warns.
    ///
    /// # Errors
    /// Names the caches, and how they are turned off.
    pub fn check(&self, origin: &Path) -> Result<()> {
        match self {
            Self::Other | Self::Plain => Ok(()),
            Self::Unseen => {
                tracing::warn!("{}: {UNSEEN}", origin.display());
                Ok(())
            }
            Self::Caching(caches) => Err(Error::invalid(
                format!(
                    "the GlusterFS client that serves {} has caches that do not hear of other nodes: {}",
                    origin.display(),
                    caches.join(", ")
                ),
                format!(
                    "turn them off, and mount it anew: for cache in {}; do gluster volume set VOLUME performance.$cache \
                     off; done",
                    caches.join(" ")
                ),
            )),
        }
    }
}

/// The warning about a client that does not show its translators.
pub const UNSEEN: &str = "whether the GlusterFS client that serves it has caches of its own cannot be seen here (there is \
                          no .meta below the root of its mount): turn them off as docs/CLUSTER.md has it";

/// A translator's name as `gluster volume set` has it, if it is a cache.
fn cache_of(kind: &str) -> Option<String> {
    let name = kind.strip_prefix("performance/").filter(|_| !HARMLESS.contains(&kind))?;
    let is_plain = |letter: char| letter.is_ascii_lowercase() || letter == '-';
    let name = if name == "md-cache" { "stat-prefetch" } else { name };
    name.chars().all(is_plain).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_client_is_told() {
        assert_eq!(Client::of(Path::new("/")).unwrap(), Client::Other);
    }

    #[test]
    fn caches_are_told_from_what_keeps_nothing() {
        let place = tempfile::tempdir().unwrap();
        let below = || Client::shown_below(place.path());
        assert_eq!(below(), Client::Unseen);
        let translator = |name: &str, kind: &str| {
            let dir = place.path().join(GRAPH).join(name);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("type"), kind).unwrap();
        };
        translator("top", "meta\n");
        assert_eq!(below(), Client::Unseen);
        translator("v-client-0", "protocol/client\n");
        translator("v-io-threads", "performance/io-threads\n");
        assert_eq!(below(), Client::Plain);
        below().check(place.path()).unwrap();
        translator("v-md-cache", "performance/md-cache\n");
        translator("v-write-behind", "performance/write-behind\n");
        translator("hostile", "performance/x; rm");
        translator("large", &"performance/".repeat(100));
        let caches = ["stat-prefetch", "write-behind"].map(str::to_owned).to_vec();
        assert_eq!(below(), Client::Caching(caches));
        let refused = below().check(place.path()).unwrap_err().to_string();
        assert!(refused.contains("performance.$cache off"), "{refused}");
    }
}
