//! Extended attributes by which a scan of the disks identifies files and directories.
//!
//! The owner of a file can write anything into them: what is read here is a claim. What must hold: a claim never
//! opens, changes or removes anything but the file or directory that carries it.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
pub(crate) mod owner_permissions;

use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use halocline_cluster::names::NAME_BYTES_MAX;
use halocline_cluster::names::attributes::{Location, RelativePath};
use halocline_model::namespace::Name;
use halocline_os::error::{Error, Result};
use halocline_vfs::namespace::statx::statfs;
use halocline_vfs::namespace::xattr;

use owner_permissions::{get_on, remove_on, set_on};

/// A file's number.
pub(crate) const INODE: &str = "user.halocline.inode";
/// A directory's number.
pub(crate) const DIRECTORY: &str = "user.halocline.directory";
/// Prefix of the attributes with the names of a file that has several, or whose only name is not that of its place.
/// Each name has its own attribute, so that nodes which change different names do not undo each other's changes.
const NAME: &[u8] = b"user.halocline.name.";
/// What a name of a file takes of the list of the names of its attributes: prefix, hash, and a zero byte.
pub(crate) const NAME_LISTED_BYTES: usize = NAME.len() + 16 + 1;
/// The errno for a list of the names of attributes that is longer than the kernel returns.
pub(crate) const LIST_TOO_LONG: i32 = libc::E2BIG;
/// On the old copy of a file: the number of its move.
pub(crate) const LEAVING: &str = "user.halocline.leaving";
/// On the new copy of a file: the number of its move.
pub(crate) const ARRIVING: &str = "user.halocline.arriving";
/// On a file of an SSD: the number of the clean copy that the shared disk has got of it.
pub(crate) const COPIED: &str = "user.halocline.copied";
/// On a clean copy, if its file system keeps whole seconds only: when the content of its file last changed, in nanoseconds.
pub(crate) const WRITTEN: &str = "user.halocline.written";
/// On the new copy: where the old one is, until that is removed: `TIER/BASE/NODE/PATH`, without a node on the shared
/// disk.
const FROM: &str = "user.halocline.from";

/// On a directory of the shared disk: a time of its last change, and when it was that: `MTIME/AS_OF`, in nanoseconds.
const DATED: &str = "user.halocline.dated";

/// On a directory whose name on the disk ends with its number: its number and its name. Users may have named it so, or its
/// name may have been taken when it was put there.
const NAMED: &str = "user.halocline.named";

/// While a rename replaces or exchanges a name of a file: its kind, the old and the new name.
const RENAMING: &str = "user.halocline.renaming";

/// The errno of [`or_too_many`]: not that of a full disk, which other files would meet, too.
const TOO_MANY: i32 = libc::E2BIG;

/// A name of a file, in the directory with a number.
pub(crate) type NameIn = (u64, Name);

/// What a rename that changes the names of two things does to the file that carries its note.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotedKind {
    /// It takes the name of the other one.
    Replaces,
    /// It changes names with the other one.
    Exchanges,
    /// It loses its name to a link or device.
    IsReplaced,
}

impl NotedKind {
    const ALL: [(Self, &'static [u8]); 3] = [
        (Self::Replaces, b"replace"),
        (Self::Exchanges, b"exchange"),
        (Self::IsReplaced, b"replaced"),
    ];
}

/// A rename that changes the names of two things, at least one of which is a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TwoNames {
    pub(crate) kind: NotedKind,
    /// The old and the new name of what is renamed; in an exchange, of the file that carries the note.
    pub(crate) from: NameIn,
    pub(crate) to: NameIn,
}

/// When the names in a directory were changed last, as of a later time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dated {
    pub(crate) mtime_ns: i64,
    pub(crate) as_of_ns: i64,
}

/// Dates a directory.
pub(crate) fn set_dated(fd: &impl AsFd, dated: Dated) -> Result<()> {
    set_on(fd, OsStr::new(DATED), &dated_value(dated), 0)
}

