//! Clean copies of files on SSDs, on the shared disk: `.halocline/copies/NODE/INODE.NUMBER`
//! (`docs/decisions/0081-clean-copies-that-nodes-share.md`).
//!
//! What must hold (I13, I14): a copy with its final name has the file's newest content, whatever the store says. It gets
//! that name after the store has its mark, and whoever changes the file removes it first. The directory is closed to
//! others, so what lies there is no claim.

use std::cmp::Ordering;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::sync::Weak;

use halocline_cluster::names::attributes::{Attributes, CleanCopy, Location};
use halocline_os::error::{Error, Result};
use halocline_os::leased_files;
use halocline_os::private::PrivateDir;
use halocline_os::rename_new::rename_new;
use halocline_vfs::Stat;
use halocline_vfs::namespace::stat_descriptor;
use rustix::fs::{AtFlags, Mode, OFlags, fsync, openat, renameat, unlinkat};
use rustix::io::Errno;

use super::copy_sizes::{Key, Known};
use super::descriptor_path::proc_path;
use super::own_xattrs::owner_permissions::permitted;
use super::own_xattrs::{self, NameIn};
use super::peers::check_node;
use super::room::{MakesRoom, Need};
use super::tree::{LEFTOVERS, Tree, fresh};
use super::{Places, SSD};
use crate::remedies::REPAIR;
use crate::stat_conversion::{joined, split};

/// The directory with a directory for each node.
const DIRECTORY: &str = "copies";
/// Bytes that are compared at once.
const COMPARED: usize = 256 << 10;
/// Ends the name of a copy whose mark the store may not have.
const UNMARKED: char = '~';

#[cfg(test)]
thread_local! {
    /// How often this thread has looked at a copy.
    pub(crate) static LOOKS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// A copy, by its name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CopyName {
    /// The node on whose SSD the file is.
    pub(crate) node: String,
    pub(crate) inode: u64,
    pub(crate) number: u64,
    /// Whether it has its final name.
    pub(crate) is_final: bool,
}

impl CopyName {
    /// The copy of a file that the store marks, if it marks one.
    pub(crate) fn of(attributes: &Attributes, inode: u64) -> Option<Self> {
        let place = attributes.location.as_ref().filter(|place| place.tier == SSD)?;
        let (node, copy) = (place.node.clone()?, attributes.copy?);
        Some(Self { node, inode, number: copy.number, is_final: true })
    }

    fn parse(node: &str, name: &[u8]) -> Option<Self> {
        let (name, is_final) = match name.strip_suffix(&[UNMARKED as u8]) {
            Some(name) => (name, false),
            None => (name, true),
        };
        let mut parts = name.splitn(2, |byte| *byte == b'.').map(own_xattrs::parse_number);
        let (inode, number) = (parts.next()??, parts.next()??);
        Some(Self { node: node.to_owned(), inode, number, is_final })
    }

    fn key(&self) -> Key<'_> {
        (&self.node, self.inode, self.number)
    }

    fn names(&self) -> [String; 2] {
        let whole = format!("{}.{}", self.inode, self.number);
        [format!("{whole}{UNMARKED}"), whole]
    }
}

/// The copies on the shared disk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Copies<'a>(&'a Tree);

impl<'a> Copies<'a> {
    pub(crate) const fn of(places: &'a Places) -> Self {
        Self(&places.shared.tree)
    }

    /// Those on a shared disk.
    pub(crate) const fn on(shared: &'a Tree) -> Self {
        Self(shared)
    }

    fn dir(self, node: &str) -> Result<PrivateDir> {
        // The store, which may say anything, names it.
        check_node(node)?;
        self.0.private.sub(DIRECTORY)?.sub(node)
    }

    /// Names a copy that was made among the temporary files: the store does not have its mark yet.
    pub(super) fn put(self, copy: &CopyName, fresh: &str) -> Result<()> {
        let dir = self.dir(&copy.node)?;
        let [unmarked, _] = copy.names();
        self.0.step("naming a clean copy", || {
            rename_new(&self.0.tmp, fresh, &dir, &unmarked)?;
            Ok::<_, Error>(fsync(&dir)?)
        })
    }

    /// Gives a copy its final name, after the store has its mark; `false` if the file was changed since, so that it is
    /// gone.
    pub(crate) fn finish(self, copy: &CopyName) -> Result<bool> {
        let dir = self.dir(&copy.node)?;
        let [unmarked, whole] = copy.names();
        self.0.step("finishing a clean copy", || match renameat(&dir, &unmarked, &dir, &whole) {
            Err(Errno::NOENT) => Ok(false),
            renamed => renamed.and_then(|()| fsync(&dir)).map(|()| true),
        })
    }

