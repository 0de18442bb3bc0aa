//! Takes part in a cluster: several mounts that cache one origin (docs/CLUSTER.md).

use std::fs::File;
use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use halocline_api::config::Config;
use halocline_api::control::Controlled;
use halocline_cache::Decorations;
use halocline_cache::ExtentEngine;
use halocline_cache::coherence::{Coherence, REGISTRY};
use halocline_cluster::agent::{Agent, Options};
use halocline_cluster::alone::Alone;
use halocline_cluster::glusterfs::Client;
use halocline_cluster::inner_origins;
use halocline_cluster::registry::{FileIdentity, Registry};
use halocline_cluster::sessions::{self, Node};
use halocline_cluster::store::Store;
use halocline_cluster::store::redis;
use halocline_meta::origin_mark;
use halocline_os::boot_id::boot_id;
use halocline_os::error::{Error, Result};

use crate::store_password::{self, password};
use crate::text;

/// How often to check whether a lease has expired.
const RETRY_AFTER: Duration = Duration::from_millis(500);
/// Which cluster, and as whom.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ClusterArgs {
    /// Other mounts cache the same origin, or use the same tier, too: the store of their tokens or names, a server of Redis 7 or Valkey 8, or some servers of a
    /// cluster with commas between. A password comes from the environment, as `HALOCLINE_CLUSTER_PASSWORD`, or from the file that `HALOCLINE_CLUSTER_PASSWORD_FILE` names
    #[arg(long, value_name = "URL[,URL...]")]
    cluster: Option<String>,
    /// Name of this node in the cluster; without it the host's name and the process, or on a tier that which its SSD has
    #[arg(long, value_name = "NAME", requires = "cluster", value_parser = NonEmptyStringValueParser::new())]
    node: Option<String>,
    /// Where the cache directories of other nodes are reached here, if they are: what they have is read from there instead of the origin, and not
    /// cached twice; on a tier, their SSDs. A path with `{node}` in place of a node's name, or `{cache}` in place of the path that it has for its cache. For all nodes, or none
    #[arg(long, value_name = "PATTERN", requires = "cluster", value_parser = pattern)]
    peers: Option<String>,
}

/// Parses a pattern, which must yield different absolute paths for different nodes.
fn pattern(text: &str) -> std::result::Result<String, String> {
    if !text.contains("{node}") && !text.contains("{cache}") {
        return Err(
            "give a path with {node} or {cache} in it: each node has another cache".to_owned()
        );
    }
    if !text.starts_with('/') && !text.starts_with("{cache}") {
        return Err("give an absolute path".to_owned());
    }
    Ok(text.to_owned())
}

impl ClusterArgs {
    /// Whether no other mount caches the origin.
    pub(crate) fn is_alone(&self) -> bool {
        self.cluster.is_none()
    }

    /// The store's URL, if others take part.
    pub(crate) fn url(&self) -> Option<&str> {
        self.cluster.as_deref()
    }

    /// The node's name, if it is given.
    pub(crate) fn node(&self) -> Option<&str> {
        self.node.as_deref()
    }

    /// Where this node reaches other nodes' cache directories or SSDs, if that is given.
    pub(crate) fn peers(&self) -> Option<&str> {
        self.peers.as_deref()
    }

    /// Adapts the options of a mount that takes part.
    pub(crate) fn fit(&self, config: Config) -> Config {
        // Changes by other nodes must be visible immediately.
        let attr_timeout = if self.is_alone() { config.attr_timeout } else { Duration::ZERO };
        Config { attr_timeout, ..config }
    }

    /// Begins this node's session, if it takes part in a cluster.
    ///
    /// # Errors
    /// If the store cannot be reached or the origin cannot be written; if the cache has dirty bytes that no longer
    /// belong to a session; or if this mount has no `--cluster` and other nodes use the origin.
    pub(crate) fn join(
        &self,
        (origin, cache): (&Path, &Path),
        config: &Config,
    ) -> Result<Option<Arc<dyn Coherence>>> {
        inner_origins::noted_below(origin)
            .iter()
            .try_for_each(|inner| refuse_beside_others(inner))?;
        let Some(url) = &self.cluster else {
            origin.ancestors().try_for_each(refuse_beside_others)?;
            return Ok(None);
        };
        // A node that caches a part of what others cache would need their tokens.
        origin.ancestors().skip(1).try_for_each(refuse_beside_others)?;
        let node = self.node.clone().unwrap_or_else(own_name);
        let password = password()?;
        store_password::note_none(url, password.as_deref());
        let who = Who { node, peers: self.peers.clone() };
        let agent = begin((url, password.as_deref()), who, (origin, cache), config)?;
        Ok(Some(Arc::new(agent)))
    }
}

