//! What stands in the extended attributes of files and directories, so that a scan of the disks finds what they are.
//!
//! Whoever owns a file may write there anything: what is read here is a claim. What must hold: a claim never opens,
//! changes or removes something else than the file or directory that has it.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

use halocline_cluster::names::NAME_BYTES_MAX;
use halocline_model::namespace::Name;
use halocline_os::error::Result;
use halocline_vfs::namespace::xattr;

/// A file's number.
pub(crate) const INODE: &str = "user.halocline.inode";
/// A directory's number.
pub(crate) const DIRECTORY: &str = "user.halocline.directory";
/// The names of a file whose only name is not that of its place.
pub(crate) const NAMES: &str = "user.halocline.names";
/// The move that the old copy of a file leaves by.
pub(crate) const LEAVING: &str = "user.halocline.leaving";
/// The move that the new copy of a file arrives by.
pub(crate) const ARRIVING: &str = "user.halocline.arriving";
/// The longest list of names: what ext4 keeps with small blocks.
const NAMES_BYTES_MAX: usize = 3000;

/// A number that something has, if it has one.
pub(crate) fn number(fd: &impl AsFd, what: &str) -> Option<u64> {
    let value = xattr::get_on(fd, OsStr::new(what)).ok()?;
    let text = std::str::from_utf8(&value).ok()?;
    // One form for each number.
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    text.parse().ok().filter(|_| is_plain)
}

/// Gives something a number.
pub(crate) fn set_number(fd: &impl AsFd, what: &str, number: u64) -> Result<()> {
    xattr::set_on(fd, OsStr::new(what), number.to_string().as_bytes(), 0)
}

/// Takes a mark away. It is no error if it is not there.
pub(crate) fn clear(fd: &impl AsFd, what: &str) -> Result<()> {
    match xattr::remove_on(fd, OsStr::new(what)) {
        Err(error) if matches!(error.errno(), libc::ENODATA | libc::EOPNOTSUPP) => Ok(()),
        other => other,
    }
}

/// Sets an attribute of a program's.
pub(crate) fn set_users(fd: &impl AsFd, name: &[u8], value: &[u8]) -> Result<()> {
    match xattr::set_on(fd, OsStr::from_bytes(name), value, 0) {
        // Where it came from, the file system kept it.
        Err(error) if error.errno() == libc::EOPNOTSUPP => Ok(()),
        other => other,
    }
}

/// The names of a file, each in the directory with a number; empty if they are not listed.
pub(crate) fn names(fd: &impl AsFd) -> Vec<(u64, Name)> {
    let value = xattr::get_on(fd, OsStr::new(NAMES)).unwrap_or_default();
    parse_names(&value).unwrap_or_default()
}

fn parse_names(value: &[u8]) -> Option<Vec<(u64, Name)>> {
    let parse = |part: &[u8]| {
        let colon = part.iter().position(|byte| *byte == b':')?;
        let number = std::str::from_utf8(&part[..colon]).ok()?.parse().ok()?;
        let name = &part[colon + 1..];
        let is_name = !matches!(name, b"" | b"." | b"..")
            && name.len() <= NAME_BYTES_MAX
            && !name.contains(&b'/');
        is_name.then(|| (number, Name::from(name)))
    };
    // A name has every byte but these two; a list ends with NUL.
    value.strip_suffix(b"\0")?.split(|byte| *byte == 0).map(parse).collect()
}

/// Lists the names of a file.
///
/// # Errors
/// `EMLINK` if there are more than fit.
pub(crate) fn set_names(fd: &impl AsFd, names: &[(u64, Name)]) -> Result<()> {
    let mut value = Vec::new();
    for (number, name) in names {
        value.extend(number.to_string().as_bytes());
        value.extend([b":", name.as_bytes(), b"\0"].concat());
    }
    if value.len() > NAMES_BYTES_MAX {
        return Err(rustix::io::Errno::MLINK.into());
    }
    xattr::set_on(fd, OsStr::new(NAMES), &value, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_wrote_is_no_number_and_no_name() {
        let scratch = tempfile::tempfile().unwrap();
        for wrong in ["", "0", "07", "+7", "7 ", "18446744073709551616", "x"] {
            xattr::set_on(&scratch, OsStr::new(INODE), wrong.as_bytes(), 0).unwrap();
            assert_eq!(number(&scratch, INODE), None, "{wrong:?}");
        }
        set_number(&scratch, INODE, u64::MAX).unwrap();
        assert_eq!(number(&scratch, INODE), Some(u64::MAX));
        let odd = Name::from(&b"a\xff\n:~"[..]);
        set_names(&scratch, &[(7, odd.clone()), (8, Name::from("b"))]).unwrap();
        assert_eq!(names(&scratch), [(7, odd), (8, Name::from("b"))]);
        for wrong in ["", "7:a", "7:../a\0", "7:\0", ":a\0", "a\0", "7:..\0", "7:a\0\0"] {
            assert_eq!(parse_names(wrong.as_bytes()), None, "{wrong:?}");
        }
    }
}
