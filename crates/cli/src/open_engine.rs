//! Opens the engine of a mount.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use halocline_api::config::{Config, Mode};
use halocline_api::control::has_hung_up;
use halocline_api::control::{
    AnyStatus, Claim, ClaimRequest, Client, DirectoryInUse, Request, SOCKET_NAME, UseAs,
};
use halocline_cache::Decorations;
use halocline_cache::ExtentEngine;
use halocline_cache::coherence::{Coherence, REGISTRY};
use halocline_cluster::registry::Registry;
use halocline_meta::origin_mark;
use halocline_model::tier;
use halocline_os::error::{Error, Result};
use halocline_os::one_device::{Common, common};
use halocline_os::root_reserve::drop_resource_capability;
use halocline_tier::{FileTier, TierOptions, TierSet};

use crate::host::Hosted;
use crate::mount_paths::MountPaths;
use crate::print::tell;
use crate::{inherited, mount_lookup, text};

impl Hosted for ExtentEngine {
    const BOUND: bool = false;
    const JOINED: bool = true;

    fn close(&self) -> Result<()> {
        Self::close(self)
    }
}

impl Hosted for FileTier {
    const BOUND: bool = true;
    const JOINED: bool = false;

    fn close(&self) -> Result<()> {
        Self::close(self)
    }
}

/// The tiers below `root`.
pub(crate) fn tier_set(root: &Path, config: &Config) -> Result<TierSet> {
    let names: Vec<&str> = config.tiers.iter().map(String::as_str).collect();
    TierSet::below(root, &names)
}

/// The behaviour of a file tier according to a configuration.
pub(crate) fn tier_options(config: &Config) -> Result<TierOptions> {
    let own = Config::default();
    let names: Vec<&str> = tier::POLICIES.iter().map(|policy| policy.name).collect();
    let policy = match config.policy.as_str() {
        name if names.contains(&name) => name.to_owned(),
        name if name == own.policy => TierOptions::default().policy,
        name => {
            return Err(Error::invalid(
                format!(
                    "{} {name:?} decides about requests, not about files",
                    config.named("policy")
                ),
                format!("with --tier, choose one of {}", names.join(", ")),
            ));
        }
    };
    if config.tier_low > config.tier_high {
        return Err(Error::invalid(
            format!(
                "{} {}% is above {} {}%",
                config.named("tier_low"),
                config.tier_low,
                config.named("tier_high"),
                config.tier_high
            ),
            "give a lower tier_low, or a higher tier_high",
        ));
    }
    Ok(TierOptions {
        limit: config.ssd_limit,
        high: config.tier_high,
        low: config.tier_low,
        policy,
        passthrough: config.passthrough && !config.direct,
        passthrough_writes: config.passthrough_writes,
        pin: config.pin.clone(),
        exclude: config.exclude.clone(),
        copies: config.copies,
        archive_after: config.archive_after,
    })
}

/// Opens the file tier of a mount.
pub(crate) fn open_tier(root: &Path, config: &Config) -> Result<FileTier> {
    let set = tier_set(root, config)?;
    drop_resource_capability()?;
    let tier = FileTier::open(&set, tier_options(config)?)?;
    if let [first, second, ..] = set.roots.as_slice()
        && let Some(common) = common(first, second)
    {
        tier.note_of_tiers(common.of_tiers());
    }
    Ok(tier)
}

/// How often it is checked whether a mount that is ending has ended.
const RETRY_AFTER: Duration = Duration::from_millis(100);
/// How long to wait for another user's process, which may claim forever that it is ending.
const OTHER_USER_TIMEOUT: Duration = Duration::from_secs(30);
/// How often to check for the end of one whose control socket is already gone.
const LAST_LOOKS: u32 = 300;

