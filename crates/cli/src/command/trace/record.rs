//! `halocline trace record`: what a command asks of the files below a directory.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use tempfile::TempDir;

use crate::command::run::{self, RunArgs};
use crate::failure::{Failure, Outcome};
use crate::options::ConfigArgs;

/// Run a command and record which bytes it reads and writes below a directory
///
/// As `halocline run`: a private mount lies over the directory while the command runs, and only the command sees
/// it. Without --cache nothing is cached, and service times are those of the directory.
/// Reads that the kernel's page cache answers do not reach the mount; with --direct there are none.
#[derive(Debug, Args)]
pub(crate) struct RecordArgs {
    /// The trace to write
    #[arg(short, long)]
    out: PathBuf,
    /// The directory with the files
    #[arg(long, value_name = "DIR", default_value = ".")]
    origin: PathBuf,
    /// A directory on the SSD, for nothing else: record with this cache in front
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    #[command(flatten)]
    config: ConfigArgs,
    /// The command and its arguments
    #[arg(required = true, last = true)]
    command: Vec<OsString>,
}

/// Records.
pub(crate) fn execute(args: &RecordArgs) -> Outcome {
    let mut config = args.config.clone();
    let scratch = if args.cache.is_none() { Some(scratch()?) } else { None };
    if scratch.is_some() {
        // Its records alone.
        config.default_to("policy", "never");
        config.default_to("size", "1M");
    }
    let own = || scratch.as_ref().map(|scratch| scratch.path().to_owned());
    let cache = args.cache.clone().or_else(own).unwrap_or_default();
    let paths = (args.origin.clone(), cache, args.out.clone());
    run::execute(&RunArgs::for_trace(paths, config, args.command.clone()))
}

/// A directory for the records of a mount without a cache.
fn scratch() -> Result<TempDir, Failure> {
    // A kill leaves it: its name says whose it is.
    let made = tempfile::Builder::new().prefix("halocline-record-").tempdir();
    made.map_err(|error| Failure::refused(format!("a place for the mount's records: {error}")))
}
