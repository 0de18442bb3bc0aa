//! Takes part in a cluster: several mounts that cache one origin (docs/CLUSTER.md).

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use clap::Args;
use halocline_cluster::agent::{Agent, Options};
use halocline_cluster::registry::Registry;
use halocline_cluster::sessions;
use halocline_cluster::store::redis::RedisStore;
use halocline_core::coherence::Coherence;
use halocline_core::error::{Error, Result};

use crate::command::cluster::bring_home;

/// Where the sessions of an origin are entered, below it.
const REGISTRY: &str = ".halocline-cluster";
/// How often it is looked whether a lease is over.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// The password of the store, which is in no command line.
const PASSWORD: &str = "HALOCLINE_CLUSTER_PASSWORD";

/// Which cluster, and as whom.
#[derive(Debug, Clone, Args)]
pub(crate) struct ClusterArgs {
    /// Other mounts cache the same origin, too: the store of their tokens, a server of Redis 7 or Valkey 8. A
    /// password comes from the environment, as `HALOCLINE_CLUSTER_PASSWORD`
    #[arg(long, value_name = "URL", conflicts_with = "tier")]
    pub(crate) cluster: Option<String>,
    /// How this node is called in the cluster: the host's name and the process without it
    #[arg(long, value_name = "NAME", requires = "cluster")]
    node: Option<String>,
}

impl ClusterArgs {
    /// Brings home what an earlier session on the same cache left, and ends it: one that was killed.
    fn recover_own(
        (store, registry): (&RedisStore, &Registry),
        origin: &Path,
        cache: &Path,
    ) -> Result<()> {
        for node in sessions::nodes(store, registry)? {
            if node.cache.as_deref() != Some(cache) {
                continue;
            }
            // Whoever has the lock of the cache knows that the process is gone; its lease runs on for a while.
            bring_home(origin, cache)?;
            while sessions::nodes(store, registry)?
                .iter()
                .any(|now| now.session == node.session && now.lease_ms > 0)
            {
                thread::sleep(LOOK_AGAIN);
            }
            sessions::end(store, registry, node.session)?;
        }
        Ok(())
    }

    /// Begins this node's session, if it takes part in a cluster.
    ///
    /// # Errors
    /// If the store cannot be reached, or the origin not be written.
    pub(crate) fn join(&self, origin: &Path, cache: &Path) -> Result<Option<Arc<dyn Coherence>>> {
        let Some(url) = &self.cluster else { return Ok(None) };
        let (store, registry) = open(origin, url)?;
        Self::recover_own((&store, &registry), origin, cache)?;
        let node = self.node.clone().unwrap_or_else(own_name);
        let options = Options::new(node, cache.to_owned());
        Ok(Some(Arc::new(Agent::begin(options, Arc::new(store), registry)?)))
    }
}

/// The store of an origin, and its sessions.
#[derive(Debug, Clone, Args)]
pub(crate) struct StoreArgs {
    /// The origin
    pub(crate) origin: PathBuf,
    /// The store of its tokens, as the mounts have it
    #[arg(long = "cluster", value_name = "URL")]
    url: String,
}

impl StoreArgs {
    /// Opens both.
    pub(crate) fn open(&self) -> Result<(RedisStore, Registry)> {
        open(&self.origin, &self.url)
    }
}

fn open(origin: &Path, url: &str) -> Result<(RedisStore, Registry)> {
    let path = origin.join(REGISTRY);
    let registry = Registry::open(&path)?;
    let found = std::fs::metadata(&path).map_err(Error::at(&path, "look at"))?;
    let name = format!("{:x}", found.ino());
    let password = std::env::var(PASSWORD).ok();
    let store = RedisStore::connect(url, password.as_deref(), &name)
        .map_err(|error| Error::invalid(format!("--cluster: {error}"), "see docs/CLUSTER.md"))?;
    Ok((store, registry))
}

fn own_name() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host}-{}", std::process::id())
}
