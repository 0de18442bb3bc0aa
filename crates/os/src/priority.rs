//! The priority of threads that work in the background.

/// Gives the calling thread the lowest priority for processor and disk.
pub fn yield_to_programs() {
    /// `IOPRIO_CLASS_BE` at its lowest level: an idle class could wait indefinitely on a busy disk.
    const BEST_EFFORT_LOWEST: i32 = (2 << 13) | 7;
    // SAFETY: plain numbers about the calling thread; a refusal is of no consequence.
    unsafe {
        libc::syscall(libc::SYS_ioprio_set, 1, 0, BEST_EFFORT_LOWEST);
        libc::setpriority(libc::PRIO_PROCESS, 0, 10);
    }
}
