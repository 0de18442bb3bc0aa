//! Logs of Darshan, read by a program of its own whose text is imported.
//!
//! A log is other people's bytes, read by a library in C. What must hold: whatever is in it, that
//! program ends, with bounded memory and time, at the latest with us.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use halocline_os::bound_process;
use halocline_os::error::Error;
use halocline_trace::import::{Sink, dxt};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, kill_process_group, setrlimit, waitid,
};

use super::{ImportArgs, is_of_writing, module};
use crate::failure::Failure;
use crate::print::tell;
use crate::text;

/// Prints a log as `darshan-dxt-parser` does.
const PRINT_LOG: &str = include_str!("../../../../../trace/src/import/print_log.py");
/// Its status where the library is not there.
const NO_LIBRARY: i32 = 87;
/// Bytes that are kept of what a converter says of its troubles.
const SAID_MAX: u64 = 1 << 14;
/// How often it is asked whether a converter that prints no more has ended.
const PAUSE: Duration = Duration::from_millis(5);

/// Imports what a program prints of a log: with the package `darshan`, or else `darshan-dxt-parser`, whose times
/// are rounded to 0.1 ms.
pub(super) fn import(args: &ImportArgs, sink: &mut Sink<impl Write>) -> Result<(), Failure> {
    // An absolute name is not an option, whatever it begins with.
    let log = args.file.canonicalize().map_err(Error::at(&args.file, "find"))?;
    let mut python = Command::new(&args.python);
    python.arg("-c").arg(PRINT_LOG).arg(&log);
    let mut parser = Command::new("darshan-dxt-parser");
    parser.arg("--show-incomplete").arg(&log);
    for mut converter in [python, parser] {
        match run(&mut converter, args, sink)? {
            Converted::Done => return Ok(()),
            Converted::NotThere => {}
        }
    }
    Err(Failure::refused(format!(
        "{}: logs of Darshan are read by its own library: `pip install darshan` (--python names the Python that \
         has it), or put darshan-dxt-parser on the PATH; or import the text that it prints elsewhere",
        text::path(&args.file)
    )))
}

enum Converted {
    Done,
    NotThere,
}

/// A converter and what it starts, which end with this.
struct Running {
    child: Child,
    deadline: Instant,
}

impl Running {
    fn start(converter: &mut Command, args: &ImportArgs) -> io::Result<Self> {
        converter.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        converter.process_group(0);
        let limit = |most: u64| Rlimit { current: Some(most), maximum: Some(most) };
        let memory = limit(u64::from(args.convert_gib) << 30);
        let time = limit(u64::from(args.convert_seconds));
        // SAFETY: between fork and exec the closure only makes two system calls; it touches no lock
        // and no heap.
        unsafe {
            converter.pre_exec(move || {
                setrlimit(Resource::As, memory)?;
                Ok(setrlimit(Resource::Cpu, time)?)
            });
        }
        let child = bound_process::bind(converter, Signal::KILL).spawn()?;
        let deadline = Instant::now() + Duration::from_secs(args.convert_seconds.into());
        Ok(Self { child, deadline })
    }

    /// Waits until it has ended, and ends what it has started.
    fn wait(mut self) -> io::Result<ExitStatus> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        while waitid(WaitId::Pid(Pid::from_child(&self.child)), options)?.is_none() {
            left(self.deadline)?;
            thread::sleep(PAUSE);
        }
        self.end()
    }

    /// Ends all of them. Until the converter is waited for, its number is no other process's.
    fn end(&mut self) -> io::Result<ExitStatus> {
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        self.child.wait()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ = self.end();
        }
    }
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero());
    left.ok_or_else(|| io::Error::new(io::ErrorKind::TimedOut, "it takes too long"))
}

/// What a converter prints, until its time is over.
struct ConverterOutput {
    pipe: ChildStdout,
    deadline: Instant,
}

impl Read for ConverterOutput {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = Timespec::try_from(left(self.deadline)?).ok();
        let pipe = self.pipe.as_fd();
        match poll(&mut [PollFd::new(&pipe, PollFlags::IN)], left.as_ref())? {
            0 => Err(io::Error::new(io::ErrorKind::TimedOut, "it takes too long")),
            _ => self.pipe.read(buffer),
        }
    }
}

/// What a converter may take, for a failure that this may be the reason of.
fn limits(args: &ImportArgs) -> String {
    format!(
        " (it may take {} GiB of memory and {} s: --convert-gib, --convert-seconds)",
        args.convert_gib, args.convert_seconds
    )
}

fn is_too_long(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::TimedOut
}

/// Whether a converter that says this had too little memory, as Python and C libraries put it.
fn is_of_memory(said: &str) -> bool {
    let said = said.to_ascii_lowercase();
    said.contains("memory") || said.contains("alloc")
}

fn run(
    converter: &mut Command,
    args: &ImportArgs,
    sink: &mut Sink<impl Write>,
) -> Result<Converted, Failure> {
    let name = text::path(&args.file);
    let mut running = match Running::start(converter, args) {
        Ok(running) => running,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Converted::NotThere),
        Err(error) => {
            let program = text::path(Path::new(converter.get_program()));
            return Err(Failure::failed(format!("{name}: cannot run {program}: {error}")));
        }
    };
    let mut complaints = running.child.stderr.take().expect("it is a pipe");
    let said = thread::spawn(move || {
        let mut said = Vec::new();
        let _ = complaints.by_ref().take(SAID_MAX).read_to_end(&mut said);
        // It must not wait for somebody to read the rest.
        let _ = io::copy(&mut complaints, &mut io::sink());
        String::from_utf8_lossy(&said).trim().to_owned()
    });
    let pipe = running.child.stdout.take().expect("it is a pipe");
    let mut printed = BufReader::new(ConverterOutput { pipe, deadline: running.deadline });
    let nothing = printed.fill_buf().is_ok_and(<[u8]>::is_empty);
    if !nothing && let Err(error) = dxt::import(&mut printed, module(args), sink) {
        drop(printed);
        let _ = running.end();
        let error = match error {
            halocline_trace::Error::Io(error) if is_of_writing(&error) => {
                return Err(Error::at(&args.out, "write")(error).into());
            }
            error => error,
        };
        // What a library that fails says last is why.
        let said = said.join().unwrap_or_default();
        let why = said.lines().last().map_or_else(String::new, |said| format!("{said}; "));
        let too_long = matches!(&error, halocline_trace::Error::Io(error) if is_too_long(error));
        let limits = if too_long || is_of_memory(&said) { limits(args) } else { String::new() };
        let what = format!("{name}: {why}in what was printed of it: {error}{limits}");
        return Err(Failure::failed(what));
    }
    let status = running.wait().map_err(|error| {
        let limits = if is_too_long(&error) { limits(args) } else { String::new() };
        Failure::failed(format!("{name}: not read to its end: {error}{limits}"))
    })?;
    if status.code() == Some(NO_LIBRARY) && nothing {
        return Ok(Converted::NotThere);
    }
    let said = said.join().unwrap_or_default();
    if !status.success() || nothing {
        let limited = status.signal().is_some() || is_of_memory(&said);
        let limits = if limited { limits(args) } else { String::new() };
        let what = format!("{name}: not read to its end ({status}){limits}: {said}");
        return Err(Failure::failed(what));
    }
    if !said.is_empty() {
        tell!("{name}: {said}");
    }
    Ok(Converted::Done)
}
