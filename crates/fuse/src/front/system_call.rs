//! Which system call a thread of a program waits in.

use std::path::Path;

use halocline_os::bounded::read_to_string;

/// The most that is read of the line.
const LINE_BYTES_MAX: u64 = 4096;

/// The numbers of system calls that rename.
#[cfg(target_arch = "x86_64")]
const RENAMES: &[i64] = &[libc::SYS_rename, libc::SYS_renameat, libc::SYS_renameat2];
#[cfg(not(target_arch = "x86_64"))]
const RENAMES: &[i64] = &[libc::SYS_renameat, libc::SYS_renameat2];
/// Those of programs for 32-bit x86: as numbers of 64-bit programs they look nothing up.
#[cfg(target_arch = "x86_64")]
const RENAMES_32: &[i64] = &[38, 302, 353];
#[cfg(not(target_arch = "x86_64"))]
const RENAMES_32: &[i64] = &[];

/// The numbers of system calls that give a further name to what a path leads to; `linkat` only without flags, by which the
/// path may lead to what is open.
#[cfg(target_arch = "x86_64")]
const LINK: Option<i64> = Some(libc::SYS_link);
#[cfg(not(target_arch = "x86_64"))]
const LINK: Option<i64> = None;
const LINKAT: i64 = libc::SYS_linkat;
/// Which of its arguments are the flags.
const LINKAT_FLAGS: usize = 4;

/// What a thread calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Calls {
    Rename,
    /// Gives a further name to what a path leads to.
    Link,
    Another,
    /// It is not ours to see, or works for whoever calls.
    Unknown,
}

/// What a thread calls, by its number as the kernel gives it with a request.
pub(super) fn calls(thread: u32) -> Calls {
    let path = format!("/proc/{thread}/syscall");
    let line = read_to_string(Path::new(&path), LINE_BYTES_MAX);
    line.map_or(Calls::Unknown, |line| of_line(&line))
}

/// The same of a line of `/proc/ID/syscall`: the number of the call and its arguments, or that it runs.
fn of_line(line: &str) -> Calls {
    let mut words = line.split_whitespace();
    let number = words.next().and_then(|number| number.parse::<i64>().ok());
    match number {
        Some(number) if Some(number) == LINK => Calls::Link,
        Some(LINKAT) if words.nth(LINKAT_FLAGS) == Some("0x0") => Calls::Link,
        Some(number) if RENAMES.contains(&number) || RENAMES_32.contains(&number) => Calls::Rename,
        // Threads that the kernel makes for io_uring show the call that made them.
        Some(libc::SYS_io_uring_enter | libc::SYS_io_uring_setup | ..0) | None => Calls::Unknown,
        Some(_) => Calls::Another,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renames_are_told_from_other_calls() {
        let line =
            |number: i64| format!("{number} 0xffffff9c 0x7ffd 0x0 0x0 0x0 0x0 0x7ffc 0x7f3\n");
        assert_eq!(of_line(&line(libc::SYS_renameat2)), Calls::Rename);
        assert_eq!(of_line(&line(libc::SYS_openat)), Calls::Another);
        assert_eq!(of_line(&line(libc::SYS_linkat)), Calls::Link);
        let of_descriptor = line(libc::SYS_linkat).replace("0x0 0x7ffc", "0x1000 0x7ffc");
        let of_descriptor = of_descriptor.replacen("0x0 0x0 0x1000", "0x0 0x1000 0x0", 1);
        assert_eq!(of_line(&of_descriptor), Calls::Another, "{of_descriptor}");
        for unknown in [&line(libc::SYS_io_uring_enter), "running\n", "-1 0x7ffd 0x0\n", ""] {
            assert_eq!(of_line(unknown), Calls::Unknown, "{unknown}");
        }
        assert_eq!(calls(u32::MAX), Calls::Unknown);
        let this = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        assert_ne!(calls(this), Calls::Rename);
    }
}
