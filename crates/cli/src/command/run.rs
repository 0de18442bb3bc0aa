//! `halocline run`: one command with a cache in front of its data.

mod joining;

use std::ffi::{CString, OsString};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use halocline_api::config::Config;
use halocline_api::control::{Claim, Controlled, MoveReport, NAMED_MAX, Report};
use halocline_fuse::{PrivateView, private_namespace};
use halocline_os::error::Error;
use serde::Serialize;

use joining::Existing;

use super::bulk::{conflicts, tell_left};
use super::curve::{self, Curve, Sizes};
use super::write_json;
use crate::child::Signals;
use crate::cluster::ClusterArgs;
use crate::failure::{Failure, Outcome};
use crate::host::{self, Flushing, Host};
use crate::mount_lookup;
use crate::mount_paths::MountPaths;
use crate::mpi;
use crate::open_engine;
use crate::options::ConfigArgs;
use crate::preflight;
use crate::print::{self, tell};
use crate::progress::Meter;
use crate::recording::{self, Recording};
use crate::replaceable::ResultKind;
use crate::slow_open_notice::SlowOpenNotice;
use crate::store_password;
use crate::text;

/// How long a flush may stay silent before the user is told what it waits for.
const SILENCE: Duration = Duration::from_secs(10);

/// Run a command with the cache in front of DIR; only the command sees the mount
///
/// The mount is private and lies over the origin, so the command's paths do not change. When the
/// command ends, dirty data is flushed and a report is printed. Where a mount of this user with the
/// same origin and cache runs already, the command joins it; the mount ends with its last user.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The data on slow storage
    #[arg(long, value_name = "DIR")]
    origin: PathBuf,
    /// A directory on the SSD, for nothing else; at first an empty one
    #[arg(long, value_name = "DIR")]
    cache: PathBuf,
    /// Write the report as JSON, too; with --trace it says what LRU, S3-FIFO, the cache's own policy and the optimum would
    /// have missed in caches of this and other sizes
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Go on without the newer bytes that another cache of this origin may have, which a refusal named: it is lost for good
    #[arg(long)]
    cache_lost: bool,
    /// Record every read and write that reaches the mount, as a trace
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Print neither progress nor report
    #[arg(short, long)]
    quiet: bool,
    /// The trace is all that is wanted
    #[arg(skip)]
    is_recording: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    config: ConfigArgs,
    /// The command and its arguments
    #[arg(required = true, last = true)]
    command: Vec<OsString>,
}

impl RunArgs {
    /// Runs `command` quietly, to record its requests as a trace.
    pub(super) fn for_trace(
        (origin, cache, trace): (PathBuf, PathBuf, PathBuf),
        config: ConfigArgs,
        command: Vec<OsString>,
    ) -> Self {
        Self {
            origin,
            cache,
            report: None,
            trace: Some(trace),
            cache_lost: false,
            quiet: true,
            is_recording: true,
            cluster: ClusterArgs::default(),
            config,
            command,
        }
    }
}

/// Everything that was checked before the run.
struct Plan {
    config: Config,
    paths: MountPaths,
    report: Option<PathBuf>,
    program: PathBuf,
    /// Determined before there is a mount: a process that is killed while it waits for a mount of its own never ends.
    is_mpi: bool,
    workdir: PathBuf,
}

/// Executes the command.
pub(crate) fn execute(args: &RunArgs) -> Outcome {
    let plan = plan(args)?;
    let mut waiting = joining::WaitTime::default();
    loop {
        // First of all: if an engine is running already, its origin is claimed.
        let found = joining::find(&plan)?;
        if let Existing::Engine(engine) = found {
            if args.trace.is_some() {
                drop(engine);
                return Err(Failure::refused(
                    "a mount with this origin and cache runs already, and only what mounts can record: \
                     mount with --trace, or wait until it has ended",
                ));
            }
            return joining::run(args, &plan, *engine);
        }
        match open_engine::claim(&plan.paths, &plan.config, args.cluster.is_alone()) {
            Ok(claim) => return run_alone(args, plan, claim),
            Err(taken) if waiting.is_worth(&found, &taken, &plan) => {}
            Err(_) => {
                // A signal ends this process, which holds nothing yet.
                let claim = open_engine::when_free(
                    || false,
                    || open_engine::claim(&plan.paths, &plan.config, args.cluster.is_alone()),
                );
                return run_alone(args, plan, claim.map_err(Failure::refused)?);
            }
        }
    }
}

