//! Bounded reading of files, texts and lists that others may have written.
//!
//! The author of a file or request must not determine how much memory reading it takes.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::marker::PhantomData;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl, fstatfs, major};
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};

/// Longest path that a system call accepts on Linux, in bytes.
pub const PATH_BYTES_MAX: usize = 4096;
/// Longest glob, policy name or other text of a rule or a hint, in bytes.
pub const TEXT_BYTES_MAX: usize = 4096;
/// Limit for a small file that we wrote ourselves (a label, a binding, an origin mark), in bytes.
pub const SMALL_FILE_BYTES_MAX: u64 = 1 << 20;
/// Major number of `/dev/null`, `/dev/zero` and `/dev/urandom` (admin-guide/devices.txt of Linux).
const MEMORY_DEVICES: u32 = 1;
/// The file system of pipes without a name (`linux/magic.h`).
const PIPEFS_MAGIC: rustix::fs::FsWord = 0x5049_5045;

/// Reads at most `bytes_max` bytes from `source`.
///
/// # Errors
/// `InvalidData` if there are more, and any error of reading.
pub fn read_from(source: impl Read, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        let what = format!("it has more than {bytes_max} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    Ok(bytes)
}

/// Opens the file at `path` for reading, where that ends without anybody else doing something: a regular file,
/// `/dev/null` and its like, and a pipe without a name that this process was given, such as `/dev/stdin` or what a
/// shell makes of `<(COMMAND)`.
///
/// A FIFO would wait for somebody to open its other end, a terminal for somebody to type.
///
/// # Errors
/// `InvalidInput` for anything else, `IsADirectory`, and those of the system.
pub fn open(path: &Path) -> io::Result<File> {
    // Opening alone wakes the other end of a FIFO, rewinds a tape, or resets a line.
    let found = std::fs::metadata(path)?;
    let kind = found.file_type();
    if kind.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    let is_memory = kind.is_char_device() && major(found.rdev()) == MEMORY_DEVICES;
    if !(kind.is_file() || kind.is_fifo() || is_memory) {
        return Err(not_regular());
    }
    // Whatever has the name meanwhile: it must not wait.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    let opened = file.metadata()?;
    let (kind, is_same) = (opened.file_type(), opened.rdev() == found.rdev());
    let is_given = kind.is_fifo() && fstatfs(&file)?.f_type == PIPEFS_MAGIC;
    let is_same_memory = is_memory && kind.is_char_device() && is_same;
    if !(kind.is_file() || is_given || is_same_memory) {
        return Err(not_regular());
    }
    let waiting = fcntl_getfl(&file)?.difference(OFlags::NONBLOCK);
    fcntl_setfl(&file, waiting)?;
    Ok(file)
}

fn not_regular() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")
}

/// Reads the file at `path`, if it has at most `bytes_max` bytes.
///
/// # Errors
/// As [`open`] and [`read_from`].
pub fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    read_from(open(path)?, bytes_max)
}

/// The same, for text.
///
/// # Errors
/// As [`read`], and `InvalidData` where it is not UTF-8.
pub fn read_to_string(path: &Path, bytes_max: u64) -> io::Result<String> {
    String::from_utf8(read(path, bytes_max)?)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// For `#[serde(deserialize_with)]`: a list of at most `MAX` elements. The first one beyond that is an error, so that a
/// list never takes more memory than `MAX` elements do.
pub fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>, const MAX: usize>(
    from: D,
) -> Result<Vec<T>, D::Error> {
    struct List<T, const MAX: usize>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for List<T, MAX> {
        type Value = Vec<T>;

        fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(out, "a list of at most {MAX}")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
            let mut list = Vec::new();
            while let Some(element) = seq.next_element()? {
                if list.len() == MAX {
                    return Err(A::Error::custom(format!("the list has more than {MAX} entries")));
                }
                list.push(element);
            }
            Ok(list)
        }
    }
    from.deserialize_seq(List::<T, MAX>(PhantomData))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsRawFd;

    use rustix::fs::{CWD, Mode, mkfifoat};

    use super::*;

    #[test]
    fn a_file_that_never_ends_is_refused() {
        let error = read(Path::new("/dev/zero"), 1000).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert_eq!(read(Path::new("/dev/null"), 0).unwrap(), b"");
        assert_eq!(read_from(&b"abc"[..], 3).unwrap(), b"abc");
        assert!(read_from(&b"abcd"[..], 3).is_err());
    }

    #[test]
    fn what_waits_for_somebody_is_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let fifo = scratch.path().join("fifo");
        mkfifoat(CWD, &fifo, Mode::RUSR | Mode::WUSR).unwrap();
        let link = scratch.path().join("link");
        std::os::unix::fs::symlink(&fifo, &link).unwrap();
        let socket = scratch.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for path in [&*fifo, &link, &socket, Path::new("/dev/ptmx")] {
            let error = read(path, 1000).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{}", path.display());
        }
        let error = read(scratch.path(), 1000).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::IsADirectory);
    }

    #[test]
    fn a_pipe_that_was_given_is_read_to_its_end() {
        let (reader, mut writer) = io::pipe().unwrap();
        let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
        let written = std::thread::spawn(move || {
            // After the reader waits for it.
            std::thread::sleep(std::time::Duration::from_millis(50));
            writer.write_all(b"abc").unwrap();
        });
        assert_eq!(read(Path::new(&path), 3).unwrap(), b"abc");
        written.join().unwrap();
    }

    #[test]
    fn a_list_ends_at_its_bound() {
        let read = |text: &str| {
            let mut from = serde_json::Deserializer::from_str(text);
            list::<_, u8, 3>(&mut from).map_err(|error| error.to_string())
        };
        assert_eq!(read("[1, 2, 3]"), Ok(vec![1, 2, 3]));
        assert!(read("[1, 2, 3, 4]").unwrap_err().contains("more than 3"));
        assert!(read("7").unwrap_err().contains("at most 3"));
    }
}
