//! The files of a trace below a directory.
//!
//! What must hold: nothing outside of the directory is touched, whatever names and links there are, and no byte of a file
//! that an earlier `trace play` did not make is changed.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use halocline_os::beneath;
use halocline_os::error::Error;
use rustix::fs::{Mode, OFlags, XattrFlags};
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

/// The attribute of a file that says how many bytes from its beginning on are all written. What lies beyond may have holes,
/// which a play that was interrupted, or one that left bytes out, has made; a hole before is an error, as any wrong byte is.
const WHOLE: &str = "user.halocline-play.whole";

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

    /// How many bytes of a file are there; an error if `trace play` did not make it.
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
        // Holes of an earlier play are filled.
        let stored = if file.is_read && whole(&opened) < len { found.blocks() * 512 } else { len };
        Ok(Some(len.min(stored)))
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
        let known = whole(&opened);
        let mut written = 0;
        let (content, mut offset) = (content_of(&file.path), known.min(begin));
        let (mut piece, mut expected) = (Vec::new(), Vec::new());
        while offset < file.end {
            let is_there = offset < begin;
            let len = PIECE.min(if is_there { begin.min(file.end) } else { file.end } - offset);
            let bytes = usize::try_from(len).expect("a piece");
            expected.resize(bytes, 0);
            content.fill(offset, &mut expected);
            piece.resize(bytes, 0);
            piece.fill(0);
            if is_there {
                opened.read_exact_at(&mut piece, offset).map_err(at)?;
            }
            let filled = fill_holes(&mut piece, &expected);
            if filled > 0 {
                opened.write_all_at(&piece, offset).map_err(at)?;
            }
            written += if is_there { filled } else { len };
            offset += len;
            went_on(len)?;
        }
        if offset > known {
            set_whole(&opened, offset);
        }
        Ok(written)
    }

    /// Notes what the trace that was played has written of its files.
    pub(super) fn note_written(&self, script: &Script) {
        for file in script.files().filter(|file| file.written > 0) {
            if let Ok(opened) = self.open(&file.path)
                && file.written > whole(&opened)
            {
                set_whole(&opened, file.written);
            }
        }
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

/// What is noted of a file; nothing if it is none of ours, or where files have no attributes.
fn whole(file: &File) -> u64 {
    let mut value = [0_u8; 20];
    let len = rustix::fs::fgetxattr(file, WHOLE, &mut value).unwrap_or(0);
    std::str::from_utf8(&value[..len]).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Notes it. Where that is not possible, all of the file is looked at the next time.
fn set_whole(file: &File, bytes: u64) {
    let _ = rustix::fs::fsetxattr(file, WHOLE, bytes.to_string().as_bytes(), XattrFlags::empty());
}

/// Gives zeros the bytes that belong in their place; returns how many those were.
fn fill_holes(piece: &mut [u8], expected: &[u8]) -> u64 {
    let mut filled = 0;
    if piece != expected {
        for (is, should_be) in piece.iter_mut().zip(expected) {
            if *is == 0 && *should_be != 0 {
                *is = *should_be;
                filled += 1;
            }
        }
    }
    filled
}
