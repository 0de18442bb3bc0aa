//! What strace wrote: body of a fuzz target (`fuzz/`), and its test.

use super::trace::{is_a_line, opened};

/// A list that begins as a trace does, or not: names are no longer than what stands there.
pub(crate) fn strace(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let found = opened(text);
    let lines = text.lines().filter(|line| is_a_line(line)).count() as u64;
    assert!(found.names.len() as u64 + found.unknown <= lines);
    assert!(found.names.iter().map(String::len).sum::<usize>() <= text.len());
}

#[cfg(test)]
mod tests {
    use halocline_testkit::fuzz_target::run;

    use super::*;

    #[test]
    fn hostile_traces_of_strace() {
        let lines = "12 openat(AT_FDCWD, \"a/\\303\\244\\n\", O_RDONLY|O_CLOEXEC) = 3\n\
            [pid 13] openat(5</mnt/d>, \"b\", O_RDWR <unfinished ...>\n12 open(\"/c\\x41\", O_RDONLY) = -1 ENOENT (No)\n\
            [pid 13] <... openat resumed>)      = 4\n--- SIGCHLD {si_signo=SIGCHLD} ---\n\
            12:34:56.789 creat(\"d\", 0644)   = 5\n12 openat(7, \"e\", O_RDONLY) = 6\n+++ exited with 0 +++\n";
        run("cli_strace", &[("some", lines.into())], 10_000, strace);
    }
}
