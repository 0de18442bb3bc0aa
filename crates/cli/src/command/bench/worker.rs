//! One process of a run: waits for the start, then only reads or writes.
//!
//! It says `ready`, gets one byte when all others are ready too, and answers with [`WorkerResult`] when it has finished. Making
//! and checking bytes does not count as I/O: the clock is stopped meanwhile.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use halocline_os::counted::counted_with;

use clap::Args;
use halocline_model::request::Direction;
use serde::{Deserialize, Serialize};

use super::content::{Content, Mismatch};
use super::workload::{Instance, Shape};
use crate::failure::{Failure, Outcome};

/// Time between two messages about progress.
const TELL_INTERVAL: Duration = Duration::from_millis(500);

/// The command that executes a [`Job`].
pub(super) const COMMAND: [&str; 2] = ["bench", "worker"];

/// One process of a run (started by `bench ior` itself)
#[derive(Debug, Args)]
pub(crate) struct WorkerArgs {
    /// The job as JSON
    job: String,
}

/// What a worker is to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) path: PathBuf,
    pub(super) instance: Instance,
    pub(super) shape: Shape,
    pub(super) rank: u32,
    pub(super) direction: Direction,
    pub(super) generation: u64,
}

/// What a worker says, one JSON value per line.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::command) enum Word {
    /// The file is open; it waits for the start.
    Ready,
    /// Bytes since the last word.
    Progress(u64),
    /// It has finished.
    Done(WorkerResult),
    /// It cannot continue.
    Failed(String),
}

/// What a worker did.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(in crate::command) struct WorkerResult {
    pub(in crate::command) requests: u64,
    pub(in crate::command) bytes: u64,
    /// From the start to the return of the last request, without making and checking bytes.
    pub(in crate::command) io_ns: u64,
    /// The time of the `fsync` after the last write.
    pub(in crate::command) fsync_ns: u64,
    /// Bytes that were not what they should be, and where the first one was.
    pub(in crate::command) wrong: Option<Wrong>,
}

/// Bytes that are not what they should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::command) struct Wrong {
    pub(in crate::command) path: PathBuf,
    /// The first one.
    pub(in crate::command) offset: u64,
    pub(in crate::command) expected: u8,
    pub(in crate::command) found: u8,
    /// How many.
    pub(in crate::command) bytes: u64,
}

impl Wrong {
    pub(in crate::command) fn new(path: PathBuf, mismatch: Mismatch) -> Self {
        let Mismatch { offset, expected, found, bytes } = mismatch;
        Self { path, offset, expected, found, bytes }
    }

    /// The error with which the benchmark ends.
    pub(in crate::command) fn failure(&self, place: &str) -> Failure {
        Failure::failed(format!("verification failed {place}: {self}"))
    }
}

impl std::fmt::Display for Wrong {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            out,
            "{}: {} not what was written, the first at offset {}: {:#04x} instead of \
             {:#04x}",
            self.path.display(),
            counted_with(self.bytes, "byte", ("is", "are")),
            self.offset,
            self.found,
            self.expected
        )
    }
}

/// Executes one job.
pub(crate) fn execute(args: &WorkerArgs) -> Outcome {
    let job: Job = serde_json::from_str(&args.job)
        .map_err(|error| Failure::refused(format!("bench worker: {error}")))?;
    let word = match work(&job) {
        Ok(done) => Word::Done(done),
        Err(error) => Word::Failed(format!("{}: {error}", job.path.display())),
    };
    say(&word)?;
    Ok(ExitCode::SUCCESS)
}

pub(in crate::command) fn say(word: &Word) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, word)?;
    out.write_all(b"\n")?;
    out.flush()
}

fn work(job: &Job) -> io::Result<WorkerResult> {
    let writes = job.direction == Direction::Write;
    let file = OpenOptions::new().read(true).write(writes).open(&job.path)?;
    let offsets = job.instance.offsets(&job.shape, job.rank);
    let len = usize::try_from(job.shape.request_size).map_err(io::Error::other)?;
    let mut run = Run {
        content: Content::new(job.shape.seed, u64::from(job.instance.number), job.generation),
        // Touched before the start, so that the first request pays for no page faults.
        buf: vec![1; len],
        expected: vec![1; if writes { 0 } else { len }],
        apart: Duration::ZERO,
        file,
        done: WorkerResult::default(),
    };
    say(&Word::Ready)?;
    await_start()?;
    let start = Instant::now();
    run.transfer(job, &offsets)?;
    run.done.io_ns = nanoseconds(start.elapsed().saturating_sub(run.apart));
    if writes {
        let start = Instant::now();
        run.file.sync_all()?;
        run.done.fsync_ns = nanoseconds(start.elapsed());
    }
    Ok(run.done)
}

/// Takes one byte from the pipe that all processes share, and not another's byte: hence no buffer.
pub(in crate::command) fn await_start() -> io::Result<()> {
    match rustix::io::read(rustix::stdio::stdin(), &mut [0_u8])? {
        0 => Err(io::Error::other("the benchmark ended before the start")),
        _ => Ok(()),
    }
}

pub(in crate::command) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

struct Run {
    content: Content,
    buf: Vec<u8>,
    expected: Vec<u8>,
    /// Time that does not count as I/O.
    apart: Duration,
    file: File,
    done: WorkerResult,
}

impl Run {
    fn transfer(&mut self, job: &Job, offsets: &[u64]) -> io::Result<()> {
        let mut told = (Instant::now(), 0);
        for &offset in offsets {
            match job.direction {
                Direction::Write => self.write(offset)?,
                Direction::Read => self.read(job, offset)?,
            }
            self.done.requests += 1;
            self.done.bytes += self.buf.len() as u64;
            if told.0.elapsed() >= TELL_INTERVAL {
                say(&Word::Progress(self.done.bytes - told.1))?;
                told = (Instant::now(), self.done.bytes);
            }
        }
        Ok(())
    }

    fn write(&mut self, offset: u64) -> io::Result<()> {
        let start = Instant::now();
        self.content.fill(offset, &mut self.buf);
        self.apart += start.elapsed();
        self.file.write_all_at(&self.buf, offset)
    }

    fn read(&mut self, job: &Job, offset: u64) -> io::Result<()> {
        self.file.read_exact_at(&mut self.buf, offset)?;
        let start = Instant::now();
        if let Some(mismatch) = self.content.check(offset, &self.buf, &mut self.expected) {
            let new = Wrong::new(job.path.clone(), mismatch);
            let bytes = new.bytes;
            let wrong = self.done.wrong.get_or_insert(Wrong { bytes: 0, ..new });
            wrong.bytes += bytes;
        }
        self.apart += start.elapsed();
        Ok(())
    }
}
