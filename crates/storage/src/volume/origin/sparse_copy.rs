//! Copies the data of an origin's file without its holes.

use std::io;

use halocline_vfs::Seek;
use rustix::io::Errno;

use super::OriginFile;

/// Bytes copied at once: many stripes on every server.
const CHUNK: usize = 4 << 20;

/// Called after each step of a copy with the bytes just passed, including holes.
pub(crate) type Progress<'a> = &'a mut dyn FnMut(u64);

/// Copies the data in the first `len` bytes, each piece to its own offset, into a target that is one hole.
pub(in crate::volume) fn copy_data(
    data: &OriginFile,
    len: u64,
    put: &mut dyn FnMut(u64, &[u8]) -> io::Result<()>,
    progress: Progress<'_>,
) -> io::Result<()> {
    let mut buf = vec![0; CHUNK];
    let mut at = 0;
    while at < len {
        let start = match data.seek(at, Seek::Data) {
            Ok(start) => start,
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NXIO) => len,
            Err(error) => return Err(error),
        };
        progress(start - at);
        at = start;
        let end = if at < len { data.seek(at, Seek::Hole)? } else { len };
        while at < end {
            let want = usize::try_from(end - at).unwrap_or(CHUNK).min(CHUNK);
            let count = data.read_at(at, &mut buf[..want])?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            put(at, &buf[..count])?;
            at += count as u64;
            progress(count as u64);
        }
    }
    Ok(())
}
