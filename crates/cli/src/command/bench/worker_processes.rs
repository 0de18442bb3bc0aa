//! All processes of a run, from the parent's side: starting them, beginning together, listening to them, ending them.

use std::io::{BufRead, BufReader, PipeReader, Write};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use halocline_os::bound_process::bind;
use rustix::process::Signal;
use serde::Serialize;

use super::worker::{Word, WorkerResult};
use crate::failure::Failure;
use crate::self_exec;

/// How often a request to stop is checked for.
const TICK: Duration = Duration::from_millis(100);

/// What the parent does while it waits.
pub(in crate::command) trait Watch {
    /// Fails once somebody has asked for the run to end.
    fn go_on(&mut self) -> Result<(), Failure>;
    /// Reports that `bytes` more bytes were moved.
    fn advance(&mut self, bytes: u64);
}

/// Runs one process for each job, all at the same time, until they end; the answers are in the jobs' order. `command` is the
/// command of this program that does one, which is its argument as JSON.
pub(in crate::command) fn run<J: Serialize>(
    command: [&str; 2],
    jobs: &[J],
    watch: &mut impl Watch,
) -> Result<Vec<WorkerResult>, Failure> {
    let (gate, mut starter) = std::io::pipe()?;
    let (sender, words) = channel();
    let mut crew = WorkerProcesses { children: Vec::new(), words };
    for job in jobs {
        crew.start(command, job, (&gate, &sender))?;
    }
    drop((gate, sender));
    let (mut ready, mut left) = (0, jobs.len());
    let mut answers = vec![WorkerResult::default(); jobs.len()];
    while left > 0 {
        watch.go_on()?;
        match crew.words.recv_timeout(TICK) {
            Ok((_, Word::Ready)) => {
                ready += 1;
                if ready == jobs.len() {
                    // One byte for each process: a process that reads early takes only its own.
                    starter.write_all(&vec![0; jobs.len()])?;
                }
            }
            Ok((index, Word::Progress(bytes))) => {
                answers[index].bytes += bytes;
                watch.advance(bytes);
            }
            Ok((index, Word::Done(done))) => {
                watch.advance(done.bytes.saturating_sub(answers[index].bytes));
                answers[index] = done;
                left -= 1;
            }
            // Ctrl-C reaches the whole group; the processes may end before we notice it.
            Ok((_, Word::Failed(why))) => {
                watch.go_on()?;
                return Err(Failure::failed(why));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Failure::failed("a benchmark process ended without an answer"));
            }
        }
    }
    Ok(answers)
}

/// Dropping it ends the processes that are still running.
struct WorkerProcesses {
    children: Vec<Child>,
    words: Receiver<(usize, Word)>,
}

impl WorkerProcesses {
    fn start(
        &mut self,
        command: [&str; 2],
        job: &impl Serialize,
        (gate, words): (&PipeReader, &Sender<(usize, Word)>),
    ) -> Result<(), Failure> {
        let job = serde_json::to_string(job).map_err(std::io::Error::from)?;
        let mut worker = self_exec::command();
        worker.args(command).arg(&job);
        worker.stdin(Stdio::from(gate.try_clone()?)).stdout(Stdio::piped());
        let mut child = bind(&mut worker, Signal::KILL).spawn()?;
        let (index, said) = (self.children.len(), child.stdout.take());
        self.children.push(child);
        let words = words.clone();
        thread::spawn(move || said.map(|said| listen(index, said, &words)));
        Ok(())
    }
}

/// Passes on what the process of job `index` says.
fn listen(index: usize, said: ChildStdout, words: &Sender<(usize, Word)>) {
    let mut answered = false;
    for line in BufReader::new(said).lines() {
        let word = line.and_then(|line| Ok(serde_json::from_str(&line)?));
        let word =
            word.unwrap_or_else(|error| Word::Failed(format!("a benchmark process: {error}")));
        answered |= matches!(word, Word::Done(_) | Word::Failed(_));
        if words.send((index, word)).is_err() {
            return;
        }
    }
    if !answered {
        let _ = words.send((index, Word::Failed("a benchmark process died".into())));
    }
}

impl Drop for WorkerProcesses {
    fn drop(&mut self) {
        for child in &mut self.children {
            // A process that has ended is only reaped; the mount must be unused afterwards.
            if !matches!(child.try_wait(), Ok(Some(_))) {
                thread::sleep(Duration::from_millis(1));
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}
