//! The real device: system calls on a directory of a mounted file system.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use halocline_model::request::ByteRange;
use rustix::io::Errno;

use super::{Device, ServerFile, Space};
use halocline_os::error::{Error, Result};
use halocline_vfs::Allocate;

/// Limit of buffers for one vectored system call on Linux (`UIO_MAXIOV`).
const IOV_MAX: usize = 1024;

/// A directory of a mounted file system, without any decoration.
#[derive(Debug)]
pub struct LocalDevice {
    dir: File,
}

impl LocalDevice {
    /// A device over the file system that holds `dir`.
    pub fn open(dir: &Path) -> Result<Self> {
        let mut options = OpenOptions::new();
        // Opening another kind of file could block: a FIFO waits for a writer.
        options.read(true).custom_flags(libc::O_DIRECTORY);
        let dir = options.open(dir).map_err(Error::at(dir, "open the server's directory"))?;
        Ok(Self { dir })
    }
}

impl Device for LocalDevice {
    fn read_at(
        &self,
        file: &ServerFile,
        offset: u64,
        bufs: &mut [IoSliceMut<'_>],
    ) -> io::Result<usize> {
        let (file, mut rest, mut done) = (file.local()?, bufs, 0);
        while !rest.is_empty() {
            let batch = rest.len().min(IOV_MAX);
            if rest[..batch].iter().all(|buf| buf.is_empty()) {
                rest = &mut rest[batch..];
                continue;
            }
            match rustix::io::preadv(file, &mut rest[..batch], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => {
                    done += count;
                    IoSliceMut::advance_slices(&mut rest, count);
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(done)
    }

    fn write_at(&self, file: &ServerFile, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        let (file, mut at) = (file.local()?, offset);
        for batch in bufs.chunks(IOV_MAX) {
            let len = batch.iter().map(|buf| buf.len() as u64).sum::<u64>();
            write_batch(file, at, len, batch)?;
            at += len;
        }
        Ok(())
    }

    fn allocate(&self, file: &ServerFile, range: ByteRange, how: Allocate) -> io::Result<()> {
        let file = file.local()?;
        retry(|| rustix::fs::fallocate(file, how.mode(), range.start, range.len()))
    }

    fn truncate(&self, file: &ServerFile, len: u64) -> io::Result<()> {
        let file = file.local()?;
        retry(|| rustix::fs::ftruncate(file, len))
    }

    fn sync(&self, file: &ServerFile, data_only: bool) -> io::Result<()> {
        let file = file.local()?;
        retry(|| if data_only { rustix::fs::fdatasync(file) } else { rustix::fs::fsync(file) })
    }

    fn space(&self) -> io::Result<Space> {
        let stat = rustix::fs::fstatvfs(&self.dir)?;
        Ok(Space {
            total: stat.f_blocks.saturating_mul(stat.f_frsize),
            available: stat.f_bavail.saturating_mul(stat.f_frsize),
            // Some file systems create inodes on demand, and report no number.
            no_files: stat.f_files > 0 && stat.f_favail == 0,
            is_read_only: stat.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY),
        })
    }
}

/// Writes all of `bufs`, which hold `len` bytes; continues after interrupts and short writes.
fn write_batch(file: &File, offset: u64, len: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
    if len == 0 {
        return Ok(());
    }
    let first = interruptible(|| rustix::io::pwritev(file, bufs, offset))?;
    if first as u64 == len {
        return Ok(());
    }
    let mut copy = bufs.to_vec();
    let mut rest = copy.as_mut_slice();
    let (mut done, mut count) = (0, first);
    loop {
        if count == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        done += count as u64;
        if done == len {
            return Ok(());
        }
        IoSlice::advance_slices(&mut rest, count);
        count = interruptible(|| rustix::io::pwritev(file, rest, offset + done))?;
    }
}

fn interruptible<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

fn retry(call: impl FnMut() -> rustix::io::Result<()>) -> io::Result<()> {
    interruptible(call)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch() -> (tempfile::TempDir, LocalDevice, ServerFile) {
        let dir = tempfile::tempdir().unwrap();
        let device = LocalDevice::open(dir.path()).unwrap();
        let file = File::options()
            .create_new(true)
            .read(true)
            .write(true)
            .open(dir.path().join("file"))
            .unwrap();
        (dir, device, ServerFile::new(file).unwrap())
    }

    #[test]
    fn transfers_more_buffers_than_one_system_call_takes() {
        let (_dir, device, file) = scratch();
        let data: Vec<u8> = (0..5 * 3000_u32).map(|at| (at % 251) as u8).collect();
        let bufs: Vec<IoSlice<'_>> = data.chunks(5).map(IoSlice::new).collect();
        device.write_at(&file, 7, &bufs).unwrap();

        let mut back = vec![0; data.len() + 10];
        let mut bufs: Vec<IoSliceMut<'_>> = back.chunks_mut(5).map(IoSliceMut::new).collect();
        assert_eq!(device.read_at(&file, 7, &mut bufs).unwrap(), data.len());
        assert_eq!(back[..data.len()], data[..]);
    }

    #[test]
    fn empty_buffers_are_no_end_of_file() {
        let (_dir, device, file) = scratch();
        let bufs = [IoSlice::new(b""), IoSlice::new(b"abc")];
        device.write_at(&file, 0, &bufs).unwrap();
        let (mut none, mut some) = ([0; 0], [0; 3]);
        let mut bufs: Vec<IoSliceMut<'_>> = (0..1500).map(|_| IoSliceMut::new(&mut [])).collect();
        bufs.push(IoSliceMut::new(&mut none));
        bufs.push(IoSliceMut::new(&mut some));
        assert_eq!(device.read_at(&file, 0, &mut bufs).unwrap(), 3);
        assert_eq!(&some, b"abc");
    }

    #[test]
    fn punched_ranges_read_as_zeros_and_free_blocks() {
        let (_dir, device, file) = scratch();
        device.write_at(&file, 0, &[IoSlice::new(&[1; 3 * 4096])]).unwrap();
        device.sync(&file, true).unwrap();
        let before = file.allocated().unwrap();
        device.allocate(&file, ByteRange::at(4096, 4096), Allocate::PunchHole).unwrap();
        assert_eq!(file.allocated().unwrap(), before - 4096);
        let mut back = [9; 3 * 4096];
        device.read_at(&file, 0, &mut [IoSliceMut::new(&mut back)]).unwrap();
        assert!(back[4096..8192].iter().all(|&byte| byte == 0));
        assert!(back[8192..].iter().all(|&byte| byte == 1));
    }

    /// Regression: `calibrate` of a FIFO blocked indefinitely.
    #[test]
    fn only_a_directory_is_opened() {
        let (dir, ..) = scratch();
        let fifo = dir.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).unwrap();
        for path in [dir.path().join("file"), fifo] {
            assert_eq!(LocalDevice::open(&path).unwrap_err().errno(), libc::ENOTDIR);
        }
    }

    #[test]
    fn errors_pass_through_unchanged() {
        let (dir, device, _) = scratch();
        let read_only = ServerFile::new(File::open(dir.path().join("file")).unwrap()).unwrap();
        let error = device.write_at(&read_only, 0, &[IoSlice::new(b"x")]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBADF));
    }
}
