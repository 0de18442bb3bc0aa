//! Output for people: the only place that writes text to standard output and standard error.
//!
//! Names of files, and answers of a mount, are others' text. On a terminal, control characters in them would take
//! effect: move the cursor, set a title, begin a line that looks like ours. So every line stays one line here, whatever
//! it contains, and control characters are shown instead of executed ([`text::line`]). `cargo x tidy` refuses other
//! ways of printing.

use std::fmt::Arguments;
use std::io::{self, Write};
use std::sync::OnceLock;

use crate::text;

/// A line on standard output, as with `println!`.
macro_rules! say {
    ($($words:tt)*) => { $crate::print::line(format_args!($($words)*)) };
}

/// A line on standard error, as with `eprintln!`.
macro_rules! tell {
    ($($words:tt)*) => { $crate::print::line_aside(format_args!($($words)*)) };
}

pub(crate) use {say, tell};

/// One line on standard output.
pub(crate) fn line(words: Arguments<'_>) {
    write_out(&text::line(&words.to_string()));
}

/// One line on standard error.
pub(crate) fn line_aside(words: Arguments<'_>) {
    write_aside(&text::line(&words.to_string()));
}

/// Lines on standard output. A caller that makes them of others' text ensures that each of those stays on its line.
pub(crate) fn lines(text: &str) {
    write_out(&text::lines(text.trim_end_matches('\n')));
}

/// Lines on standard error, as [`lines`].
pub(crate) fn lines_aside(text: &str) {
    write_aside(&text::lines(text.trim_end_matches('\n')));
}

/// The first reason why something could not be written to standard output.
static LOST: OnceLock<io::Error> = OnceLock::new();

/// Unlike `println!`, which panics on a full disk: a mount or a flush in progress must continue.
fn write_out(text: &str) {
    if let Err(error) = writeln!(io::stdout(), "{text}") {
        let _ = LOST.set(error);
    }
}

/// What standard error does not accept is lost: there is nowhere to report it.
fn write_aside(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Writes buffered output; returns why something could not be written, now or earlier.
pub(crate) fn lost() -> Option<&'static io::Error> {
    if let Err(error) = io::stdout().flush() {
        let _ = LOST.set(error);
    }
    LOST.get()
}

/// The destination of the log: each message, which comes in one call, is one line.
pub(crate) struct Log<W>(pub(crate) W);

impl<W: Write> Write for Log<W> {
    fn write(&mut self, message: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(message);
        let text = text.strip_suffix('\n').unwrap_or(&text);
        self.0.write_all(format!("{}\n", text::line(text)).as_bytes())?;
        Ok(message.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_in_the_log_is_a_line() {
        let mut log = Log(Vec::new());
        log.write_all(b"WARN a\n\x1b[2Jb\xff\n").unwrap();
        log.write_all("ö".as_bytes()).unwrap();
        assert_eq!(log.0, "WARN a\\n\\u{1b}[2Jb\u{fffd}\nö\n".as_bytes());
    }
}