fn dated_value(Dated { mtime_ns, as_of_ns }: Dated) -> Vec<u8> {
    format!("{mtime_ns}/{as_of_ns}").into_bytes()
}

/// The date that is noted on a directory.
pub(crate) fn dated(fd: &impl AsFd) -> Option<Dated> {
    parse_dated(&get_on(fd, OsStr::new(DATED)).ok()?)
}

fn parse_dated(value: &[u8]) -> Option<Dated> {
    let (mtime_ns, as_of_ns) = std::str::from_utf8(value).ok()?.split_once('/')?;
    let dated = Dated { mtime_ns: mtime_ns.parse().ok()?, as_of_ns: as_of_ns.parse().ok()? };
    (dated_value(dated) == value).then_some(dated)
}

/// Records a directory's name, in the form of a file's.
pub(crate) fn set_directory_name(fd: &impl AsFd, (number, name): (u64, &Name)) -> Result<()> {
    set_on(fd, OsStr::new(NAMED), &value(number, name), 0)
}

/// The name that is recorded with a directory, and the number of the directory of which it is the name.
pub(crate) fn directory_name(fd: &impl AsFd) -> Option<(u64, Name)> {
    parse_name(&get_on(fd, OsStr::new(NAMED)).ok()?)
}

/// Removes that record.
pub(crate) fn clear_directory_name(fd: &impl AsFd) -> Result<()> {
    clear(fd, NAMED)
}

/// Notes a rename on one of its files.
pub(crate) fn set_renaming(fd: &impl AsFd, renaming: &TwoNames) -> Result<()> {
    set_on(fd, OsStr::new(RENAMING), &renaming_value(renaming), 0)
}

fn renaming_value(renaming: &TwoNames) -> Vec<u8> {
    let TwoNames { kind, from, to } = renaming;
    let kind = NotedKind::ALL.iter().find(|(known, _)| known == kind).map_or(&b""[..], |it| it.1);
    let [from, to] = [from, to].map(|(directory, name)| value(*directory, name));
    [kind, b"/", &from, b"/", &to].concat()
}

/// The rename that is noted on a file.
pub(crate) fn renaming(fd: &impl AsFd) -> Option<TwoNames> {
    parse_renaming(&get_on(fd, OsStr::new(RENAMING)).ok()?)
}

fn parse_renaming(value: &[u8]) -> Option<TwoNames> {
    let mut parts = value.split(|byte| *byte == b'/');
    let kind = parts.next()?;
    let (kind, _) = *NotedKind::ALL.iter().find(|(_, known)| *known == kind)?;
    let (from, to) = (parse_name(parts.next()?)?, parse_name(parts.next()?)?);
    parts.next().is_none().then_some(TwoNames { kind, from, to })
}

/// Removes the note: the rename is over.
pub(crate) fn clear_renaming(fd: &impl AsFd) -> Result<()> {
    clear(fd, RENAMING)
}

/// Removes the note of a rename that did not give the file this name: it was never finished, and is over now.
pub(crate) fn clear_other_renaming(fd: &impl AsFd, to: &[NameIn]) -> Result<()> {
    match renaming(fd) {
        Some(renaming) if !to.contains(&renaming.to) => clear_renaming(fd),
        _ => Ok(()),
    }
}

/// The number in an attribute, if there is one.
pub(crate) fn number(fd: &impl AsFd, what: &str) -> Option<u64> {
    parse_number(&get_on(fd, OsStr::new(what)).ok()?)
}

/// Whether the mode of something keeps this process from reading what it claims.
pub(crate) fn is_closed(fd: &impl AsFd) -> bool {
    get_on(fd, OsStr::new(INODE)).is_err_and(|error| error.errno() == libc::EACCES)
}

/// Parses a number; only its canonical form is accepted, because no other could be removed by number.
pub(super) fn parse_number(value: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(value).ok()?;
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    text.parse().ok().filter(|_| is_plain)
}

/// Gives something a number.
pub(crate) fn set_number(fd: &impl AsFd, what: &str, number: u64) -> Result<()> {
    set_on(fd, OsStr::new(what), number.to_string().as_bytes(), 0)
}

