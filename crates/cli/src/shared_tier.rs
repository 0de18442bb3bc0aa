//! Opens a file tier that several nodes share (`docs/SHARED_TIER.md`).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use halocline_api::config::{Config, Copies};
use halocline_api::control::{Claim, ClaimRequest, UseAs};
use halocline_cluster::names::redis::RedisNames;
use halocline_cluster::registry::Registry;
use halocline_os::error::{Error, Result};
use halocline_os::private::PrivateDir;
use halocline_os::root_reserve::drop_resource_capability;
use halocline_shared_tier::adopt::refuse_if_begun;
use halocline_shared_tier::{
    Joining, REGISTRY, SharedTier, SpaceOptions, check_pattern, is_shared, note_of_new_tier,
    note_of_peers, refuse_unmounted,
};

use crate::cluster::{self, ClusterArgs};
use crate::host::Hosted;
use crate::mount_lookup;
use crate::mount_paths::MountPaths;
use crate::open_engine;
use crate::print::tell;
use crate::store_password::{self, password};

impl Hosted for SharedTier {
    const BOUND: bool = true;
    const JOINED: bool = false;

    fn close(&self) -> Result<()> {
        Self::close(self)
    }
}

/// Checks what a mount of a shared tier is asked for.
///
/// # Errors
/// If the tiers have other names, if copies are wanted that a shared tier does not keep, the pattern of the peers names no node or lies where others could
/// replace it, or the shared disk is not mounted.
pub(crate) fn check(root: &Path, config: &Config, cluster: &ClusterArgs) -> Result<()> {
    if config.tiers != ["ssd", "hdd"] {
        return Err(Error::invalid(
            format!(
                "{} {}: with --cluster, a tier is ssd and hdd",
                config.named("tiers"),
                config.tiers.join(",")
            ),
            "name the directories so, or by links, and leave the option out",
        ));
    }
    if config.copies == Copies::Keep {
        return Err(Error::invalid(
            format!(
                "{} keep: a tier that nodes share keeps no copies of what it promotes",
                config.named("copies")
            ),
            "leave it out",
        ));
    }
    cluster.peers().map_or(Ok(()), check_pattern)?;
    // Before anything is made: nothing may be left where the disk will be mounted.
    refuse_unmounted(root)?;
    refuse_mount(&root.join("hdd"))
}

/// Refuses the root of one of our mounts as the shared disk: a mount keeps its private directory to itself.
fn refuse_mount(shared: &Path) -> Result<()> {
    match mount_lookup::find(shared) {
        Ok(found)
            if found.inside.as_os_str().is_empty()
                && shared.canonicalize().is_ok_and(|at| at == found.mountpoint) =>
        {
            Err(Error::invalid(
                format!(
                    "{}: it leads to the mount at {}",
                    shared.display(),
                    found.mountpoint.display()
                ),
                "have hdd lead to the directory that all nodes share, not to a mount of Halocline",
            ))
        }
        _ => Ok(()),
    }
}

/// Refuses to serve as one node's what nodes share: names that a store has would be seen by nobody.
///
/// # Errors
/// If the tier is shared, or becomes that.
pub(crate) fn refuse_if_shared(root: &Path) -> Result<()> {
    if is_shared(root) {
        return Err(Error::invalid(
            format!("{}: nodes share this tier, and a store has its names", root.display()),
            "mount it with --cluster and the store's URL",
        ));
    }
    refuse_if_begun(root)
}

/// Claims the tiers for a node: the shared disk beside other nodes, the SSD for itself.
///
/// # Errors
/// As [`open_engine::when_free`].
pub(crate) fn claim(
    root: &Path,
    place: &MountPaths,
    given_up: impl FnMut() -> bool,
) -> Result<Claim> {
    // Again: what is mounted may have changed since.
    refuse_unmounted(root)?;
    let set = open_engine::tier_set(root, &Config::default())?;
    let dirs: Vec<&Path> = set.roots.iter().map(PathBuf::as_path).collect();
    // What is not there yet tells no node from another.
    PrivateDir::make(&place.cache)?;
    let wanted = ClaimRequest { dirs: &dirs, cache: &place.cache, use_as: UseAs::Node };
    open_engine::when_free(given_up, || Claim::take(&wanted))
}

/// Has directories split (decision 0048) when they are as small as a test wants, in builds with debug assertions only.
#[cfg(debug_assertions)]
fn splitting_as_tested(names: RedisNames) -> RedisNames {
    let wanted = std::env::var("HALOCLINE_SPLIT_FROM").ok();
    match wanted.and_then(|entries| entries.parse().ok()) {
        Some(entries) => names.splitting_from(Some(entries)),
        None => names,
    }
}

/// Begins this node's session, and opens the tier.
///
/// # Errors
/// If the store cannot be used, or the directories are not this tier's and node's.
pub(crate) fn open(root: &Path, config: &Config, cluster: &ClusterArgs) -> Result<SharedTier> {
    let of_tier = open_engine::tier_options(config)?;
    let space = SpaceOptions {
        limit: of_tier.limit,
        high: of_tier.high,
        low: of_tier.low,
        policy: of_tier.policy,
        pin: of_tier.pin,
        exclude: of_tier.exclude,
        archive_after: (of_tier.copies == Copies::Archive).then_some(of_tier.archive_after),
    };
    drop_resource_capability()?;
    let url = cluster.url().unwrap_or_default();
    let password = password()?;
    store_password::note_none(url, password.as_deref());
    let tell_all =
        |note: Option<String>| note.into_iter().for_each(|it| tell!("halocline: note: {it}"));
    tell_all(cluster.peers().and_then(|peers| note_of_new_tier(root, peers)));
    let registry = Registry::open(&root.join("hdd").join(REGISTRY))?;
    let origin = registry.store_name()?;
    let (store, registry) = cluster::of_registry(registry, (url, password.as_deref()))?;
    let names = RedisNames::connect(url, password.as_deref(), &origin).map_err(|error| {
        Error::invalid(format!("--cluster: {error}"), "see docs/SHARED_TIER.md")
    })?;
    #[cfg(debug_assertions)]
    let names = splitting_as_tested(names);
    let (node, peers) = (cluster.node(), cluster.peers());
    let (names, passthrough) = (Arc::new(names), config.passthrough && !config.direct);
    let tier = Joining { root, node, peers, passthrough, store, names, registry, space }.open()?;
    tell_all(peers.and_then(|peers| note_of_peers(root, peers)));
    tell_all(tier.note_of_older_disk());
    Ok(tier)
}
