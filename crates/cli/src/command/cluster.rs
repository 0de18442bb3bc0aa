//! `halocline cluster`: the nodes that cache one origin, and what becomes of those that are gone.

mod drain;
mod report;
mod tier_fsck;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::DirEntryExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use halocline_api::control::tier::PRIVATE;
use halocline_api::file_tier::shared_disk::TIER;
use halocline_cluster::registry::{FileIdentity, Registry};
use halocline_cluster::sessions::{self, Exclusive, Node};
use halocline_cluster::store::Store;
use halocline_meta::identity::identity_of;
use halocline_meta::origin_mark;
use halocline_meta::table::Access;
use halocline_model::token::{Life, Session};
use halocline_os::counted::counted;
use halocline_os::error::{Error, Result};
use halocline_shared_tier::is_shared_disk;
use serde::Serialize;

use super::offline_cache::OfflineCache;
use super::print_json;
use crate::cluster::{AbandonedCache, StoreArgs};
use crate::failure::{Failure, Outcome};
use crate::options::ConfigArgs;
use crate::print::{say, tell};
use crate::text;

/// List the nodes that cache an origin and what they hold; recover or forget a node that is gone
#[derive(Debug, Args)]
pub(crate) struct ClusterCommand {
    #[command(subcommand)]
    what: ClusterSubcommand,
}

#[derive(Debug, Subcommand)]
enum ClusterSubcommand {
    /// List the nodes
    Nodes(AskArgs),
    /// Show the state of the token store: its nodes, and how much each holds and waits for
    Status(AskArgs),
    /// Show which nodes hold, or wait for, which bytes of a file
    Tokens(report::TokensArgs),
    /// Check tokens, or the names of a shared file tier, for inconsistencies; nothing is changed without --repair
    Fsck(FsckArgs),
    /// Move the files on a node's SSD of a shared file tier to the shared disk, before the node leaves
    Drain(drain::DrainArgs),
    /// Flush what a node that is gone left dirty on its cache, which this machine must reach, and end its session
    Recover(RecoverArgs),
    /// End the session of a node that will not come back: what only its cache has is lost
    Forget(ForgetArgs),
}

