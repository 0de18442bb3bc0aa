//! `halocline mount`: a mount for whoever may see it, until `umount`.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;

use clap::Args;
use halocline_core::config::Config;

use crate::assemble;
use crate::child::Signals;
use crate::failure::{Failure, Outcome};
use crate::host::{Host, Where};
use crate::options::ConfigArgs;
use crate::preflight;
use crate::text;

/// What the background process says when the mount works.
const READY: &[u8] = b"ready\n";
/// The background process's messages, inside the cache directory.
const LOG_NAME: &str = "halocline.log";

/// Mount an origin with a cache in front of it
///
/// Returns when the mount works; the mount process goes on in the background and writes its
/// messages to halocline.log in the cache directory. End it with `halocline umount`.
#[derive(Debug, Args)]
pub(crate) struct MountArgs {
    /// The data on slow storage
    origin: PathBuf,
    /// An empty directory, or the origin itself
    mountpoint: PathBuf,
    /// A directory on the SSD, for nothing else
    #[arg(long, value_name = "DIR")]
    cache: PathBuf,
    /// Stay in the foreground; SIGINT and SIGTERM flush and unmount
    #[arg(short, long)]
    foreground: bool,
    /// This is the background process
    #[arg(long, hide = true)]
    background_process: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Mounts.
pub(crate) fn execute(args: &MountArgs) -> Outcome {
    let (config, place) = plan(args)?;
    if args.foreground || args.background_process {
        serve(args, &config, &place)
    } else {
        start_in_background()
    }
}

/// Checks all that can be wrong before anything changes.
fn plan(args: &MountArgs) -> Result<(Config, Where), Failure> {
    let config = args.config.load().map_err(Failure::refused)?;
    let sides = preflight::sides(&args.origin, &args.cache, &config).map_err(Failure::refused)?;
    let mountpoint = preflight::mountpoint(&args.mountpoint, &sides).map_err(Failure::refused)?;
    preflight::fuse_device().map_err(Failure::refused)?;
    Ok((config, Where { origin: sides.origin, cache: sides.cache, mountpoint }))
}

/// Starts this command again, waits until it says that the mount works, and leaves it alone.
fn start_in_background() -> Outcome {
    let mut child = Command::new("/proc/self/exe")
        .args(std::env::args_os().skip(1))
        .arg("--background-process")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut said = Vec::new();
    if let Some(mut pipe) = child.stdout.take() {
        pipe.read_to_end(&mut said)?;
    }
    if said == READY {
        return Ok(ExitCode::SUCCESS);
    }
    // It has told the reason on the same standard error.
    let code = child.wait()?.code().and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.filter(|code| *code != 0).unwrap_or(1)))
}

fn serve(args: &MountArgs, config: &Config, place: &Where) -> Outcome {
    if args.background_process {
        // Out of the terminal's session: closing the terminal must not end the mount.
        rustix::process::setsid().map_err(std::io::Error::from)?;
    }
    let mut signals = Signals::catch()?;
    let engine = assemble::open(place, config).map_err(Failure::refused)?;
    let host = Host::start(Arc::new(engine), config, place, true)?;
    if args.background_process {
        step_back(&place.cache)?;
    } else {
        eprintln!("mounted {} on {}", place.origin.display(), place.mountpoint.display());
    }
    let left = host.serve(|| signals.stop_requested())?.left_bytes;
    if left > 0 {
        return Err(Failure::dirty_left(format!(
            "{} stay on the cache {}; mount it again to flush them",
            text::bytes(left),
            place.cache.display()
        )));
    }
    Ok(ExitCode::SUCCESS)
}

/// Says that the mount works, then lets go of the caller's terminal, pipe and directory.
fn step_back(cache: &Path) -> Result<(), Failure> {
    let log = OpenOptions::new().create(true).append(true).open(cache.join(LOG_NAME))?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    let mut out = std::io::stdout();
    out.write_all(READY)?;
    out.flush()?;
    rustix::stdio::dup2_stdout(&null).map_err(std::io::Error::from)?;
    rustix::stdio::dup2_stderr(&log).map_err(std::io::Error::from)?;
    std::env::set_current_dir("/")?;
    Ok(())
}