/// For `map_err` where an attribute could not be set on a copy of a file that is moved: says so if the file has more of
/// them than its file system keeps.
pub(crate) fn or_too_many(fd: &impl AsFd) -> impl FnOnce(Error) -> Error {
    move |error| {
        if !is_crowded(fd, &error) {
            return error;
        }
        let message = "its extended attributes, with the one that marks a move, are more than the file system keeps with a \
                       file; remove some (getfattr -d, setfattr -x), or some of its names, and move it again";
        Error::Refused { message: message.to_owned(), errno: TOO_MANY }
    }
}

/// Whether a move failed because of the file's attributes, and not because of a disk, a node or the store.
pub(crate) fn is_too_many(error: &Error) -> bool {
    matches!(error, Error::Refused { errno: TOO_MANY, .. })
}

/// Records on the new copy of a file where the old one is. Where the file system has no room for a path that long, it is
/// not recorded: then a file that is removed after its mover died between two steps leaves the old copy to a check.
pub(crate) fn set_from(fd: &impl AsFd, from: &Location) -> Result<()> {
    match set_on(fd, OsStr::new(FROM), &from_value(from), 0) {
        Err(error) if is_crowded(fd, &error) => Ok(()),
        set => set,
    }
}

/// Whether an attribute was not kept because its file has too many, and not because the disk is full.
fn is_crowded(fd: &impl AsFd, error: &Error) -> bool {
    // An attribute that finds no room in the inode takes a block.
    is_without_room(error) && statfs(fd.as_fd()).is_ok_and(|disk| disk.f_bavail > 0)
}

pub(super) fn from_value(Location { node, tier, base, path }: &Location) -> Vec<u8> {
    let begin = format!("{tier}/{base}/{}/", node.as_deref().unwrap_or_default());
    [begin.as_bytes(), path.as_bytes()].concat()
}

/// Where the old copy of a file may be.
pub(crate) fn from(fd: &impl AsFd) -> Option<Location> {
    parse_from(&get_on(fd, OsStr::new(FROM)).ok()?)
}

pub(super) fn parse_from(value: &[u8]) -> Option<Location> {
    let mut parts = value.splitn(4, |byte| *byte == b'/');
    let mut text = || std::str::from_utf8(parts.next()?).ok();
    let (tier, base, node) = (text()?.parse().ok()?, text()?.parse().ok()?, text()?);
    let node = (!node.is_empty()).then(|| node.to_owned());
    Some(Location { node, tier, base, path: RelativePath::stored(parts.next()?)? })
}

/// Removes that record: the old copy is gone.
pub(crate) fn clear_from(fd: &impl AsFd) -> Result<()> {
    clear(fd, FROM)
}

/// Removes an attribute; a missing one is no error.
pub(crate) fn clear(fd: &impl AsFd, what: impl AsRef<OsStr>) -> Result<()> {
    match remove_on(fd, what.as_ref()) {
        Err(error) if matches!(error.errno(), libc::ENODATA | libc::EOPNOTSUPP) => Ok(()),
        other => other,
    }
}

/// Sets an attribute that a program gave.
pub(crate) fn set_users(fd: &impl AsFd, name: &[u8], value: &[u8]) -> Result<()> {
    match set_on(fd, OsStr::from_bytes(name), value, 0) {
        // Where it came from, the file system kept it.
        Err(error) if error.errno() == libc::EOPNOTSUPP => Ok(()),
        other => other,
    }
}

/// Whether an attribute holds a name of a file.
pub(crate) fn is_name(attribute: &OsStr) -> bool {
    attribute.as_bytes().starts_with(NAME)
}

/// The attribute for a name: it ends with a hash of it, which is the same on all nodes.
fn attribute(value: &[u8]) -> OsString {
    OsString::from_vec([NAME, hash(value).as_bytes()].concat())
}

/// The hash of a name (FNV-1a).
pub(super) fn hash(value: &[u8]) -> String {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = value.iter().fold(0xcbf2_9ce4_8422_2325, mix);
    format!("{hash:016x}")
}