/// The identity of a node.
#[derive(Debug)]
pub(crate) struct Who {
    /// Its name.
    pub(crate) node: String,
    /// Where this node reaches the caches of others.
    pub(crate) peers: Option<String>,
}

/// Begins a session of a node with the store at a URL.
///
/// # Errors
/// As [`ClusterArgs::join`].
pub(crate) fn begin(
    (url, password): (&str, Option<&str>),
    who: Who,
    (origin, cache): (&Path, &Path),
    config: &Config,
) -> Result<Agent> {
    Client::of(origin)?.check(origin)?;
    let (store, registry) = open(origin, (url, password))?;
    inner_origins::note_above(origin);
    let cache_id = settle((&*store, &registry), (origin, cache), config)?;
    let (store, registry) = if registry.is_of_earlier_version() {
        // The last session of an earlier version may have belonged to this cache.
        open(origin, (url, password))?
    } else {
        (store, registry)
    };
    refuse_taken_name((&*store, &registry), &who.node)?;
    let options = Options::new(who.node, cache.to_owned(), cache_id);
    let options = Options { peers: who.peers, ..options };
    Agent::begin(options, store, registry)
}

/// Refuses a name that a living node has: people end nodes by name, so a name must be unambiguous. The earlier sessions
/// of this cache have been ended by now.
fn refuse_taken_name(of: (&dyn Store, &Registry), name: &str) -> Result<()> {
    let all = sessions::nodes(of.0, of.1)?;
    for node in all.iter().filter(|node| node.node.as_deref() == Some(name)) {
        if lives(of, node)? {
            let cache = node.cache.as_deref().map_or_else(|| "?".to_owned(), text::path);
            return Err(Error::invalid(
                format!("a node is called {} already, with the cache {cache}", text::line(name)),
                "give this one another name with --node",
            ));
        }
    }
    Ok(())
}

/// Refuses a mount outside the cluster: it would read stale bytes, and its writes would be lost.
fn refuse_beside_others(origin: &Path) -> Result<()> {
    let path = origin.join(REGISTRY);
    let found = match std::fs::symlink_metadata(&path) {
        Ok(found) => found,
        // A user who cannot look there cannot have created the list, and could not ask the nodes' user either.
        Err(error)
            if [ErrorKind::NotFound, ErrorKind::NotADirectory, ErrorKind::PermissionDenied]
                .contains(&error.kind()) =>
        {
            return refuse_where_the_list_is_missing(origin);
        }
        // If the directory does not answer now, nodes may be there nevertheless.
        Err(error) => {
            return Err(Error::at(&path, "see whether other nodes cache the origin")(error));
        }
    };
    let is_own = found.uid() == rustix::process::geteuid().as_raw();
    if !found.is_dir() || !is_own {
        // Another user created it: it lists no nodes of this user.
        return Ok(());
    }
    let sessions = Registry::open_existing(&path)?.sessions()?;
    if sessions.is_empty() {
        return Ok(());
    }
    let cached = if sessions.len() == 1 { "a node caches" } else { "nodes of a cluster cache" };
    Err(Error::invalid(
        format!("{cached} {} already, with tokens: see {}", origin.display(), path.display()),
        "name that directory with --cluster and their URL here, too; one that is gone is ended with `halocline cluster \
         recover` or `forget`",
    ))
}

