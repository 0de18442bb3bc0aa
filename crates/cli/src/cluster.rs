//! Takes part in a cluster: several mounts that cache one origin (docs/CLUSTER.md).

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use clap::Args;
use halocline_cluster::agent::{Agent, Options};
use halocline_cluster::registry::Registry;
use halocline_cluster::store::redis::RedisStore;
use halocline_core::coherence::Coherence;
use halocline_core::error::{Error, Result};

/// Where the sessions of an origin are entered, below it.
const REGISTRY: &str = ".halocline-cluster";
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
    /// Begins this node's session, if it takes part in a cluster.
    ///
    /// # Errors
    /// If the store cannot be reached, or the origin not be written.
    pub(crate) fn join(&self, origin: &Path, cache: &Path) -> Result<Option<Arc<dyn Coherence>>> {
        let Some(url) = &self.cluster else { return Ok(None) };
        let path = origin.join(REGISTRY);
        let registry = Registry::open(&path)?;
        let found = std::fs::metadata(&path).map_err(Error::at(&path, "look at"))?;
        let name = format!("{:x}", found.ino());
        let password = std::env::var(PASSWORD).ok();
        let store = RedisStore::connect(url, password.as_deref(), &name).map_err(|error| {
            Error::invalid(format!("--cluster: {error}"), "see docs/CLUSTER.md")
        })?;
        let node = self.node.clone().unwrap_or_else(own_name);
        let options = Options::new(node, cache.to_owned());
        Ok(Some(Arc::new(Agent::begin(options, Arc::new(store), registry)?)))
    }
}

fn own_name() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host}-{}", std::process::id())
}
