//! The user as whom this process creates files.

/// The user as whom this thread creates files.
pub fn own_uid() -> u32 {
    // SAFETY: takes a plain number; an invalid user id changes nothing, and the current one is returned.
    let uid = unsafe { libc::syscall(libc::SYS_setfsuid, -1) };
    u32::try_from(uid).unwrap_or_else(|_| rustix::process::geteuid().as_raw())
}
