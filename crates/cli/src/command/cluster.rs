//! `halocline cluster`: the nodes that cache one origin, and what becomes of those that are gone.

use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, Subcommand};
use halocline_cluster::alone::Alone;
use halocline_cluster::sessions::{self, Node};
use halocline_core::coherence::Coherence;
use halocline_core::config::Config;
use halocline_core::control::Controlled;
use halocline_core::counted::counted;
use halocline_core::engine::Decorations;
use halocline_core::engine::extents::ExtentEngine;
use halocline_core::error::{Error, Result};
use halocline_model::token::Life;

use super::print_json;
use crate::cluster::StoreArgs;
use crate::failure::{Failure, Outcome};
use crate::say::{say, tell};
use crate::text;

/// See which nodes cache an origin, and end what those left that are gone
#[derive(Debug, Args)]
pub(crate) struct ClusterCommand {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List the nodes
    Nodes(NodesArgs),
    /// Bring home what a node that is gone left on its cache, which this machine reaches, and end its session
    Recover(EndArgs),
    /// End the session of a node that will not come back: what only its cache has is lost
    Forget(EndArgs),
}

#[derive(Debug, Args)]
struct NodesArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct EndArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// The node
    node: String,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

/// Does it.
pub(crate) fn execute(args: &ClusterCommand) -> Outcome {
    match &args.what {
        What::Nodes(args) => nodes(args),
        What::Recover(args) => recover(args),
        What::Forget(args) => forget(args),
    }
}

fn nodes(args: &NodesArgs) -> Outcome {
    let (store, registry) = args.store.open().map_err(Failure::refused)?;
    let nodes = sessions::nodes(&store, &registry).map_err(Failure::refused)?;
    if args.json {
        return print_json(&nodes);
    }
    if nodes.is_empty() {
        say!("no node caches this origin");
    }
    for node in &nodes {
        let name = node.node.as_deref().unwrap_or("?");
        let cache = node.cache.as_deref().map_or_else(|| "?".to_owned(), |dir| text::path(dir));
        say!("{:16} {:10} cache {cache}", text::line(name), state(node));
    }
    Ok(ExitCode::SUCCESS)
}

fn state(node: &Node) -> &'static str {
    match node.life {
        Some(Life::Live) if node.lease_ms > 0 => "lives",
        _ => "is gone",
    }
}

/// The sessions of the node called `name` that are gone.
fn gone(nodes: Vec<Node>, name: &str) -> Result<Vec<Node>, Failure> {
    let named: Vec<Node> =
        nodes.into_iter().filter(|node| node.node.as_deref() == Some(name)).collect();
    if named.is_empty() {
        let name = text::line(name);
        return Err(Failure::refused(format!("no node is called {name}; see `cluster nodes`")));
    }
    let gone: Vec<Node> = named.into_iter().filter(|node| state(node) == "is gone").collect();
    if gone.is_empty() {
        return Err(Failure::refused(format!(
            "{} is there: its lease runs; unmount it on its node, or wait until its lease is over",
            text::line(name)
        )));
    }
    Ok(gone)
}

fn recover(args: &EndArgs) -> Outcome {
    let (store, registry) = args.store.open().map_err(Failure::refused)?;
    let all = sessions::nodes(&store, &registry).map_err(Failure::refused)?;
    for node in gone(all, &args.node)? {
        let Some(cache) = &node.cache else {
            return Err(Failure::refused("its entry cannot be read; forget it"));
        };
        if args.dry_run {
            say!("{} would be flushed, and the session of {} ended", text::path(cache), args.node);
            continue;
        }
        let bytes = bring_home(&args.store.origin, cache).map_err(Failure::refused)?;
        sessions::end(&store, &registry, node.session).map_err(Failure::refused)?;
        say!("{}: {} brought home, its session is ended", args.node, text::bytes(bytes));
    }
    Ok(ExitCode::SUCCESS)
}

fn forget(args: &EndArgs) -> Outcome {
    let (store, registry) = args.store.open().map_err(Failure::refused)?;
    let all = sessions::nodes(&store, &registry).map_err(Failure::refused)?;
    for node in gone(all, &args.node)? {
        let held = sessions::exclusive(&store, node.session).map_err(Failure::refused)?;
        let files: std::collections::BTreeSet<u64> =
            held.iter().map(|(file, _)| file.inode).collect();
        for inode in &files {
            tell!("inode {inode} (find -inum {inode}): what it wrote last may be lost");
        }
        if args.dry_run {
            continue;
        }
        sessions::end(&store, &registry, node.session).map_err(Failure::refused)?;
        say!("{} is forgotten, with {}", args.node, counted(files.len(), "file"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Flushes the cache of a session that is gone; answers the bytes.
pub(crate) fn bring_home(origin: &Path, cache: &Path) -> Result<u64> {
    let alone: Arc<dyn Coherence> = Arc::new(Alone);
    let config = Config { rebuild: false, fill: false, ..Config::default() };
    let around = Decorations { coherence: Some(&alone), ..Decorations::NONE };
    let engine = ExtentEngine::open_decorated(origin, cache, &config, around)?;
    let report = engine.flush(None, false, &mut |_| ControlFlow::Continue(()))?;
    let left = engine.status().dirty_bytes;
    engine.close()?;
    if left > 0 {
        return Err(Error::invalid(
            format!("{left} bytes of {} could not be brought home", cache.display()),
            "see what `halocline fsck` says of it, or forget the node",
        ));
    }
    Ok(report.bytes)
}
