//! The trace of a mount's requests: its file, and the messages about it.
//!
//! What must hold: a trace with requests is replaced by nothing that has none. A mistyped `--origin`, or a program that does not
//! start, must cost nobody the trace of a run of hours.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use halocline_api::config::Config;
use halocline_os::counted::counted;
use halocline_os::error::{Error, Result};
use halocline_trace::record::{Progress, Recorder};
use halocline_trace::{Kind, Reader, Source};
use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;

use crate::mount_paths::MountPaths;
use crate::output;
use crate::text;

/// First bytes of every trace.
pub(crate) const MAGIC: &[u8] = b"\x89HCT";

/// A trace being recorded.
#[derive(Debug)]
pub(crate) struct Recording {
    path: PathBuf,
    recorder: Arc<Recorder>,
    /// Whether the file has another trace, with requests, until this one has some.
    is_over_another: bool,
}

/// A file whose contents are replaced by what is first written.
struct FromFirstWrite {
    file: File,
    is_begun: bool,
}

impl Write for FromFirstWrite {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.is_begun {
            self.file.set_len(0)?;
            self.file.rewind()?;
            self.is_begun = true;
        }
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Whether there is a trace at `path` that has requests.
pub(crate) fn has_requests(path: &Path) -> bool {
    let is_file = fs::metadata(path).is_ok_and(|found| found.is_file());
    is_file && File::open(path).is_ok_and(|file| has_requests_in(&file))
}

fn has_requests_in(file: &File) -> bool {
    let Ok(mut reader) = Reader::new(BufReader::new(file)) else { return false };
    matches!(reader.next_block(), Ok(Some(_)))
}

/// Checks, before anything changes, that a trace can be written to `path`.
pub(crate) fn check(path: &Path) -> Result<()> {
    if path.exists() {
        return open(path).map(drop);
    }
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match rustix::fs::access(dir, rustix::fs::Access::WRITE_OK) {
        Err(Errno::NOENT) => Err(Error::invalid(
            format!("{}: cannot write the trace: there is no such directory", text::path(path)),
            "create it, or correct the path",
        )),
        writable => writable.map_err(|errno| Error::at(path, "write the trace")(errno.into())),
    }
}

/// Opens it; existing contents are kept. A file that is neither empty nor a trace is not replaced.
fn open(path: &Path) -> Result<File> {
    let at = |error| Error::at(path, "write the trace")(error);
    // It may contain names of files in directories that are closed to others.
    let mut file = output::open(path, OFlags::RDWR, 0o600).map_err(at)?;
    let known = file.metadata().map_err(at)?;
    let refused =
        |what: &str, remedy| Err(Error::invalid(format!("{}: {what}", text::path(path)), remedy));
    if !known.is_file() {
        return refused("not a regular file", "name a file for the trace");
    }
    let mut begin = [0; MAGIC.len()];
    if known.len() > 0 && (file.read_exact(&mut begin).is_err() || begin != MAGIC) {
        return refused(
            "it is there and no trace",
            "name another file for the trace, or remove this one",
        );
    }
    if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return refused("another mount records into it", "name another file for the trace");
    }
    Ok(file)
}

impl Recording {
    /// Begins a trace of future requests to a mount. An existing one is replaced, but one with requests only by the first
    /// request.
    pub(crate) fn begin(path: &Path, paths: &MountPaths, config: &Config) -> Result<Arc<Self>> {
        let at = |error| Error::at(path, "write the trace")(error);
        let mut file = open(path)?;
        file.rewind().map_err(at)?;
        let is_over_another = has_requests_in(&file);
        let kind = if config.direct { Kind::MountDirect } else { Kind::Mount };
        let name = paths.mountpoint.as_os_str().as_bytes().to_vec();
        let source = Source { kind, name, resolution_ns: 1 };
        let out = FromFirstWrite { file, is_begun: false };
        let recorder = if is_over_another {
            Recorder::start_over(out, &source)
        } else {
            Recorder::start(out, &source)
        };
        let recorder = recorder.map_err(|error| {
            Error::invalid(
                format!("{}: {error}", text::path(path)),
                "name another file for the trace",
            )
        })?;
        // The mount process leaves its working directory.
        let path = std::path::absolute(path)?;
        Ok(Arc::new(Self { path, recorder: Arc::new(recorder), is_over_another }))
    }

    /// The recorder for requests.
    pub(crate) fn recorder(&self) -> &Arc<Recorder> {
        &self.recorder
    }

    /// Ends the trace. No requests may follow.
    pub(crate) fn end(&self) {
        let done = self.recorder.finish();
        let told = self.tell(&done);
        if done.lost > 0 || done.error.is_some() || self.keeps_another(&done) {
            tracing::warn!("{told}");
        } else {
            tracing::info!("{told}");
        }
    }

    /// Why nothing more is recorded, or why the file has another trace than this one, in a sentence, if that is so.
    pub(crate) fn failure(&self) -> Option<String> {
        let progress = self.recorder.progress();
        let is_failed = progress.error.is_some() || self.keeps_another(&progress);
        is_failed.then(|| self.tell(&progress))
    }

    /// The file, if its trace is this one.
    pub(crate) fn own_path(&self) -> Option<&Path> {
        (!self.keeps_another(&self.recorder.progress())).then_some(&self.path)
    }

    /// Whether nothing is recorded.
    pub(crate) fn is_empty(&self) -> bool {
        self.recorder.progress().requests == 0
    }

    const fn keeps_another(&self, progress: &Progress) -> bool {
        self.is_over_another && progress.requests == 0
    }

    /// Its progress, in a sentence.
    pub(crate) fn state(&self) -> String {
        self.tell(&self.recorder.progress())
    }

    fn tell(&self, progress: &Progress) -> String {
        let count =
            |number: u64, what| counted(usize::try_from(number).unwrap_or(usize::MAX), what);
        let path = text::path(&self.path);
        let mut told = format!("trace {path}: {} recorded", count(progress.requests, "request"));
        if progress.lost > 0 {
            let _ = write!(told, ", {} missing", progress.lost);
        }
        if progress.unseen_opens > 0 {
            let opens = count(progress.unseen_opens, "open file");
            let _ =
                write!(told, ", none of {opens} that the kernel serves (--direct records them)");
        }
        if let Some(error) = &progress.error {
            let _ = write!(told, "; nothing more is: {error}");
        }
        if self.keeps_another(progress) {
            told.push_str("; the earlier trace there is kept");
        }
        told
    }
}
