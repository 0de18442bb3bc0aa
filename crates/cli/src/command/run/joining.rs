//! A run that joins the running engine over its origin and cache.
//!
//! The connection to the mount process is the membership: that process continues until the connection ends, even if
//! this process is killed. The mount is shown over the origin in namespaces of this process's own, so that everything
//! else stays where it was.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use halocline_api::control::has_hung_up;
use halocline_api::control::joining::join;
use halocline_api::control::{
    Client, DirectoryInUse, Joined, MoveReport, Report, Request, SOCKET_NAME,
};
use halocline_fuse::{private_namespace, show_over};
use halocline_os::error::Error;

use super::{Plan, RunArgs, RunReport, conclude};
use crate::child::Signals;
use crate::failure::{Failure, Outcome};
use crate::print::{self, tell};
use crate::progress::Meter;
use crate::{host, mount_lookup, mpi, store_password, text};

/// How often it is checked whether a mount has begun or ended.
const RETRY_AFTER: Duration = Duration::from_millis(100);
/// How long a process that has claimed the origin may stay silent: it may be recovering a large cache.
const SILENCE_MAX: Duration = Duration::from_mins(10);

/// What exists over the origin and cache.
pub(super) enum Existing {
    /// An engine that accepted this run.
    Engine(Box<Engine>),
    /// An engine that is ending.
    Ending,
    /// Nobody answers.
    Nobody,
}

/// An engine that accepted this run.
pub(super) struct Engine {
    client: Client,
    joined: Joined,
    /// A copy of its mount, where that is private.
    copy: Option<OwnedFd>,
    /// Whether its mount is already visible here.
    is_seen: bool,
}

/// Looks for an engine, and joins it.
pub(super) fn find(plan: &Plan) -> Result<Existing, Failure> {
    let paths = &plan.paths;
    let socket = paths.cache.join(SOCKET_NAME);
    // A socket that nobody listens on was left by a kill; one that we may not use has a claim.
    let own = rustix::process::geteuid().as_raw();
    let Ok(mut client) = mount_lookup::reach_socket(&socket, own) else {
        return Ok(Existing::Nobody);
    };
    let here = mount_lookup::find(&paths.origin).ok();
    let is_seen =
        here.is_some_and(|here| here.socket == socket && here.inside.as_os_str().is_empty());
    let seen =
        fs::metadata(&paths.origin).map_err(Error::at(&paths.origin, "look at the origin"))?;
    let id = (!is_seen).then(|| (seen.dev(), seen.ino()));
    match join(&mut client, id) {
        Ok((joined, copy)) => {
            Ok(Existing::Engine(Box::new(Engine { client, joined, copy, is_seen })))
        }
        Err(error) if error.errno() == libc::ESHUTDOWN => Ok(Existing::Ending),
        // It has ended since it accepted the connection.
        Err(error) if has_hung_up(&error) => Ok(Existing::Nobody),
        Err(error) => Err(Failure::refused(error)),
    }
}

/// How long this run has waited for another.
#[derive(Debug, Default)]
pub(super) struct WaitTime {
    told: bool,
    silent_since: Option<Instant>,
}

impl WaitTime {
    /// Whether the other run may take this one in, or ends: then some time has passed.
    pub(super) fn is_worth(
        &mut self,
        found: &Existing,
        taken: &DirectoryInUse,
        plan: &Plan,
    ) -> bool {
        let is_own = taken.uid == rustix::process::geteuid().as_raw();
        let may_join = taken.cache == plan.paths.cache || !taken.answers;
        if !is_own || !may_join {
            return false;
        }
        if matches!(found, Existing::Ending) {
            self.silent_since = None;
        } else if self.silent_since.get_or_insert_with(Instant::now).elapsed() > SILENCE_MAX {
            return false;
        }
        // Two that begin at the same moment need no words.
        if !self.told
            && (taken.answers || self.silent_since.is_some_and(|at| at.elapsed() > RETRY_AFTER))
        {
            let origin = text::path(&plan.paths.origin);
            tell!("halocline: {origin}: waiting for process {}, which begins or ends", taken.pid);
            self.told = true;
        }
        thread::sleep(RETRY_AFTER);
        true
    }
}

/// Runs the command on the engine.
pub(super) fn run(args: &RunArgs, plan: &Plan, engine: Engine) -> Outcome {
    let Engine { mut client, joined, copy, is_seen } = engine;
    let ignored = args.config.against(&plan.config, &joined.options).map_err(Failure::refused)?;
    if !args.quiet {
        tell!("halocline: joined the engine of process {}", joined.pid);
        if !ignored.is_empty() {
            let keys = ignored.join(", ");
            tell!(
                "halocline: its options apply instead of those in the configuration file: {keys}"
            );
        }
    }
    let mut signals = Signals::catch()?;
    if !is_seen {
        show(plan, &joined, copy)?;
    }
    let mut command = Command::new(&plan.program);
    // Any program, and whoever sees its environment, could take other nodes' tokens.
    command.env_remove(store_password::PASSWORD);
    // Its name leads into the mount.
    command.args(&args.command[1..]).current_dir(&plan.workdir);
    let cache = File::open(&plan.paths.cache)?;
    let socket = host::short_name(&plan.paths.cache.join(SOCKET_NAME), &cache);
    if plan.is_mpi {
        mpi::prepare(&mut command, &socket);
    }
    let status = signals.run(command)?;
    let (report, flushed) = match finish(args, &mut client, &joined, status) {
        Ok(finished) => finished,
        Err(error) => {
            let what = format!(
                "{error}; the engine of process {} is gone, the cache {} keeps what was not flushed, \
                 and the next mount recovers it",
                joined.pid,
                plan.paths.cache.display()
            );
            return super::stays_dirty(status, &what);
        }
    };
    if !args.quiet {
        tell!("");
        tell!("all that the engine served meanwhile, for this run and the others on it:");
        print::lines_aside(&text::report(&report));
    }
    conclude(plan, status, &RunReport { report: &report, curve: None }, &flushed)
}

/// Shows the mount over the origin, to this process and the command.
fn show(plan: &Plan, joined: &Joined, copy: Option<OwnedFd>) -> Result<(), Failure> {
    let mut mountpoint = plan.paths.origin.clone();
    if let Some(public) = &joined.mountpoint {
        mountpoint.clone_from(&public.0);
        let found = mount_lookup::find(&mountpoint)?;
        if found.socket != plan.paths.cache.join(SOCKET_NAME) {
            return Err(Failure::refused(format!(
                "{}: the mount of process {} is not seen here",
                mountpoint.display(),
                joined.pid
            )));
        }
    }
    private_namespace().map_err(Failure::refused)?;
    show_over(&plan.paths.origin, copy, &mountpoint).map_err(Failure::refused)
}

/// Flushes, and tells what was served since this run joined.
fn finish(
    args: &RunArgs,
    client: &mut Client,
    joined: &Joined,
    status: u8,
) -> Result<(Report, MoveReport), Error> {
    let mut meter = Meter::new("flushing", args.quiet);
    let flush = Request::Flush { path: "".into(), dry_run: false };
    let flushed: MoveReport = client.call(&flush, |now| meter.tell(&now))?;
    let now: Report = client.call(&Request::Report {}, |_| {})?;
    let mut report = now.since(&joined.report);
    report.exit_status = Some(i32::from(status));
    // What others have written since is theirs to flush.
    report.dirty_bytes_left = flushed.left_bytes;
    super::name_left(&mut report, &flushed);
    Ok((report, flushed))
}
