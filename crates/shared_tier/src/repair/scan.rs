//! Scans one disk: every directory, file and link below its root, with the claims in their attributes.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

use halocline_api::control::tier::PRIVATE;
use halocline_cluster::names::NAME_BYTES_MAX;
use halocline_cluster::names::attributes::{Attributes, Kind, Location, RelativePath};
use halocline_model::namespace::Name;
use halocline_os::beneath::TreeCursor;
use halocline_os::error::Result;
use halocline_os::process_user::own_uid;
use halocline_os::shown_name::shown_name;
use halocline_vfs::Stat;
use halocline_vfs::namespace::stat_descriptor;
use rustix::fs::{Mode, OFlags, openat, readlinkat};
use rustix::io::Errno;

use crate::entry_names::{REGISTRY, may_name};
use crate::places::own_xattrs::{self, Dated, TwoNames};
use crate::places::tree::Tree;
use crate::places::tree::directory_names::without_number;
use crate::places::users_xattrs;
use crate::stat_conversion::{joined, kind};

/// The most lines of each kind that are kept for display.
const TOLD_MAX: usize = 1000;

/// Where a check of a file system puts what it finds.
const LOST_AND_FOUND: &[u8] = b"lost+found";

/// The longest path that is shown whole.
const SHOWN_BYTES: usize = 4096;
/// How much of the beginning and of the end of a longer one is shown.
const SHOWN_PART: usize = 256;

/// Something on a disk.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    /// Its name in its directory. Whole paths are made when they are needed: those of a deep tree would take memory by
    /// the square of its depth.
    pub(crate) name: Name,
    /// The item of the parent directory; `None` in the root.
    pub(crate) above: Option<usize>,
    pub(crate) attributes: Attributes,
    /// Device and inode number on the disk.
    pub(crate) key: (u64, u64),
    /// The number that it claims.
    pub(crate) number: Option<u64>,
    /// The names that it claims.
    pub(crate) names: Vec<(u64, Name)>,
    /// The number of its last move away, or of its last clean copy.
    pub(crate) leaving: Option<u64>,
    /// The number of its last clean copy.
    pub(crate) copied: Option<u64>,
    /// Whether it has no other one than that.
    pub(crate) is_only_copied: bool,
    pub(crate) arriving: Option<u64>,
    /// Where the old copy is, as it claims, if it is the new one.
    pub(crate) from: Option<Location>,
    /// An unfinished rename of it and another file, as it claims.
    pub(crate) renaming: Option<TwoNames>,
    /// Of a directory: when its names were changed last, as it claims.
    pub(crate) dated: Option<Dated>,
    /// Of a directory: the name that is recorded with it, and for which directory.
    pub(crate) directory_name: Option<(u64, Name)>,
    /// Whether its mode keeps this process from reading what it claims.
    pub(crate) is_closed: bool,
    /// Whether it has more extended attributes than the kernel lists.
    pub(crate) has_long_list: bool,
}

impl Item {
    /// What programs call a directory that lies beside its name on the disk.
    pub(crate) fn users_name(&self) -> Option<&[u8]> {
        let recorded = self.directory_name.as_ref();
        let recorded = recorded.filter(|(of, _)| Some(*of) == self.number);
        let name = match recorded {
            Some((_, name)) => name.as_bytes(),
            None if self.attributes.kind == Kind::Directory => {
                without_number(self.name.as_bytes(), self.number?)?
            }
            None => return None,
        };
        (name != self.name.as_bytes()).then_some(name)
    }
}

/// Everything on a disk; directories come before their contents.
#[derive(Debug, Default)]
pub(crate) struct Scanned {
    pub(crate) items: Vec<Item>,
    /// The root's attributes.
    pub(crate) root: Option<Attributes>,
    /// When its names were changed last, as it claims.
    pub(crate) root_dated: Option<Dated>,
    /// Whether it has more extended attributes than the kernel lists.
    pub(crate) root_has_long_list: bool,
    /// What else could not be read, and why.
    unread: Vec<String>,
    /// Directories whose names this process may not read; `None` is the root.
    pub(crate) unlisted: Vec<Option<usize>>,
    /// A directory that was moved or removed before it was read, if there was one.
    pub(crate) vanished: Option<String>,
    /// The items by the numbers that they claim, once asked for.
    numbered: OnceLock<HashMap<u64, Vec<usize>>>,
    /// The items by the directory in which they are, and their names there, once asked for.
    named: OnceLock<HashMap<(Option<usize>, Name), usize>>,
}

