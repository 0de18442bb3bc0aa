//! The client of `GlusterFS` has caches of its own, which do not hear of other clients and cannot be dropped from
//! outside: nodes over such clients would read stale bytes.
//!
//! The client lists its translators in `.meta`, a directory below the root of its mount.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use halocline_os::bounded;
use halocline_os::error::{Error, Result};

/// Where the client shows its translators, below the root of its mount.
const GRAPH: &str = ".meta/graphs/active";
/// The most translators that are examined; a client has about twenty.
const TRANSLATORS_MAX: usize = 1024;
/// The most bytes of a translator's type.
const TYPE_BYTES_MAX: u64 = 256;
/// The most bytes of the list of mounts.
const MOUNTS_BYTES_MAX: u64 = 64 << 20;
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
    /// If the list of mounts cannot be read.
    pub fn of(origin: &Path) -> Result<Self> {
        let mounts = Path::new("/proc/self/mountinfo");
        let read = || -> io::Result<Self> {
            let mut text = String::new();
            File::open(mounts)?.take(MOUNTS_BYTES_MAX).read_to_string(&mut text)?;
            let device = fs::metadata(origin)?.dev();
            let root = root_of(&text, device);
            Ok(root.map_or(Self::Other, |root| Self::shown_below(&root)))
        };
        read().map_err(Error::at(mounts, "find what serves the origin in"))
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

/// The mount point of the `GlusterFS` client with this device number, in the text of `/proc/self/mountinfo`.
fn root_of(mounts: &str, device: u64) -> Option<PathBuf> {
    let wanted = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    mounts.lines().find_map(|line| {
        let (mount, source) = line.split_once(" - ")?;
        let [_, _, found, root, at, ..] = mount.split(' ').collect::<Vec<_>>()[..] else {
            return None;
        };
        // A bind mount of a directory in it does not show `.meta`.
        let is_it = found == wanted && root == "/" && source.starts_with("fuse.glusterfs ");
        is_it.then(|| PathBuf::from(unescaped(at)))
    })
}

/// A path as the kernel lists it, with blanks and the like as octal numbers.
fn unescaped(path: &str) -> String {
    ["\\040", "\\011", "\\012", "\\134"]
        .iter()
        .zip([" ", "\t", "\n", "\\"])
        .fold(path.to_owned(), |path, (from, to)| path.replace(from, to))
}

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
    fn the_root_of_a_client_is_found_by_its_device() {
        let mounts = "27 1 254:0 / / rw - ext4 /dev/vda rw\n\
                      41 27 0:39 /sub /bound rw - fuse.glusterfs glusterfs:v rw\n\
                      42 27 0:39 / /mnt/g\\040v rw,relatime shared:1 - fuse.glusterfs glusterfs:v rw\n\
                      43 27 0:40 / /mnt/s rw - fuse.sshfs h: rw\n";
        let device = |minor| rustix::fs::makedev(0, minor);
        assert_eq!(root_of(mounts, device(39)), Some(PathBuf::from("/mnt/g v")));
        assert_eq!(root_of(mounts, device(40)), None);
        assert_eq!(root_of("\n - fuse.glusterfs \nx", device(39)), None);
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
