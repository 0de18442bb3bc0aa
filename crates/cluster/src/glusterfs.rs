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
/// What the types of translators that may be caches begin with.
const PERFORMANCE: &str = "performance/";
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
        let mut kinds = Vec::new();
        for translator in translators.take(TRANSLATORS_MAX) {
            let Ok(translator) = translator else { return Self::Unseen };
            let path = translator.path().join("type");
            kinds.extend(bounded::read_to_string(&path, TYPE_BYTES_MAX));
        }
        Self::with_translators(kinds.iter().map(|kind| kind.trim_end()))
    }

    /// The client whose translators have these types.
    fn with_translators<'a>(kinds: impl Iterator<Item = &'a str>) -> Self {
        let mut caches = Vec::new();
        let (mut is_seen, mut are_named) = (false, true);
        for kind in kinds {
            is_seen |= kind == "protocol/client";
            let Some(name) = kind.strip_prefix(PERFORMANCE) else { continue };
            if !HARMLESS.contains(&kind) {
                let cache = cache_named(name);
                are_named &= cache.is_some();
                caches.extend(cache);
            }
        }
        caches.sort_unstable();
        caches.dedup();
        match (is_seen && are_named, caches.is_empty()) {
            (_, false) => Self::Caching(caches),
            (true, true) => Self::Plain,
            // There are translators, but not, or not only, those of a client that we know.
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

/// A cache's name as `gluster volume set` has it; `None` if that could be no name.
fn cache_named(name: &str) -> Option<String> {
    let is_plain = |letter: char| letter.is_ascii_lowercase() || letter == '-';
    let name = if name == "md-cache" { "stat-prefetch" } else { name };
    (!name.is_empty() && name.chars().all(is_plain)).then(|| name.to_owned())
}

/// What a file system that says it is `GlusterFS` shows: body of a fuzz target (`crate::fuzzing`).
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing {
    use super::{Client, HARMLESS, PERFORMANCE, Path};

    /// Types of translators, one a line: the command that an error tells people to run has plain words from there only.
    pub fn translators(bytes: &[u8]) {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        let client = Client::with_translators(text.lines().map(str::trim_end));
        let is_client = text.lines().any(|line| line.trim_end() == "protocol/client");
        match &client {
            Client::Other => panic!("it has shown its translators"),
            Client::Plain => {
                assert!(is_client);
                let mut lines = text.lines().map(str::trim_end);
                assert!(
                    lines.all(|line| !line.starts_with(PERFORMANCE) || HARMLESS.contains(&line))
                );
            }
            Client::Unseen => assert!(!is_client || text.contains(PERFORMANCE)),
            Client::Caching(caches) => {
                assert!(caches.is_sorted_by(|one, next| one < next) && !caches.is_empty());
                let is_plain = |letter: char| letter.is_ascii_lowercase() || letter == '-';
                assert!(
                    caches.iter().all(|cache| !cache.is_empty() && cache.chars().all(is_plain))
                );
                let refused = client.check(Path::new("/mnt/o")).expect_err("it has caches");
                assert!(!refused.to_string().contains(char::is_control));
            }
        }
    }
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
        // A name that could be none would make a command that turns nothing off.
        translator("nameless", "performance/\n");
        assert_eq!(below(), Client::Unseen);
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