impl Scanned {
    /// The items that claim a number. A check asks for those of each file: a look through all items would take it hours with a
    /// million files.
    pub(crate) fn with_number(&self, number: u64) -> &[usize] {
        let numbered = self.numbered.get_or_init(|| {
            let mut numbered = HashMap::<u64, Vec<usize>>::new();
            for (at, item) in self.items.iter().enumerate() {
                if let Some(number) = item.number {
                    numbered.entry(number).or_default().push(at);
                }
            }
            numbered
        });
        numbered.get(&number).map_or(&[], Vec::as_slice)
    }

    /// The item with that name beside another one. Asked of each directory whose name ends with its number, as
    /// [`with_number`](Self::with_number).
    pub(crate) fn beside(&self, item: &Item, name: &Name) -> Option<&Item> {
        let named = self.named.get_or_init(|| {
            let all = self.items.iter().enumerate();
            all.map(|(at, item)| ((item.above, item.name.clone()), at)).collect()
        });
        named.get(&(item.above, name.clone())).map(|at| &self.items[*at])
    }

    /// Has the items looked for anew, because some were added or got their numbers.
    pub(crate) fn forget_numbered(&mut self) {
        (self.numbered, self.named) = (OnceLock::new(), OnceLock::new());
    }

    /// The names on the way from an item up to the root.
    fn upwards(&self, at: usize) -> impl Iterator<Item = &Name> {
        let mut next = Some(at);
        std::iter::from_fn(move || {
            let item = self.items.get(next?)?;
            next = item.above;
            Some(&item.name)
        })
    }

    /// An item's path from the root.
    pub(crate) fn path(&self, at: usize) -> RelativePath {
        let mut names: Vec<&[u8]> = self.upwards(at).map(Name::as_bytes).collect();
        names.reverse();
        let path = RelativePath::new(&names.join(&b'/'));
        // Directories list no other names.
        path.unwrap_or_else(|| unreachable!("a name in a directory"))
    }

    /// Whether an item's path is this one.
    pub(crate) fn is_path(&self, at: usize, path: &RelativePath) -> bool {
        let names = path.as_bytes().rsplit(|byte| *byte == b'/');
        self.upwards(at).map(Name::as_bytes).eq(names)
    }

    /// Directories with files in them, or below, that count; but not those above one that is known.
    pub(crate) fn with_files(
        &self,
        counts: &dyn Fn(usize) -> bool,
        is_known: &dyn Fn(usize) -> bool,
    ) -> BTreeSet<usize> {
        let mut with_files = BTreeSet::new();
        let files = self.items.iter().enumerate();
        let files = files.filter(|(_, item)| item.attributes.kind == Kind::File);
        for (_, item) in files.filter(|(at, _)| counts(*at)) {
            let mut above = item.above;
            while let Some(at) = above.filter(|at| !is_known(*at) && with_files.insert(*at)) {
                above = self.items[at].above;
            }
        }
        with_files
    }

    /// What could not be read, and why.
    pub(crate) fn unread(&self) -> impl Iterator<Item = String> {
        let unlisted = self.unlisted.iter().map(|at| {
            let path = at.map_or_else(|| "/".to_owned(), |at| self.shown(at));
            format!("{path}: its names cannot be read: {}", std::io::Error::from(Errno::ACCESS))
        });
        self.unread.iter().cloned().chain(unlisted)
    }

    /// Whether all that could not be read are directories that a repair by this user opens.
    pub(crate) fn is_open_to_repair(&self) -> bool {
        let owner = |at: &Option<usize>| match at {
            Some(at) => Some(self.items[*at].attributes.uid),
            None => self.root.as_ref().map(|root| root.uid),
        };
        self.unread.is_empty() && self.unlisted.iter().all(|at| owner(at) == Some(own_uid()))
    }

    /// An item's path, for people: of a very long one the beginning and the end.
    pub(crate) fn shown(&self, at: usize) -> String {
        shown(&self.path(at).to_string())
    }
}

