//! The file that calibration reads and writes, and a buffer that direct I/O accepts.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::device::ServerFile;
use halocline_os::error::{Error, Result};

/// Alignment that direct I/O needs on every common file system.
const ALIGNMENT: usize = 4096;

/// An unnamed file on the server.
#[derive(Debug)]
pub(super) struct Scratch {
    pub(super) file: ServerFile,
    /// Whether it bypasses the page cache.
    pub(super) direct: bool,
}

impl Scratch {
    /// Creates the file in `dir` and removes its name at once. Falls back to the page cache if the file system has no
    /// direct I/O.
    pub(super) fn create(dir: &Path, direct: bool) -> Result<Self> {
        let path = dir.join(format!(".halocline-calibrate-{}", std::process::id()));
        let open = |flags: i32| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create_new(true).mode(0o600).custom_flags(flags);
            let file = options.open(&path);
            // An existing file belongs to someone else.
            if file.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists) {
                return file;
            }
            // A refused direct open may leave the file behind.
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => file.and(Err(error)),
                _ => file,
            }
        };
        let opened: io::Result<(File, bool)> = match direct.then(|| open(libc::O_DIRECT)) {
            Some(Ok(file)) => Ok((file, true)),
            Some(Err(error)) if error.raw_os_error() != Some(libc::EINVAL) => Err(error),
            _ => open(0).map(|file| (file, false)),
        };
        let (file, direct) = opened.map_err(Error::at(&path, "create a scratch file"))?;
        let file = ServerFile::new(file).map_err(Error::at(&path, "stat"))?;
        Ok(Self { file, direct })
    }
}

/// Bytes with the alignment that direct I/O needs.
#[derive(Debug)]
pub(super) struct AlignedBuffer {
    bytes: Vec<u8>,
    start: usize,
}

impl AlignedBuffer {
    pub(super) fn new(len: u64) -> Self {
        let len = usize::try_from(len).expect("a request fits memory");
        // Neither zeros nor one repeated byte, which some devices store at no cost.
        let bytes: Vec<u8> = (0_u32..).map(byte).take(len + ALIGNMENT).collect();
        let start = bytes.as_ptr().align_offset(ALIGNMENT);
        Self { bytes, start }
    }

    /// The first `len` bytes.
    pub(super) fn bytes(&mut self, len: u64) -> &mut [u8] {
        let len = usize::try_from(len).expect("a request fits memory");
        &mut self.bytes[self.start..self.start + len]
    }
}

fn byte(at: u32) -> u8 {
    at.wrapping_mul(0x9e37_79b1).to_le_bytes()[3]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a file with this name was removed, and then reported as the obstacle.
    #[test]
    fn a_file_of_the_same_name_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(format!(".halocline-calibrate-{}", std::process::id()));
        fs::write(&path, "somebody's").unwrap();
        assert!(Scratch::create(dir.path(), false).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"somebody's");
        fs::remove_file(&path).unwrap();
        Scratch::create(dir.path(), false).unwrap();
        assert!(!path.exists());
    }
}