/// Runs it on an engine of its own.
fn run_alone(args: &RunArgs, mut plan: Plan, claim: Claim) -> Outcome {
    let mut signals = Signals::catch()?;
    // Before the engine starts threads: namespaces can be created with a single thread only.
    plan.paths.view = seclude(&plan.paths.origin, args.quiet)?;
    let sides = (plan.paths.origin.as_path(), plan.paths.cache.as_path());
    let node = args.cluster.join(sides, &plan.config).map_err(Failure::refused)?;
    let opening = SlowOpenNotice::of(&plan.paths.origin);
    let engine =
        open_engine::open_without_others(&plan.paths, &plan.config, node.as_ref(), args.cache_lost);
    drop(opening);
    let engine = engine.map_err(Failure::refused)?;
    let recording = Host::begin_trace(&engine, args.trace.as_deref(), (&plan.paths, &plan.config));
    let recording = recording.map_err(Failure::refused)?;
    let common = open_engine::one_device(&plan.paths.origin, &plan.paths.cache, &plan.config);
    let limit_bytes = engine.status().limit_bytes;
    let host = (Arc::new(engine), claim);
    let host = Host::start(host, &plan.config, (&plan.paths, recording.clone()), false)?;
    if !args.quiet {
        open_engine::tell_notes(common);
    }
    let mut command = command_of(args, &plan)?;
    if plan.is_mpi {
        mpi::prepare(&mut command, &host.socket());
    }
    let ran = signals.run(command);
    host.wait_for_members(|pids| {
        let who = host::waiting_for(pids);
        tell!("halocline: the command has ended; runs that joined go on ({who}): waiting for them");
    });
    let mut meter = Meter::new("flushing", args.quiet);
    let mut is_told = false;
    let finished = host.finish_with_report(|flushing| {
        match flushing {
            Flushing::Now(now) => meter.tell(&now),
            Flushing::Silent(time) if time > SILENCE && !is_told => {
                is_told = true;
                tell_silence(&plan.paths.origin);
            }
            Flushing::Silent(_) => {}
        }
        if signals.stop_requested() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    drop(meter);
    let status = ran?;
    reported(args, &plan, (status, finished), (recording, limit_bytes))
}

/// Says and writes what the run did on a cache of `limit_bytes`, once the mount is gone.
fn reported(
    args: &RunArgs,
    plan: &Plan,
    (status, finished): (u8, Result<(Report, MoveReport), Error>),
    (recording, limit_bytes): (Option<Arc<Recording>>, u64),
) -> Outcome {
    let recorded = recording.as_ref().and_then(|it| it.own_path()).map(Path::to_owned);
    let cut_short = recording.as_ref().and_then(|recording| recording.failure());
    if let Some(recording) = recording.filter(|_| !args.quiet || args.is_recording) {
        tell!("halocline: {}", recording.state());
        if recording.is_empty() {
            tell_nothing_recorded(plan);
        }
    }
    let (mut report, flushed) = match finished {
        Ok(finished) => finished,
        Err(error) => {
            let cache = plan.paths.cache.display();
            return stays_dirty(
                status,
                &format!("{error}; the cache {cache} keeps what is not flushed"),
            );
        }
    };
    report.exit_status = Some(i32::from(status));
    name_left(&mut report, &flushed);
    let curve = plan.report.as_ref().and(recorded).and_then(|trace| curve_of(&trace, limit_bytes));
    let report = RunReport { report: &report, curve };
    if !args.quiet {
        report.tell();
    }
    let ended = conclude(plan, status, &report, &flushed)?;
    // As with a report that cannot be written.
    match cut_short.filter(|_| status == 0) {
        Some(_) if args.is_recording || !args.quiet => Ok(ExitCode::FAILURE),
        Some(why) => Err(Failure::failed(why)),
        None => Ok(ended),
    }
}

/// What to do where the command read and wrote nothing that reached the mount.
fn tell_nothing_recorded(plan: &Plan) {
    let origin = text::path(&plan.paths.origin);
    let direct =
        if plan.config.direct { "" } else { "; --direct records what the page cache answers, too" };
    tell!(
        "halocline: the command read and wrote nothing below {origin}: give the directory of its files with --origin{direct}"
    );
}

fn tell_silence(origin: &Path) {
    tell!(
        "halocline: the flush waits for the origin {}; interrupt this to leave what is dirty on the cache",
        text::path(origin)
    );
}

/// What `run --report` writes.
#[derive(Serialize)]
struct RunReport<'a> {
    #[serde(flatten)]
    report: &'a Report,
    #[serde(skip_serializing_if = "Option::is_none")]
    curve: Option<Curve>,
}

impl RunReport<'_> {
    /// For people.
    fn tell(&self) {
        tell!("");
        print::lines_aside(&text::report(self.report));
        if let Some(curve) = &self.curve {
            tell!("");
            print::lines_aside(&curve.table());
        }
    }
}

