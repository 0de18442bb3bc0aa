//! `halocline docs DIR`: writes what is generated: CONFIG.md, METRICS.md, man pages, shell
//! completions.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, CommandFactory, ValueEnum};
use clap_complete::Shell;
use halocline_core::config;
use halocline_core::control::metrics;
use halocline_core::error::Error;

use super::Cli;
use crate::failure::{Failure, Outcome};
use crate::output;

/// Write CONFIG.md, METRICS.md, man pages (DIR/man) and shell completions (DIR/completions)
#[derive(Debug, Args)]
pub(crate) struct DocsArgs {
    /// Where they go
    dir: PathBuf,
    /// Only CONFIG.md and METRICS.md: what the repository keeps
    #[arg(long, alias = "config-only")]
    pages_only: bool,
}

/// Writes them.
pub(crate) fn execute(args: &DocsArgs) -> Outcome {
    write(&args.dir, "CONFIG.md", config::markdown().as_bytes())?;
    write(&args.dir, "METRICS.md", metrics::markdown().as_bytes())?;
    if args.pages_only {
        return Ok(ExitCode::SUCCESS);
    }
    let mut command = Cli::command();
    command.build();
    man_pages(&args.dir.join("man"), "halocline", &command)?;
    for shell in Shell::value_variants() {
        let mut script = Vec::new();
        clap_complete::generate(*shell, &mut Cli::command(), "halocline", &mut script);
        write(&args.dir.join("completions"), &format!("halocline.{shell}"), &script)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// One page for the command, called `name`, and one for each subcommand at any depth.
fn man_pages(dir: &Path, name: &str, command: &clap::Command) -> Result<(), Failure> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone().name(name.to_owned())).render(&mut page)?;
    write(dir, &format!("{name}.1"), &page)?;
    let shown = |command: &&clap::Command| !command.is_hide_set() && command.get_name() != "help";
    command
        .get_subcommands()
        .filter(shown)
        .try_for_each(|command| man_pages(dir, &format!("{name}-{}", command.get_name()), command))
}

fn write(dir: &Path, name: &str, content: &[u8]) -> Result<(), Failure> {
    fs::create_dir_all(dir).map_err(Error::at(dir, "create the directory"))?;
    let path = dir.join(name);
    Ok(output::write(&path, content).map_err(Error::at(&path, "write"))?)
}