/// Repeats `claim` until it succeeds, while the mount that blocks it is ending by itself (it was unmounted, and
/// flushes), and until `given_up`.
///
/// # Errors
/// The origin is used by a process that is not ending; `EINTR` if the wait was given up.
pub(crate) fn when_free(
    mut given_up: impl FnMut() -> bool,
    mut claim: impl FnMut() -> Result<Claim, DirectoryInUse>,
) -> Result<Claim> {
    let (mut told, mut last_looks, begun) = (false, 0, Instant::now());
    let own = rustix::process::geteuid().as_raw();
    loop {
        let taken = match claim() {
            Ok(claim) => return Ok(claim),
            Err(taken) if taken.cache.as_os_str().is_empty() => return Err(taken.into()),
            Err(taken) => taken,
        };
        if taken.uid != own && begun.elapsed() > OTHER_USER_TIMEOUT {
            return Err(taken.into());
        }
        match ending(&taken) {
            Some(Ending::Answers(mut client)) if !told => {
                let status = client.call::<AnyStatus>(&Request::Status {}, |_| {});
                let users = status.ok().and_then(|told| told.status.detached);
                tell_wait(&taken, users.as_deref());
                told = true;
            }
            Some(Ending::Answers(_)) => {}
            Some(Ending::IsSilent) if last_looks < LAST_LOOKS => last_looks += 1,
            _ => return Err(taken.into()),
        }
        if given_up() {
            let (dir, pid) = (text::path(&taken.wanted), taken.pid);
            let message =
                format!("{dir}: told to stop waiting for process {pid}; nothing was mounted");
            return Err(Error::Refused { message, errno: libc::EINTR });
        }
        thread::sleep(RETRY_AFTER);
    }
}

/// A process that ends by itself.
enum Ending {
    /// It says so.
    Answers(Client),
    /// It has closed its control socket.
    IsSilent,
}

/// How the process that uses a directory is ending; `None` if it is not.
fn ending(taken: &DirectoryInUse) -> Option<Ending> {
    match mount_lookup::reach_socket(&taken.cache.join(SOCKET_NAME), taken.uid) {
        Ok(mut client) => match client.call(&Request::Ending {}, |_| {}) {
            Ok(true) => Some(Ending::Answers(client)),
            Ok(false) => None,
            // It has closed its socket since it accepted the connection.
            Err(error) => has_hung_up(&error).then_some(Ending::IsSilent),
        },
        // It reports this itself, and has closed its socket.
        Err(error) => (taken.answers && error.errno() == libc::EINVAL).then_some(Ending::IsSilent),
    }
}

/// Reports for whom it waits.
fn tell_wait(taken: &DirectoryInUse, users: Option<&str>) {
    let (dir, pid) = (text::path(&taken.wanted), taken.pid);
    let Some(users) = users else {
        return tell!("halocline: {dir}: waiting for process {pid}, which ends");
    };
    let (users, cache) = (text::line(users), text::path(&taken.cache));
    tell!(
        "halocline: {dir}: waiting for process {pid}, whose mount is detached, {users}; `halocline umount --force {cache}` \
         takes it from them"
    );
}

/// Claims the origin of a mount. Must be called before a private namespace is entered, because other claimants cannot
/// be identified from inside one.
pub(crate) fn claim(
    paths: &MountPaths,
    config: &Config,
    alone: bool,
) -> Result<Claim, DirectoryInUse> {
    let use_as = match config.mode {
        _ if !alone => UseAs::Node,
        Mode::ReadOnly => UseAs::Reader,
        _ => UseAs::OnlyUser,
    };
    Claim::take(&ClaimRequest { dirs: &[&paths.origin], cache: &paths.cache, use_as })
}

/// Claims all tiers of a file tier; waits like [`when_free`].
pub(crate) fn claim_tiers(
    root: &Path,
    paths: &MountPaths,
    config: &Config,
    given_up: impl FnMut() -> bool,
) -> Result<Claim> {
    let set = tier_set(root, config)?;
    let dirs: Vec<&Path> = set.roots.iter().map(PathBuf::as_path).collect();
    let wanted = ClaimRequest { dirs: &dirs, cache: &paths.cache, use_as: UseAs::OnlyUser };
    when_free(given_up, || Claim::take(&wanted))
}

