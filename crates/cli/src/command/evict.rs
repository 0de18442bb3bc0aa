//! `halocline evict`: off the cache, for good data to the origin first.

use std::path::PathBuf;

use clap::Args;
use halocline_api::control::Request;

use super::bulk::{Telling, only_on_a_tier};
use crate::failure::{Failure, Outcome};
use crate::mount_lookup;

/// Flush files and take them off the cache
#[derive(Debug, Args)]
pub(crate) struct EvictArgs {
    /// File, directory, mount point, or the cache directory of a running mount
    path: PathBuf,
    /// Only tell what would leave
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// Evicts.
pub(crate) fn execute(args: &EvictArgs) -> Outcome {
    let mounted = mount_lookup::named(&args.path)?;
    only_on_a_tier(false, &mounted, "`halocline demote` moves files off the SSD")?;
    let request = Request::Evict { path: mounted.inside.clone(), dry_run: args.dry_run };
    let telling = Telling {
        doing: "evicting",
        done: "evicted",
        left: |left| Failure::failed(format!("{left} stay on the cache, see above")),
        dry_run: args.dry_run,
        json: args.json,
    };
    telling.ask(&mounted, &request)
}
