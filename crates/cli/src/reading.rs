//! Reads a trace with progress: one of gigabytes takes minutes.

use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use halocline_api::control::Progress;
use halocline_os::bounded;

use crate::failure::Failure;
use crate::progress::Meter;
use crate::text;

/// Bytes that are read at a time.
const PIECE: usize = 1 << 20;

/// A file, from beginning to end.
pub(crate) struct Reading {
    file: File,
    path: PathBuf,
    done: u64,
    total: u64,
    /// Present until the end was read.
    meter: Option<Meter>,
}

/// Opens the file at `path` to be read sequentially; `verb` is the operation, as in "simulating".
pub(crate) fn open(path: &Path, verb: &'static str) -> Result<BufReader<Reading>, Failure> {
    let unreadable = |error| Failure::unreadable(path, &error);
    let file = bounded::open(path).map_err(unreadable)?;
    let found = file.metadata().map_err(unreadable)?;
    // The length of a pipe is unknown.
    let meter = found.is_file().then(|| Meter::new(verb, false));
    let reading = Reading { file, path: path.to_owned(), done: 0, total: found.len(), meter };
    Ok(BufReader::with_capacity(PIECE, reading))
}

/// Refuses what can be read only once, for commands that read a trace several times: a pipe is empty the second time, and
/// the standard input of a process that a command starts is another one.
pub(crate) fn check_repeatable(path: &Path) -> Result<(), Failure> {
    match fs::metadata(path) {
        Ok(found) if found.file_type().is_fifo() => Err(Failure::refused(format!(
            "{}: it is a pipe, and the trace is read several times; write it to a file first",
            text::path(path)
        ))),
        _ => Ok(()),
    }
}

impl Read for Reading {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let got = self.file.read(into)?;
        if got == 0 {
            self.meter = None;
        } else if let Some(meter) = &mut self.meter {
            self.done += got as u64;
            let (done_bytes, total_bytes) = (self.done, self.total.max(self.done));
            meter.tell(&Progress { done_bytes, total_bytes, path: self.path.clone() });
        }
        Ok(got)
    }
}