pub(super) fn value(directory: u64, name: &Name) -> Vec<u8> {
    [directory.to_string().as_bytes(), b":", name.as_bytes()].concat()
}

/// `None` if the kernel does not list them.
fn attributes_with_names(fd: &impl AsFd) -> Result<Option<Vec<OsString>>> {
    let all = match xattr::list_on(fd) {
        Err(error) if error.errno() == libc::EOPNOTSUPP => return Ok(Some(Vec::new())),
        Err(error) if error.errno() == LIST_TOO_LONG => return Ok(None),
        all => all?,
    };
    let all = all.split(|byte| *byte == 0).map(|name| OsString::from_vec(name.to_vec()));
    Ok(Some(all.filter(|name| is_name(name)).collect()))
}

/// The names of a file, each in the directory with a number; empty if they are not listed, `None` if the file has more
/// extended attributes than the kernel lists.
pub(crate) fn listed(fd: &impl AsFd) -> Option<Vec<NameIn>> {
    let read = |name: OsString| {
        let found = get_on(fd, &name).ok()?;
        parse_name(&found).filter(|_| attribute(&found) == name)
    };
    let attributes = attributes_with_names(fd).unwrap_or_else(|_| Some(Vec::new()))?;
    let mut names: Vec<_> = attributes.into_iter().filter_map(read).collect();
    names.sort();
    Some(names)
}

/// As [`listed`]; empty also if the kernel does not list them.
pub(crate) fn names(fd: &impl AsFd) -> Vec<NameIn> {
    listed(fd).unwrap_or_default()
}

/// Whether a name is recorded with a file.
pub(crate) fn has_name(fd: &impl AsFd, directory: u64, name: &Name) -> bool {
    let value = value(directory, name);
    get_on(fd, &attribute(&value)).is_ok_and(|found| found == value)
}

pub(super) fn parse_name(value: &[u8]) -> Option<(u64, Name)> {
    let colon = value.iter().position(|byte| *byte == b':')?;
    let number = parse_number(&value[..colon])?;
    let name = &value[colon + 1..];
    let is_name = !matches!(name, b"" | b"." | b"..")
        && name.len() <= NAME_BYTES_MAX
        && !name.iter().any(|byte| [b'/', 0].contains(byte));
    is_name.then(|| (number, Name::from(name)))
}

/// Whether a file system keeps no more attributes with a file, or is full.
pub(crate) fn is_without_room(error: &Error) -> bool {
    matches!(error.errno(), libc::ENOSPC | libc::E2BIG)
}

/// For an attribute that nothing depends on: one that finds no room is not kept.
pub(crate) fn unless_without_room(set: Result<()>) -> Result<()> {
    match set {
        Err(error) if is_without_room(&error) => Ok(()),
        set => set,
    }
}

/// Lists one more name of a file.
///
/// # Errors
/// `ENOSPC` if there are more than the file system keeps.
pub(crate) fn add_name(fd: &impl AsFd, directory: u64, name: &Name) -> Result<()> {
    let value = value(directory, name);
    set_on(fd, &attribute(&value), &value, 0)
}

/// Removes a name from the list of a file's names; a missing one is no error.
pub(crate) fn remove_name(fd: &impl AsFd, directory: u64, name: &Name) -> Result<()> {
    clear(fd, attribute(&value(directory, name)))
}

