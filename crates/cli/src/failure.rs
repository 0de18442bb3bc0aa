//! Exit statuses, and the messages that go with them.

use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;
use std::string::FromUtf8Error;

use halocline_os::counted::counted_with;
use halocline_os::error::Error;

use crate::print::tell;
use crate::text;

/// Every exit status of the command, for the man page.
pub(crate) const STATUSES: &str = "\
Exit status:
  0    done
  1    the operation failed
  2    refused before anything was changed: wrong arguments, configuration
       or directories, or a path that is not there
  3    dirty data stays on the cache; it is flushed after the next mount
  4    a file with dirty data had been changed behind the mount: it stays as
       others made it, and the data is saved in `conflicts` in the cache
       directory
  5    unmounted, with everything written, but its end is not in order: the
       store of the cluster, for example, did not answer
  126  the command given to `run` cannot be executed
  127  the command given to `run` was not found
  N    `run` otherwise exits as its command did, 128+S when signal S ended it";

/// Why a command does not succeed.
#[derive(Debug)]
pub(crate) struct Failure {
    status: u8,
    message: String,
}

/// Result of a subcommand.
pub(crate) type Outcome = Result<ExitCode, Failure>;

impl Failure {
    /// The operation failed.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self { status: 1, message: message.into() }
    }

    /// Nothing was changed.
    pub(crate) fn refused(error: impl std::fmt::Display) -> Self {
        Self { status: 2, message: error.to_string() }
    }

    /// An error that a mount returned when asked to change its rules or jobs: if it is about an invalid request,
    /// nothing was changed.
    pub(crate) fn answered(error: Error) -> Self {
        if error.errno() == libc::EINVAL { Self::refused(error) } else { error.into() }
    }

    /// The same, about what a file holds, if that was refused.
    pub(crate) fn about(self, file: Option<&Path>) -> Self {
        match file {
            Some(file) if self.status == 2 => {
                Self { message: format!("{}: {}", text::path(file), self.message), ..self }
            }
            _ => self,
        }
    }

    /// A named file cannot be read.
    pub(crate) fn unreadable(path: &Path, error: &std::io::Error) -> Self {
        let path = text::path(path);
        let source = error.get_ref();
        let is_not_text =
            source.is_some_and(<dyn std::error::Error + Send + Sync>::is::<FromUtf8Error>);
        Self::refused(match error.kind() {
            ErrorKind::NotFound => format!("{path}: there is no such file; correct the path"),
            // Not where in it: whoever named a trace or a program as a plan has no use for that.
            _ if is_not_text => {
                format!("{path}: it is not text, so it is another kind of file; correct the path")
            }
            ErrorKind::InvalidData | ErrorKind::InvalidInput => {
                format!("{path}: {error}; correct the path")
            }
            _ => format!("{path}: cannot be read: {error}; correct the path or its permissions"),
        })
    }

    /// A named directory cannot be used.
    pub(crate) fn unusable(path: &Path, error: &std::io::Error) -> Self {
        let path = text::path(path);
        Self::refused(match error.kind() {
            ErrorKind::NotFound => {
                format!("{path}: there is no such directory; create it, or correct the path")
            }
            _ => format!("{path}: {error}; correct the path or its permissions"),
        })
    }

    /// Dirty data stays on the cache.
    pub(crate) fn dirty_left(message: impl Into<String>) -> Self {
        Self { status: 3, message: message.into() }
    }

    /// Files were changed behind the mount while they had dirty data; where their data is was already reported.
    pub(crate) fn conflicts(count: usize) -> Self {
        let files = counted_with(count, "file", ("was", "were"));
        Self {
            status: 4,
            message: format!(
                "{files} changed behind the mount and not overwritten; what was to be flushed is \
                 saved, see above"
            ),
        }
    }

    /// An unmount left `bytes` dirty bytes on `cache`.
    pub(crate) fn mount_again(bytes: u64, cache: &Path) -> Self {
        Self::dirty_left(format!(
            "{} stay on the cache {}; mount it again to flush them",
            text::bytes(bytes),
            cache.display()
        ))
    }

    /// A mount is gone, and everything is written, but its end is not in order, for this reason.
    pub(crate) fn not_in_order(why: &str, cache: &Path) -> Self {
        let cache = text::path(cache);
        Self {
            status: 5,
            message: format!(
                "the mount is gone and everything is written, but its end is not in order: {why}. If it was a node of a \
                 cluster, the others take it for alive until its lease (30 s) is over; its session ends when {cache} is \
                 mounted again, or with `halocline cluster forget`"
            ),
        }
    }

    /// Another status.
    pub(crate) fn with_status(status: u8, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    /// Whether nothing was changed, because of what was asked for.
    pub(crate) const fn is_refusal(&self) -> bool {
        self.status == 2
    }

    /// The message.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Prints the message, and returns the exit status.
    pub(crate) fn report(&self) -> ExitCode {
        tell!("halocline: {}", self.message);
        self.status.into()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::failed(error.to_string())
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::failed(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_statuses_fits_a_terminal() {
        for line in STATUSES.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }

    /// Of a trace named as a plan it said `invalid utf-8 sequence of 1 bytes from index 2`.
    #[test]
    fn what_is_not_text_is_said_to_be_another_kind_of_file() {
        let path = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&path, b"\x89HCT\xff").unwrap();
        let error = halocline_os::bounded::read_to_string(path.path(), 100).unwrap_err();
        let failure = Failure::unreadable(path.path(), &error);
        assert!(failure.message().contains("it is not text, so it is another kind of file"));
        assert_eq!(failure.status, 2);
    }
}
