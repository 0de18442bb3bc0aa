//! `halocline trace`: traces of requests (docs/TRACES.md).

mod import;

use clap::{Args, Subcommand};

use crate::failure::Outcome;

/// Import traces of requests, and say what is in them
#[derive(Debug, Args)]
pub(crate) struct TraceArgs {
    #[command(subcommand)]
    command: TraceCommand,
}

#[derive(Debug, Subcommand)]
enum TraceCommand {
    Import(import::ImportArgs),
}

/// Does it.
pub(crate) fn execute(args: &TraceArgs) -> Outcome {
    match &args.command {
        TraceCommand::Import(args) => import::execute(args),
    }
}
