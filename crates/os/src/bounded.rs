//! Bounded reading of files, texts and lists that others may have written.
//!
//! The author of a file or request must not determine how much memory reading it takes.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::marker::PhantomData;
use std::path::Path;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};

/// Longest path that a system call accepts on Linux, in bytes.
pub const PATH_BYTES_MAX: usize = 4096;
/// Longest glob, policy name or other text of a rule or a hint, in bytes.
pub const TEXT_BYTES_MAX: usize = 4096;
/// Limit for a small file that we wrote ourselves (a label, a binding, an origin mark), in bytes.
pub const SMALL_FILE_BYTES_MAX: u64 = 1 << 20;

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

/// Reads the file at `path`, if it has at most `bytes_max` bytes.
///
/// # Errors
/// As [`read_from`].
pub fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    read_from(File::open(path)?, bytes_max)
}

/// The same, for text.
///
/// # Errors
/// As [`read_from`], and `InvalidData` if it is not UTF-8.
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