/// What caches of `limit_bytes` and of other sizes would have missed of a recorded trace; what is wrong with the trace is
/// no failure of the run.
fn curve_of(trace: &Path, limit_bytes: u64) -> Option<Curve> {
    let curve = curve::of_trace(trace, &Sizes::Around(limit_bytes));
    curve.inspect_err(|failure| tell!("halocline: {}", failure.message())).ok()
}

/// Checks everything that can be wrong before anything changes.
fn plan(args: &RunArgs) -> Result<Plan, Failure> {
    args.config.check_effect(false).map_err(Failure::refused)?;
    let config = args.cluster.fit(args.config.load().map_err(Failure::refused)?);
    let sides = preflight::sides(&args.origin, &args.cache, &config).map_err(Failure::refused)?;
    preflight::process_and_device().map_err(Failure::refused)?;
    let report = args
        .report
        .as_deref()
        .map(|file| preflight::report_file(file, ResultKind::Report))
        .transpose();
    args.trace.as_deref().map_or(Ok(()), recording::check).map_err(Failure::refused)?;
    if let (Some(trace), Some(report)) = (&args.trace, &args.report) {
        preflight::different_outputs(trace, report).map_err(Failure::refused)?;
    }
    let paths = MountPaths {
        mountpoint: sides.origin.clone(),
        origin: sides.origin,
        cache: sides.cache,
        view: None,
    };
    let program = find_program(&args.command[0], "nothing was mounted")?;
    Ok(Plan {
        config,
        paths,
        report: report.map_err(Failure::refused)?,
        is_mpi: mpi::is_mpi(&program, args.command[1..].iter().map(OsString::as_os_str)),
        program,
        workdir: std::env::current_dir()
            .map_err(|error| Failure::refused(format!("the working directory: {error}")))?,
    })
}

/// Creates the place where only the command sees the mount. Root sees all ids in a mount namespace of this process's
/// own; so does an ordinary user whose mount `fusermount3` makes.
fn seclude(origin: &Path, quiet: bool) -> Result<Option<Arc<PrivateView>>, Failure> {
    let mut why = None;
    if !rustix::process::geteuid().is_root() {
        match PrivateView::prepare(origin, &origin.display().to_string()) {
            Ok(view) => return Ok(Some(Arc::new(view))),
            Err(error) => why = Some(error),
        }
    }
    private_namespace().map_err(Failure::refused)?;
    if let Some(why) = why.filter(|_| !quiet) {
        tell!(
            "halocline: files of other users and groups can be read here, but not written, whatever \
             their modes say: {why}"
        );
    }
    Ok(None)
}

fn command_of(args: &RunArgs, plan: &Plan) -> Result<Command, Failure> {
    let mut command = Command::new(&plan.program);
    // Any program, and whoever sees its environment, could take other nodes' tokens.
    command.env_remove(store_password::PASSWORD);
    command.args(&args.command[1..]);
    enter(&mut command, plan)?;
    Ok(command)
}

