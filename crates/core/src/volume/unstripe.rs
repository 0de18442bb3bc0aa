//! Turns files of a striped origin back into plain ones, without an engine.
//!
//! The origin is only read, once its objects are bound to its files (a copied volume's are at the first
//! opening). Holes stay holes; owner, mode, times, extended attributes (ACLs are
//! such) and hard links are kept. The volume must not be mounted: what its cache holds dirty is
//! not in the origin. A copy that is interrupted, or fails, has a name that ends in `.incomplete`.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, RenameFlags, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;

use super::origin::{Origin, OriginFile, hidden_xattr};
use crate::engine::Seek;
use crate::error::{Error, Result};

/// Bytes copied at once: many stripes on every server.
const CHUNK: usize = 4 << 20;

/// Bytes just passed, holes included; called after each step of a copy.
pub type Progress<'a> = &'a mut dyn FnMut(u64);

/// Copies the file at `relative` of the striped origin in `origin_dir` to the new file `out`.
pub fn unstripe(
    origin_dir: &Path,
    relative: &Path,
    out: &Path,
    progress: Progress<'_>,
) -> Result<()> {
    if relative.components().any(|part| !matches!(part, Component::Normal(_) | Component::CurDir)) {
        return Err(Error::invalid(
            format!("{}: not a path below the origin", relative.display()),
            "give the path as it was below the mount point, without .. and without a leading /",
        ));
    }
    let origin = Origin::open_volume(origin_dir)?;
    let from = origin.namespace_dir().join(relative);
    let found = fs::symlink_metadata(&from).map_err(Error::at(&from, "stat"))?;
    if !found.is_file() {
        return Err(Error::invalid(
            format!("{}: not a regular file", from.display()),
            "give a file, or take the whole tree",
        ));
    }
    let (copy, dir) = begin(out)?;
    copy_file(&origin, &from, &copy, progress)?;
    copy_attributes(&from, &found, &copy)?;
    finish(&copy, out, &dir)
}

/// Copies the whole tree of the striped origin in `origin_dir` to the new directory `out`.
pub fn unstripe_tree(origin_dir: &Path, out: &Path, progress: Progress<'_>) -> Result<()> {
    let origin = Origin::open_volume(origin_dir)?;
    let (tree, dir) = begin(out)?;
    fs::create_dir(&tree).map_err(Error::at(&tree, "create the directory"))?;
    let from = origin.namespace_dir().to_owned();
    let mut copy = TreeCopy { origin: &origin, linked: HashMap::new(), progress };
    copy.directory(&from, &tree)?;
    finish(&tree, out, &dir)
}

/// Where the copy that shall be `out` is made, and the directory of both: what is called `out` is
/// whole, whatever fails or is killed.
fn begin(out: &Path) -> Result<(PathBuf, PathBuf)> {
    let taken = |path: &Path, remedy: &str| {
        let is_there = path.symlink_metadata().is_ok();
        let refuse = || Err(Error::invalid(format!("{} exists", path.display()), remedy));
        if is_there { refuse() } else { Ok(()) }
    };
    taken(out, "name a new file or directory")?;
    let mut name = out.file_name().unwrap_or_default().to_owned();
    name.push(".incomplete");
    let dir = out.parent().filter(|dir| *dir != Path::new("")).unwrap_or(Path::new("."));
    let copy = dir.join(name);
    taken(&copy, "it is what an interrupted copy left: remove it, or move it away")?;
    Ok((copy, dir.to_owned()))
}

/// Makes a copy durable, and then gives it its name, unless that is taken now.
fn finish(copy: &Path, out: &Path, dir: &Path) -> Result<()> {
    let finish = || -> io::Result<()> {
        let dir = File::open(dir)?;
        rustix::fs::syncfs(&dir)?;
        rustix::fs::renameat_with(CWD, copy, CWD, out, RenameFlags::NOREPLACE)?;
        dir.sync_all()
    };
    finish().map_err(Error::at(out, "give the finished copy its name"))
}

/// Bytes of all files of the striped origin in `origin_dir`: what a whole tree's progress adds up
/// to.
pub fn tree_bytes(origin_dir: &Path) -> Result<u64> {
    let origin = Origin::open_volume(origin_dir)?;
    let mut seen = std::collections::HashSet::new();
    let (mut open, mut total) = (vec![origin.namespace_dir().to_owned()], 0);
    while let Some(dir) = open.pop() {
        for name in names(&dir)? {
            let path = dir.join(name);
            let found = fs::symlink_metadata(&path).map_err(Error::at(&path, "stat"))?;
            if found.is_dir() {
                open.push(path);
            } else if found.is_file() && seen.insert(found.ino()) {
                total += found.len();
            }
        }
    }
    Ok(total)
}

struct TreeCopy<'a> {
    origin: &'a Origin,
    /// Where the first name of each inode with several names was copied to.
    linked: HashMap<u64, PathBuf>,
    progress: Progress<'a>,
}

