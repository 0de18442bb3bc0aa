//! The `halocline` command: parses, calls one file of [`command`], answers with an exit status.
//!
//! - [`command`]: the subcommands, one file each;
//! - [`options`]: flags from the table of options;
//! - [`output`]: files that a person names to be written;
//! - [`preflight`]: what is checked before anything changes;
//! - [`places`]: finding mounts that may not answer;
//! - [`opening`]: what opening an origin waits for;
//! - [`host`]: a mount with its engine, session and control socket, until it ends;
//! - [`again`]: this program started once more, under its own name;
//! - [`inherited`]: umask, limits and signals that the caller gave;
//! - [`child`]: the command that `run` starts, its signals and its status;
//! - [`say`], [`text`], [`progress`]: what people read;
//! - [`failure`]: exit statuses.

mod again;
mod assemble;
mod child;
mod cluster;
mod command;
mod failure;
mod figure;
mod host;
mod inherited;
mod mount_paths;
mod mpi;
mod opening;
mod options;
mod output;
mod places;
mod preflight;
mod progress;
mod recording;
mod say;
mod text;

use std::process::ExitCode;

use clap::Parser;

use crate::failure::Failure;

fn main() -> ExitCode {
    again::name_this_process();
    inherited::replace();
    let (cli, paths) = match command::Cli::parsed() {
        Ok(parsed) => parsed,
        // It repeats what was typed, which a shell may have made of others' names.
        Err(error) if error.use_stderr() => {
            let shown = std::env::args_os().map(|arg| text::line(&arg.to_string_lossy()));
            let error = command::Cli::try_parse_from(shown).err().unwrap_or(error);
            say::lines_aside(&error.render().to_string());
            return ExitCode::from(2);
        }
        Err(asked) => asked.exit(),
    };
    start_log(cli.verbose);
    if !cli.command.serves() {
        end_with_the_reader();
    }
    let answer = if cli.command.waits_for_no_path() { Ok(()) } else { places::all_answer(&paths) };
    let ended = answer.map_err(Failure::refused).and_then(|()| cli.command.execute());
    // The status of `run` is its command's.
    let lost = say::lost().filter(|_| !cli.command.serves());
    match (ended, lost) {
        (Ok(_), Some(error)) => Failure::failed(format!("standard output: {error}")).report(),
        (Ok(code), None) => code,
        (Err(failure), _) => failure.report(),
    }
}

/// Ends this process quietly when whoever reads its output has read enough (`| head`).
fn end_with_the_reader() {
    // SAFETY: the default action runs no code of ours.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Messages of the libraries go to standard error: warnings, or what `HALOCLINE_LOG` says.
fn start_log(verbose: u8) {
    let level = ["warn", "info", "debug", "trace"][usize::from(verbose.min(3))];
    let filter = tracing_subscriber::EnvFilter::try_from_env("HALOCLINE_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(level));
    // Without colours: most of it is read in a log.
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false);
    // A log on a disk that takes no more loses lines. Told of that on standard error, which is the
    // log, it would panic instead, and fail a program's request.
    log.log_internal_errors(false).with_writer(|| say::Log(std::io::stderr())).init();
}
