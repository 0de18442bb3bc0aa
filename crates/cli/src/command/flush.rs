//! `halocline flush`: is it all on the origin?

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use halocline_core::control::{MoveReport, Place, Request};

use super::print_json;
use crate::failure::{Failure, Outcome};
use crate::progress::Meter;
use crate::text;

/// Write dirty data to the origin, durably, and wait until it is there
#[derive(Debug, Args)]
pub(crate) struct FlushArgs {
    /// File, directory, mount point, or the cache directory of a running mount
    #[arg(default_value = ".")]
    path: PathBuf,
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
    let place = Place::find(&args.path)?;
    let request = Request::Flush { path: place.inside.clone(), dry_run: args.dry_run };
    let mut meter = Meter::new("flushing", args.json || args.dry_run);
    let done: MoveReport = place.connect()?.call(&request, |now| meter.tell(&now))?;
    drop(meter);
    if args.json {
        print_json(&done)?;
    } else {
        println!("{}", text::moved("flushed", &done, args.dry_run));
    }
    if done.left_bytes > 0 && !args.dry_run {
        let left = text::bytes(done.left_bytes);
        return Err(Failure::dirty_left(format!("{left} could not be flushed, see above")));
    }
    Ok(ExitCode::SUCCESS)
}
