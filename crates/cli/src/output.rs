//! Writes files named by the user: reports, plots, pages, traces, the configuration.
//!
//! In directories where anyone may create names, such as `/tmp`, an entry that someone else created beforehand (a link,
//! a file, a FIFO) is not written through. (Kernels can be configured to prevent that, but not all are.)

mod walk;

use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, Stat, fallocate, fcntl_getfl,
    fcntl_setfl, fstat, linkat, openat, readlinkat, statat, unlinkat,
};
use rustix::io::Errno;
use tempfile::NamedTempFile;

use walk::{End, is_a, is_for_all, walk};

/// Only their owners may remove names.
const STICKY: u32 = 0o1000;
/// The mode of a new file before the umask is applied.
pub(crate) const FOR_ALL: u32 = 0o666;

/// Writes `text` to `file`: it is created or replaced once all is written, so what was there stays where it cannot be.
pub(crate) fn write(file: &Path, text: impl AsRef<[u8]>) -> io::Result<()> {
    let text = text.as_ref();
    let replace = || {
        let new = Replacement::begin(file)?;
        new.file().write_all(text)?;
        new.finish()
    };
    match replace() {
        Err(error) if keeps_names(&error) => overwrite(&walk(file)?, text),
        replaced => replaced,
    }
}

/// Whether a directory gave no new name: it may not be written to, or the name is a mount point of its own.
fn keeps_names(error: &io::Error) -> bool {
    use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem, ResourceBusy};
    matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem | ResourceBusy)
}

/// Writes `text` over what is there, once there is room for all of it.
fn overwrite(end: &End, text: &[u8]) -> io::Result<()> {
    let mut file = open_end(end, OFlags::WRONLY, FOR_ALL)?;
    if !file.metadata()?.is_file() {
        return file.write_all(text);
    }
    let bytes = text.len() as u64;
    match fallocate(&file, FallocateFlags::KEEP_SIZE, 0, bytes.max(1)) {
        // Not every file system can.
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
        Err(errno) => return Err(errno.into()),
    }
    file.write_all(text)?;
    file.set_len(bytes)
}

fn emptied(end: &End) -> io::Result<File> {
    let file = open_end(end, OFlags::WRONLY, FOR_ALL)?;
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    Ok(file)
}

/// Checks whether [`write()`] could write to `path`, which stays as it is; a file that does not exist is created and
/// removed again.
///
/// # Errors
/// The same as for [`write()`].
pub(crate) fn check(path: &Path) -> io::Result<()> {
    let end = walk(path)?;
    match end.stat()? {
        // Somebody may be waiting at the other end of a pipe, and opening it would tell them that the pipe has ended.
        Some(found) if is_a(&found, FileType::Socket) => Err(socket()),
        Some(found) if !is_a(&found, FileType::RegularFile) => Ok(()),
        Some(_) => open_end(&end, OFlags::WRONLY, FOR_ALL).map(drop),
        None => {
            let made = fstat(open_end(&end, OFlags::WRONLY | OFlags::EXCL, FOR_ALL)?)?;
            let found = statat(&end.dir, &end.name, AtFlags::SYMLINK_NOFOLLOW)?;
            if is_same(&made, &found) {
                unlinkat(&end.dir, &end.name, AtFlags::empty())?;
            }
            Ok(())
        }
    }
}

fn is_same(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

/// Opens a file for writing with `access`, or creates it with `mode`. Its contents are kept: it may turn out to be
/// something that the caller must not truncate.
///
/// # Errors
/// `PermissionDenied` for entries created by another user, and those of the system.
pub(crate) fn open(path: &Path, access: OFlags, mode: u32) -> io::Result<File> {
    open_end(&walk(path)?, access, mode)
}

fn open_end(end: &End, access: OFlags, mode: u32) -> io::Result<File> {
    let End { dir, dir_stat, name, followed, is_open_file } = end;
    let mut flags = access | OFlags::CREATE | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    // Whatever is placed there in the meantime.
    flags.set(OFlags::NOFOLLOW, !*is_open_file);
    let file = match openat(dir, name, flags, Mode::from_raw_mode(mode)) {
        Err(Errno::NXIO) => return Err(without_reader(end)),
        file => file?,
    };
    let found = fstat(&file)?;
    let refused = if *is_open_file {
        false
    } else if is_a(&found, FileType::RegularFile) {
        is_of_another(dir_stat, found.st_uid)
            || is_for_all(dir_stat) && !followed && found.st_nlink > 1
    } else {
        is_for_all(dir_stat) && is_others(dir_stat, found.st_uid)
    };
    if refused {
        return Err(made_by_another());
    }
    let waiting = fcntl_getfl(&file)?.difference(OFlags::NONBLOCK);
    fcntl_setfl(&file, waiting)?;
    Ok(file.into())
}

fn socket() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "it is a socket; name a file")
}

