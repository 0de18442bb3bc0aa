//! `halocline explain`: what would happen with a request, and why.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use halocline_api::control::{
    CostTerms, Explanation, FileExplanation, MountedPath, Question, Request, Side,
};
use halocline_model::request::Direction;

use super::print_json;
use crate::failure::{Failure, Outcome};
use crate::mount_lookup;
use crate::options::byte_count;
use crate::print::{self, say};
use crate::text;

/// Show the cost model's terms for a request, the decision and the reason; of a file tier's file,
/// why it is where it is
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// A file on the mount
    path: PathBuf,
    /// First byte: on a cache only, and needed there
    #[arg(requires = "length", value_parser = byte_count, allow_hyphen_values = true)]
    offset: Option<u64>,
    /// Length in bytes
    #[arg(value_parser = byte_count, allow_hyphen_values = true)]
    length: Option<u64>,
    /// Number of processes p, from 1 to 1048576; without it, what is measured on the file
    #[arg(long, requires = "offset", value_name = "NUMBER", allow_hyphen_values = true)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    processes: Option<u32>,
    /// Whether the request reads or writes [default: write]
    #[arg(long, value_enum, requires = "offset")]
    direction: Option<DirectionArg>,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum DirectionArg {
    Read,
    Write,
}

/// Explains.
pub(crate) fn execute(args: &ExplainArgs) -> Outcome {
    let mounted = mount_lookup::named(&args.path)?;
    if mounted.inside.as_os_str().is_empty() {
        return Err(Failure::refused("the mount's root has no bytes; name a file on it"));
    }
    let range = args.offset.zip(args.length);
    let (offset, length) = match (super::tier_text::is_tier(&mounted)?, range) {
        (true, None) => return why(&mounted, args.json),
        (true, Some(_)) => {
            return Err(Failure::refused(
                "a file tier decides about whole files: name the file without OFFSET and LENGTH",
            ));
        }
        (false, Some(range)) => range,
        (false, None) => {
            return Err(Failure::refused(
                "a cache decides about requests: give OFFSET and LENGTH after the file",
            ));
        }
    };
    let question = Question {
        path: mounted.inside.clone(),
        offset,
        length,
        direction: match args.direction {
            Some(DirectionArg::Read) => Direction::Read,
            Some(DirectionArg::Write) | None => Direction::Write,
        },
        processes: args.processes,
    };
    let told: Explanation =
        mount_lookup::connect(&mounted)?.call(&Request::Explain(question), |_| {})?;
    if args.json {
        return print_json(&told);
    }
    say!("side     layout     m        s_m     startup    transfer  learned       total");
    for cost in &told.costs {
        say!("{}", line(cost));
    }
    say!("policy     {}, p = {}", told.policy, told.processes);
    say!("on cache   {} of {}", text::bytes(told.cached_bytes), text::bytes(length));
    say!("benefit    {}", text::seconds(told.benefit_s));
    print::lines(&decision(&told));
    Ok(ExitCode::SUCCESS)
}

/// The decision, and what prevents it from taking effect, if anything.
fn decision(told: &Explanation) -> String {
    // Layouts exist only on the cache.
    let layout = told.layout.filter(|_| told.decision == Side::Cache);
    let layout = layout.map_or_else(String::new, |layout| format!(", layout {}", layout.title()));
    let reason = text::line(&told.reason);
    let mut out = format!("decision   {}{layout}: {reason}", side(told.decision));
    if let Some(now) = told.now.as_ref().filter(|now| **now != told.reason) {
        let _ = write!(out, "\nnot now    {}", text::line(now));
    }
    if let Some(nodes) = &told.nodes {
        let _ = write!(out, "\nnodes      {}", text::line(nodes));
    }
    if let Some(note) = &told.note {
        let _ = write!(out, "\nnote       {}", text::line(note));
    }
    out
}

/// Why a file of a file tier is where it is.
fn why(mounted: &MountedPath, json: bool) -> Outcome {
    let request = Request::ExplainFile { path: mounted.inside.clone() };
    let told: FileExplanation = mount_lookup::connect(mounted)?.call(&request, |_| {})?;
    if json {
        return print_json(&told);
    }
    print::lines(&super::tier_text::why(&told));
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
        "{:<8} {:<6} {:>5} {:>10} {:>11} {:>11} {:>8} {:>11}",
        side(cost.side),
        cost.layout.map_or("-", halocline_model::layout::Layout::title),
        cost.servers,
        text::bytes(cost.largest_part_bytes),
        text::seconds(cost.startup_s),
        text::seconds(cost.transfer_s),
        learned(cost),
        text::seconds(cost.total_s),
    )
}

/// The factor that measured times apply to the model's startup and transfer: `x 0.42`.
fn learned(cost: &CostTerms) -> String {
    let modelled = cost.startup_s + cost.transfer_s;
    let factor = cost.total_s / modelled;
    if modelled <= 0.0 || (factor - 1.0).abs() < 0.005 {
        return "-".to_owned();
    }
    format!("x {factor:.2}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the columns did not add up if a policy had learned from measured times.
    #[test]
    fn what_was_learned_stands_between_the_model_and_the_total() {
        let cost = |total_s| CostTerms {
            side: Side::Cache,
            layout: Some(halocline_model::layout::Layout::OneDh),
            servers: 4,
            largest_part_bytes: 65536,
            startup_s: 0.001,
            transfer_s: 0.003,
            total_s,
        };
        let told = line(&cost(0.002));
        let row = "cache    1-DH       4   64.0 KiB     1.00 ms     3.00 ms   x 0.50     2.00 ms";
        assert_eq!(told, row);
        assert!(line(&cost(0.004)).contains("        -     4.00 ms"));
    }

    #[test]
    fn a_reason_is_told_once_and_a_layout_on_the_cache_only() {
        let told = |decision, now: Option<&str>| Explanation {
            policy: "sla".into(),
            processes: 1,
            cached_bytes: 0,
            decision,
            reason: "why".into(),
            now: now.map(str::to_owned),
            note: None,
            nodes: None,
            layout: Some(halocline_model::layout::Layout::ALL[0]),
            costs: Vec::new(),
            benefit_s: 0.0,
        };
        assert_eq!(decision(&told(Side::Origin, Some("why"))), "decision   origin: why");
        let shown = decision(&told(Side::Cache, Some("a\nb")));
        assert_eq!(shown, "decision   cache, layout 1-DH: why\nnot now    a\\nb");
    }
}
