//! Whether a program that waits has got a signal.
//!
//! The library's event loop answers the kernel's interrupts by itself, and as not supported, so it is looked for signals.
//! What must hold: a call is ended only where the signal surely is for the thread that made it. Ended without one, its
//! program would see an error that is no error number.

use std::fs;

/// Threads of a program that are looked at.
const THREADS_MAX: usize = 4096;
/// The largest file of `/proc` about a thread that is read, in bytes.
const STATUS_MAX: u64 = 64 << 10;

/// The signals of a thread, as sets of bits.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Signals {
    /// The process that it belongs to.
    process: u32,
    threads: u64,
    /// Those that it alone has got.
    own: u64,
    /// Those that its process has got.
    shared: u64,
    /// Those that it does not take now.
    blocked: u64,
}

/// What was seen of a thread's signals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// It is not to be seen from here.
    Nothing,
    /// No signal.
    Quiet,
    /// One for the process that this thread takes if it is still there in a while: another one may take it at once.
    Shared,
    /// One that nobody else can take.
    Own,
}

/// Looks at the signals of a thread; with what was seen, how many files of `/proc` were read for it.
pub(super) fn look(thread: u32) -> (Seen, usize) {
    let mut reads = 0;
    let seen = look_counted(thread, &mut reads);
    (seen, reads)
}

fn look_counted(thread: u32, reads: &mut usize) -> Seen {
    let mut read = |path: &str| {
        *reads += 1;
        let text = halocline_os::bounded::read(path.as_ref(), STATUS_MAX).ok()?;
        Some(Signals::of(&String::from_utf8_lossy(&text)))
    };
    let Some(signals) = read(&format!("/proc/{thread}/status")).filter(|_| thread != 0) else {
        return Seen::Nothing;
    };
    if signals.own & !signals.blocked != 0 {
        return Seen::Own;
    }
    let shared = signals.shared & !signals.blocked;
    if shared == 0 {
        return Seen::Quiet;
    }
    // The kernel gives a signal of the process to its first thread, if that one takes it.
    if thread == signals.process || signals.threads == 1 {
        return Seen::Shared;
    }
    let Ok(threads) = fs::read_dir(format!("/proc/{}/task", signals.process)) else {
        return Seen::Quiet;
    };
    let others = threads.take(THREADS_MAX).flatten().map(|other| other.file_name());
    let others = others.filter(|other| *other != *thread.to_string());
    let blocked = others.map(|other| {
        let path = format!("/proc/{}/task/{}/status", signals.process, other.to_string_lossy());
        read(&path).map_or(0, |other| other.blocked)
    });
    let blocked_by_others = blocked.fold(u64::MAX, |all, one| all & one);
    if shared & blocked_by_others == 0 { Seen::Quiet } else { Seen::Shared }
}

impl Signals {
    fn of(status: &str) -> Self {
        let mut signals = Self::default();
        for line in status.lines() {
            let Some((key, value)) = line.split_once(':') else { continue };
            let set = || u64::from_str_radix(value.trim(), 16).unwrap_or(0);
            match key {
                "Tgid" => signals.process = value.trim().parse().unwrap_or(0),
                "Threads" => signals.threads = value.trim().parse().unwrap_or(0),
                "SigPnd" => signals.own = set(),
                "ShdPnd" => signals.shared = set(),
                "SigBlk" => signals.blocked = set(),
                _ => {}
            }
        }
        signals
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
        assert_eq!(Signals::of(text), signals);
    }

    #[test]
    fn who_is_not_there_is_not_seen() {
        assert_eq!(look(0).0, Seen::Nothing);
        assert_eq!(look(u32::MAX).0, Seen::Nothing);
        let own = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        assert_eq!(look(own), (Seen::Quiet, 1));
    }
}