/// As [`open`], but refuses if another cache of the origin may hold newer bytes. With `--cache-lost`, opens without
/// those. Caches of coherent nodes do not exclude each other: the cache of one of their sessions does not count as
/// another one.
pub(crate) fn open_without_others(
    paths: &MountPaths,
    config: &Config,
    node: Option<&Arc<dyn Coherence>>,
    others_are_lost: bool,
) -> Result<ExtentEngine> {
    let engine = || -> Result<_> {
        let mut coherent = coherent_caches(paths, node)?;
        let check = |coherent: &BTreeSet<String>| {
            origin_mark::check(&paths.origin, &paths.cache, |id| coherent.contains(id))
        };
        if !others_are_lost && let Err(refused) = check(&coherent) {
            // A node may have joined, and marked the origin, since the nodes were listed.
            coherent.append(&mut coherent_caches(paths, node)?);
            check(&coherent).map_err(|_| refused)?;
        }
        let engine = open(paths, config, node)?;
        if others_are_lost {
            let coherent = || coherent_caches(paths, node);
            origin_mark::forget_others(&paths.origin, &paths.cache, coherent);
        }
        Ok(engine)
    };
    engine().inspect_err(|_| leave(node))
}

/// The ids of the caches of all nodes, if this mount is a node.
fn coherent_caches(
    paths: &MountPaths,
    node: Option<&Arc<dyn Coherence>>,
) -> Result<BTreeSet<String>> {
    if node.is_none() {
        return Ok(BTreeSet::new());
    }
    let registry = Registry::open_existing(&paths.origin.join(REGISTRY))?;
    let entries = registry.sessions()?.into_iter().filter_map(|session| registry.entry(session));
    Ok(entries.map(|entry| entry.cache_id).collect())
}

/// Ends the session of a node whose engine was not opened: it holds nothing, and would delay others.
fn leave(node: Option<&Arc<dyn Coherence>>) {
    if let Some(Err(error)) = node.map(|node| node.leave()) {
        tell!("halocline: note: {error}");
    }
}

/// Opens the engine of a mount. Nodes on one machine share one origin, and so one set of its emulated devices.
pub(crate) fn open(
    paths: &MountPaths,
    config: &Config,
    node: Option<&Arc<dyn Coherence>>,
) -> Result<ExtentEngine> {
    let registry = paths.origin.join(REGISTRY);
    open_beside(paths, config, node, node.map(|_| registry.as_path()))
}

/// The same, with emulated devices of the origin shared by all mounts that name the directory `devices`.
pub(crate) fn open_beside(
    paths: &MountPaths,
    config: &Config,
    node: Option<&Arc<dyn Coherence>>,
    devices: Option<&Path>,
) -> Result<ExtentEngine> {
    if !halocline_model::admit::POLICIES.iter().any(|policy| policy.name == config.policy) {
        return Err(Error::invalid(
            format!(
                "{} {:?} decides about files, not about requests",
                config.named("policy"),
                config.policy
            ),
            "use it with `mount --tier`, or choose an admission policy",
        ));
    }
    drop_resource_capability()?;
    let around = Decorations { coherence: node, common_devices: devices, ..Decorations::NONE };
    let engine = ExtentEngine::open_decorated(&paths.origin, &paths.cache, config, around)?;
    if let Some(note) = one_device(&paths.origin, &paths.cache, config) {
        engine.note_of_sides(note.of_a_cache());
    }
    Ok(engine)
}

/// Reports, in a line each, that a cache is useless on its origin's device (otherwise nothing explains why little is
/// cached), and that files longer than this process may write can only be read, or stay dirty. `common` is what
/// [`one_device`] found before the mount, which may cover the origin; it is reported after everything that may refuse
/// the mount, because otherwise it would look like the reason.
pub(crate) fn tell_notes(common: Option<Common>) {
    if let Some(bytes) = inherited::file_bytes_max() {
        let bytes = text::bytes(bytes);
        tell!(
            "halocline: note: files of more than {bytes} cannot be written through this mount: raise the hard limit \
             (ulimit -Hf) before you mount"
        );
    }
    if let Some(common) = common {
        tell!("halocline: note: {}", common.of_a_cache());
    }
}

/// What origin and cache have in common, if that makes the cache useless; emulated devices always count as two.
pub(crate) fn one_device(origin: &Path, cache: &Path, config: &Config) -> Option<Common> {
    common(origin, cache).filter(|_| config.emulate.is_none())
}
