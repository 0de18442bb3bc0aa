//! Whether a waiting program has received a signal.
//!
//! The library's event loop answers the kernel's interrupt requests itself, as unsupported, so signals must be polled
//! for. What must hold: a call is ended only if the signal is certainly for the thread that made it. If it were ended
//! without one, its program would see an error that is not a valid error number.

use std::fs;
use std::io;

use halocline_os::process_status::ProcessStatus;

/// How many threads of a program are examined.
const THREADS_MAX: usize = 4096;

/// The signals of a thread, as bit sets.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Signals {
    /// The process to which it belongs.
    process: u32,
    threads: u64,
    /// Signals pending for this thread alone.
    own: u64,
    /// Signals pending for its process.
    shared: u64,
    /// Signals that it blocks now.
    blocked: u64,
}

/// What was found out about a thread's signals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PendingSignal {
    /// The thread is not visible from here.
    Nothing,
    /// No signal.
    Quiet,
    /// One for the process, which this thread takes if it is still pending a little later: another thread may take it
    /// first.
    Shared,
    /// One that no other thread can take.
    Own,
}

/// Looks at the signals of a thread; with what was seen, how many files of `/proc` were read for it.
pub(super) fn look(thread: u32) -> (PendingSignal, usize) {
    let mut reads = 0;
    let seen = pending_counted(thread, &mut reads);
    (seen, reads)
}

fn pending_counted(thread: u32, reads: &mut usize) -> PendingSignal {
    let mut read = |status: io::Result<ProcessStatus>| {
        *reads += 1;
        status.ok().map(|status| Signals::of(&status))
    };
    let Some(signals) = read(ProcessStatus::of(thread)).filter(|_| thread != 0) else {
        return PendingSignal::Nothing;
    };
    if signals.own & !signals.blocked != 0 {
        return PendingSignal::Own;
    }
    let shared = signals.shared & !signals.blocked;
    if shared == 0 {
        return PendingSignal::Quiet;
    }
    // The kernel gives a signal for the process to its first thread, if that one does not block it.
    if thread == signals.process || signals.threads == 1 {
        return PendingSignal::Shared;
    }
    let Ok(threads) = fs::read_dir(format!("/proc/{}/task", signals.process)) else {
        return PendingSignal::Quiet;
    };
    let others = threads.take(THREADS_MAX).flatten();
    let others = others.filter_map(|other| other.file_name().to_str()?.parse().ok());
    let blocked = others.filter(|other| *other != thread).map(|other| {
        read(ProcessStatus::of_thread(signals.process, other)).map_or(0, |other| other.blocked)
    });
    let blocked_by_others = blocked.fold(u64::MAX, |all, one| all & one);
    if shared & blocked_by_others == 0 { PendingSignal::Quiet } else { PendingSignal::Shared }
}

impl Signals {
    fn of(status: &ProcessStatus) -> Self {
        let number = |field| status.numbers(field).next().unwrap_or(0);
        Self {
            process: number("Tgid"),
            threads: number("Threads").into(),
            own: status.signals("SigPnd"),
            shared: status.signals("ShdPnd"),
            blocked: status.signals("SigBlk"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_understood() {
        let text = "Name:\tx\nTgid:\t12\nThreads:\t3\nSigPnd:\t0000000000000100\nShdPnd:\t0000000000004000\n\
                    SigBlk:\t00000000000000ff\nSigIgn:\t0\n";
        let signals =
            Signals { process: 12, threads: 3, own: 0x100, shared: 0x4000, blocked: 0xff };
        assert_eq!(Signals::of(&ProcessStatus::parse(text.as_bytes())), signals);
    }

    #[test]
    fn who_is_not_there_is_not_seen() {
        assert_eq!(look(0).0, PendingSignal::Nothing);
        assert_eq!(look(u32::MAX).0, PendingSignal::Nothing);
        let own = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        assert_eq!(look(own), (PendingSignal::Quiet, 1));
    }
}