impl TreeCopy<'_> {
    /// Fills the new directory `to` from `from`. Its own attributes come last: filling it changes
    /// its times, and its mode may forbid filling it.
    fn directory(&mut self, from: &Path, to: &Path) -> Result<()> {
        for name in names(from)? {
            self.entry(&from.join(&name), &to.join(&name))?;
        }
        let found = fs::symlink_metadata(from).map_err(Error::at(from, "stat"))?;
        copy_attributes(from, &found, to)
    }

    fn entry(&mut self, from: &Path, to: &Path) -> Result<()> {
        let found = fs::symlink_metadata(from).map_err(Error::at(from, "stat"))?;
        if found.is_dir() {
            fs::create_dir(to).map_err(Error::at(to, "create the directory"))?;
            return self.directory(from, to);
        }
        if found.nlink() > 1 {
            if let Some(first) = self.linked.get(&found.ino()) {
                return fs::hard_link(first, to).map_err(Error::at(to, "link"));
            }
            self.linked.insert(found.ino(), to.to_owned());
        }
        if found.is_file() {
            copy_file(self.origin, from, to, self.progress)?;
        } else if found.is_symlink() {
            let target = fs::read_link(from).map_err(Error::at(from, "read the link"))?;
            std::os::unix::fs::symlink(target, to).map_err(Error::at(to, "make the link"))?;
        } else {
            make_special(&found, to).map_err(Error::at(to, "make the special file"))?;
        }
        copy_attributes(from, &found, to)
    }
}

fn names(dir: &Path) -> Result<Vec<OsString>> {
    let read =
        || fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>();
    let mut names = read().map_err(Error::at(dir, "list the directory"))?;
    names.sort_unstable();
    Ok(names)
}

fn copy_file(origin: &Origin, from: &Path, to: &Path, progress: Progress<'_>) -> Result<()> {
    let node = File::open(from).map_err(Error::at(from, "open"))?;
    let data =
        origin.open_data(node.as_fd(), libc::O_RDONLY).map_err(Error::at(from, "open the data"))?;
    // Private until its attributes are set.
    let options = || fs::OpenOptions::new().write(true).create_new(true).clone();
    let out = std::os::unix::fs::OpenOptionsExt::mode(&mut options(), 0o600)
        .open(to)
        .map_err(Error::at(to, "create"))?;
    let len = node.metadata().map_err(Error::at(from, "stat"))?.len();
    out.set_len(len).map_err(Error::at(to, "set the size"))?;
    copy_data(&data, &out, len, progress).map_err(Error::at(to, "copy the data"))?;
    out.sync_all().map_err(Error::at(to, "sync"))
}

/// Copies what is data; `out` has its size already and is all hole.
fn copy_data(data: &OriginFile, out: &File, len: u64, progress: Progress<'_>) -> io::Result<()> {
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
            out.write_all_at(&buf[..count], at)?;
            at += count as u64;
            progress(count as u64);
        }
    }
    Ok(())
}

fn make_special(found: &Metadata, to: &Path) -> io::Result<()> {
    let kind = found.file_type();
    let kind = if kind.is_fifo() {
        FileType::Fifo
    } else if kind.is_socket() {
        FileType::Socket
    } else if kind.is_block_device() {
        FileType::BlockDevice
    } else {
        FileType::CharacterDevice
    };
    let private = Mode::RUSR | Mode::WUSR;
    Ok(rustix::fs::mknodat(CWD, to, kind, private, found.rdev())?)
}

/// Owner, extended attributes, mode and times, in the order in which they do not undo each other.
fn copy_attributes(from: &Path, found: &Metadata, to: &Path) -> Result<()> {
    copy_owner(found, to).map_err(Error::at(to, "set the owner"))?;
    copy_xattrs(from, to).map_err(Error::at(to, "set the extended attributes"))?;
    if !found.is_symlink() {
        let mode = fs::Permissions::from_mode(found.mode() & 0o7777);
        fs::set_permissions(to, mode).map_err(Error::at(to, "set the mode"))?;
    }
    let time = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
    let times = Timestamps {
        last_access: time(found.atime(), found.atime_nsec()),
        last_modification: time(found.mtime(), found.mtime_nsec()),
    };
    rustix::fs::utimensat(CWD, to, &times, AtFlags::SYMLINK_NOFOLLOW)
        .map_err(|errno| Error::at(to, "set the times")(errno.into()))
}

/// Sets the owner unless it is right; who may not give files away keeps them.
fn copy_owner(found: &Metadata, to: &Path) -> io::Result<()> {
    let now = fs::symlink_metadata(to)?;
    if (now.uid(), now.gid()) == (found.uid(), found.gid()) {
        return Ok(());
    }
    let owner = (Some(Uid::from_raw(found.uid())), Some(Gid::from_raw(found.gid())));
    match rustix::fs::chownat(CWD, to, owner.0, owner.1, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::PERM) if !rustix::process::geteuid().is_root() => {
            tracing::warn!(path = %to.display(), "belongs to you: only root can give files away");
            Ok(())
        }
        other => Ok(other?),
    }
}

fn copy_xattrs(from: &Path, to: &Path) -> io::Result<()> {
    let mut list = vec![0_u8; 1 << 16];
    let len = match rustix::fs::llistxattr(from, &mut list) {
        Err(Errno::OPNOTSUPP) => return Ok(()),
        other => other?,
    };
    let mut value = vec![0_u8; 1 << 16];
    for name in list[..len].split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        let name = OsString::from_vec(name.to_vec());
        if hidden_xattr(&name) {
            continue;
        }
        let len = rustix::fs::lgetxattr(from, name.as_os_str(), &mut value)?;
        set_xattr(to, &name, &value[..len])?;
    }
    Ok(())
}

fn set_xattr(to: &Path, name: &OsStr, value: &[u8]) -> io::Result<()> {
    match rustix::fs::lsetxattr(to, name, value, XattrFlags::empty()) {
        // Names that only root may set, such as security labels.
        Err(Errno::PERM | Errno::OPNOTSUPP) => {
            tracing::warn!(path = %to.display(), ?name, "the extended attribute cannot be kept");
            Ok(())
        }
        other => Ok(other?),
    }
}