/// Reads a disk. Unreadable things are listed, and hide nothing else.
pub(crate) fn scan(tree: &Tree) -> Result<Scanned> {
    let root = tree.look(None)?;
    let (described, root_dated) = (describe(&root)?.0, own_xattrs::dated(&root));
    let root_has_long_list = own_xattrs::listed(&root).is_none();
    let mut scanned =
        Scanned { root: Some(described), root_dated, root_has_long_list, ..Scanned::default() };
    let mut cursor = TreeCursor::new(&root)?;
    // Directories to be read, and how deep they are. What is read next is always in a directory that was just passed.
    let mut todo: Vec<(Option<usize>, usize)> = vec![(None, 0)];
    while let Some((above, depth)) = todo.pop() {
        let names = enter(&mut cursor, &scanned, above, depth);
        let names = match names {
            Ok(names) => names,
            Err(errno) => {
                let path = above.map_or_else(|| "/".to_owned(), |at| scanned.shown(at));
                if matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::STALE) {
                    scanned.vanished = Some(path);
                    continue;
                }
                if errno == Errno::ACCESS {
                    scanned.unlisted.push(above);
                } else {
                    let line = format!("{path}: {}", std::io::Error::from(errno));
                    tell(&mut scanned.unread, line);
                }
                continue;
            }
        };
        for name in names {
            if above.is_none() && [PRIVATE, REGISTRY].iter().any(|ours| name == **ours) {
                continue;
            }
            let found = if name.len() > NAME_BYTES_MAX {
                Err(Errno::NAMETOOLONG.into())
            } else {
                item(&cursor, &name, above)
            };
            match found {
                Ok(Some(item)) if is_lost_and_found(&item, &root) => {}
                Ok(Some(item)) => {
                    if item.attributes.kind == Kind::Directory {
                        todo.push((Some(scanned.items.len()), depth + 1));
                    }
                    scanned.items.push(item);
                }
                // It was removed meanwhile.
                Ok(None) => {}
                Err(error) => {
                    let above = above.map_or_else(String::new, |at| scanned.shown(at) + "/");
                    let name = shown_name(name.as_bytes());
                    tell(&mut scanned.unread, format!("{above}{name}: {error}"));
                }
            }
        }
    }
    Ok(scanned)
}

