//! `halocline flush`: is it all on the origin?

use std::path::PathBuf;

use clap::Args;
use halocline_api::control::{MountedPath, Request};

use super::bulk::Telling;
use crate::failure::{Failure, Outcome};
use crate::mount_lookup::{self, Named, without};

/// Write dirty data to the origin, durably, and wait until it is there
#[derive(Debug, Args)]
pub(crate) struct FlushArgs {
    /// Files, directories, a mount point, or the cache directory of a running mount
    #[arg(default_value = ".", value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Wait until everything is on the origin (always so; accepted for scripts)
    #[arg(long)]
    wait: bool,
    /// Only tell what would be written
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// Flushes.
pub(crate) fn execute(args: &FlushArgs) -> Outcome {
    let dry_run = args.dry_run;
    let request = |mounted: MountedPath| {
        let path = mounted.inside.clone();
        (mounted, Request::Flush { path, dry_run })
    };
    let Named { found, stray_links } = mount_lookup::all_named(&args.paths)?;
    let requests: Vec<_> = found.into_iter().map(request).collect();
    let telling = Telling {
        doing: "flushing",
        done: "flushed",
        left: |left| Failure::dirty_left(format!("{left} could not be flushed, see above")),
        counts_empty: false,
        dry_run: args.dry_run,
        json: args.json,
    };
    without(&stray_links, telling.ask(&requests))
}