/// What has this name, and is opened by nobody to read.
fn without_reader(end: &End) -> io::Error {
    match end.stat() {
        Ok(Some(found)) if is_a(&found, FileType::Socket) => socket(),
        _ => io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is a pipe from which nobody reads; begin to read from it first, or name a file",
        ),
    }
}

/// Whether what `user` made in a directory is neither this user's nor of the directory's owner.
fn is_others(dir: &Stat, user: u32) -> bool {
    ![rustix::process::geteuid().as_raw(), dir.st_uid].contains(&user)
}

/// Whether it is a file of another user in a directory where anyone may create names and only their owners remove them.
fn is_of_another(dir: &Stat, user: u32) -> bool {
    is_for_all(dir) && dir.st_mode & STICKY != 0 && is_others(dir, user)
}

fn made_by_another() -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, "another user made a file of this name")
}

/// A file that appears under its name only once it is complete, unless the name belongs to something other than a file:
/// a terminal, a pipe, `/dev/null`.
///
/// What must hold: its directory is the one that was found at first. Others may put a link in the place of a directory
/// on the way while the file is made, which may take hours.
#[derive(Debug)]
pub(crate) struct Replacement {
    staged: Staged,
    /// By the descriptor of the directory.
    path: PathBuf,
    _dir: OwnedFd,
}

#[derive(Debug)]
enum Staged {
    /// An unnamed file: nothing is left behind, however this process ends.
    Nameless(File),
    /// If the file system does not support those.
    Renamed(NamedTempFile),
    Written(File),
}

impl Replacement {
    /// Begins one for `path`. A replaced file passes on its mode; another user's does not give others the right to write.
    pub(crate) fn begin(path: &Path) -> io::Result<Self> {
        let end = walk(path)?;
        let own = rustix::process::geteuid().as_raw();
        let found = end.stat()?;
        if let Some(real) = found.and_then(|found| name_of_open_file(&end, &found)) {
            return Self::begin(&real);
        }
        let dir = PathBuf::from(format!("/proc/self/fd/{}", end.dir.as_raw_fd()));
        let path = dir.join(&end.name);
        let mode = match found {
            None => None,
            Some(found) if is_a(&found, FileType::RegularFile) && !end.is_open_file => {
                if is_of_another(&end.dir_stat, found.st_uid) {
                    return Err(made_by_another());
                }
                Some(found.st_mode & if found.st_uid == own { 0o777 } else { 0o755 })
            }
            Some(found) if is_a(&found, FileType::Socket) => {
                return Err(socket());
            }
            Some(_) => {
                let staged = Staged::Written(emptied(&end)?);
                return Ok(Self { staged, path, _dir: end.dir });
            }
        };
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let staged = match openat(&end.dir, ".", flags, Mode::from_raw_mode(FOR_ALL)) {
            Ok(file) => Staged::Nameless(file.into()),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => {
                let permissions = Permissions::from_mode(FOR_ALL);
                Staged::Renamed(tempfile::Builder::new().permissions(permissions).tempfile_in(dir)?)
            }
            Err(errno) => return Err(errno.into()),
        };
        let begun = Self { staged, path, _dir: end.dir };
        if let Some(mode) = mode {
            begun.file().set_permissions(Permissions::from_mode(mode))?;
        }
        Ok(begun)
    }