/// Refuses the origin if the list of its living nodes was renamed or removed.
fn refuse_where_the_list_is_missing(origin: &Path) -> Result<()> {
    if std::fs::metadata(origin).is_ok_and(|found| found.is_dir()) && File::open(origin).is_ok() {
        match Registry::refuse_if_missing(&origin.join(REGISTRY)) {
            // More attributes than can be listed: the check of the caches' marks deals with this case.
            Err(error) if error.errno() == libc::E2BIG => Ok(()),
            done => done,
        }
    } else {
        Ok(())
    }
}

/// Brings the dirty bytes of earlier sessions on the same cache to the origin, and ends these sessions, whose processes
/// were killed. Returns the cache's id.
fn settle(
    (store, registry): (&dyn Store, &Registry),
    (origin, cache): (&Path, &Path),
    config: &Config,
) -> Result<String> {
    let abandoned = AbandonedCache::open(origin, cache, config)?;
    let cache_id = abandoned.cache_id().to_owned();
    let earlier = |node: &Node| node.cache_id.as_ref() == Some(&cache_id);
    let all = sessions::nodes(store, registry)?;
    let earlier: Vec<Node> = all.into_iter().filter(earlier).collect();
    if earlier.is_empty() {
        let dirty_bytes = abandoned.close()?;
        if dirty_bytes > 0 {
            return Err(Error::invalid(
                format!(
                    "the cache {} has {} that are not on the origin, of no session of this cluster: it was given up, \
                     or they were written without --cluster",
                    cache.display(),
                    text::bytes(dirty_bytes)
                ),
                "while no node is mounted, mount it once without --cluster, which keeps both versions of what was \
                 changed since; or name another cache directory",
            ));
        }
        return Ok(cache_id);
    }
    let boot = boot_id()?;
    let here = File::open(cache).and_then(FileIdentity::of).map_err(Error::at(cache, "look at"))?;
    // The process of such a session held the lock that was just taken, so it has ended. Two containers on one machine
    // may have different directories at one path, one of them a copy: so directories are compared, not paths.
    let ended_here =
        |node: &Node| node.boot_id.as_ref() == Some(&boot) && node.cache_seen == Some(here);
    // A copy of a living node's cache has stale bytes, and must not write them. This is checked before anything is
    // written.
    for node in earlier.iter().filter(|node| !ended_here(node)) {
        if lives((store, registry), node)? {
            return Err(Error::invalid(
                format!("{} has the same cache, and lives", registry.name(node.session)),
                "one of the two is a copy: name an empty directory as the cache here",
            ));
        }
    }
    abandoned.bring_to_origin()?;
    for node in earlier {
        if ended_here(&node) {
            sessions::end_own(store, registry, node.session)?;
        } else {
            sessions::end(store, registry, node.session)?;
        }
    }
    // The cache may have been at another path when it made its mark.
    origin_mark::clear(origin, &cache_id);
    Ok(cache_id)
}

/// Whether a session lives: waits until its lease has expired or is renewed.
fn lives((store, registry): (&dyn Store, &Registry), node: &Node) -> Result<bool> {
    let mut left_ms = node.lease_ms;
    while left_ms > 0 {
        thread::sleep(RETRY_AFTER);
        let now = sessions::nodes(store, registry)?;
        let now = now.iter().find(|now| now.session == node.session);
        let now_ms = now.map_or(0, |now| now.lease_ms);
        if now_ms > left_ms {
            return Ok(true);
        }
        left_ms = now_ms;
    }
    Ok(false)
}

/// The cache of a process that has ended, opened to bring its dirty bytes to the origin. Only that process could have
/// given up their tokens, so no other node is asked.
#[derive(Debug)]
pub(crate) struct AbandonedCache {
    engine: ExtentEngine,
    cache: PathBuf,
}

impl AbandonedCache {
    /// Takes over the cache with an engine that no program uses.
    pub(crate) fn open(origin: &Path, cache: &Path, config: &Config) -> Result<Self> {
        let alone: Arc<dyn Coherence> = Arc::new(Alone);
        let config = Config { rebuild: false, fill: false, ..config.clone() };
        let registry = origin.join(REGISTRY);
        let (coherence, common_devices) = (Some(&alone), Some(registry.as_path()));
        let around = Decorations { coherence, common_devices, ..Decorations::NONE };
        let engine = ExtentEngine::open_decorated(origin, cache, &config, around)?;
        Ok(Self { engine, cache: cache.to_owned() })
    }

