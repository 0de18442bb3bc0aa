//! `halocline trace play`: the requests of a trace as real reads and writes of real processes.
//!
//! - [`script`]: what the trace asks for, within bounds;
//! - [`files`]: its files below a directory, and their bytes;
//! - [`worker`]: one process.

mod files;
mod script;
pub(super) mod worker;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use halocline_api::control::Progress;
use halocline_os::counted::counted;
use halocline_storage::volume::origin::volume_parts;
use serde::Serialize;

use crate::child::Signals;
use crate::command::bench::worker_processes::{self, Watch};
use crate::command::print_json;
use crate::failure::{Failure, Outcome};
use crate::print::{say, tell};
use crate::progress::Meter;
use crate::text;
use files::Files;
use script::{Below, Script};
use worker::Job;

/// Read and write below a directory what a trace says, with a real process for each of its processes
///
/// Each process issues its requests one after the other, all at the same time. The files are made first: what is read has
/// bytes that show where they belong, and every byte that is read is checked. A file that is there already is used if an
/// earlier `trace play` made it; any other one is refused, and left as it is.
#[derive(Debug, Args)]
pub(crate) struct PlayArgs {
    /// The trace: of at most 8 million requests of 1 GiB, by 1024 processes
    trace: PathBuf,
    /// The directory below which its files are: on a mount, or any other
    dir: PathBuf,
    /// What names of the trace begin with, such as the mount point where it was recorded
    #[arg(long, value_name = "PATH")]
    below: Option<PathBuf>,
    /// When requests are issued
    #[arg(long, default_value = "closed")]
    pace: PaceName,
    /// Only make the files
    #[arg(long)]
    prepare: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PaceName {
    /// Each process goes on when its last request is done
    Closed,
    /// The same, after the time that it computed in between
    Think,
}

/// What `trace play --json` prints.
#[derive(Debug, Serialize)]
struct PlayReport {
    requests: u64,
    processes: usize,
    files: usize,
    /// Bytes that were written before the start, to be read.
    prepared_bytes: u64,
    read_bytes: u64,
    written_bytes: u64,
    /// From the start to the end of the slowest process's last request, without the time for making and checking bytes.
    seconds: f64,
    mb_per_s: f64,
}

/// Plays.
pub(crate) fn execute(args: &PlayArgs) -> Outcome {
    let below = args.below.as_deref().map(Below::new);
    let script = Script::read(&args.trace, below.as_ref())?;
    let mut progress = ReplayProgress::new(&args.dir)?;
    let files = Files::below(&args.dir)?;
    volume_parts::check_is_outside(&args.dir).map_err(Failure::refused)?;
    progress.begin("preparing", script.bytes_to_prepare());
    let prepared_bytes = files.prepare(&script, &mut |bytes| {
        progress.advance(bytes);
        progress.go_on()
    })?;
    let mut played = PlayReport {
        requests: script.requests,
        processes: script.processes.len(),
        files: script.files().count(),
        prepared_bytes,
        read_bytes: script.read_bytes,
        written_bytes: script.written_bytes,
        seconds: 0.0,
        mb_per_s: 0.0,
    };
    if !args.prepare {
        progress.begin("playing", script.read_bytes.saturating_add(script.written_bytes));
        played.time(run(args, (&script, below.as_ref()), &mut progress)?);
        files.note_written(&script);
    }
    drop(progress);
    if args.json {
        return print_json(&played);
    }
    let made = counted(played.files, "file");
    say!("{made} below {}, {} written first", text::path(&args.dir), text::bytes(prepared_bytes));
    if !args.prepare {
        let requests = usize::try_from(played.requests).unwrap_or(usize::MAX);
        say!(
            "{} by {} in {}: {:.1} MB/s, {} read and {} written",
            counted(requests, "request"),
            counted(played.processes, "process"),
            text::seconds(played.seconds),
            played.mb_per_s,
            text::bytes(played.read_bytes),
            text::bytes(played.written_bytes)
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs all processes; returns the nanoseconds of the slowest.
fn run(
    args: &PlayArgs,
    (script, below): (&Script, Option<&Below>),
    progress: &mut ReplayProgress<'_>,
) -> Result<u64, Failure> {
    let absolute = |path: &Path| std::path::absolute(path).map_err(Failure::from);
    let (trace, dir) = (absolute(&args.trace)?, absolute(&args.dir)?);
    let think = args.pace == PaceName::Think;
    let job = |process: &u32| Job {
        trace: trace.clone(),
        dir: dir.clone(),
        below: below.cloned(),
        process: *process,
        think,
    };
    let jobs: Vec<Job> = script.processes.iter().map(job).collect();
    let done = worker_processes::run(["trace", "play-worker"], &jobs, progress)?;
    if let Some(wrong) = done.iter().find_map(|done| done.wrong.as_ref()) {
        return Err(wrong.failure("while the trace was played"));
    }
    Ok(done.iter().map(|done| done.io_ns).max().unwrap_or(0))
}

impl PlayReport {
    #[expect(clippy::cast_precision_loss, reason = "a time and a rate for people")]
    fn time(&mut self, io_ns: u64) {
        self.seconds = io_ns as f64 / 1e9;
        let bytes = self.read_bytes.saturating_add(self.written_bytes) as f64;
        self.mb_per_s = if io_ns > 0 { bytes / 1e6 / self.seconds } else { 0.0 };
    }
}

/// Signals and progress.
struct ReplayProgress<'a> {
    signals: Signals,
    dir: &'a Path,
    meter: Option<Meter>,
    progress: Progress,
}

impl<'a> ReplayProgress<'a> {
    fn new(dir: &'a Path) -> Result<Self, Failure> {
        let progress = Progress { done_bytes: 0, total_bytes: 0, path: dir.to_owned() };
        Ok(Self { signals: Signals::catch()?, dir, meter: None, progress })
    }

    fn begin(&mut self, verb: &'static str, total_bytes: u64) {
        self.meter = Some(Meter::new(verb, false));
        self.progress = Progress { done_bytes: 0, total_bytes, path: self.dir.to_owned() };
    }
}

impl Watch for ReplayProgress<'_> {
    fn go_on(&mut self) -> Result<(), Failure> {
        let Some(signal) = self.signals.stop_signal() else { return Ok(()) };
        tell!("halocline: the files that were made stay below {}", text::path(self.dir));
        let status = u8::try_from(128 + signal).unwrap_or(u8::MAX);
        Err(Failure::with_status(status, "interrupted"))
    }

    fn advance(&mut self, bytes: u64) {
        self.progress.done_bytes = self.progress.done_bytes.saturating_add(bytes);
        if let Some(meter) = &mut self.meter {
            meter.tell(&self.progress);
        }
    }
}
