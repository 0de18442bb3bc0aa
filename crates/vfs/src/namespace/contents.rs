//! The bytes of a regular file of the tree, for engines that keep them in one file.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::fs::{fdatasync, fsync};

use crate::Seek;
use halocline_os::error::Result;

/// Reads at `offset`; the result is short only at the end of the file.
pub fn read(file: &File, offset: u64, buf: &mut [u8]) -> Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match file.read_at(&mut buf[done..], offset + done as u64)? {
            0 => break,
            count => done += count,
        }
    }
    Ok(done)
}

/// Makes the file durable.
pub fn sync(file: &File, data_only: bool) -> Result<()> {
    Ok(if data_only { fdatasync(file) } else { fsync(file) }?)
}

/// Position of the next data or hole at or after `offset`; `ENXIO` past the end.
pub fn seek(file: &File, offset: u64, what: Seek) -> Result<u64> {
    Ok(rustix::fs::seek(file, what.at(offset))?)
}
