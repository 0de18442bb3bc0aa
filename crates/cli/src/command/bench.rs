//! `halocline bench`: what the cache gains, measured through real mounts.
//!
//! - [`ior`]: the command and its options;
//! - [`workload`]: which process asks for which bytes, in which order;
//! - [`content`]: bytes that tell where they belong;
//! - [`worker`]: one process of a run; [`crew`]: all of them, from the parent's side;
//! - [`case`]: one policy and cache size over one workload, from mount to unmount;
//! - [`bare_origin`]: the origin when all is over, compared byte by byte;
//! - [`scratch`]: where it all lies, and its end;
//! - [`tier`]: the file tier;
//! - [`record`]: the results as JSON; [`table`] and [`plot`]: for people.

mod bare_origin;
mod case;
mod content;
mod crew;
mod ior;
mod plot;
mod record;
mod scratch;
mod table;
mod tier;
mod worker;
mod workload;

use clap::{Args, Subcommand};

use crate::failure::Outcome;

/// Measure what the cache gains on this machine or on emulated devices
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Ior(Box<ior::IorArgs>),
    Tier(tier::TierArgs),
    #[command(hide = true)]
    Worker(worker::WorkerArgs),
}

/// Measures.
pub(crate) fn execute(args: &BenchArgs) -> Outcome {
    match &args.what {
        What::Ior(args) => ior::execute(args),
        What::Tier(args) => tier::execute(args),
        What::Worker(args) => worker::execute(args),
    }
}
