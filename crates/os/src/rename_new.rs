//! Renames that do not replace anything, even on file systems whose rename supports no flags: NFS, and many FUSE
//! servers.
//!
//! What must hold: whatever already has the new name stays unchanged. A process that is killed in between leaves the
//! file with both names, never with neither.

use std::ffi::OsStr;
use std::os::fd::AsFd;

use rustix::fs::{
    AtFlags, FileType, RenameFlags, Stat, linkat, renameat, renameat_with, statat, unlinkat,
};
use rustix::io::{Errno, Result};

/// Renames `from` to `to`.
///
/// If rename supports no flags, a file gets the new name as a second one and then loses the old one. A directory, which
/// can have only one name, is renamed after a check: an empty directory that someone creates at that very moment is
/// replaced.
///
/// # Errors
/// `EEXIST` if something has the new name; `EINVAL` if the file system supports neither such renames nor second names;
/// and those of `renameat2(2)`.
pub fn rename_new(
    from_dir: impl AsFd,
    from: impl AsRef<OsStr>,
    to_dir: impl AsFd,
    to: impl AsRef<OsStr>,
) -> Result<()> {
    let (from, to) = (from.as_ref(), to.as_ref());
    match renameat_with(&from_dir, from, &to_dir, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            rename_without_flags(&from_dir, from, &to_dir, to)
        }
        other => other,
    }
}

fn rename_without_flags(
    from_dir: &impl AsFd,
    from: &OsStr,
    to_dir: &impl AsFd,
    to: &OsStr,
) -> Result<()> {
    let stat = statat(from_dir, from, AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
        return match statat(to_dir, to, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => renameat(from_dir, from, to_dir, to),
            Ok(_) => Err(Errno::EXIST),
            Err(errno) => Err(errno),
        };
    }
    match linkat(from_dir, from, to_dir, to, AtFlags::empty()) {
        Ok(()) => {}
        Err(Errno::PERM | Errno::NOSYS | Errno::OPNOTSUPP | Errno::MLINK) => {
            return Err(Errno::INVAL);
        }
        // It is ours: a server did it and its answer was lost, or a process was killed before it continued.
        Err(Errno::EXIST) if is_same(&stat, to_dir, to) => {}
        Err(errno) => return Err(errno),
    }
    match unlinkat(from_dir, from, AtFlags::empty()) {
        // After a lost answer the request is repeated to a server that has already done it.
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => {
            // Only if the file certainly keeps the old name.
            if is_same(&stat, from_dir, from) {
                let _undone = unlinkat(to_dir, to, AtFlags::empty());
            }
            Err(errno)
        }
    }
}

/// Whether a name refers to the file with these attributes.
fn is_same(file: &Stat, dir: &impl AsFd, name: &OsStr) -> bool {
    statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|found| (found.st_dev, found.st_ino) == (file.st_dev, file.st_ino))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    type Rename = fn(&fs::File, &OsStr, &fs::File, &OsStr) -> Result<()>;

    /// Both ways, so that they cannot diverge.
    const WAYS: [Rename; 2] = [
        |from_dir, from, to_dir, to| rename_new(from_dir, from, to_dir, to),
        |from_dir, from, to_dir, to| rename_without_flags(from_dir, from, to_dir, to),
    ];

    #[test]
    fn what_has_the_new_name_stays_as_it_is() {
        for (rename, finishes) in WAYS.into_iter().zip([Err(Errno::EXIST), Ok(())]) {
            let scratch = tempfile::tempdir().unwrap();
            let at = |name: &str| scratch.path().join(name);
            let dir = fs::File::open(scratch.path()).unwrap();
            let go = |from: &str, to: &str| rename(&dir, from.as_ref(), &dir, to.as_ref());
            fs::write(at("a"), "a").unwrap();
            fs::write(at("b"), "b").unwrap();
            fs::create_dir(at("empty")).unwrap();
            fs::create_dir(at("dir")).unwrap();
            fs::write(at("dir/inside"), "inside").unwrap();
            std::os::unix::fs::symlink("nowhere", at("link")).unwrap();
            for (from, to) in
                [("a", "b"), ("a", "link"), ("a", "empty"), ("dir", "empty"), ("dir", "b")]
            {
                assert_eq!(go(from, to), Err(Errno::EXIST), "{from} to {to}");
            }
            assert_eq!(fs::read(at("b")).unwrap(), b"b");
            go("a", "new").unwrap();
            assert_eq!(fs::read(at("new")).unwrap(), b"a");
            go("link", "new link").unwrap();
            assert_eq!(fs::read_link(at("new link")).unwrap().as_os_str(), "nowhere");
            go("dir", "new dir").unwrap();
            assert_eq!(fs::read(at("new dir/inside")).unwrap(), b"inside");
            // What a process that was killed in between left is completed, if it could have been left.
            fs::hard_link(at("new"), at("newer")).unwrap();
            assert_eq!(go("new", "newer"), finishes);
            assert_eq!(at("new").exists(), finishes.is_err());
            assert_eq!(fs::read(at("newer")).unwrap(), b"a");
            for gone in ["a", "link", "dir"] {
                assert!(at(gone).symlink_metadata().is_err(), "{gone}");
                assert_eq!(go(gone, "other"), Err(Errno::NOENT));
            }
        }
    }
}