    /// The file to write to.
    pub(crate) fn file(&self) -> &File {
        match &self.staged {
            Staged::Renamed(file) => file.as_file(),
            Staged::Nameless(file) | Staged::Written(file) => file,
        }
    }

    /// Gives the file its name, once it is stored: some file systems notice only then that they have no room.
    pub(crate) fn finish(self) -> io::Result<()> {
        match self.staged {
            Staged::Renamed(file) => {
                file.as_file().sync_all()?;
                Ok(file.persist(self.path).map(drop).map_err(|error| error.error)?)
            }
            Staged::Nameless(file) => {
                file.sync_all()?;
                name(&file, &self.path)
            }
            Staged::Written(_) => Ok(()),
        }
    }
}

/// The name of the regular file that is open where `end` is an open file of a process: it is replaced as any other.
fn name_of_open_file(end: &End, found: &Stat) -> Option<PathBuf> {
    if !end.is_open_file || !is_a(found, FileType::RegularFile) {
        return None;
    }
    let name = readlinkat(&end.dir, &end.name, Vec::new()).ok()?;
    let name = PathBuf::from(OsString::from_vec(name.into_bytes()));
    let named = statat(CWD, &name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    is_same(found, &named).then_some(name)
}

/// Gives an unnamed file the name `path`, replacing what has it.
fn name(file: &File, path: &Path) -> io::Result<()> {
    let descriptor = format!("/proc/self/fd/{}", file.as_raw_fd());
    let link = |to: &Path| linkat(CWD, &descriptor, CWD, to, AtFlags::SYMLINK_FOLLOW);
    match link(path) {
        Err(Errno::EXIST) => {}
        linked => return Ok(linked?),
    }
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    // Created by one call, and renamed by the next.
    let between = tempfile::Builder::new();
    let between = between.make_in(dir.unwrap_or(Path::new(".")), |path| Ok(link(path)?))?;
    between.persist(path).map(drop).map_err(|error| error.error)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{FileTypeExt, chown, lchown, symlink};

    use halocline_testkit::small_disk::SmallDisk;
    use rustix::fs::mkfifoat;
    use tempfile::TempDir;

    use super::*;

    /// A directory with a file `victim`, and a directory `shared` in which anyone may create names.
    fn scratch(mode: u32) -> TempDir {
        let scratch = tempfile::tempdir().unwrap();
        fs::write(scratch.path().join("victim"), "precious").unwrap();
        let shared = scratch.path().join("shared");
        fs::create_dir(&shared).unwrap();
        fs::set_permissions(shared, Permissions::from_mode(mode)).unwrap();
        scratch
    }

    fn replace(path: &Path, text: &str) -> io::Result<()> {
        let replacement = Replacement::begin(path)?;
        replacement.file().write_all(text.as_bytes())?;
        replacement.finish()
    }

    #[test]
    fn a_check_finds_what_writing_would_and_leaves_everything() {
        let scratch = scratch(0o777);
        let at = |name: &str| scratch.path().join(name);
        symlink(at("there-later"), at("link")).unwrap();
        for name in ["new", "victim", "link"] {
            check(&at(name)).unwrap();
        }
        assert_eq!(fs::read(at("victim")).unwrap(), b"precious");
        assert!(!at("new").exists() && !at("there-later").exists());
        assert!(at("link").is_symlink());
        for name in ["no/new", "victim/new", &"n".repeat(300)] {
            let found = check(&at(name)).unwrap_err();
            assert_eq!(found.kind(), write(&at(name), "text").unwrap_err().kind(), "{name}");
        }
    }

    /// An older file was emptied before there was known to be room for the new one.
    #[test]
    fn what_was_there_stays_where_there_is_no_room() {
        let scratch = scratch(0o755);
        let Some(disk) = SmallDisk::over(scratch.path().join("shared"), 1 << 20) else { return };
        let (old, new) = ("old".repeat(1000), "new".repeat(100_000));
        let at = |name: &str| disk.path().join(name);
        fs::write(at("file"), &old).unwrap();
        fs::write(at("alone"), &old).unwrap();
        // A mount point of its own: nothing can get its name.
        rustix::mount::mount_bind(at("alone"), at("alone")).unwrap();
        disk.fill();
        for name in ["file", "alone"] {
            let error = write(&at(name), &new).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{name}: {error}");
            assert!(fs::read(at(name)).unwrap() == old.as_bytes(), "{name}");
        }
        disk.free();
        for name in ["file", "alone"] {
            for text in [new.as_str(), "short", ""] {
                write(&at(name), text).unwrap();
                assert!(fs::read(at(name)).unwrap() == text.as_bytes(), "{name}");
            }
        }
        rustix::mount::unmount(at("alone"), rustix::mount::UnmountFlags::DETACH).unwrap();
        assert_eq!(fs::read_dir(disk.path()).unwrap().count(), 2, "nothing is left beside them");
    }

    #[test]
    fn names_that_others_made_where_anybody_may_are_refused() {
        let scratch = scratch(0o1777);
        let at = |name: &str| scratch.path().join(name);
        symlink(at("victim"), at("shared/link")).unwrap();
        fs::write(at("shared/file"), "old and long").unwrap();
        fs::hard_link(at("victim"), at("shared/second")).unwrap();
        write(&at("shared/file"), "new").unwrap();
        assert_eq!(fs::read(at("shared/file")).unwrap(), b"new");
        write(&at("shared/second"), "apart").unwrap();
        assert_eq!(fs::read(at("victim")).unwrap(), b"precious", "of two names one is replaced");
        // The user's own link is followed, as by any program.
        write(&at("shared/link"), "through").unwrap();
        assert_eq!(fs::read(at("victim")).unwrap(), b"through");
        write(&at("made"), "once").unwrap();
        write(Path::new("/dev/null"), "gone").unwrap();
        if !rustix::process::geteuid().is_root() {
            return;
        }
        for name in ["shared/link", "shared/file"] {
            lchown(at(name), Some(12_345), None).unwrap();
            write(&at(name), "lost").unwrap_err();
        }
        // Replaced, another's file gave everybody the right to write to the new one.
        fs::set_permissions(at("shared/file"), Permissions::from_mode(0o666)).unwrap();
        replace(&at("shared/file"), "lost").unwrap_err();
        assert_eq!(fs::read(at("victim")).unwrap(), b"through");
        fs::write(at("given"), "").unwrap();
        fs::set_permissions(at("given"), Permissions::from_mode(0o666)).unwrap();
        chown(at("given"), Some(12_345), None).unwrap();
        replace(&at("given"), "new").unwrap();
        assert_eq!(fs::metadata(at("given")).unwrap().permissions().mode() & 0o777, 0o644);
        // If the directory is the user's own, its files are the user's own affair.
        fs::set_permissions(at("shared"), Permissions::from_mode(0o755)).unwrap();
        chown(at("shared/file"), Some(12_345), None).unwrap();
        write(&at("shared/file"), "changed").unwrap();
    }

    #[test]
    fn links_of_others_are_followed_nowhere_on_the_way() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        // Linux itself protects at most those in sticky directories.
        for mode in [0o1777, 0o777] {
            let scratch = scratch(mode);
            let at = |name: &str| scratch.path().join(name);
            symlink(at("victim"), at("shared/theirs")).unwrap();
            symlink(at(""), at("shared/up")).unwrap();
            for theirs in ["shared/theirs", "shared/up"] {
                lchown(at(theirs), Some(12_345), None).unwrap();
            }
            // The user's own link, outside, to theirs.
            symlink(at("shared/theirs"), at("mine")).unwrap();
            mkfifoat(CWD, at("shared/fifo"), Mode::RWXU).unwrap();
            lchown(at("shared/fifo"), Some(12_345), None).unwrap();
            // So that it can be opened without waiting.
            let reader = fs::OpenOptions::new().read(true).write(true).open(at("shared/fifo"));
            for name in
                ["shared/theirs", "shared/up/victim", "shared/up/new", "mine", "shared/fifo"]
            {
                let each: [&dyn Fn() -> io::Result<()>; 3] = [
                    &|| write(&at(name), "lost"),
                    &|| open(&at(name), OFlags::RDWR, 0o600).map(drop),
                    &|| replace(&at(name), "lost"),
                ];
                for call in each {
                    let error = call().expect_err(name);
                    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{name}: {error}");
                }
            }
            assert_eq!(fs::read(at("victim")).unwrap(), b"precious");
            assert!(!at("new").exists());
            drop(reader);
        }
    }

    /// A trace is imported for an hour: who could rename a directory on the way led it elsewhere meanwhile.
    #[test]
    fn a_file_appears_in_the_directory_that_was_found_at_first() {
        for is_there in [false, true] {
            let scratch = scratch(0o777);
            let at = |name: &str| scratch.path().join(name);
            fs::create_dir(at("shared/mine")).unwrap();
            fs::create_dir(at("elsewhere")).unwrap();
            fs::write(at("elsewhere/out"), "precious").unwrap();
            if is_there {
                fs::write(at("shared/mine/out"), "old").unwrap();
            }
            let replacement = Replacement::begin(&at("shared/mine/out")).unwrap();
            replacement.file().write_all(b"new").unwrap();
            fs::rename(at("shared/mine"), at("shared/moved")).unwrap();
            symlink(at("elsewhere"), at("shared/mine")).unwrap();
            replacement.finish().unwrap();
            assert_eq!(fs::read(at("elsewhere/out")).unwrap(), b"precious");
            assert_eq!(fs::read(at("shared/moved/out")).unwrap(), b"new");
            assert_eq!(fs::read_dir(at("elsewhere")).unwrap().count(), 1);
            assert_eq!(fs::read_dir(at("shared/moved")).unwrap().count(), 1);
        }
    }

    #[test]
    fn an_open_file_is_replaced_by_its_name() {
        let scratch = scratch(0o755);
        let at = |name: &str| scratch.path().join(name);
        let open_file = File::create(at("open")).unwrap();
        let by_number = PathBuf::from(format!("/proc/self/fd/{}", open_file.as_raw_fd()));
        replace(&by_number, "new").unwrap();
        assert_eq!(fs::read(at("open")).unwrap(), b"new");
        assert_eq!(open_file.metadata().unwrap().len(), 0);
        // It has no name any more.
        fs::remove_file(at("open")).unwrap();
        replace(&by_number, "there").unwrap();
        assert_eq!(open_file.metadata().unwrap().len(), 5);
        assert!(!at("open").exists());
    }

    #[test]
    fn what_is_no_file_is_written_and_not_replaced() {
        let scratch = scratch(0o755);
        let at = |name: &str| scratch.path().join(name);
        mkfifoat(CWD, at("pipe"), Mode::RWXU).unwrap();
        let mut reader = fs::OpenOptions::new().read(true).write(true).open(at("pipe")).unwrap();
        replace(&at("pipe"), "through").unwrap();
        let mut got = [0; 7];
        io::Read::read_exact(&mut reader, &mut got).unwrap();
        assert_eq!(&got, b"through");
        assert!(fs::symlink_metadata(at("pipe")).unwrap().file_type().is_fifo());
        // What a link names is replaced, and keeps its mode; so does what it does not name yet.
        fs::set_permissions(at("victim"), Permissions::from_mode(0o600)).unwrap();
        symlink("victim", at("link")).unwrap();
        symlink("missing", at("dangling")).unwrap();
        for (link, names) in [("link", "victim"), ("dangling", "missing")] {
            replace(&at(link), "new").unwrap();
            assert_eq!(fs::read(at(names)).unwrap(), b"new");
            assert!(fs::symlink_metadata(at(link)).unwrap().is_symlink());
        }
        assert_eq!(fs::metadata(at("victim")).unwrap().permissions().mode() & 0o777, 0o600);
        // An open file of this process.
        let open_file = File::create(at("open")).unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&open_file);
        write(Path::new(&format!("/proc/self/fd/{number}")), "there").unwrap();
        assert_eq!(fs::read(at("open")).unwrap(), b"there");
        write(&at("shared"), "no").unwrap_err();
        write(&at("new/"), "no").unwrap_err();
        replace(&at("shared"), "no").unwrap_err();
    }
}
