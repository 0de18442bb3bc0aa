//! Things without bytes or numbers on the shared disk: symbolic links, pipes, sockets and devices. They are made
//! after the store has them, and what is at a name is compared with what the store has there by its inode ([`proofs`]):
//! many look alike.

pub(crate) mod beside;
pub(crate) mod keeping;
pub(crate) mod proofs;
pub(crate) mod several_names;

use std::os::fd::AsFd;

use halocline_cluster::names::attributes::{Attributes, Kind};
use halocline_model::namespace::Name;
use halocline_os::error::Result;
use halocline_os::private::PrivateDir;
use halocline_vfs::namespace::stat_descriptor;
use halocline_vfs::namespace::statx::{set_attr_on, system_time};
use halocline_vfs::{SetAttr, SetTime};
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, Uid, chownat, mknodat, openat,
    renameat_with, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use self::beside::HasName;
use super::exchanges::is_no_exchange;
use crate::entry_names::os;
use crate::places::own_xattrs;
use crate::places::tree::{FoundDirectory, Tree, below, candidates, fresh, kind};
use crate::stat_conversion::file_type;

/// Flags to open one without its content, or what it leads to.
const ITSELF: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const NS_PER_S: i64 = 1_000_000_000;

/// A name in a directory.
pub(crate) type At<'a> = (&'a FoundDirectory, &'a Name);
/// Device and inode number.
pub(crate) type Inode = (u64, u64);
/// A tree, and which names of links, pipes, sockets and devices the store has.
pub(crate) type OfStore<'a> = (&'a Tree, HasName<'a>);

/// Makes a symbolic link, pipe, socket or device with these attributes, if it is not there. `placed` is what was made for
/// these attributes just now, and is taken for it though it may look otherwise, as on a file system that does not keep
/// all of them. Returns what was made.
///
/// # Errors
/// Those of [`make`].
pub(crate) fn make_missing(
    (tree, has): OfStore<'_>,
    above: &FoundDirectory,
    (name, number): (&Name, u64),
    of: &Attributes,
    placed: Option<Inode>,
) -> Result<Option<Inode>> {
    let [plain, beside] = candidates(name, number);
    let is_there = |name| proofs::is_as_in_store(tree, (above, name), (number, of), placed);
    if is_there(&plain)? {
        return Ok(None);
    }
    // Beside its name it is right only while a file or directory has that.
    if is_numbered((above, &plain))? && is_there(&beside)? && may_lie_at(has, (above, &beside))? {
        return note_beside(tree, (above, name), number).map(|()| None);
    }
    make((tree, has), above, (name, number), of).map(Some)
}

/// Renames a symbolic link, pipe, socket or device in one step, to a free name, or to that of another one, which then
/// has the old name and must be removed there: so neither is without a name at any moment. Returns whether the new
/// name is now as it should be; if not, it must be made there.
///
/// # Errors
/// Those of `renameat2(2)`, except where the new name must be made.
pub(crate) fn rename(
    (tree, has): OfStore<'_>,
    (from_above, from): At<'_>,
    (to_above, to): At<'_>,
    (inode, of): (u64, &Attributes),
) -> Result<bool> {
    let [plain, beside] = candidates(from, inode);
    let is_there = |name| proofs::is_as_in_store(tree, (from_above, name), (inode, of), None);
    let name = if is_there(&plain)? {
        plain
    } else if is_there(&beside)? && may_lie_at(has, (from_above, &beside))? {
        beside
    } else {
        return Ok(false);
    };
    // A file that lies at its name, but has others, stays there: then it gets the other name.
    let named = put((tree, has), (to_above, to), inode, |to| {
        rename_to(tree, (from_above, &name), (to_above, to))
    })?;
    // Another one may have taken the old name, and may now have the new name.
    let is_right = |to| proofs::is_as_in_store(tree, (to_above, &to), (inode, of), None);
    named.map_or(Ok(false), is_right)
}

/// Puts something at its name, or beside that if it cannot be put there: then this is noted before. Returns the name that it
/// got.
fn put(
    (tree, has): OfStore<'_>,
    (above, name): At<'_>,
    inode: u64,
    mut put_at: impl FnMut(&Name) -> Result<bool>,
) -> Result<Option<Name>> {
    let [plain, beside] = candidates(name, inode);
    if put_at(&plain)? {
        return Ok(Some(plain));
    }
    if !may_lie_at(has, (above, &beside))? {
        return Ok(None);
    }
    note_beside(tree, (above, name), inode)?;
    if !put_at(&beside)? {
        return Ok(None);
    }
    // Another node may have taken the note away, because nothing was there yet.
    note_beside(tree, (above, name), inode)?;
    Ok(Some(beside))
}

