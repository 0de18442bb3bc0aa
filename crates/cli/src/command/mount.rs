//! `halocline mount`: a mount for whoever may see it, until `umount`.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::sync::Arc;

use clap::Args;
use halocline_api::config::Config;
use halocline_api::control::Claim;
use halocline_os::bounded::SMALL_FILE_BYTES_MAX;
use halocline_os::error::Result;
use halocline_os::private::{PrivateDir, Use};

use crate::self_exec;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;

use super::bulk::{conflicts, tell_left};
use crate::child::Signals;
use crate::cluster::ClusterArgs;
use crate::failure::{Failure, Outcome};
use crate::host::{Host, Hosted};
use crate::mount_paths::MountPaths;
use crate::open_engine;
use crate::options::ConfigArgs;
use crate::preflight;
use crate::print::tell;
use crate::recording;
use crate::shared_tier;
use crate::slow_open_notice::SlowOpenNotice;
use crate::text;

/// What the background process says when the mount works.
const READY: &[u8] = b"ready\n";
/// The background process's messages, inside the cache directory.
const LOG_NAME: &str = "halocline.log";

/// Mount an origin with a cache in front of it, or a file tier (--tier ROOT)
///
/// Returns when the mount works; the mount process goes on in the background and writes its
/// messages to halocline.log in the cache directory. End it with `halocline umount`.
#[derive(Debug, Args)]
#[command(override_usage = "halocline mount [OPTIONS] ORIGIN MOUNTPOINT --cache DIR\n       \
                            halocline mount [OPTIONS] --tier ROOT MOUNTPOINT [--cluster URL]")]
