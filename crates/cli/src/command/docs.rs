//! `halocline docs DIR`: writes what is generated: CONFIG.md, METRICS.md, man pages, shell
//! completions.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Arg, Args, CommandFactory, ValueEnum};
use clap_complete::Shell;
use halocline_api::config;
use halocline_api::control::metrics;
use halocline_os::error::Error;

use super::Cli;
use crate::failure::{Failure, Outcome, STATUSES};
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
        clap_complete::generate(*shell, &mut offered(&Cli::command()), "halocline", &mut script);
        write(&args.dir.join("completions"), &format!("halocline.{shell}"), &script)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The command for completions, which would otherwise offer hidden items, and files where an option accepts only a few
/// words.
fn offered(command: &clap::Command) -> clap::Command {
    let args = command.get_arguments().filter(|arg| !arg.is_hide_set()).map(with_words);
    let subcommands = command.get_subcommands().filter(|command| !command.is_hide_set());
    clap::Command::new(command.get_name().to_owned())
        .about(command.get_about().cloned().unwrap_or_default())
        .version(command.get_version().map(ToOwned::to_owned).unwrap_or_default())
        .disable_version_flag(command.get_version().is_none())
        .allow_missing_positional(command.is_allow_missing_positional_set())
        .args(args)
        .subcommands(subcommands.map(offered))
}

fn with_words(arg: &Arg) -> Arg {
    let option = config::OPTIONS.iter().find(|option| arg.get_id() == option.key);
    match option.map(|option| option.kind.names()) {
        Some(words) if !words.is_empty() => arg.clone().value_parser(words),
        _ => arg.clone(),
    }
}

/// One page for the command, called `name`, and one for each subcommand at any depth.
fn man_pages(dir: &Path, name: &str, command: &clap::Command) -> Result<(), Failure> {
    let shown = |command: &&clap::Command| !command.is_hide_set() && command.get_name() != "help";
    let shown: Vec<_> = command.get_subcommands().filter(shown).collect();
    let mut page = Vec::new();
    let man = clap_mangen::Man::new(command.clone().name(name.to_owned()));
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    page.extend(synopsis(command).bytes());
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if !shown.is_empty() {
        let mut rows = String::from(".SH SUBCOMMANDS\n");
        for command in &shown {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            let page = format!("{name}-{}(1)", command.get_name());
            rows += &paragraph(&page, &about);
        }
        page.extend(rows.bytes());
    }
    page.extend(statuses().bytes());
    write(dir, &format!("{name}.1"), &page)?;
    shown
        .iter()
        .try_for_each(|command| man_pages(dir, &format!("{name}-{}", command.get_name()), command))
}

/// How the command is called, as in its help: `clap_mangen` would omit the names of values.
fn synopsis(command: &clap::Command) -> String {
    let usage = command.clone().render_usage().to_string();
    let lines = usage.trim_start_matches("Usage:").lines().map(|line| roff(line.trim()));
    lines.fold(String::from(".SH SYNOPSIS\n"), |page, line| page + &line + "\n.br\n")
}

/// The exit statuses, one paragraph each.
fn statuses() -> String {
    let mut page = String::from(".SH \"EXIT STATUS\"\n");
    for line in STATUSES.lines().skip(1) {
        match line.trim().split_once(' ') {
            Some((status, what)) if !line.starts_with("   ") => {
                page += &paragraph(status, what.trim());
            }
            _ => page += &(roff(line.trim()) + "\n"),
        }
    }
    page
}

/// A word and its description.
fn paragraph(word: &str, text: &str) -> String {
    format!(".TP\n{}\n{}\n", roff(word), roff(text))
}

/// Escapes text for a man page: no character of it is taken for a request.
fn roff(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

fn write(dir: &Path, name: &str, content: &[u8]) -> Result<(), Failure> {
    fs::create_dir_all(dir).map_err(Error::at(dir, "create the directory"))?;
    let path = dir.join(name);
    Ok(output::write(&path, content).map_err(Error::at(&path, "write"))?)
}