/// Whether something may lie here beside its name: not if the store has something that is called so.
fn may_lie_at(has: HasName<'_>, (above, beside): At<'_>) -> Result<bool> {
    Ok(!has(beside::number_of(above)?, beside)?)
}

fn note_beside(tree: &Tree, (above, name): At<'_>, number: u64) -> Result<()> {
    let name = (beside::number_of(above)?, name.clone());
    beside::note(tree, (number, &name)).map(drop)
}

/// Renames something without a number to a free name, or that of another one. Returns whether it did.
fn rename_to(tree: &Tree, from: At<'_>, to: At<'_>) -> Result<bool> {
    below(from.0.1.as_ref(), from.1)?;
    below(to.0.1.as_ref(), to.1)?;
    match tree.rename_between((&from.0.0, from.1), (&to.0.0, to.1)) {
        Ok(()) => Ok(true),
        Err(error) if error.errno() == libc::EEXIST => exchange(tree, from, to),
        Err(error) if error.errno() == libc::ENOENT => Ok(false),
        Err(error) => Err(error),
    }
}

/// Exchanges two things without numbers. Returns whether it did.
fn exchange(tree: &Tree, (one_above, one): At<'_>, (other_above, other): At<'_>) -> Result<bool> {
    if is_numbered((other_above, other))? {
        return Ok(false);
    }
    let exchange = || {
        let (one, other) = (os(one), os(other));
        renameat_with(&one_above.0, one, &other_above.0, other, RenameFlags::EXCHANGE)
    };
    match tree.step("exchanging two links or devices", exchange) {
        Err(error) if is_no_exchange(&error) => return Ok(false),
        done => done?,
    }
    if is_numbered((one_above, one))? {
        // A file or directory had the name by then: back to its place.
        tree.step("exchanging two links or devices", exchange)?;
        return Ok(false);
    }
    Ok(true)
}

/// Removes whatever symbolic link, pipe, socket or device is at a name, but nothing else; a missing one is no error. The
/// store must have nothing at the name.
///
/// # Errors
/// Those of `unlink(2)`.
pub(crate) fn remove(tree: &Tree, above: &FoundDirectory, name: &Name) -> Result<()> {
    remove_named(tree, (above, name))
}

/// Removes whatever lies beside the name of an object, if it may. Returns whether it did.
///
/// # Errors
/// As [`remove`].
pub(crate) fn remove_beside(
    (tree, has): OfStore<'_>,
    above: &FoundDirectory,
    (name, inode): (&Name, u64),
) -> Result<bool> {
    let [_, beside] = candidates(name, inode);
    if !is_other((above, &beside))? || !may_lie_at(has, (above, &beside))? {
        return Ok(false);
    }
    remove_named(tree, (above, &beside)).map(|()| true)
}

/// Removes one that has lost a name, if that leads to it. Returns whether it did.
///
/// # Errors
/// Those of `unlink(2)`.
pub(crate) fn remove_lost(
    (tree, has): OfStore<'_>,
    above: &FoundDirectory,
    (name, inode): (&Name, u64),
    of: &Attributes,
) -> Result<bool> {
    let [plain, beside] = candidates(name, inode);
    let is_at = |name| proofs::is_at(tree, (above, name), (inode, of));
    let name = if is_at(&plain)? {
        plain
    } else if is_at(&beside)? && may_lie_at(has, (above, &beside))? {
        beside
    } else {
        return Ok(false);
    };
    remove_named(tree, (above, &name)).map(|()| true)
}

/// Makes a symbolic link, pipe, socket or device among the temporary files, and names it; of one with several names, it
/// is one more, and the attributes of all are those of the store from then on. It replaces whatever has the
/// name, except for a file or directory, which have numbers; then it gets the other name. Returns what has the name now.
///
/// # Errors
/// Those of `mknod(2)` and `rename(2)`; `EEXIST` if neither name can be had.
pub(crate) fn make(
    (tree, has): OfStore<'_>,
    above: &FoundDirectory,
    (name, inode): (&Name, u64),
    of: &Attributes,
) -> Result<Inode> {
    let temporary = fresh("o", inode);
    let made = if let Some(several) = several_names::open(tree, inode)? {
        several_names::bring_up_to_date(tree, &several, of)?;
        let link = || several_names::link(tree, &several, &temporary);
        tree.step("making one more name of a link or device", link)?;
        stat_descriptor(&several)?.key()
    } else {
        tree.step("making a link or device", || make_unnamed(&tree.tmp, &temporary, of))?;
        let made = statat(&tree.tmp, &temporary, AtFlags::SYMLINK_NOFOLLOW)?;
        (made.st_dev, made.st_ino)
    };
    let named =
        put((tree, has), (above, name), inode, |name| replace(tree, &temporary, (above, name)));
    // Whatever it has replaced is there by now.
    let _gone = unlinkat(&tree.tmp, &temporary, AtFlags::empty());
    named?.map(|_| made).ok_or_else(|| Errno::EXIST.into())
}