/// What is asked about an origin.
#[derive(Debug, Args)]
struct AskArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// What is checked: the tokens of an origin, or the names of a shared file tier.
#[derive(Debug, Args)]
struct FsckArgs {
    /// The origin whose tokens are checked
    #[arg(required_unless_present = "tier", conflicts_with = "tier")]
    origin: Option<PathBuf>,
    /// The store, as the mounts have it
    #[arg(long = "cluster", value_name = "URL[,URL...]")]
    url: String,
    /// The shared file tier whose names are compared with the disks: ROOT, with this node's SSD and the shared disk
    #[arg(long, value_name = "ROOT")]
    tier: Option<PathBuf>,
    /// Where the SSDs of other nodes are reached here: a path with `{node}` in place of a node's name
    #[arg(long, value_name = "PATTERN", requires = "tier")]
    peers: Option<String>,
    /// Repair what differs, and build the names again from the disks if the store may have forgotten some; no node may be mounted
    #[arg(long, requires = "tier")]
    repair: bool,
    #[command(flatten)]
    lost: LostArgs,
    /// The tier was this machine's alone: it becomes that of the node NAME, without a byte being copied
    #[arg(long, value_name = "NAME", requires = "tier")]
    adopt: Option<String>,
    /// Do not compare: the names in the store are right, though it was restarted or replaced
    #[arg(long, requires = "tier", conflicts_with_all = ["repair", "json", "adopt"])]
    confirm: bool,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// What is gone for good.
#[derive(Debug, Args)]
struct LostArgs {
    /// The shared disk (hdd) is lost for good, or its .halocline: what is there now takes its place, and the names are built again
    /// from it and from all SSDs that are reached
    #[arg(long, requires = "repair", conflicts_with = "adopt")]
    shared_disk_lost: bool,
}

#[derive(Debug, Args)]
struct RecoverArgs {
    #[command(flatten)]
    end: EndArgs,
    /// Where this machine reaches its cache, if not where the node did
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    #[command(flatten)]
    config: ConfigArgs,
}

#[derive(Debug, Args)]
struct EndArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// The node
    node: String,
    /// Only print what would be done
    #[arg(long)]
    dry_run: bool,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// A session that was brought to an end, or would be.
#[derive(Debug, Serialize)]
struct EndedSession {
    session: Session,
    node: String,
    /// Whether it is ended now.
    #[serde(rename = "is_ended")]
    is_done: bool,
    #[serde(flatten)]
    what: SessionEnd,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum SessionEnd {
    Recovered { cache: PathBuf, bytes: u64 },
    Forgotten { files: Vec<String>, is_complete: bool },
}

#[derive(Debug, Args)]
struct ForgetArgs {
    #[command(flatten)]
    end: EndArgs,
    /// Forget it even if nobody can say which files it wrote last
    #[arg(long)]
    yes: bool,
}

/// Does it.
pub(crate) fn execute(args: &ClusterCommand) -> Outcome {
    match &args.what {
        ClusterSubcommand::Nodes(args) => nodes(args),
        ClusterSubcommand::Status(args) => report::status(args),
        ClusterSubcommand::Tokens(args) => report::tokens(args),
        ClusterSubcommand::Fsck(args) => fsck(args),
        ClusterSubcommand::Drain(args) => drain::execute(args),
        ClusterSubcommand::Recover(args) => recover(args),
        ClusterSubcommand::Forget(args) => forget(args),
    }
}

fn fsck(args: &FsckArgs) -> Outcome {
    match (&args.tier, &args.origin) {
        (Some(root), _) => tier_fsck::execute(root, args),
        (None, origin) => {
            let origin = origin.clone().unwrap_or_default();
            let store = StoreArgs::new(origin, args.url.clone());
            report::fsck(&AskArgs { store, json: args.json })
        }
    }
}

fn nodes(args: &AskArgs) -> Outcome {
    let (store, registry) = args.store.open().map_err(Failure::refused)?;
    let nodes = sessions::nodes(&*store, &registry).map_err(Failure::refused)?;
    if args.json {
        return print_json(&nodes);
    }
    let (none, holds) = if is_disk_of_a_tier(&args.store.origin) {
        ("no node has this tier mounted", "SSD")
    } else {
        ("no node caches this origin", "cache")
    };
    if nodes.is_empty() {
        say!("{none}");
    }
    for node in &nodes {
        let name = node.node.as_deref().unwrap_or("?");
        let cache = node.cache.as_deref().map_or_else(|| "?".to_owned(), text::path);
        say!("{:16} {:10} {holds} {cache}", text::line(name), state(node));
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether a directory is the shared disk of a tier, also of one whose names are not made yet.
fn is_disk_of_a_tier(dir: &Path) -> bool {
    is_shared_disk(dir) || dir.join(PRIVATE).join(TIER).symlink_metadata().is_ok()
}

const GONE: &str = "is gone";

fn state(node: &Node) -> &'static str {
    match node.life {
        _ if node.lease_ms == 0 => GONE,
        Some(Life::Live) => "lives",
        // The store was restarted, and has not heard of it since.
        _ => "may live",
    }
}

/// The dead sessions of the node called `name`.
fn gone(nodes: Vec<Node>, name: &str) -> Result<Vec<Node>, Failure> {
    let named: Vec<Node> =
        nodes.into_iter().filter(|node| node.node.as_deref() == Some(name)).collect();
    if named.is_empty() {
        let name = text::line(name);
        return Err(Failure::refused(format!(
            "no node is called {name}; see `halocline cluster nodes`"
        )));
    }
    let gone: Vec<Node> = named.into_iter().filter(|node| state(node) == GONE).collect();
    if gone.is_empty() {
        return Err(Failure::refused(format!(
            "{} is alive, or may be, since the store was restarted: its lease runs; unmount it on its node, or wait until its \
             lease has expired",
            text::line(name)
        )));
    }
    Ok(gone)
}

fn recover(args: &RecoverArgs) -> Outcome {
    args.config.check_effect(false).map_err(Failure::refused)?;
    let config = args.config.load().map_err(Failure::refused)?;
    let EndArgs { store, node: name, dry_run, json } = &args.end;
    let mut done = Vec::new();
    let origin = std::path::absolute(&store.origin)?;
    if is_shared_disk(&origin) {
        return Err(Failure::refused(format!(
            "nodes of a file tier cache nothing: what {name} wrote is on its SSD, and there for all once it is mounted again; \
             `halocline cluster forget` ends its session",
            name = text::line(name)
        )));
    }
    let (store, registry) = store.open().map_err(Failure::refused)?;
    let all = sessions::nodes(&*store, &registry).map_err(Failure::refused)?;
    for node in gone(all, name)? {
        let cache = cache_of(args, &node).map_err(Failure::refused)?;
        let node_session = node.session;
        let ended = |is_done: bool, bytes: u64| {
            let (cache, node) = (cache.clone(), name.clone());
            EndedSession {
                session: node_session,
                node,
                is_done,
                what: SessionEnd::Recovered { cache, bytes },
            }
        };
        let name = text::line(name);
        if *dry_run {
            if !json {
                say!(
                    "{} would be brought to the origin, and the session of {name} ended",
                    text::path(&cache)
                );
            }
            done.push(ended(false, 0));
            continue;
        }
        let abandoned = AbandonedCache::open(&origin, &cache, &config).map_err(Failure::refused)?;
        // Only now can no one put another cache there.
        check_identity(&cache, Some(abandoned.cache_id()), &node).map_err(Failure::refused)?;
        let bytes = abandoned.bring_to_origin().map_err(Failure::refused)?;
        sessions::end(&*store, &registry, node.session).map_err(Failure::refused)?;
        clear_mark(&origin, &node);
        done.push(ended(true, bytes));
        if !json {
            let bytes = text::bytes(bytes);
            say!("{name}: {bytes} brought to the origin, its session is ended");
        }
    }
    if *json { print_json(&done) } else { Ok(ExitCode::SUCCESS) }
}

/// Where this machine reaches the cache of a session. Nothing is created there: an empty directory with the same name
/// is not the cache.
fn cache_of(args: &RecoverArgs, node: &Node) -> Result<PathBuf> {
    let (Some(named), Some(_)) = (&node.cache, &node.cache_id) else {
        return Err(Error::invalid(
            "its entry cannot be read: nobody knows which cache it had",
            "`halocline cluster forget` gives it up",
        ));
    };
    let cache = std::path::absolute(args.cache.as_ref().unwrap_or(named))
        .map_err(Error::at(named, "find"))?;
    let found = identity_of(&cache).map_err(|error| {
        let remedy = "run this where it can be read; if it is lost, `halocline cluster forget` gives it up and names the files";
        Error::invalid(error.to_string(), remedy)
    })?;
    let found = found.map(|found| found.cache_id);
    check_identity(&cache, found.as_deref(), node)?;
    Ok(cache)
}

/// Checks that the cache found in a directory is that of a session.
fn check_identity(cache: &Path, found: Option<&str>, node: &Node) -> Result<()> {
    if found.is_some() && found == node.cache_id.as_deref() {
        return Ok(());
    }
    let what = if found.is_some() { "another node's cache" } else { "no cache" };
    Err(Error::invalid(
        format!("{} on this machine is {what}", cache.display()),
        "run this where the node's cache can be reached, or name its directory here with --cache",
    ))
}

fn forget(args: &ForgetArgs) -> Outcome {
    let ForgetArgs { end: args, yes } = args;
    let (store, registry) = args.store.open().map_err(Failure::refused)?;
    let all = sessions::nodes(&*store, &registry).map_err(Failure::refused)?;
    let name = text::line(&args.node);
    let mut done = Vec::new();
    let is_tier = is_shared_disk(&args.store.origin);
    for node in gone(all, &args.node)? {
        if is_tier {
            done.push(forget_on_tier(args, (&*store, &registry), &node)?);
            continue;
        }
        let Exclusive { held, is_complete } =
            sessions::exclusive(&*store, node.session).map_err(Failure::refused)?;
        let mut inodes: BTreeSet<u64> = held.iter().map(|(file, _)| file.inode).collect();
        let dirty = dirty_inodes(&node);
        let is_complete = is_complete || dirty.is_some();
        inodes.extend(dirty.into_iter().flatten());
        let lost = names_of(&args.store.origin, &inodes);
        for lost in &lost {
            tell!("{lost}: what {name} wrote last may be lost");
        }
        let what = SessionEnd::Forgotten { files: lost, is_complete };
        let node_name = args.node.clone();
        let is_done = !args.dry_run;
        done.push(EndedSession { session: node.session, node: node_name, is_done, what });
        if !is_complete {
            tell!(
                "any other file: the store does not know all that {name} held, because it was restarted or lost data, or \
                 has too many files, and the cache of {name} is not to be seen here"
            );
        }
        if args.dry_run {
            continue;
        }
        if !is_complete && !yes {
            return Err(Failure::refused(format!(
                "which files {name} wrote last is not known; `halocline cluster recover` where its cache is saves them; \
                 to give them up without knowing, add --yes"
            )));
        }
        sessions::end(&*store, &registry, node.session).map_err(Failure::refused)?;
        clear_mark(&args.store.origin, &node);
        let files = counted(inodes.len(), "file");
        match (args.json, is_complete) {
            (true, _) => {}
            (false, true) => say!("{name} is forgotten, with {files}"),
            (false, false) => {
                say!("{name} is forgotten, with {files} that are known and perhaps others");
            }
        }
    }
    if args.json { print_json(&done) } else { Ok(ExitCode::SUCCESS) }
}

/// Ends the session of a node of a file tier: all that it wrote is on its SSD.
fn forget_on_tier(
    args: &EndArgs,
    (store, registry): (&dyn Store, &Registry),
    node: &Node,
) -> Result<EndedSession, Failure> {
    if !args.dry_run {
        sessions::end(store, registry, node.session).map_err(Failure::refused)?;
    }
    if !args.json {
        let would = if args.dry_run { "would be" } else { "is" };
        say!(
            "the session of {} {would} ended: its files stay on its SSD, and can be used again once it is mounted",
            text::line(&args.node)
        );
    }
    let what = SessionEnd::Forgotten { files: Vec::new(), is_complete: true };
    let is_done = !args.dry_run;
    Ok(EndedSession { session: node.session, node: args.node.clone(), is_done, what })
}

/// The files with dirty bytes in the cache of a session that is gone, if it is to be seen here.
fn dirty_inodes(node: &Node) -> Option<BTreeSet<u64>> {
    let cache = node.cache.as_ref()?;
    let id = identity_of(cache).ok()??.cache_id;
    if node.cache_id != Some(id) {
        return None;
    }
    let seen = File::open(cache).and_then(FileIdentity::of).ok()?;
    // A copy may have other bytes than the node's own.
    if node.cache_seen.is_none_or(|own| own.inode != seen.inode || own.born_ns != seen.born_ns) {
        return None;
    }
    let cache = OfflineCache::open(cache, Access::ReadOnly).ok()?;
    let dirty = cache.dmt.index().dirty_files();
    let inodes =
        dirty.into_iter().filter_map(|(id, _)| Some(cache.dmt.files().record(id)?.key.inode));
    Some(inodes.collect())
}

/// Nothing is expected of the cache of a session that has ended, so its mark refuses no mount.
fn clear_mark(origin: &Path, node: &Node) {
    if let Some(cache_id) = &node.cache_id {
        origin_mark::clear(origin, cache_id);
    }
}

/// Names of files for people: a path, or the inode number if no name is found.
fn names_of(origin: &Path, inodes: &BTreeSet<u64>) -> Vec<String> {
    let mut names = BTreeMap::new();
    let mut dirs = vec![origin.to_owned()];
    while let Some(dir) = dirs.pop().filter(|_| names.len() < inodes.len()) {
        // What cannot be read is omitted; the number is then reported.
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_dir {
                dirs.push(entry.path());
            } else if inodes.contains(&entry.ino()) {
                names.insert(entry.ino(), text::path(&entry.path()));
            }
        }
    }
    let name = |inode: &u64| names.get(inode).cloned().unwrap_or_else(|| format!("inode {inode}"));
    inodes.iter().map(name).collect()
}
