//! `halocline demote`: off the SSD of a file tier, now.

use std::path::PathBuf;

use clap::Args;
use halocline_api::control::Request;

use super::bulk::{Telling, only_on_a_tier};
use crate::failure::{Failure, Outcome};
use crate::mount_lookup::{self, Named, without};

/// Move files of a file tier from the SSD to the next tier that has room
#[derive(Debug, Args)]
pub(crate) struct DemoteArgs {
    /// Files, directories and quoted globs on the mount: /mnt/a, "/mnt/**/*.log"
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Only tell what would be moved
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// Demotes.
pub(crate) fn execute(args: &DemoteArgs) -> Outcome {
    let Named { found, stray_links } = mount_lookup::all_matching(&args.paths)?;
    only_on_a_tier(
        true,
        found.iter().map(|(mounted, _)| mounted),
        "`halocline evict` takes files off it, `halocline flush` writes dirty data to the origin",
    )?;
    let dry_run = args.dry_run;
    let request = |(mounted, path)| (mounted, Request::Evict { path, dry_run });
    let requests: Vec<_> = found.into_iter().map(request).collect();
    let telling = Telling {
        doing: "demoting",
        done: "demoted",
        left: |left| Failure::failed(format!("{left} stay on the SSD, see above")),
        counts_empty: true,
        dry_run: args.dry_run,
        json: args.json,
    };
    without(&stray_links, telling.ask(&requests))
}