    /// Removes a copy, durably, before its file is changed. One that is gone is no error.
    pub(crate) fn remove(self, copy: &CopyName) -> Result<()> {
        if self.unlink(copy)? {
            let dir = self.dir(&copy.node)?;
            self.0.step("syncing the removal of a clean copy", || fsync(&dir))?;
        }
        Ok(())
    }

    /// Removes a copy whose file is gone, or is on the shared disk by now; whether it was there. Other removals of files
    /// are not durable at once, either.
    pub(crate) fn unlink(self, copy: &CopyName) -> Result<bool> {
        let dir = self.dir(&copy.node)?;
        let mut was_there = false;
        // In this order: its maker may be giving it its final name.
        for name in copy.names() {
            was_there |= self.0.step("removing a clean copy", || {
                match unlinkat(&dir, &name, AtFlags::empty()) {
                    Err(Errno::NOENT) => Ok(false),
                    gone => gone.map(|()| true),
                }
            })?;
        }
        Ok(was_there)
    }

    /// Opens a copy, with [`OFlags::PATH`], under its name as given. Its time is the exact one of the file's content.
    pub(crate) fn look(self, copy: &CopyName) -> Result<Option<(OwnedFd, Stat)>> {
        #[cfg(test)]
        LOOKS.set(LOOKS.get() + 1);
        let dir = self.dir(&copy.node)?;
        let name = &copy.names()[usize::from(copy.is_final)];
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = match openat(&dir, name, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            fd => fd?,
        };
        let mut stat = stat_descriptor(&fd)?;
        let is_it = stat.kind() == libc::S_IFREG
            && own_xattrs::number(&fd, own_xattrs::INODE) == Some(copy.inode);
        // Its file system may keep whole seconds only.
        let written = own_xattrs::number(&fd, own_xattrs::WRITTEN);
        let written = written.and_then(|ns| i64::try_from(ns).ok()).map(split);
        if let Some((seconds, rest)) = written.filter(|_| stat.raw.st_mtime_nsec == 0)
            && seconds == stat.raw.st_mtime
        {
            stat.raw.st_mtime_nsec = rest;
        }
        Ok(is_it.then_some((fd, stat)))
    }

    /// Whether a copy has the bytes of a file of its size.
    pub(crate) fn has_bytes_of(self, copy: &CopyName, file: &impl AsFd) -> Result<bool> {
        let Some((copy, stat)) = self.look(copy)? else { return Ok(false) };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let open = |path: String| leased_files::reopen(&path, flags);
        let one = File::from(permitted(&copy, || open(proc_path(&copy)))?);
        let other = File::from(permitted(file, || open(proc_path(file)))?);
        let size = stat.raw.st_size.unsigned_abs();
        let mut buffers = [vec![0; COMPARED], vec![0; COMPARED]];
        let mut at = 0;
        while at < size {
            let len = usize::try_from(size - at).unwrap_or(COMPARED).min(COMPARED);
            let [here, there] = &mut buffers;
            one.read_exact_at(&mut here[..len], at)?;
            other.read_exact_at(&mut there[..len], at)?;
            if here[..len] != there[..len] {
                return Ok(false);
            }
            at += len as u64;
        }
        Ok(true)
    }

    /// Opens the copy that stands for a file with these attributes in the store, if there is one.
    pub(crate) fn standing_for(
        self,
        attributes: &Attributes,
        inode: u64,
    ) -> Result<Option<(OwnedFd, Stat)>> {
        let Some((name, mark)) = CopyName::of(attributes, inode).zip(attributes.copy) else {
            return Ok(None);
        };
        let found = self.look(&name)?;
        Ok(found.filter(|(_, stat)| {
            mtime_ns(stat) == mark.mtime_ns && stat.raw.st_size.unsigned_abs() == attributes.size
        }))
    }

    /// Refuses a file that was found where the store has it, if that is older than the copy which stands for it: somebody has
    /// put an earlier state of the SSD back. Whoever changes a file takes the copy away first.
    ///
    /// # Errors
    /// That it is older, or if the copy cannot be read.
    pub(crate) fn refuse_older(self, file: &impl AsFd, of: &Attributes, inode: u64) -> Result<()> {
        let stat = stat_descriptor(file)?;
        let is_as_marked = |mark: CleanCopy| {
            mark.mtime_ns == CleanCopy::BEING_MADE
                || (mark.mtime_ns, of.size) == (mtime_ns(&stat), stat.raw.st_size.unsigned_abs())
        };
        if of.copy.is_none_or(is_as_marked) {
            return Ok(());
        }
        let Some((name, (_, copy))) = CopyName::of(of, inode).zip(self.standing_for(of, inode)?)
        else {
            return Ok(());
        };
        let (is, of) = (Version::of(file, &stat), Version::of_copy(&name, &copy));
        if is.has(of) || is.size == of.size && self.has_bytes_of(&name, file)? {
            return Ok(());
        }
        Err(older(&name))
    }

