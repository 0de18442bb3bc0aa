//! Sleeps until an absolute time, so that errors of single sleeps do not accumulate.
//!
//! A thread always wakes slightly late. A caller that continues at once would carry that delay into every following
//! request, and an emulated device would seem slower than it is. So the delay of a thread's last sleep is subtracted
//! from the arrival time of its next request.

use std::cell::Cell;
use std::sync::Once;

use rustix::thread::{ClockId, clock_nanosleep_absolute};
use rustix::time::{Timespec, clock_gettime};

/// More lateness than this is not caused by the sleep but by an overloaded machine, and is not hidden.
const LATENESS_NS_MAX: u64 = 1_000_000;

const NS: u64 = 1_000_000_000;

thread_local! {
    /// How late this thread's last sleep ended, until its next request arrives.
    static LATE_NS: Cell<u64> = const { Cell::new(0) };
    static EXACT: Once = const { Once::new() };
}

/// Nanoseconds of the monotonic clock.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * NS + now.tv_nsec.cast_unsigned()
}

/// When the calling thread's request arrives.
pub(super) fn arrival() -> u64 {
    now() - LATE_NS.take()
}

/// Sleeps until `time`; returns at once if it has passed.
pub(super) fn until(time: u64) {
    let before = now();
    if before < time {
        EXACT.with(|once| once.call_once(ask_for_exact_timers));
        let at = Timespec { tv_sec: (time / NS).cast_signed(), tv_nsec: (time % NS).cast_signed() };
        while clock_nanosleep_absolute(ClockId::Monotonic, &at).is_err() {}
    }
    let late = now().saturating_sub(time);
    LATE_NS.set(if late <= LATENESS_NS_MAX { late } else { 0 });
}

/// The kernel may delay a thread's timers by 50 microseconds to save power; this disables that for the calling thread.
fn ask_for_exact_timers() {
    let slack_ns: libc::c_ulong = 1;
    // SAFETY: PR_SET_TIMERSLACK takes one integer and changes only this thread's timers. It can only fail if the kernel
    // lacks it, and then sleeps cannot be more exact.
    let _ = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, slack_ns) };
}
