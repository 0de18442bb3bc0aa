//! A device that does nothing: measurements on it show our own overhead.

use std::io::{self, IoSlice, IoSliceMut};

use halocline_model::request::ByteRange;

use super::{Device, ServerFile, Space};
use halocline_vfs::Allocate;

/// Accepts every write and forgets it; reads fill whole buffers without accessing them.
#[derive(Debug, Default)]
pub struct NullDevice;

impl Device for NullDevice {
    fn read_at(&self, _: &ServerFile, _: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        Ok(bufs.iter().map(|buf| buf.len()).sum())
    }

    fn write_at(&self, _: &ServerFile, _: u64, _: &[IoSlice<'_>]) -> io::Result<()> {
        Ok(())
    }

    fn allocate(&self, _: &ServerFile, _: ByteRange, _: Allocate) -> io::Result<()> {
        Ok(())
    }

    fn truncate(&self, _: &ServerFile, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn sync(&self, _: &ServerFile, _: bool) -> io::Result<()> {
        Ok(())
    }

    fn space(&self) -> io::Result<Space> {
        Ok(Space { total: u64::MAX, available: u64::MAX, no_files: false, is_read_only: false })
    }
}