/// Whether it is the directory that a file system keeps in its root for itself, and not one that programs made.
fn is_lost_and_found(item: &Item, root: &OwnedFd) -> bool {
    let Item { name, above: None, number: None, .. } = item else { return false };
    if name.as_bytes() != LOST_AND_FOUND || item.attributes.kind != Kind::Directory {
        return false;
    }
    let key = |fd: &OwnedFd| stat_descriptor(fd).map(|stat| stat.key());
    let above = openat(root, "..", OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let Some((above, root)) = above.ok().and_then(|above| key(&above).ok().zip(key(root).ok()))
    else {
        return false;
    };
    above.0 != root.0 || above == root
}

/// Goes to a directory that was found before, and lists it.
fn enter(
    cursor: &mut TreeCursor,
    scanned: &Scanned,
    directory: Option<usize>,
    depth: usize,
) -> rustix::io::Result<Vec<std::ffi::OsString>> {
    if let Some(at) = directory {
        cursor.leave_to(depth - 1)?;
        cursor.enter(OsStr::from_bytes(scanned.items[at].name.as_bytes()))?;
    }
    let mut names = cursor.names()?;
    // Sorted, so that decisions that depend on the order are reproducible.
    names.sort_unstable();
    Ok(names)
}

/// Keeps a line for display, unless there are too many.
pub(crate) fn tell(lines: &mut Vec<String>, line: String) {
    if lines.len() < TOLD_MAX {
        lines.push(line);
    }
}

/// A path for people, shortened if it is very long.
pub(crate) fn shown(path: &str) -> String {
    if path.len() <= SHOWN_BYTES {
        return path.to_owned();
    }
    let end = |at: usize| path.floor_char_boundary(at);
    let (begin, rest) = (&path[..end(SHOWN_PART)], &path[end(path.len() - SHOWN_PART)..]);
    format!("{begin} ... {rest} ({} bytes)", path.len())
}

fn item(cursor: &TreeCursor, name: &OsStr, above: Option<usize>) -> Result<Option<Item>> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = match openat(cursor.directory(), name, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        fd => fd?,
    };
    let is_link = stat_descriptor(&fd)?.kind() == libc::S_IFLNK;
    let claims = |what| if is_link { None } else { own_xattrs::number(&fd, what) };
    let what = match stat_descriptor(&fd)?.kind() {
        libc::S_IFDIR => {
            own_xattrs::owner_permissions::admit(&fd);
            own_xattrs::DIRECTORY
        }
        _ => own_xattrs::INODE,
    };
    let number = claims(what).filter(|number| *number > 1);
    let is_closed = !is_link && number.is_none() && own_xattrs::is_closed(&fd);
    let listed = if is_link { Some(Vec::new()) } else { own_xattrs::listed(&fd) };
    let has_long_list = listed.is_none();
    let mut names = listed.unwrap_or_default();
    names.retain(|(directory, name)| may_name(*directory, name));
    // A file of which a clean copy was made is an old one if the copy has become the file.
    let (moved, copied) = (claims(own_xattrs::LEAVING), claims(own_xattrs::COPIED));
    let (leaving, is_only_copied) = (moved.max(copied), moved.is_none() && copied.is_some());
    let arriving = claims(own_xattrs::ARRIVING);
    let from = if is_link { None } else { own_xattrs::from(&fd) };
    let renaming = if is_link { None } else { own_xattrs::renaming(&fd) };
    let renaming = renaming
        .filter(|TwoNames { from, to, .. }| [from, to].iter().all(|it| may_name(it.0, &it.1)));
    let (attributes, stat) = describe(&fd)?;
    let is_directory = attributes.kind == Kind::Directory;
    let dated = if is_directory { own_xattrs::dated(&fd) } else { None };
    let directory_name = if is_directory { own_xattrs::directory_name(&fd) } else { None };
    let (key, name) = (stat.key(), Name::from(name.as_bytes()));
    Ok(Some(Item {
        name,
        above,
        attributes,
        key,
        number,
        names,
        leaving,
        copied,
        is_only_copied,
        arriving,
        from,
        renaming,
        dated,
        directory_name,
        is_closed,
        has_long_list,
    }))
}

/// The attributes of something, in the form of the store.
pub(super) fn describe(fd: &OwnedFd) -> Result<(Attributes, Stat)> {
    let stat = stat_descriptor(fd)?;
    let raw = &stat.raw;
    let kind = kind(raw.st_mode);
    let mut attributes = Attributes::new(
        kind,
        own_xattrs::owner_permissions::mode(fd, raw),
        joined(raw.st_mtime, raw.st_mtime_nsec),
    );
    (attributes.uid, attributes.gid, attributes.rdev) = (raw.st_uid, raw.st_gid, raw.st_rdev);
    attributes.atime_ns = joined(raw.st_atime, raw.st_atime_nsec);
    attributes.ctime_ns = joined(raw.st_ctime, raw.st_ctime_nsec);
    if kind == Kind::File {
        attributes.size = raw.st_size.unsigned_abs();
    }
    if kind == Kind::Symlink {
        attributes.target = readlinkat(fd, "", Vec::new())?.into_bytes();
    }
    attributes.xattrs = users_xattrs::all(fd, &attributes)?;
    Ok((attributes, stat))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use halocline_testkit::small_disk::SmallDisk;

    use super::*;
    use crate::places::steps::Steps;

    /// Regression: each check told of a directory that would get a name.
    #[test]
    fn what_a_file_system_keeps_for_itself_is_no_name() {
        let scratch = tempfile::tempdir().unwrap();
        let disk = scratch.path().join("disk");
        fs::create_dir(&disk).unwrap();
        let names = || {
            fs::create_dir_all(disk.join("d/lost+found")).unwrap();
            fs::create_dir_all(disk.join("lost+found/of a check")).unwrap();
            let scanned = scan(&Tree::open(&disk, Steps::default()).unwrap()).unwrap();
            (0..scanned.items.len()).map(|at| scanned.shown(at)).collect::<Vec<_>>()
        };
        let plain = names();
        assert!(plain.contains(&"lost+found".to_owned()) && plain.len() == 4, "{plain:?}");
        let Some(_small) = SmallDisk::over(disk.clone(), 1 << 20) else { return };
        assert_eq!(names(), ["d", "d/lost+found"]);
    }
}
