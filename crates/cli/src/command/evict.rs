//! `halocline evict`: off the cache, for good data home first.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use halocline_core::control::{MoveReport, Place, Request};

use super::print_json;
use crate::failure::{Failure, Outcome};
use crate::progress::Meter;
use crate::text;

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
    let place = Place::find(&args.path)?;
    let request = Request::Evict { path: place.inside.clone(), dry_run: args.dry_run };
    let mut meter = Meter::new("evicting", args.json || args.dry_run);
    let done: MoveReport = place.connect()?.call(&request, |now| meter.tell(&now))?;
    drop(meter);
    if args.json {
        print_json(&done)?;
    } else {
        println!("{}", text::moved("evicted", &done, args.dry_run));
    }
    if done.left_bytes > 0 && !args.dry_run {
        let left = text::bytes(done.left_bytes);
        return Err(Failure::failed(format!("{left} stay on the cache, see above")));
    }
    Ok(ExitCode::SUCCESS)
}
