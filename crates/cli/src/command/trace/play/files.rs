//! The files of a trace below a directory.
//!
//! What must hold: nothing outside of the directory is touched, whatever names and links there are, and no byte of a file
//! that an earlier `trace play` did not make is changed.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use halocline_os::beneath;
use halocline_os::error::Error;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_64;

use super::script::{Script, TraceFile};
use crate::command::bench::content::Content;
use crate::failure::Failure;
use crate::text;

/// Bytes that are written at a time.
const PIECE: u64 = 1 << 20;
/// The last bytes of a file, by which one that `trace play` made is known.
const KNOWN_BY: usize = 8;

/// The directory below which the files are.
#[derive(Debug)]
pub(super) struct Files {
    dir: OwnedFd,
    path: PathBuf,
}

/// The bytes of the file at `path` below the directory, whichever trace it is of.
pub(super) fn content_of(path: &Path) -> Content {
    Content::new(0, xxh3_64(path.as_os_str().as_bytes()), 0)
}

impl Files {
    /// Those below `dir`, which is there.
    pub(super) fn below(dir: &Path) -> Result<Self, Failure> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(dir, flags, Mode::empty());
        let opened = opened.map_err(|errno| Failure::unusable(dir, &errno.into()))?;
        Ok(Self { dir: opened, path: dir.to_owned() })
    }

    /// The file at `path`, to read and write.
    pub(super) fn open(&self, path: &Path) -> rustix::io::Result<File> {
        // A name may be a pipe or a device, whose opening must not wait.
        let flags = OFlags::RDWR | OFlags::NONBLOCK;
        beneath::open(&self.dir, path, flags, Mode::empty()).map(File::from)
    }

    /// Makes the files that are not there, and writes what will be read of them. Everything is checked first. `went_on` is
    /// told how many bytes more were written, and may end it. Returns the bytes written.
    pub(super) fn prepare(
        &self,
        script: &Script,
        went_on: &mut dyn FnMut(u64) -> Result<(), Failure>,
    ) -> Result<u64, Failure> {
        let mut missing = 0_u64;
        for file in script.files() {
            let len = self.look(file)?.unwrap_or(0);
            missing = missing.saturating_add(file.end.saturating_sub(len));
        }
        let space = rustix::fs::fstatvfs(&self.dir).map_err(std::io::Error::from);
        let space = space.map_err(Error::at(&self.path, "ask for free space"))?;
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        if missing > free {
            return Err(Failure::refused(format!(
                "{}: the files of the trace take {} more, and {} are free: free some, or play a smaller trace",
                text::path(&self.path),
                text::bytes(missing),
                text::bytes(free)
            )));
        }
        let mut written = 0;
        for file in script.files() {
            written += self.make(file, went_on)?;
        }
        Ok(written)
    }

    /// How long a file is that is there; an error if `trace play` did not make it.
    fn look(&self, file: &TraceFile) -> Result<Option<u64>, Failure> {
        let shown = self.path.join(&file.path);
        let opened = match self.open(&file.path) {
            Err(Errno::NOENT) => return Ok(None),
            opened => opened.map_err(|errno| Failure::unusable(&shown, &errno.into()))?,
        };
        let at = |error| Failure::from(Error::at(&shown, "read")(error));
        let found = opened.metadata().map_err(at)?;
        let len = found.len();
        let last = usize::try_from(len).unwrap_or(KNOWN_BY).min(KNOWN_BY);
        let (mut is, mut should_be) = ([0; KNOWN_BY], [0; KNOWN_BY]);
        let (is, should_be) = (&mut is[..last], &mut should_be[..last]);
        let offset = len - last as u64;
        if found.is_file() {
            opened.read_exact_at(is, offset).map_err(at)?;
            content_of(&file.path).fill(offset, should_be);
        }
        if !found.is_file() || is != should_be {
            let shown = text::path(&shown);
            return Err(Failure::refused(format!(
                "{shown} is there, and no file that trace play made: name another directory"
            )));
        }
        Ok(Some(len))
    }

    /// Makes a file, unless it is there, and writes what is missing of it if it will be read.
    fn make(
        &self,
        file: &TraceFile,
        went_on: &mut dyn FnMut(u64) -> Result<(), Failure>,
    ) -> Result<u64, Failure> {
        let shown = self.path.join(&file.path);
        let at = |error| Failure::from(Error::at(&shown, "write")(error));
        let opened = match self.open(&file.path) {
            Err(Errno::NOENT) => self.create(&file.path),
            opened => opened,
        };
        let opened = opened.map_err(|errno| at(errno.into()))?;
        if !file.is_read {
            return Ok(0);
        }
        let begin = opened.metadata().map_err(at)?.len();
        let (content, mut offset, mut piece) = (content_of(&file.path), begin, Vec::new());
        while offset < file.end {
            let len = PIECE.min(file.end - offset);
            piece.resize(usize::try_from(len).expect("a piece"), 0);
            content.fill(offset, &mut piece);
            opened.write_all_at(&piece, offset).map_err(at)?;
            offset += len;
            went_on(len)?;
        }
        Ok(offset - begin)
    }

    /// A file that is not there, and the directories above it.
    fn create(&self, path: &Path) -> rustix::io::Result<File> {
        let above: Vec<&Path> = path.ancestors().skip(1).collect();
        for dir in above.into_iter().rev().filter(|dir| !dir.as_os_str().is_empty()) {
            let (parent, name) = beneath::parent(std::os::fd::AsFd::as_fd(&self.dir), dir)?;
            match rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o777)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        beneath::open(&self.dir, path, flags, Mode::from_raw_mode(0o666)).map(File::from)
    }
}