pub(crate) struct MountArgs {
    /// The data on slow storage (not with --tier), and an empty directory or the origin itself
    #[arg(required = true, num_args = 1..=2, value_names = ["ORIGIN", "MOUNTPOINT"])]
    paths: Vec<PathBuf>,
    /// A directory on the SSD, for nothing else; at first an empty one
    #[arg(long, value_name = "DIR", required_unless_present = "tier")]
    cache: Option<PathBuf>,
    /// Move whole files between ROOT/ssd and ROOT/hdd: mount points of the two devices. With --cluster, ROOT/ssd is this
    /// node's own, and ROOT/hdd a directory that all nodes see
    #[arg(long, value_name = "ROOT", conflicts_with = "cache")]
    tier: Option<PathBuf>,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Go on without the newer bytes that another cache of this origin may have, which a refusal named: it is lost for good
    #[arg(long, conflicts_with = "tier")]
    cache_lost: bool,
    /// Record every read and write that reaches the mount, as a trace
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Stay in the foreground; SIGINT and SIGTERM flush and unmount
    #[arg(short, long)]
    foreground: bool,
    /// This is the background process
    #[arg(long, hide = true)]
    background_process: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

/// What is mounted.
enum Plan {
    /// An origin with a cache.
    Extents(MountPaths),
    /// A file tier below a root.
    Tier(PathBuf, MountPaths),
}

/// Mounts.
pub(crate) fn execute(args: &MountArgs) -> Outcome {
    args.config.check_effect(args.tier.is_some()).map_err(Failure::refused)?;
    let config = args.config.load().map_err(Failure::refused)?;
    let plan = plan(args, &config)?;
    if !args.foreground && !args.background_process {
        let common = match &plan {
            Plan::Extents(paths) => open_engine::one_device(&paths.origin, &paths.cache, &config),
            Plan::Tier(..) => None,
        };
        args.config.check_lasts().map_err(Failure::refused)?;
        let code = start_in_background()?;
        open_engine::tell_notes(common.filter(|_| code == ExitCode::SUCCESS));
        return Ok(code);
    }
    match plan {
        Plan::Extents(paths) => {
            let (alone, config) = (args.cluster.is_alone(), args.cluster.fit(config));
            serve(args, &config, &paths, |given_up| {
                let claim = open_engine::when_free(given_up, || {
                    open_engine::claim(&paths, &config, alone)
                })?;
                let node = args.cluster.join((&paths.origin, &paths.cache), &config)?;
                let (node, lost) = (node.as_ref(), args.cache_lost);
                let _opening = SlowOpenNotice::of(&paths.origin);
                Ok((open_engine::open_without_others(&paths, &config, node, lost)?, claim))
            })
        }
        Plan::Tier(root, paths) if !args.cluster.is_alone() => {
            let config = args.cluster.fit(config);
            serve(args, &config, &paths, |given_up| {
                let claim = shared_tier::claim(&root, &paths, given_up)?;
                let _opening = SlowOpenNotice::of(&root);
                Ok((shared_tier::open(&root, &config, &args.cluster)?, claim))
            })
        }
        Plan::Tier(root, paths) => {
            let config = Config { attr_timeout: config.tier_attr_timeout, ..config };
            serve(args, &config, &paths, |given_up| {
                shared_tier::refuse_if_shared(&root)?;
                let claim = open_engine::claim_tiers(&root, &paths, &config, given_up)?;
                // Again: an adoption may have begun, and ended, before the tier was claimed.
                shared_tier::refuse_if_shared(&root)?;
                let _opening = SlowOpenNotice::of(&root);
                Ok((open_engine::open_tier(&root, &config)?, claim))
            })
        }
    }
}

/// Checks all that can be wrong before anything changes.
fn plan(args: &MountArgs, config: &Config) -> Result<Plan, Failure> {
    let may_enter = preflight::others_may_enter();
    preflight::allow_other(config, may_enter).map_err(Failure::refused)?;
    let paths = args.paths.as_slice();
    let plan = match (&args.tier, &args.cache, paths) {
        (Some(root), _, [mountpoint]) => {
            if !args.cluster.is_alone() {
                shared_tier::check(root, config, &args.cluster).map_err(Failure::refused)?;
            }
            let tiers = preflight::tiers(root, config).map_err(Failure::refused)?;
            let mountpoint =
                preflight::tier_mountpoint(mountpoint, &tiers, config).map_err(Failure::refused)?;
            let (origin, cache) = (tiers.root.clone(), tiers.private());
            Plan::Tier(tiers.root, MountPaths { origin, cache, mountpoint, view: None })
        }
        (None, Some(cache), [origin, mountpoint]) => {
            let sides = preflight::sides(origin, cache, config).map_err(Failure::refused)?;
            let mountpoint = preflight::mountpoint(mountpoint, &sides).map_err(Failure::refused)?;
            Plan::Extents(MountPaths {
                origin: sides.origin,
                cache: sides.cache,
                mountpoint,
                view: None,
            })
        }
        (Some(_), ..) => {
            return Err(Failure::refused("with --tier, name one directory: the mount point"));
        }
        _ => return Err(Failure::refused("name the origin and the mount point")),
    };
    preflight::process_and_device().map_err(Failure::refused)?;
    args.trace.as_deref().map_or(Ok(()), recording::check).map_err(Failure::refused)?;
    Ok(plan)
}

/// The arguments of this command for the process in the background: the flag stands right behind the
/// subcommand, because what is behind `--` is not a flag.
fn in_background(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut args: Vec<OsString> = args.collect();
    // In front of the subcommand are only flags without values.
    let behind = args.iter().position(|arg| arg == "mount").map_or(0, |at| at + 1);
    args.insert(behind, "--background-process".into());
    args
}

/// Starts this command again, waits until it says that the mount works, and leaves it alone.
fn start_in_background() -> Outcome {
    self_exec::keep_descriptors().map_err(Failure::refused)?;
    let mut child = self_exec::command()
        .args(in_background(std::env::args_os().skip(1)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut said = Vec::new();
    if let Some(mut pipe) = child.stdout.take() {
        self_exec::let_go_of_descriptors(&pipe);
        pipe.by_ref().take(SMALL_FILE_BYTES_MAX).read_to_end(&mut said)?;
    }
    if said == READY {
        return Ok(ExitCode::SUCCESS);
    }
    // It has told the reason on the same standard error.
    let code = child.wait()?.code().and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.filter(|code| *code != 0).unwrap_or(1)))
}

fn serve<E: Hosted>(
    args: &MountArgs,
    config: &Config,
    paths: &MountPaths,
    open: impl FnOnce(&mut dyn FnMut() -> bool) -> Result<(E, Claim)>,
) -> Outcome {
    if args.background_process {
        // Out of the terminal's session: closing the terminal must not end the mount.
        rustix::process::setsid().map_err(std::io::Error::from)?;
    }
    // What a library makes in the cache is private, too.
    rustix::process::umask(Mode::from_raw_mode(0o077));
    let mut signals = Signals::catch()?;
    let common = match args.tier {
        None => open_engine::one_device(&paths.origin, &paths.cache, config),
        Some(_) => None,
    };
    let background = args.background_process;
    let mut given_up = || signals.stop_requested() || (background && is_unread(&std::io::stdout()));
    let (engine, claim) = open(&mut given_up).map_err(Failure::refused)?;
    let recording = Host::begin_trace(&engine, args.trace.as_deref(), (paths, config));
    let recording = recording.map_err(Failure::refused)?;
    let host = Host::start((Arc::new(engine), claim), config, (paths, recording), true)?;
    if args.background_process {
        if let Err(failure) = step_back(&paths.cache) {
            // Who asked for the mount was interrupted, and wants none.
            host.serve(|| true)?;
            return Err(failure);
        }
    } else {
        tell!("mounted {} on {}", text::path(&paths.origin), text::path(&paths.mountpoint));
        // Behind the line that says that the mount works, for which others wait.
        open_engine::tell_notes(common);
    }
    let done = host.serve(|| signals.stop_requested())?;
    tell_left(&done);
    if done.left_bytes > 0 {
        return Err(Failure::mount_again(done.left_bytes, &paths.cache));
    }
    if let Some(why) = &done.not_in_order {
        return Err(Failure::not_in_order(why, &paths.cache));
    }
    conflicts(&done).map_or(Ok(ExitCode::SUCCESS), Err)
}

/// Whether nobody is left who reads what is written to a pipe.
fn is_unread(pipe: &impl AsFd) -> bool {
    let mut pipe = [PollFd::new(pipe, PollFlags::empty())];
    let looked = poll(&mut pipe, Some(&Timespec::default()));
    looked.is_ok() && pipe[0].revents().contains(PollFlags::ERR)
}

/// Says that the mount works, then lets go of the caller's terminal, pipe and directory.
fn step_back(cache: &Path) -> Result<(), Failure> {
    let log = PrivateDir::open(cache)?.file(LOG_NAME, Use::Append)?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    let mut out = std::io::stdout();
    out.write_all(READY)?;
    out.flush()?;
    rustix::stdio::dup2_stdout(&null).map_err(std::io::Error::from)?;
    rustix::stdio::dup2_stderr(&log).map_err(std::io::Error::from)?;
    std::env::set_current_dir("/")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::command::{Cli, Command};

    #[test]
    fn the_process_in_the_background_gets_the_same_arguments() {
        for args in [
            &["mount", "o", "m", "--cache", "c"][..],
            &["-vv", "mount", "--cache", "c", "--", "o", "-m"],
            &["-v", "mount", "--cache", "mount", "mount", "m"],
        ] {
            let parse = |args: Vec<OsString>| {
                let cli = Cli::try_parse_from([vec!["halocline".into()], args].concat());
                match cli.map(|cli| cli.command) {
                    Ok(Command::Mount(args)) => *args,
                    other => panic!("{other:?}"),
                }
            };
            let first = parse(args.iter().map(Into::into).collect());
            let second = parse(in_background(args.iter().map(Into::into)));
            assert!(!first.background_process && second.background_process);
            assert_eq!((&first.paths, &first.cache), (&second.paths, &second.cache), "{args:?}");
        }
    }
}