    /// Records with a copy which name its file has by now, and where it is.
    pub(crate) fn renamed(self, copy: &CopyName, name: &NameIn, place: &Location) -> Result<()> {
        for is_final in [false, true] {
            let Some((fd, _)) = self.look(&CopyName { is_final, ..copy.clone() })? else {
                continue;
            };
            self.0.step("renaming a clean copy", || {
                own_xattrs::set_names(&fd, std::slice::from_ref(name))?;
                own_xattrs::set_from(&fd, place)
            })?;
        }
        Ok(())
    }

    /// The names that are recorded with a copy.
    pub(crate) fn names_of(self, copy: &CopyName) -> Result<Vec<NameIn>> {
        Ok(self.look(copy)?.map_or_else(Vec::new, |(fd, _)| own_xattrs::names(&fd)))
    }

    /// All copies of files of a node, or of all nodes.
    pub(crate) fn all(self, of: Option<&str>) -> Result<Vec<CopyName>> {
        let mut all = Vec::new();
        for node in self.0.private.sub(DIRECTORY)?.names()? {
            let Some(node) = node.to_str().filter(|node| check_node(node).is_ok()) else {
                continue;
            };
            if of.is_none_or(|of| of == node) {
                let names = self.dir(node)?.names()?.into_iter();
                all.extend(names.filter_map(|name| CopyName::parse(node, name.as_bytes())));
            }
        }
        Ok(all)
    }

    /// The bytes of all copies.
    pub(crate) fn bytes(self) -> Result<u64> {
        let known = self.known(&self.all(None)?)?.into_iter();
        Ok(known.fold(0, |sum: u64, (_, known)| sum.saturating_add(known.bytes)))
    }

    /// What is known of all copies that there are, each with its index among them.
    fn known(self, all: &[CopyName]) -> Result<Vec<(usize, Known)>> {
        self.0.room.copies.of(all.iter().map(CopyName::key), &mut |at| {
            let found = self.look(&all[at])?;
            Ok(found.map(|(_, stat)| Known::new(stat.disk_bytes(), stat.raw.st_uid)))
        })
    }

    /// Removes copies whose files are found on their SSDs, the largest first, until so much is free; returns whether any was
    /// removed. With a user, only copies that count for the user's quota.
    pub(crate) fn give_way(places: &Places, need: Need, user: Option<u32>) -> Result<bool> {
        let (copies, now) = (Copies::of(places), places.shared.clock.instant());
        let all = copies.all(None)?;
        let mut known = copies.known(&all)?;
        known.retain(|(at, known)| {
            all[*at].is_final && known.may_go(now) && user.is_none_or(|user| known.user == user)
        });
        known.sort_by_key(|(_, known)| std::cmp::Reverse(known.bytes));
        let mut freed = Need::default();
        for (at, known) in known {
            if freed.bytes >= need.bytes && freed.files >= need.files {
                break;
            }
            if !copies.is_seen(places, &all[at], None)? {
                copies.0.room.copies.stays(all[at].key(), now);
                continue;
            }
            copies.remove(&all[at])?;
            freed.files += 1;
            freed.bytes = freed.bytes.saturating_add(known.bytes);
        }
        Ok(freed.files > 0)
    }

    /// Whether the file of a copy is found at a place, or where the copy says, with the same or a newer content: then nothing is
    /// lost with the copy. `false` if its SSD is not reached. A copy without its final name may go only if the final one may.
    pub(crate) fn is_seen(
        self,
        places: &Places,
        copy: &CopyName,
        at: Option<&Location>,
    ) -> Result<bool> {
        let Some((fd, of)) = self.look(copy)? else { return Ok(false) };
        let of = Version::of_copy(copy, &of);
        let claimed = own_xattrs::from(&fd)
            .filter(|place| place.tier == SSD && place.node.as_ref() == Some(&copy.node));
        let mut all = at.into_iter().chain(&claimed);
        Ok(all.any(|place| Version::at(places, place, copy.inode).is_ok_and(|file| file.has(of))))
    }

    /// Removes the copy of a file that the store has at a place, before it is changed, if the file is found there with the same
    /// or a newer content. One that is gone is no error.
    ///
    /// # Errors
    /// If the file is not reached, or older than its copy: the copy may be all that is left of it then. `ENOENT` if it is not
    /// there (any more).
    pub(crate) fn remove_seen(
        self,
        places: &Places,
        copy: &CopyName,
        place: &Location,
    ) -> Result<()> {
        let file = Version::at(places, place, copy.inode)?;
        if let Some((_, of)) = self.look(copy)? {
            let of = Version::of_copy(copy, &of);
            // Its time may have been set since it was copied.
            let is_same = || {
                Ok::<_, Error>(
                    file.size == of.size && {
                        let compare = |fd| self.has_bytes_of(copy, &fd);
                        places.find(place, copy.inode, |_, fd, _| compare(fd))?
                    },
                )
            };
            if !file.has(of) && !is_same()? {
                return Err(older(copy));
            }
        }
        self.remove(copy)
    }

