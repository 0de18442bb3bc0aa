//! The command that `run` starts: its environment, its signals, its status.

use std::io::ErrorKind;
use std::mem::MaybeUninit;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command};
use std::ptr;

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::origin::{Origin, WithOrigin};
use signal_hook::low_level::siginfo::Cause;

use crate::failure::Failure;
use crate::inherited;

/// Signals that the command gets, too.
const FORWARDED: [i32; 6] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2];

/// From its creation on, these signals no longer end this process. Signals that were ignored when it started stay
/// ignored, for the command too: `nohup` and background jobs rely on that.
pub(crate) struct Signals {
    events: SignalsInfo<WithOrigin>,
    /// The limit of open files for the command; this process raises its own.
    open_files: Rlimit,
}

impl Signals {
    /// Starts to catch signals.
    pub(crate) fn catch() -> Result<Self, Failure> {
        let heard = FORWARDED.iter().filter(|signal| !is_ignored(**signal));
        let signals = heard.chain([&SIGCHLD]);
        let open_files = getrlimit(Resource::Nofile);
        Ok(Self { events: SignalsInfo::new(signals)?, open_files })
    }

    /// Runs `command` until it ends, and returns its status as a shell would: 128+N for signal N.
    pub(crate) fn run(&mut self, mut command: Command) -> Result<u8, Failure> {
        let open_files = self.open_files;
        // SAFETY: between fork and exec the closure only makes system calls; it uses no heap and no lock: inherited
        // settings were saved before there were threads.
        unsafe {
            command.pre_exec(move || {
                inherited::restore();
                Ok(setrlimit(Resource::Nofile, open_files)?)
            });
        }
        let mut child = command.spawn().map_err(|error| {
            let program = command.get_program().to_string_lossy().into_owned();
            let status = if error.kind() == ErrorKind::NotFound { 127 } else { 126 };
            Failure::with_status(status, format!("{program}: cannot be started: {error}"))
        })?;
        loop {
            // Signals that arrived before the wait are handled after it.
            if let Some(status) = child.try_wait()? {
                let by_signal = status.signal().map(|signal| signal + 128);
                let code = status.code().or(by_signal).unwrap_or(1);
                return Ok(u8::try_from(code & 0xff).unwrap_or(1));
            }
            for event in self.events.wait() {
                forward(&event, &child);
            }
        }
    }

    /// Whether this process was asked to stop since the last call.
    pub(crate) fn stop_requested(&mut self) -> bool {
        self.stop_signal().is_some()
    }

    /// The signal that asked this process to stop since the last call.
    pub(crate) fn stop_signal(&mut self) -> Option<i32> {
        let mut signals = self.events.pending().map(|event| event.signal);
        signals.find(|signal| [SIGINT, SIGTERM, SIGHUP].contains(signal))
    }
}

/// Whether a signal was ignored when this process started. SIGTERM never counts as ignored: it is meant for one
/// process, and is the way to end a mount without losses.
pub(crate) fn is_ignored(signal: i32) -> bool {
    let mut now = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: nothing is changed, and the current action is written to a complete `sigaction`.
    let asked = unsafe { libc::sigaction(signal, ptr::null(), now.as_mut_ptr()) };
    // SAFETY: zeros are a valid `sigaction`, too.
    let now = unsafe { now.assume_init() };
    signal != SIGTERM && asked == 0 && now.sa_sigaction == libc::SIG_IGN
}

/// Forwards a signal. A signal from the terminal already went to its whole foreground process group.
fn forward(event: &Origin, child: &Child) {
    if event.signal == SIGCHLD || event.cause == Cause::Kernel {
        return;
    }
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let (Some(pid), Some(signal)) = (pid, Signal::from_named_raw(event.signal)) {
        let _ = kill_process(pid, signal);
    }
}
