//! The `halocline` command: parses, calls one file of [`command`], returns an exit status.
//!
//! - [`command`]: the subcommands, one file each;
//! - [`options`]: flags from the table of options;
//! - [`output`]: writing files named by the user;
//! - [`preflight`]: checks before anything is changed;
//! - [`mount_lookup`]: finding mounts that may not respond;
//! - [`slow_open_notice`]: reports what opening an origin waits for;
//! - [`shared_tier`]: opening a tier that nodes share;
//! - [`host`]: a mount with its engine, session and control socket, until it ends;
//! - [`self_exec`]: starting this program again, under its own name;
//! - [`inherited`]: umask, limits and signals from the caller;
//! - [`child`]: the command that `run` starts, its signals and its status;
//! - [`mod@print`], [`text`], [`progress`]: output for people;
//! - [`failure`]: exit statuses.

mod bar_chart;
mod child;
mod cluster;
mod command;
mod failure;
mod host;
mod inherited;
mod log;
mod mount_lookup;
mod mount_paths;
mod mpi;
mod open_engine;
mod options;
mod output;
mod preflight;
mod print;
mod progress;
mod reading;
mod recording;
mod replaceable;
mod self_exec;
mod shared_tier;
mod slow_open_notice;
mod store_password;
mod text;

use std::process::ExitCode;

use clap::Parser;

use crate::failure::Failure;

fn main() -> ExitCode {
    self_exec::name_this_process();
    inherited::replace();
    let (cli, paths) = match command::Cli::parsed() {
        Ok(parsed) => parsed,
        // The error repeats the arguments, into which a shell may have expanded others' file names.
        Err(error) if error.use_stderr() => {
            let shown = std::env::args_os().map(|arg| text::line(&arg.to_string_lossy()));
            let error = command::Cli::try_parse_from(shown).err().unwrap_or(error);
            print::lines_aside(&error.render().to_string());
            return ExitCode::from(2);
        }
        Err(asked) => asked.exit(),
    };
    log::begin(cli.verbose);
    if !cli.command.serves() {
        end_with_the_reader();
    }
    let answer =
        if cli.command.waits_for_no_path() { Ok(()) } else { mount_lookup::all_answer(&paths) };
    let ended = answer.map_err(Failure::refused).and_then(|()| cli.command.execute());
    log::end();
    let lost = print::lost().filter(|_| !cli.command.passes_a_status_on());
    match (ended, lost) {
        (Ok(_), Some(error)) => Failure::failed(format!("standard output: {error}")).report(),
        (Ok(code), None) => code,
        (Err(failure), _) => failure.report(),
    }
}

/// Ends this process quietly when the reader of its output has read enough (`| head`).
fn end_with_the_reader() {
    // SAFETY: the default action runs no code of ours.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}
