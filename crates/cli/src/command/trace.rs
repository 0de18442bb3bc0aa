//! `halocline trace`: traces of requests (docs/TRACES.md).

mod import;
mod make;
mod play;
mod record;
mod show;

use clap::{Args, Subcommand};

use crate::failure::Outcome;

/// Record, import, make and play traces of requests, and say what is in them
#[derive(Debug, Args)]
pub(crate) struct TraceArgs {
    #[command(subcommand)]
    command: TraceCommand,
}

#[derive(Debug, Subcommand)]
enum TraceCommand {
    Import(import::ImportArgs),
    Record(Box<record::RecordArgs>),
    Show(show::ShowArgs),
    Make(make::MakeArgs),
    Play(play::PlayArgs),
    #[command(hide = true)]
    PlayWorker(play::worker::PlayWorkerArgs),
}

impl TraceArgs {
    /// Whether programs depend on this process.
    pub(super) const fn serves(&self) -> bool {
        !matches!(
            self.command,
            TraceCommand::Import(_) | TraceCommand::Show(_) | TraceCommand::Make(_)
        )
    }

    /// Whether a program runs whose requests are recorded.
    pub(super) const fn is_recording(&self) -> bool {
        matches!(self.command, TraceCommand::Record(_))
    }
}

/// Executes the command.
pub(crate) fn execute(args: &TraceArgs) -> Outcome {
    match &args.command {
        TraceCommand::Import(args) => import::execute(args),
        TraceCommand::Record(args) => record::execute(args),
        TraceCommand::Show(args) => show::execute(args),
        TraceCommand::Make(args) => make::execute(args),
        TraceCommand::Play(args) => play::execute(args),
        TraceCommand::PlayWorker(args) => play::worker::execute(args),
    }
}
