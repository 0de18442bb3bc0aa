//! Results of `bench advise` that are kept in a file, a line of JSON for each, so that a run that was ended goes on.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use halocline_os::bounded;
use halocline_os::error::Error;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use super::{Case, Row};
use crate::failure::Failure;
use crate::{output, text};

/// Limit of the file in bytes: some hundred times what all workloads take.
const BYTES_MAX: u64 = 1 << 24;

/// A result, and by which program it was made.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    program: String,
    quick: bool,
    row: Row,
}

/// The results in a file.
#[derive(Debug)]
pub(super) struct ResultsFile {
    path: PathBuf,
    file: File,
    program: String,
    quick: bool,
    rows: Vec<Row>,
}

impl ResultsFile {
    /// Those in the file at `path`, which is made if it is not there. Results of another program, or of workloads of
    /// another size, are left out. So is a last line without its end: the run was ended while it wrote that.
    ///
    /// # Errors
    /// A file that has anything else in it.
    pub(super) fn open(path: &Path, quick: bool) -> Result<Self, Failure> {
        let failed = |error| Failure::from(Error::at(path, "keep results in")(error));
        let file = output::open(path, OFlags::RDWR | OFlags::APPEND, output::FOR_ALL);
        let file = file.map_err(failed)?;
        if !file.metadata().map_err(failed)?.is_file() {
            let path = text::path(path);
            return Err(Failure::refused(format!("{path}: not a file; name one with --results")));
        }
        let program = program().map_err(failed)?;
        let mut kept = Self { path: path.to_owned(), file, program, quick, rows: Vec::new() };
        let content = bounded::read_to_string(path, BYTES_MAX);
        let content = content.map_err(|error| Failure::unreadable(path, &error))?;
        let whole = content.rfind('\n').map_or(0, |end| end + 1);
        for (number, line) in (1..).zip(content[..whole].lines()) {
            let line: Line = serde_json::from_str(line).map_err(|_| {
                let path = text::path(path);
                Failure::refused(format!(
                    "{path}, line {number}: not a result of bench advise; name another file with --results"
                ))
            })?;
            if line.program == kept.program && line.quick == quick {
                kept.rows.push(line.row);
            }
        }
        if whole < content.len() {
            kept.file.set_len(whole as u64).map_err(failed)?;
        }
        Ok(kept)
    }

    /// The result for `case`, if there is one.
    pub(super) fn find(&self, case: &Case) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == case.name && row.what == case.what)
    }

    /// Adds a result.
    pub(super) fn add(&mut self, row: &Row) -> Result<(), Failure> {
        let line = Line { program: self.program.clone(), quick: self.quick, row: row.clone() };
        let mut line =
            serde_json::to_string(&line).map_err(|error| Failure::failed(error.to_string()))?;
        line.push('\n');
        let written = self.file.write_all(line.as_bytes()).and_then(|()| self.file.sync_data());
        written.map_err(Error::at(&self.path, "keep results in"))?;
        Ok(())
    }
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
    use std::collections::BTreeMap;
    use std::fs;

    use super::*;

    fn case(name: &'static str) -> Case {
        Case { name, what: "some".into(), requests: Vec::new(), disks: 1, ssds: 1, ssd_bytes: 1 }
    }

    fn row(name: &str) -> Row {
        Row {
            name: name.into(),
            what: "some".into(),
            requests: 7,
            bytes: 8,
            ssd_bytes: 9,
            simulated_seconds: BTreeMap::from([
                ("none".to_owned(), Some(0.1)),
                ("tier".to_owned(), None),
            ]),
            emulated_seconds: BTreeMap::new(),
            advised: "none".into(),
            stays: 0.9,
            fastest: "none".into(),
            lost: 0.0,
            agrees: true,
        }
    }

    #[test]
    fn what_was_kept_is_found_again() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("results");
        let mut kept = ResultsFile::open(&path, true).unwrap();
        assert_eq!(kept.find(&case("a")), None);
        kept.add(&row("a")).unwrap();
        kept.add(&row("b")).unwrap();
        let whole = fs::read_to_string(&path).unwrap();
        let kept = ResultsFile::open(&path, true).unwrap();
        assert_eq!((kept.find(&case("a")), kept.find(&case("c"))), (Some(&row("a")), None));
        assert_eq!(
            ResultsFile::open(&path, false).unwrap().find(&case("a")),
            None,
            "of another size"
        );

        // The run was ended in the middle of a line.
        fs::write(&path, &whole[..whole.len() - 9]).unwrap();
        let mut kept = ResultsFile::open(&path, true).unwrap();
        assert_eq!((kept.find(&case("a")), kept.find(&case("b"))), (Some(&row("a")), None));
        kept.add(&row("b")).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), whole);

        let other = whole.replacen("xxh3-128:", "xxh3-128:0", 2);
        fs::write(&path, other).unwrap();
        assert_eq!(
            ResultsFile::open(&path, true).unwrap().find(&case("a")),
            None,
            "of another program"
        );
        fs::write(&path, "a letter\n").unwrap();
        let error = ResultsFile::open(&path, true).unwrap_err();
        assert!(error.message().contains("line 1: not a result of bench advise"), "{error:?}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "a letter\n");
    }
}
