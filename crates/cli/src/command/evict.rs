//! `halocline evict`: off the cache, for good data to the origin first.

use std::path::PathBuf;

use clap::Args;
use halocline_api::control::{MountedPath, Request};

use super::bulk::{Telling, only_on_a_tier};
use crate::failure::{Failure, Outcome};
use crate::mount_lookup::{self, Named, without};

/// Flush files and take them off the cache
#[derive(Debug, Args)]
pub(crate) struct EvictArgs {
    /// Files, directories, a mount point, or the cache directory of a running mount
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Only tell what would leave
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// Evicts.
pub(crate) fn execute(args: &EvictArgs) -> Outcome {
    let Named { found, stray_links } = mount_lookup::all_named(&args.paths)?;
    only_on_a_tier(false, &found, "`halocline demote` moves files off the SSD")?;
    let dry_run = args.dry_run;
    let request = |mounted: MountedPath| {
        let path = mounted.inside.clone();
        (mounted, Request::Evict { path, dry_run })
    };
    let requests: Vec<_> = found.into_iter().map(request).collect();
    let telling = Telling {
        doing: "evicting",
        done: "evicted",
        left: |left| Failure::failed(format!("{left} stay on the cache, see above")),
        counts_empty: false,
        dry_run: args.dry_run,
        json: args.json,
    };
    without(&stray_links, telling.ask(&requests))
}
