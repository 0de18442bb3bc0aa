//! Turns the bytes of fuzz targets into temporary files, directories and pieces.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{MemfdFlags, memfd_create};
use tempfile::TempDir;

/// A file that needs no directory.
pub(crate) fn memory_file(bytes: &[u8]) -> File {
    let file = memfd_create("fuzzing", MemfdFlags::CLOEXEC).expect("a file in memory");
    let file = File::from(file);
    file.write_all_at(bytes, 0).expect("memory takes it");
    file
}

/// A temporary directory, in memory where that exists.
pub(crate) fn scratch() -> TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.expect("a directory")
}

/// Cuts bytes into `N` pieces: each but the last is preceded by its length in two bytes, and takes what is left if
/// there are fewer bytes.
pub(crate) fn pieces<const N: usize>(mut bytes: &[u8]) -> [&[u8]; N] {
    let mut pieces = [&bytes[..0]; N];
    let (last, others) = pieces.split_last_mut().expect("one at least");
    for piece in others {
        let (len, rest) = bytes.split_first_chunk::<2>().unwrap_or((&[0; 2], &[]));
        let len = usize::from(u16::from_le_bytes(*len)).min(rest.len());
        (*piece, bytes) = rest.split_at(len);
    }
    *last = bytes;
    pieces
}