    /// Moves a copy out of the way, to where people still find it. Nobody uses the names meanwhile.
    pub(crate) fn set_aside(self, copy: &CopyName) -> Result<()> {
        let (dir, aside) = (self.dir(&copy.node)?, self.0.private.sub(LEFTOVERS)?);
        let name = &copy.names()[usize::from(copy.is_final)];
        self.0.step("setting a clean copy aside", || {
            rename_new(&dir, name, &aside, fresh("leftover", copy.inode))?;
            fsync(&aside)?;
            Ok::<_, Error>(fsync(&dir)?)
        })
    }
}

/// From now on `by` has copies give way on the shared disk, and on the SSD if that is the same disk.
pub(crate) fn give_way_by(places: &Places, by: &Weak<dyn MakesRoom>) {
    let id = |tree: &Tree| tree.totals().ok().map(|totals| totals.f_fsid);
    let shared = &places.shared.tree;
    shared.room.is_made_by(by.clone());
    if id(&places.ssd) == id(shared) {
        places.ssd.room.is_made_by(by.clone());
    }
}

/// When the content of a file last changed.
pub(crate) const fn mtime_ns(stat: &Stat) -> i64 {
    joined(stat.raw.st_mtime, stat.raw.st_mtime_nsec)
}

fn older(copy: &CopyName) -> Error {
    Error::Unreached {
        what: format!(
            "the SSD of node {} has an older version of the file than the shared disk has a copy of",
            copy.node
        ),
        remedy: format!(
            "unmount all nodes, and have the older one set aside: {REPAIR}; then `halocline cluster drain {}` on a node that \
             is mounted makes the copy the file",
            copy.node
        ),
    }
}

/// A version of a file's content, as far as it shows without being read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) size: u64,
    pub(crate) mtime_ns: i64,
    /// The number of the clean copy that was made of it. Whoever writes the file takes that away first.
    pub(crate) copied: Option<u64>,
}

impl Version {
    /// That of the file at a place.
    fn at(places: &Places, place: &Location, inode: u64) -> Result<Self> {
        places.find(place, inode, |_, fd, _| {
            let stat = stat_descriptor(&fd)?;
            Ok(Self::of(&fd, &stat))
        })
    }

    fn of(file: &impl AsFd, stat: &Stat) -> Self {
        let copied = own_xattrs::number(file, own_xattrs::COPIED);
        Self { size: stat.raw.st_size.unsigned_abs(), mtime_ns: mtime_ns(stat), copied }
    }

    pub(crate) const fn of_copy(copy: &CopyName, stat: &Stat) -> Self {
        let (size, copied) = (stat.raw.st_size.unsigned_abs(), Some(copy.number));
        Self { size, mtime_ns: mtime_ns(stat), copied }
    }

    /// Whether a file with this version has the content of a copy of it, or a newer one: then nothing is lost with the copy.
    /// All who remove copies of files that stay ask this.
    pub(crate) fn has(self, copy: Self) -> bool {
        let (is_same_size, is_later) = (self.size == copy.size, self.mtime_ns > copy.mtime_ns);
        let is_same = is_same_size && self.mtime_ns == copy.mtime_ns;
        // Of whole seconds nobody knows what was changed in the same one.
        let is_surely_same = is_same && !is_whole_second(copy.mtime_ns);
        match self.copied.cmp(&copy.copied) {
            Ordering::Equal | Ordering::Greater => is_same || is_later,
            Ordering::Less if self.copied.is_some() => is_surely_same,
            // It was written or moved since.
            Ordering::Less => is_surely_same || is_later,
        }
    }
}

/// Whether a time may be that of a file system that keeps whole seconds only.
pub(crate) const fn is_whole_second(ns: i64) -> bool {
    ns.rem_euclid(1_000_000_000) == 0
}

/// The mark of a copy.
pub(crate) const fn mark(number: u64, stat: &Stat) -> CleanCopy {
    CleanCopy { number, mtime_ns: mtime_ns(stat) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_we_give_are_those_of_copies() {
        for is_final in [true, false] {
            let copy = CopyName { node: "n1".to_owned(), inode: 7, number: 12, is_final };
            let name = &copy.names()[usize::from(is_final)];
            assert_eq!(CopyName::parse("n1", name.as_bytes()), Some(copy));
        }
        for wrong in
            ["", "7", "7.", ".7", "07.1", "7.1~~", "7.1.2", "a.1", "7.1a", "new-7-3f", "-1.2"]
        {
            assert_eq!(CopyName::parse("n1", wrong.as_bytes()), None, "{wrong:?}");
        }
    }
}
