//! What disks refuse in a repair: it stops nothing else, and is told with its path and what to do.
//!
//! What must hold: what gets no number on its disk gets no name, so that a check goes on saying it; and where that, or a step that
//! was not made, would make a later check take a file for a removed one, nothing is removed that it needs.

use std::collections::BTreeSet;

use halocline_os::error::{Error, Result};

use super::report::Report;
use super::scan::tell;
use crate::places::refused_changes::remedy;

/// What was refused so far.
#[derive(Debug, Default)]
pub(super) struct Refused {
    lines: Vec<String>,
    /// The paths, as findings have them.
    paths: BTreeSet<String>,
    /// Files and directories of which something was refused.
    numbers: BTreeSet<u64>,
}

/// Whether it is one file or one disk that refuses, and not the store.
const fn is_of_disk(error: &Error) -> bool {
    !matches!(error, Error::Cluster { .. } | Error::Store { .. })
}

/// The line for a step that was refused.
pub(super) fn line(path: &str, what: &str, error: &Error) -> String {
    match error {
        Error::Io(source) => format!("{path}: {what}: {source}; {}", remedy(error.errno())),
        // These have the path and the remedy.
        error => format!("{path}: {what}: {error}"),
    }
}

/// The error for a step that was refused, and that a repair cannot do without.
pub(super) fn error_of(path: &str, what: &str, error: Error) -> Error {
    match error {
        Error::Io(source) => {
            let remedy = remedy(source.raw_os_error().unwrap_or(libc::EIO));
            Error::invalid(format!("{path}: cannot {what}: {source}"), remedy)
        }
        error => error,
    }
}

/// The error of a rebuild that has begun: its mark stays, because numbers on the disks, and maybe names in the store, are no longer
/// those from before.
pub(super) fn half_rebuilt(error: Error) -> Error {
    const AGAIN: &str = "the names are not built yet, and mounts are refused until they are: then run the same command again, which goes on";
    match error {
        Error::Invalid { what, remedy } => {
            Error::Invalid { what, remedy: format!("{remedy}; {AGAIN}") }
        }
        Error::Cluster { what, remedy } => {
            Error::Cluster { what, remedy: format!("{remedy}; {AGAIN}") }
        }
        error => Error::invalid(error.to_string(), AGAIN),
    }
}

impl Refused {
    /// What a step has returned; `None` if a disk refused it, which is noted. `what` says what is not done.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) fn unless<T>(
        &mut self,
        (path, number): (&str, u64),
        what: &str,
        step: Result<T>,
    ) -> Result<Option<T>> {
        match step {
            Ok(done) => Ok(Some(done)),
            Err(error) if is_of_disk(&error) => {
                tell(&mut self.lines, line(path, what, &error));
                self.paths.insert(path.to_owned());
                self.numbers.insert(number);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The same for a step that returns nothing; whether it was made.
    pub(super) fn is_made(
        &mut self,
        about: (&str, u64),
        what: &str,
        step: Result<()>,
    ) -> Result<bool> {
        Ok(self.unless(about, what, step)?.is_some())
    }

    /// Adds what is said of a file or directory to what is told.
    pub(super) fn tell(&mut self, line: String) {
        tell(&mut self.lines, line);
    }

    /// Notes that what a finding says of a path is not done.
    pub(super) fn add_path(&mut self, path: String) {
        self.paths.insert(path);
    }

    /// Whether something was refused of a file or directory with this number.
    pub(super) fn has(&self, number: u64) -> bool {
        self.numbers.contains(&number)
    }

    /// Tells it, and no longer says that it was done.
    pub(super) fn add_to(self, report: &mut Report) {
        let Report { remade, left_copies, left_directories, relisted, attributes, .. } = report;
        let lists = [
            remade,
            left_copies,
            left_directories,
            relisted,
            attributes,
            &mut report.older,
            &mut report.set_aside,
        ];
        for list in lists {
            list.retain(|line| !self.is_about(line));
        }
        self.lines.into_iter().for_each(|line| tell(&mut report.told, line));
    }

    fn is_about(&self, line: &str) -> bool {
        let ends = line.match_indices([':', ',']).map(|(at, _)| &line[..at]);
        ends.chain([line]).any(|path| self.paths.contains(path))
    }
}

#[cfg(test)]
pub(crate) mod tests;