/// Gives something that was made among the temporary files a name, in one step, also if something else without a number
/// has that, which is then there instead. Returns whether it did: not where a file or directory has the name.
fn replace(tree: &Tree, temporary: &str, (above, name): At<'_>) -> Result<bool> {
    below(above.1.as_ref(), name)?;
    let settle = || match tree.settle_other(temporary, above, name) {
        Err(error) if error.errno() == libc::EEXIST => Ok(false),
        named => named.map(|()| true),
    };
    if settle()? {
        return Ok(true);
    }
    if is_numbered((above, name))? {
        return Ok(false);
    }
    let exchange =
        || renameat_with(&tree.tmp, temporary, &above.0, os(name), RenameFlags::EXCHANGE);
    match tree.step("replacing a link or device", exchange) {
        Err(error) if is_no_exchange(&error) => {
            remove_named(tree, (above, name))?;
            return settle();
        }
        done => done?,
    }
    let replaced = statat(&tree.tmp, temporary, AtFlags::SYMLINK_NOFOLLOW)?;
    if matches!(replaced.st_mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFDIR) {
        // A file or directory had the name by then: back to its place.
        tree.step("replacing a link or device", exchange)?;
        return Ok(false);
    }
    Ok(true)
}

/// Makes one in a private directory, with all its attributes.
///
/// # Errors
/// Those of `mknod(2)`, `chown(2)` and `setxattr(2)`.
pub(crate) fn make_unnamed(dir: &PrivateDir, fresh: &str, of: &Attributes) -> Result<()> {
    let is_link = of.kind == Kind::Symlink;
    if is_link {
        symlinkat(of.target.as_slice(), dir, fresh)?;
    } else {
        let (kind, bits) = (file_type(of.kind), Mode::from_raw_mode(of.mode & 0o7777));
        mknodat(dir, fresh, FileType::from_raw_mode(kind), bits, of.rdev)?;
    }
    own_other(dir, fresh, (of.uid, of.gid))?;
    let fd = openat(dir, fresh, ITSELF, Mode::empty())?;
    for (name, value) in &of.xattrs {
        own_xattrs::set_users(&fd, name, value)?;
    }
    // `mknod` applies the umask.
    let mode = (!is_link).then_some(of.mode);
    let [atime, mtime] = [of.atime_ns, of.mtime_ns].map(|ns| Some(time(ns)));
    set_attr_on(&fd, &SetAttr { mode, atime, mtime, ..SetAttr::default() }).map(drop)
}

fn time(ns: i64) -> SetTime {
    let (seconds, ns) = (ns.div_euclid(NS_PER_S), ns.rem_euclid(NS_PER_S));
    SetTime::At(system_time((seconds, ns)))
}

/// Whether a link or special file is at a name: there may be a file or a directory, or nothing.
///
/// # Errors
/// Those of `stat(2)`.
pub(crate) fn is_other((above, name): At<'_>) -> Result<bool> {
    let is = kind(above, name)?;
    Ok(is.is_some_and(|kind| !matches!(kind, libc::S_IFREG | libc::S_IFDIR)))
}

/// Whether a file or directory is at a name.
fn is_numbered((above, name): At<'_>) -> Result<bool> {
    Ok(matches!(kind(above, name)?, Some(libc::S_IFREG | libc::S_IFDIR)))
}

fn remove_named(tree: &Tree, (above, name): At<'_>) -> Result<()> {
    below(above.1.as_ref(), name)?;
    match kind(above, name)? {
        None | Some(libc::S_IFREG | libc::S_IFDIR) => Ok(()),
        // Not by its path, which leads elsewhere once another node has renamed the directory.
        Some(_) => {
            tree.step("removing a name", || match unlinkat(&above.0, os(name), AtFlags::empty()) {
                Err(Errno::NOENT) => Ok(()),
                gone => gone,
            })
        }
    }
}

fn own_other(dir: &impl AsFd, name: &str, (uid, gid): (u32, u32)) -> Result<()> {
    let now = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if (now.st_uid, now.st_gid) == (uid, gid) {
        return Ok(());
    }
    let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
    Ok(chownat(dir, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?)
}
