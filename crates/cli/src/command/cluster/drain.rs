//! `halocline cluster drain`: what lies on a node's SSD goes to the shared disk, before the node leaves.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use halocline_api::control::{Drain, MoveReport, Request};
use halocline_os::error::Error;

use crate::command::bulk::only_on_a_tier;
use crate::command::print_json;
use crate::failure::{Failure, Outcome};
use crate::mount_lookup;
use crate::print;
use crate::progress::Meter;
use crate::text;

#[derive(Debug, Args)]
pub(super) struct DrainArgs {
    /// The node
    node: String,
    /// A mount of the shared tier that reaches its SSD: the node's own, or one with --peers
    #[arg(default_value = ".")]
    mount: PathBuf,
    /// Only tell what would be moved
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// Does it.
pub(super) fn execute(args: &DrainArgs) -> Outcome {
    let mounted = mount_lookup::find(&args.mount).map_err(mount_lookup::not_found)?;
    only_on_a_tier(true, [&mounted], "`halocline flush` brings dirty data to the origin")?;
    let request = Request::Drain(Drain {
        node: args.node.clone(),
        path: mounted.inside.clone(),
        dry_run: args.dry_run,
    });
    let mut meter = Meter::new("draining", args.json || args.dry_run);
    let answer = mount_lookup::connect(&mounted)?.call(&request, |now| meter.tell(&now));
    drop(meter);
    let report: MoveReport = answer.map_err(Failure::answered)?;
    if args.json {
        print_json(&report)?;
    } else {
        print::lines(&text::moved("drained", &report, args.dry_run));
    }
    if report.skipped.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let what =
        format!("{} stay on the SSD of {}, see above", text::bytes(report.left_bytes), args.node);
    Err(Failure::failed(Error::invalid(what, "put that right, and drain again").to_string()))
}
