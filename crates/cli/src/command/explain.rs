//! `halocline explain`: what would happen with a request, and why.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use halocline_core::control::{CostTerms, Explanation, Question, Request, Side};
use halocline_model::request::Direction;

use super::print_json;
use crate::failure::{Failure, Outcome};
use crate::options::byte_count;
use crate::places;
use crate::text;

/// Show the terms of the cost model for a request, the decision and the reason
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// A file on the mount
    path: PathBuf,
    /// First byte
    #[arg(value_parser = byte_count)]
    offset: u64,
    /// Length in bytes
    #[arg(value_parser = byte_count)]
    length: u64,
    /// Number of processes p; without it, what is measured on the file
    #[arg(long)]
    processes: Option<u32>,
    /// Whether the request reads or writes
    #[arg(long, value_enum, default_value = "write")]
    direction: Way,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Way {
    Read,
    Write,
}

/// Explains.
pub(crate) fn execute(args: &ExplainArgs) -> Outcome {
    let place = places::find(&args.path)?;
    if place.inside.as_os_str().is_empty() {
        return Err(Failure::refused("the mount's root has no bytes; name a file on it"));
    }
    let question = Question {
        path: place.inside.clone(),
        offset: args.offset,
        length: args.length,
        direction: match args.direction {
            Way::Read => Direction::Read,
            Way::Write => Direction::Write,
        },
        processes: args.processes,
    };
    let told: Explanation = place.connect()?.call(&Request::Explain(question), |_| {})?;
    if args.json {
        return print_json(&told);
    }
    println!(
        "{:<8} {:<7} {:>4} {:>12} {:>12} {:>12} {:>12}",
        "side", "layout", "m", "s_m", "startup", "transfer", "total"
    );
    for cost in &told.costs {
        println!("{}", line(cost));
    }
    println!("policy     {}, p = {}", told.policy, told.processes);
    println!("on cache   {} of {}", text::bytes(told.cached_bytes), text::bytes(args.length));
    println!("benefit    {}", text::seconds(told.benefit_s));
    let layout =
        told.layout.map_or_else(String::new, |layout| format!(", layout {}", layout.name()));
    println!("decision   {}{layout}: {}", side(told.decision), told.reason);
    if let Some(now) = &told.now {
        println!("not now    {now}");
    }
    Ok(ExitCode::SUCCESS)
}

fn side(side: Side) -> &'static str {
    match side {
        Side::Origin => "origin",
        Side::Cache => "cache",
    }
}

fn line(cost: &CostTerms) -> String {
    format!(
        "{:<8} {:<7} {:>4} {:>12} {:>12} {:>12} {:>12}",
        side(cost.side),
        cost.layout.map_or("-", halocline_model::layout::Layout::name),
        cost.servers,
        text::bytes(cost.largest_part_bytes),
        text::seconds(cost.startup_s),
        text::seconds(cost.transfer_s),
        text::seconds(cost.total_s),
    )
}