/// Lists exactly these names of a file.
///
/// # Errors
/// As [`add_name`].
pub(crate) fn set_names(fd: &impl AsFd, names: &[(u64, Name)]) -> Result<()> {
    let wanted: Vec<_> =
        names.iter().map(|(directory, name)| attribute(&value(*directory, name))).collect();
    for (directory, name) in names {
        add_name(fd, *directory, name)?;
    }
    let others = attributes_with_names(fd)?.into_iter().flatten();
    others.filter(|name| !wanted.contains(name)).try_for_each(|name| clear(fd, &name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_old_copy_of_a_file_is_where_its_new_one_says() {
        let scratch = tempfile::tempfile().unwrap();
        assert_eq!(from(&scratch), None);
        let path = RelativePath::new(b"a/b c").unwrap();
        for (node, tier, base) in [(Some("n1".to_owned()), 0, 1), (None, 1, 77)] {
            let place = Location { node, tier, base, path: path.clone() };
            set_from(&scratch, &place).unwrap();
            assert_eq!(from(&scratch), Some(place));
        }
        for wrong in ["", "1/2/n", "1/2/n/", "1/2/n/../a", "x/2/n/a", "1/x/n/a", "1/2/n//a"] {
            xattr::set_on(&scratch, OsStr::new(FROM), wrong.as_bytes(), 0).unwrap();
            assert_eq!(from(&scratch), None, "{wrong:?}");
        }
        clear_from(&scratch).unwrap();
        clear_from(&scratch).unwrap();
    }

    #[test]
    fn a_directory_has_the_date_that_is_noted() {
        let scratch = tempfile::tempfile().unwrap();
        assert_eq!(dated(&scratch), None);
        let noted = Dated { mtime_ns: -1, as_of_ns: 1_700_000_000_000_000_000 };
        set_dated(&scratch, noted).unwrap();
        assert_eq!(dated(&scratch), Some(noted));
        for wrong in ["", "1", "1/", "/1", "1/2/3", "01/2", "+1/2", "1/x"] {
            xattr::set_on(&scratch, OsStr::new(DATED), wrong.as_bytes(), 0).unwrap();
            assert_eq!(dated(&scratch), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_rename_of_two_files_is_noted_until_one_of_them_is_renamed_otherwise() {
        let scratch = tempfile::tempfile().unwrap();
        assert_eq!(renaming(&scratch), None);
        let [from, to] = [(7, Name::from(&b"a\xff:~"[..])), (1, Name::from("b"))];
        for (kind, _) in NotedKind::ALL {
            let noted = TwoNames { kind, from: from.clone(), to: to.clone() };
            set_renaming(&scratch, &noted).unwrap();
            clear_other_renaming(&scratch, std::slice::from_ref(&to)).unwrap();
            assert_eq!(renaming(&scratch), Some(noted));
        }
        clear_other_renaming(&scratch, std::slice::from_ref(&from)).unwrap();
        assert_eq!(renaming(&scratch), None);
        for wrong in
            ["", "exchange", "replace/1:a", "replace/1:a/b", "x/1:a/1:b", "replace/1:a/1:b/"]
        {
            xattr::set_on(&scratch, OsStr::new(RENAMING), wrong.as_bytes(), 0).unwrap();
            assert_eq!(renaming(&scratch), None, "{wrong:?}");
        }
    }

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
        for wrong in ["", "7:../a", "7:", ":a", "a", "7:..", "7:a\0", "07:a", "+7:a"] {
            assert_eq!(parse_name(wrong.as_bytes()), None, "{wrong:?}");
        }
        // A name in another attribute than its own could not be removed, nor could one in another form.
        for other in ["07:a", "+8:b"].map(str::as_bytes) {
            xattr::set_on(&scratch, &attribute(other), other, 0).unwrap();
        }
        let elsewhere = [NAME, b"0123456789abcdef"].concat();
        xattr::set_on(&scratch, OsStr::from_bytes(&elsewhere), b"9:c", 0).unwrap();
        assert_eq!(names(&scratch).len(), 2);
        remove_name(&scratch, 8, &Name::from("b")).unwrap();
        remove_name(&scratch, 8, &Name::from("b")).unwrap();
        add_name(&scratch, 9, &Name::from("c")).unwrap();
        set_names(&scratch, &[(9, Name::from("c")), (9, Name::from("d"))]).unwrap();
        assert_eq!(names(&scratch), [(9, Name::from("c")), (9, Name::from("d"))]);
        set_names(&scratch, &[]).unwrap();
        assert_eq!(attributes_with_names(&scratch).unwrap().unwrap(), [""; 0]);
    }
}
