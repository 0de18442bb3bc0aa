//! What a new file system has in its root, besides nothing: a directory `lost+found`.

use std::ffi::OsStr;
use std::os::fd::AsFd;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::beneath;

/// Its name.
pub const NAME: &str = "lost+found";

/// Whether the entry `name` of an open directory is one in which nothing was found: an empty directory of root's. Others cannot
/// look into root's, and only a check of the file system puts something there.
pub fn is_it(dir: impl AsFd, name: &OsStr) -> bool {
    if name != NAME {
        return false;
    }
    let Ok(found) = rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) else { return false };
    if FileType::from_raw_mode(found.st_mode) != FileType::Directory || found.st_uid != 0 {
        return false;
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(&dir, name, flags, Mode::empty()) {
        Ok(opened) => beneath::names(opened).is_ok_and(|names| names.is_empty()),
        Err(errno) => errno == Errno::ACCESS,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    #[test]
    fn only_an_empty_directory_of_roots_with_that_name_is_it() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = File::open(scratch.path()).unwrap();
        let path = scratch.path().join(NAME);
        let is = || is_it(&dir, OsStr::new(NAME));
        assert!(!is());
        fs::write(&path, "").unwrap();
        assert!(!is(), "a file");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert_eq!(is(), rustix::process::geteuid().is_root());
        fs::create_dir(scratch.path().join("lost")).unwrap();
        assert!(!is_it(&dir, OsStr::new("lost")));
        fs::write(path.join("#1234"), "found").unwrap();
        assert!(!is(), "it has something");
    }
}