/// Lets the command begin in its working directory, under the name that leads into the mount.
fn enter(command: &mut Command, plan: &Plan) -> Result<(), Failure> {
    let Some(view) = &plan.paths.view else {
        // The working directory of this process itself is the one underneath the mount.
        command.current_dir(&plan.workdir);
        return Ok(());
    };
    let mut enter = view.entrance()?;
    let workdir = CString::new(plan.workdir.as_os_str().as_bytes())
        .map_err(|error| Failure::refused(format!("the working directory: {error}")))?;
    // SAFETY: between fork and exec the closure only makes system calls; it takes no lock and does not use the heap.
    unsafe {
        command.pre_exec(move || {
            enter()?;
            Ok(rustix::process::chdir(&workdir)?)
        });
    }
    Ok(())
}

/// Finds the program as a shell would, so that a wrong name is reported before anything is done; `undone` says what was
/// not done.
pub(super) fn find_program(name: &OsString, undone: &str) -> Result<PathBuf, Failure> {
    let not_started = |status, why: &str| {
        let name = name.to_string_lossy();
        Failure::with_status(status, format!("command {name:?} {why}; {undone}"))
    };
    let executable = |path: &Path| {
        path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
    };
    let answers = |path: &Path| {
        let hangs = |error: Error| not_started(126, &format!("cannot be looked at: {error}"));
        mount_lookup::check_answers(path).map_err(hangs)
    };
    let path = Path::new(name);
    if path.components().count() > 1 || path.is_absolute() {
        answers(path)?;
        return match path.try_exists() {
            Ok(true) if executable(path) => Ok(std::path::absolute(path)?),
            Ok(true) => Err(not_started(126, "is not executable")),
            _ => Err(not_started(127, "was not found")),
        };
    }
    let dirs = std::env::var_os("PATH").unwrap_or_default();
    for dir in std::env::split_paths(&dirs) {
        answers(&dir)?;
        if executable(&dir.join(path)) {
            return Ok(dir.join(path));
        }
    }
    Err(not_started(127, "was not found in $PATH"))
}

/// Lists in the report which files stay dirty, and why.
fn name_left(report: &mut Report, flushed: &MoveReport) {
    report.left_files = flushed.skipped.len() as u64;
    report.left = flushed.skipped.iter().take(NAMED_MAX).cloned().collect();
}

/// Writes the report and returns the command's status; a successful end that leaves dirty data does not count as
/// success. Nothing that is to be reported waits for a report file that cannot be written.
fn conclude(plan: &Plan, status: u8, report: &RunReport<'_>, flushed: &MoveReport) -> Outcome {
    tell_left(flushed);
    let written = match &plan.report {
        Some(file) => write_json(file, "write the report", report),
        None => Ok(()),
    };
    let ended = how_it_ended(plan, status, report.report, flushed);
    match written {
        Ok(()) => ended,
        Err(failure) if ended.is_ok() && status == 0 => Err(failure),
        Err(failure) => {
            tell!("halocline: {}", failure.message());
            ended
        }
    }
}

fn how_it_ended(plan: &Plan, status: u8, report: &Report, flushed: &MoveReport) -> Outcome {
    if report.dirty_bytes_left > 0 {
        let what = format!(
            "{} stay on the cache {}; they are flushed when it is used again with this origin",
            text::bytes(report.dirty_bytes_left),
            plan.paths.cache.display()
        );
        return stays_dirty(status, &what);
    }
    let not_in_order = flushed.not_in_order.as_ref();
    let not_in_order = not_in_order.map(|why| Failure::not_in_order(why, &plan.paths.cache));
    if let Some(failure) = not_in_order.as_ref().filter(|_| status != 0) {
        tell!("halocline: {}", failure.message());
    }
    match conflicts(flushed).or(not_in_order) {
        Some(failure) if status == 0 => Err(failure),
        _ => Ok(ExitCode::from(status)),
    }
}

/// Dirty data stays on the cache; the command's own failure takes precedence over this.
fn stays_dirty(status: u8, what: &str) -> Outcome {
    if status == 0 {
        return Err(Failure::dirty_left(what));
    }
    tell!("halocline: {what}");
    Ok(ExitCode::from(status))
}
