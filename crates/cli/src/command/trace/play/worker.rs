//! One process of a trace that is played: it waits for the start, then only reads and writes.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use halocline_os::bounded;
use halocline_trace::{Op, Reader, Request};
use serde::{Deserialize, Serialize};

use super::files::{Files, content_of};
use super::script::{Below, check, relative};
use crate::command::bench::content::Content;
use crate::command::bench::worker::{Word, WorkerResult, Wrong, await_start, nanoseconds, say};
use crate::failure::{Failure, Outcome};

/// Time between two messages about progress.
const TELL_INTERVAL: Duration = Duration::from_millis(500);
/// Limit of the files that are open at the same time.
const OPEN_MAX: usize = 256;

/// One process of a trace that is played (started by `trace play` itself)
#[derive(Debug, Args)]
pub(crate) struct PlayWorkerArgs {
    /// The job as JSON
    job: String,
}

/// What a worker is to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) trace: PathBuf,
    pub(super) dir: PathBuf,
    pub(super) below: Option<Below>,
    /// The number of its process in the trace.
    pub(super) process: u32,
    /// Whether it computes between two requests, as recorded.
    pub(super) think: bool,
}

/// Executes one job.
pub(crate) fn execute(args: &PlayWorkerArgs) -> Outcome {
    let job: Job = serde_json::from_str(&args.job)
        .map_err(|error| Failure::refused(format!("trace play-worker: {error}")))?;
    say(&work(&job).map_or_else(Word::Failed, Word::Done))?;
    Ok(ExitCode::SUCCESS)
}

fn work(job: &Job) -> Result<WorkerResult, String> {
    let (requests, paths) = requests_of(job)?;
    let files = Files::below(&job.dir).map_err(|failure| failure.message().to_owned())?;
    let longest = requests.iter().map(|(_, request)| request.length).max().unwrap_or(0);
    let longest = usize::try_from(longest).map_err(|error| error.to_string())?;
    let mut run = Run {
        dir: &job.dir,
        files,
        paths,
        open: HashMap::default(),
        // Touched before the start, so that the first request pays for no page faults.
        buf: vec![1; longest],
        expected: vec![1; longest],
        apart: Duration::ZERO,
        done: WorkerResult::default(),
    };
    let failed = |error: io::Error| error.to_string();
    say(&Word::Ready).map_err(failed)?;
    await_start().map_err(failed)?;
    let start = Instant::now();
    let mut told = (start, 0);
    for (pause, request) in &requests {
        if job.think && !pause.is_zero() {
            thread::sleep(*pause);
        }
        run.request(request)?;
        if told.0.elapsed() >= TELL_INTERVAL {
            say(&Word::Progress(run.done.bytes - told.1)).map_err(failed)?;
            told = (Instant::now(), run.done.bytes);
        }
    }
    run.done.io_ns = nanoseconds(start.elapsed().saturating_sub(run.apart));
    Ok(run.done)
}

/// The requests of the job's process, each with the time that it computed before, and the paths of their files.
#[expect(clippy::type_complexity, reason = "both come from one pass")]
fn requests_of(job: &Job) -> Result<(Vec<(Duration, Request)>, HashMap<u32, PathBuf>), String> {
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", job.trace.display());
    let input = bounded::open(&job.trace).map_err(|error| failed(&error))?;
    let input = io::BufReader::with_capacity(1 << 20, input);
    let mut reader = Reader::new(input).map_err(|error| failed(&error))?;
    let (mut requests, mut ready_ns) = (Vec::new(), None);
    while let Some(block) = reader.next_block().map_err(|error| failed(&error))? {
        // Computing before the first request begins with the trace.
        let first_ns = block.first().map_or(0, |first| first.start_ns);
        let mut ready = *ready_ns.get_or_insert(first_ns);
        for request in block.iter().filter(|request| request.process == job.process) {
            // The file may be another one by now.
            check(request).map_err(|what| failed(&what))?;
            let pause_ns = request.start_ns.saturating_sub(ready);
            // Without durations nobody knows how long it computed.
            ready = request.duration_ns.map_or(u64::MAX, |took| request.start_ns + took);
            requests.push((Duration::from_nanos(pause_ns), *request));
        }
        ready_ns = Some(ready);
    }
    let mut paths = HashMap::default();
    for (_, Request { file, .. }) in &requests {
        if !paths.contains_key(file) {
            let name = reader.file(*file).unwrap_or_default();
            paths.insert(*file, relative(name, job.below.as_ref())?);
        }
    }
    Ok((requests, paths))
}

struct Run<'a> {
    dir: &'a Path,
    files: Files,
    /// By the numbers of the trace.
    paths: HashMap<u32, PathBuf>,
    open: HashMap<u32, (File, Content)>,
    buf: Vec<u8>,
    expected: Vec<u8>,
    /// Time that does not count as I/O.
    apart: Duration,
    done: WorkerResult,
}

impl Run<'_> {
    fn request(&mut self, request: &Request) -> Result<(), String> {
        let start = Instant::now();
        let path = &self.paths[&request.file];
        let shown = self.dir.join(path);
        let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", shown.display());
        if self.open.len() >= OPEN_MAX && !self.open.contains_key(&request.file) {
            self.open.clear();
        }
        if !self.open.contains_key(&request.file) {
            let file = self.files.open(path).map_err(|error| failed(&error))?;
            self.open.insert(request.file, (file, content_of(path)));
        }
        let (file, content) = &self.open[&request.file];
        let len = usize::try_from(request.length).map_err(|error| failed(&error))?;
        let (buf, expected) = (&mut self.buf[..len], &mut self.expected[..len]);
        if request.op == Op::Write {
            content.fill(request.offset, buf);
            self.apart += start.elapsed();
            file.write_all_at(buf, request.offset).map_err(|error| failed(&error))?;
        } else {
            self.apart += start.elapsed();
            file.read_exact_at(buf, request.offset).map_err(|error| failed(&error))?;
            let start = Instant::now();
            if let Some(mismatch) = content.check(request.offset, buf, expected) {
                let new = Wrong::new(shown, mismatch);
                let bytes = new.bytes;
                self.done.wrong.get_or_insert(Wrong { bytes: 0, ..new }).bytes += bytes;
            }
            self.apart += start.elapsed();
        }
        self.done.requests += 1;
        self.done.bytes += request.length;
        Ok(())
    }
}
