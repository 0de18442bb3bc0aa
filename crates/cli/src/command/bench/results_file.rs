//! Results of a long benchmark that are kept in a file, a line of JSON for each, so that a run that was ended goes on.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use halocline_os::bounded;
use halocline_os::error::Error;
use rustix::fs::OFlags;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::failure::Failure;
use crate::{output, text};

/// Limit of the file in bytes: some hundred times what the results of one run take.
const BYTES_MAX: u64 = 1 << 24;

/// A result, and by which program it was made.
#[derive(Debug, Serialize, Deserialize)]
struct Line<R> {
    program: String,
    #[serde(flatten)]
    result: R,
}

/// The results in a file.
#[derive(Debug)]
pub(super) struct ResultsFile<R> {
    path: PathBuf,
    file: File,
    program: String,
    results: Vec<R>,
}

impl<R: Serialize + DeserializeOwned> ResultsFile<R> {
    /// Those of `benchmark` in the file at `path`, which is made if it is not there. Results of another program are left
    /// out. So is a last line without its end: the run was ended while it wrote that.
    ///
    /// # Errors
    /// A file that has anything else in it.
    pub(super) fn open(path: &Path, benchmark: &str) -> Result<Self, Failure> {
        let failed = |error| Failure::from(Error::at(path, "keep results in")(error));
        let file = output::open(path, OFlags::RDWR | OFlags::APPEND, output::FOR_ALL);
        let file = file.map_err(failed)?;
        if !file.metadata().map_err(failed)?.is_file() {
            let path = text::path(path);
            return Err(Failure::refused(format!("{path}: not a file; name one with --results")));
        }
        let program = program().map_err(failed)?;
        let mut kept = Self { path: path.to_owned(), file, program, results: Vec::new() };
        let content = bounded::read_to_string(path, BYTES_MAX);
        let content = content.map_err(|error| Failure::unreadable(path, &error))?;
        let whole = content.rfind('\n').map_or(0, |end| end + 1);
        for (number, line) in (1..).zip(content[..whole].lines()) {
            let line: Line<R> = serde_json::from_str(line).map_err(|_| {
                let path = text::path(path);
                Failure::refused(format!(
                    "{path}, line {number}: not a result of {benchmark}; name another file with --results"
                ))
            })?;
            if line.program == kept.program {
                kept.results.push(line.result);
            }
        }
        if whole < content.len() {
            kept.file.set_len(whole as u64).map_err(failed)?;
        }
        Ok(kept)
    }

    /// What the file had in it when it was opened.
    pub(super) fn results(&self) -> &[R] {
        &self.results
    }

    /// Adds a result.
    pub(super) fn add(&mut self, result: R) -> Result<(), Failure> {
        let line = Line { program: self.program.clone(), result };
        let mut line =
            serde_json::to_string(&line).map_err(|error| Failure::failed(error.to_string()))?;
        line.push('\n');
        let written = self.file.write_all(line.as_bytes()).and_then(|()| self.file.sync_data());
        written.map_err(Error::at(&self.path, "keep results in"))?;
        Ok(())
    }
}

/// `; about 2 min left`, where so many of all requests took so long.
#[expect(clippy::cast_precision_loss, reason = "an estimate for people")]
pub(super) fn left(seconds: f64, done: usize, all: usize) -> String {
    if done == 0 {
        return String::new();
    }
    let left = seconds / done as f64 * all.saturating_sub(done) as f64;
    format!("; about {} left", text::seconds(left.round()))
}

/// The sum of this program's bytes: results of another one are not comparable.
fn program() -> io::Result<String> {
    let mut program = File::open("/proc/self/exe")?;
    let (mut sum, mut buf) = (Xxh3::new(), vec![0; 1 << 20]);
    loop {
        match program.read(&mut buf)? {
            0 => return Ok(format!("xxh3-128:{:032x}", sum.digest128())),
            bytes => sum.update(&buf[..bytes]),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Count {
        name: String,
        seconds: Option<f64>,
    }

    fn count(name: &str) -> Count {
        Count { name: name.to_owned(), seconds: Some(0.1) }
    }

    fn open(path: &Path) -> Result<ResultsFile<Count>, Failure> {
        ResultsFile::open(path, "bench counting")
    }

    #[test]
    fn what_was_kept_is_found_again() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("results");
        let mut kept = open(&path).unwrap();
        assert_eq!(kept.results(), []);
        kept.add(count("a")).unwrap();
        kept.add(count("b")).unwrap();
        let whole = fs::read_to_string(&path).unwrap();
        assert_eq!(open(&path).unwrap().results(), [count("a"), count("b")]);

        // The run was ended in the middle of a line.
        fs::write(&path, &whole[..whole.len() - 9]).unwrap();
        let mut kept = open(&path).unwrap();
        assert_eq!(kept.results(), [count("a")]);
        kept.add(count("b")).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), whole);

        let other = whole.replacen("xxh3-128:", "xxh3-128:0", 2);
        fs::write(&path, other).unwrap();
        assert_eq!(open(&path).unwrap().results(), [], "of another program");
        fs::write(&path, "a letter\n").unwrap();
        let error = open(&path).unwrap_err();
        assert!(error.message().contains("line 1: not a result of bench counting"), "{error:?}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "a letter\n");
    }

    #[test]
    fn the_time_left_is_by_what_was_done() {
        assert_eq!(left(10.0, 0, 4), "");
        assert_eq!(left(10.0, 1, 4), "; about 30.00 s left");
    }
}