    /// The cache's id, which does not depend on its directory.
    pub(crate) fn cache_id(&self) -> &str {
        self.engine.cache_id()
    }

    /// Brings everything to the origin; returns the number of bytes.
    ///
    /// # Errors
    /// If not all of it can be brought to the origin.
    pub(crate) fn bring_to_origin(self) -> Result<u64> {
        let bytes = self.engine.flush(None, false, &mut |_| ControlFlow::Continue(()))?.bytes;
        let cache = self.cache.clone();
        match self.close()? {
            0 => Ok(bytes),
            left => Err(Error::invalid(
                format!(
                    "{} of {} could not be brought to the origin",
                    text::bytes(left),
                    cache.display()
                ),
                "see what `halocline fsck` says of it",
            )),
        }
    }

    /// Closes the cache; returns the number of bytes that are not on the origin. Logs what the engine found, which
    /// nobody else reports: bytes lost in a power loss, and bytes saved because they could not go to the origin.
    fn close(self) -> Result<u64> {
        let status = self.engine.status();
        for note in &status.notes {
            tracing::warn!("{}: {note}", self.cache.display());
        }
        self.engine.close()?;
        Ok(status.dirty_bytes)
    }
}

/// The store of an origin, and its sessions.
#[derive(Debug, Clone, Args)]
pub(crate) struct StoreArgs {
    /// The origin
    pub(crate) origin: PathBuf,
    /// The store of its tokens, as the mounts have it
    #[arg(long = "cluster", value_name = "URL[,URL...]")]
    url: String,
}

impl StoreArgs {
    pub(crate) const fn new(origin: PathBuf, url: String) -> Self {
        Self { origin, url }
    }

    /// Opens both.
    ///
    /// # Errors
    /// If no node ever used the directory: it may not be the origin, so nothing is created there.
    pub(crate) fn open(&self) -> Result<(Arc<dyn Store>, Registry)> {
        let path = self.origin.join(REGISTRY);
        if std::fs::symlink_metadata(&path).is_err_and(|error| error.kind() == ErrorKind::NotFound)
        {
            refuse_where_the_list_is_missing(&self.origin)?;
            return Err(Error::invalid(
                format!(
                    "{} is not an origin of a cluster: it has no {REGISTRY}",
                    text::path(&self.origin)
                ),
                "name the origin that the mounts with --cluster have; of a file tier that nodes share, its shared disk, ROOT/hdd",
            ));
        }
        of_registry(Registry::open_existing(&path)?, (&self.url, password()?.as_deref()))
    }
}

/// Opens both to take part, creating what is missing.
fn open(origin: &Path, store: (&str, Option<&str>)) -> Result<(Arc<dyn Store>, Registry)> {
    of_registry(Registry::open(&origin.join(REGISTRY))?, store)
}

pub(crate) fn of_registry(
    registry: Registry,
    (url, password): (&str, Option<&str>),
) -> Result<(Arc<dyn Store>, Registry)> {
    store_password::note_in_url(url);
    let store = open_list(&registry.store_name()?, (url, password))?;
    Ok((store, registry))
}

/// The sessions of the list that has this name in the store.
pub(crate) fn open_list(
    list: &str,
    (url, password): (&str, Option<&str>),
) -> Result<Arc<dyn Store>> {
    redis::open(url, password, list)
        .map_err(|error| Error::invalid(format!("--cluster: {error}"), "see docs/CLUSTER.md"))
}

fn own_name() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host}-{}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a check that failed counted as one that found nobody.
    #[test]
    fn what_does_not_say_who_is_there_lets_nobody_mount_beside_others() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("file"), "").unwrap();
        std::os::unix::fs::symlink("loop", at("loop")).unwrap();
        for nobody in ["", "missing", "file"] {
            refuse_beside_others(&at(nobody)).unwrap();
        }
        for unknown in ["loop", &"x".repeat(300)] {
            let refused = refuse_beside_others(&at(unknown)).unwrap_err().to_string();
            assert!(refused.contains("see whether other nodes cache the origin"), "{refused}");
        }
    }
}
