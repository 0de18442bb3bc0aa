//! Changes of names. The store decides, and the disks follow: so their trees can be read without us, and the names
//! can be rebuilt from them. Failures on the disks are logged; a name's target is found by its number all the same.

mod bytes_of_links;
mod new_directories;
mod new_links;
mod removed_bytes;
mod renamed_bytes;

use std::ffi::OsStr;
use std::sync::Arc;

use halocline_cluster::names::attributes::{Attributes, Kind};
use halocline_cluster::names::namespace::{self, ChangeUnderWay, Failure, Renamed};
use halocline_model::namespace::{Entry, EntryName, Flags, InodeNumber};
use halocline_os::error::Result;
use halocline_vfs::{Caller, Make, Maker, Stat};
use rustix::io::Errno;

use self::bytes_of_links::{follow_names, leave};
use crate::acl::inherit;
use crate::base::Base;
use crate::clean_copies;
use crate::entry_names::entry_name_of_program;
use crate::errors::of_names;
use crate::files::{Files, place_of};
use crate::inodes::Vnode;
use crate::late_names::Late;
use crate::lookup::{FoundInode, Lookup};
use crate::places::{DirectoryStep, RenameNotes};
use crate::renames::{self, Renaming, Replaces, follow};
use crate::sticky;

/// Changes names.
#[derive(Debug)]
pub(crate) struct NameChanges {
    base: Arc<Base>,
    lookup: Arc<Lookup>,
    files: Arc<Files>,
}

impl NameChanges {
    pub(crate) fn new(base: &Arc<Base>, lookup: &Arc<Lookup>, files: &Arc<Files>) -> Self {
        Self { base: Arc::clone(base), lookup: Arc::clone(lookup), files: Arc::clone(files) }
    }

    /// Makes something other than an open file.
    ///
    /// # Errors
    /// `EEXIST`, and what the disks refuse.
    pub(crate) fn make(
        &self,
        parent: &Vnode,
        name: &OsStr,
        what: Make<'_>,
        by: Maker,
    ) -> Result<(Vnode, Stat)> {
        let name = entry_name_of_program(parent.0.number, name)?;
        let _under_way = self.begins();
        let kind = match what {
            Make::Directory(mode) => return self.make_directory(parent, &name, mode, by),
            Make::Special(mode, _) if matches!(mode & libc::S_IFMT, 0 | libc::S_IFREG) => {
                let (vnode, stat, _) = self.files.make(parent, &name, (mode, None), by)?;
                return Ok((vnode, stat));
            }
            Make::Symlink(_) => Kind::Symlink,
            Make::Special(mode, _) => match mode & libc::S_IFMT {
                libc::S_IFIFO => Kind::Fifo,
                libc::S_IFSOCK => Kind::Socket,
                libc::S_IFCHR => Kind::CharDevice,
                libc::S_IFBLK => Kind::BlockDevice,
                _ => return Err(Errno::INVAL.into()),
            },
        };
        let base = &self.base;
        let directory = base.names.directory(parent.0.number).map_err(of_names)?;
        let mut attributes = Attributes::new(kind, 0o777, base.now_ns());
        attributes.uid = by.caller.uid;
        match what {
            Make::Special(mode, device) => {
                let new = inherit(&directory.attributes, (mode, by.umask), by.caller, false);
                (attributes.mode, attributes.gid, attributes.xattrs) =
                    (new.mode, new.gid, new.xattrs);
                attributes.rdev = device;
            }
            Make::Symlink(target) => {
                attributes.gid = inherit(&directory.attributes, (0, 0), by.caller, false).gid;
                attributes.target = target.as_encoded_bytes().to_vec();
            }
            Make::Directory(_) => {}
        }
        let made = base.names.create(&name, &attributes).map_err(of_names)?;
        let done = self.base.disk().made(&name, made.inode, &attributes);
        renames::follow_or_take_back(base, (&name, made.inode), done)?;
        Ok(self.lookup.seen(&name, made))
    }

    fn make_directory(
        &self,
        parent: &Vnode,
        name: &EntryName,
        mode: u32,
        by: Maker,
    ) -> Result<(Vnode, Stat)> {
        let base = &self.base;
        let above = base.names.directory(parent.0.number).map_err(of_names)?;
        let new = inherit(&above.attributes, (mode, by.umask), by.caller, true);
        let mut attributes = Attributes::new(Kind::Directory, new.mode, base.now_ns());
        (attributes.uid, attributes.gid, attributes.xattrs) = (by.caller.uid, new.gid, new.xattrs);
        let number = base.names.number().map_err(of_names)?;
        let near = base.near(parent.0.number)?;
        let owner = (new.mode, by.caller.uid, new.gid);
        base.places.make_directory(&near, &name.name, number.0, owner)?;
        let done = base.names.make_directory_as(number, name, &attributes);
        let done = done.inspect_err(|failure| {
            if !failure.is_doubtful() {
                let own = DirectoryStep { number: number.0, name: name.name.clone() };
                let steps = [&near[..], &[own]].concat();
                let _logged = follow("mkdir", name, base.places.remove_directory(&steps));
            }
        });
        let seen = self.lookup.seen(name, done.map_err(of_names)?);
        let steps = || self.steps(name, number);
        new_directories::set_xattrs(base, (name, number), &attributes, steps)?;
        Ok(seen)
    }

    /// Gives a file one more name.
    ///
    /// # Errors
    /// `EEXIST`, `EMLINK`; `ENOENT` if the file has lost its last name, `ESTALE` if its present one is not known.
    pub(crate) fn link(&self, vnode: &Vnode, parent: &Vnode, name: &OsStr) -> Result<Stat> {
        let to = entry_name_of_program(parent.0.number, name)?;
        let _under_way = self.begins();
        let both = (&*self.base, &*self.lookup);
        let linked = new_links::link(both, vnode, &to, |gone| self.remove(&to, gone))?;
        Ok(self.lookup.shown(&vnode.0, &linked))
    }

    /// Removes a name of anything but a directory.
    ///
    /// # Errors
    /// `ENOENT`, `EISDIR`; `EPERM` in a directory with the sticky bit.
    pub(crate) fn unlink(&self, parent: &Vnode, name: &OsStr, by: Caller) -> Result<()> {
        let name = entry_name_of_program(parent.0.number, name)?;
        let _under_way = self.begins();
        let unlink = |only| self.base.names.unlink_told(&name, only);
        let (entry, left) = sticky::take_away(&self.base, (parent, &name), by, unlink)?;
        match left {
            Some(left) => {
                self.lost_a_name(&name, &entry, &left)?;
                follow("unlink", &name, follow_names(&self.base, &left, &name))
            }
            None => follow("unlink", &name, self.note_change(entry.inode())),
        }
    }

    /// Begins a change.
    fn begins(&self) -> ChangeUnderWay {
        self.base.names.begin_change()
    }

    /// Something has lost a name: its last one, or one of several.
    fn lost_a_name(
        &self,
        name: &EntryName,
        was: &Entry,
        left: &namespace::StoredInode,
    ) -> Result<()> {
        if left.links == 0 {
            self.remove(name, left)?;
            return self.lost_all(name, was, left);
        }
        let place = place_of(&left.attributes);
        let told = match left.attributes.kind {
            Kind::File => self.base.tell_names(left.inode, place, (&[], &[name])),
            _ => self.lost_other(name, (left.inode, Some(&left.attributes))),
        };
        follow("unlink", name, told)?;
        // This node may know none of its other names.
        let Entry::Linked(_, shard) = was else { return Ok(()) };
        let changed = renames::changed_at(self.base.now_ns());
        let noted = self.base.names.attributes().update_links(*shard, changed);
        follow("unlink", name, noted.map_err(of_names))
    }

    /// Something lost or changed one of its names: updates its ctime, if this node knows another name of it.
    fn note_change(&self, number: InodeNumber) -> Result<()> {
        let Some(vnode) = self.base.table.find(number) else { return Ok(()) };
        let change = renames::changed_at(self.base.now_ns());
        let Some(FoundInode { name, .. }) = self.lookup.find(&vnode.0)? else { return Ok(()) };
        let attributes = self.base.names.attributes();
        let changed = match name {
            None => attributes.update_directory(number, change),
            Some(name) => attributes.update_of((&name, number), change),
        };
        match changed {
            // Whoever renamed or removed it meanwhile does this.
            Ok(_) | Err(Failure::Refused(_)) => Ok(()),
            Err(failure) => Err(of_names(failure)),
        }
    }

    /// Removes from the disks what lost its last name. Programs of this node that have it open can still use it.
    fn remove(&self, name: &EntryName, gone: &namespace::StoredInode) -> Result<()> {
        match gone.attributes.kind {
            Kind::Directory => Ok(()),
            Kind::File => removed_bytes::remove(&self.base, &self.files, name, gone),
            _ => {
                let lost = self.lost_other(name, (gone.inode, Some(&gone.attributes)));
                follow("unlink", name, lost)
            }
        }
    }

    /// A link or device has lost a name.
    fn lost_other(&self, name: &EntryName, of: (InodeNumber, Option<&Attributes>)) -> Result<()> {
        let lost = self.base.disk().lost(name, of);
        self.or_later(lost, || vec![Late::Other(name.clone(), of.0)])
    }

    /// What has lost its last name was one inode on the shared disk if it has had several. One that stays is known by no
    /// name, and leaves with the next repair.
    fn lost_all(&self, name: &EntryName, was: &Entry, gone: &namespace::StoredInode) -> Result<()> {
        if !matches!(was, Entry::Linked(..)) || !gone.attributes.kind.is_other() {
            return Ok(());
        }
        follow("unlink", name, self.base.disk().lost_all(gone.inode))
    }

    /// What the shared disk cannot do now, it does later.
    fn or_later(&self, done: Result<()>, late: impl FnOnce() -> Vec<Late>) -> Result<()> {
        self.base.late.add(done, late)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ENOTEMPTY`; `EPERM` in a directory with the sticky bit.
    pub(crate) fn remove_dir(&self, parent: &Vnode, name: &OsStr, by: Caller) -> Result<()> {
        let name = entry_name_of_program(parent.0.number, name)?;
        let _under_way = self.begins();
        let remove = |only| self.base.names.remove_directory_of(&name, only);
        let number = sticky::take_away(&self.base, (parent, &name), by, remove)?;
        let steps = self.steps(&name, number);
        let done = steps.and_then(|steps| {
            let removed = self.base.places.remove_directory(&steps);
            self.or_later(removed, || vec![Late::Directory(steps)])
        });
        follow("rmdir", &name, done)
    }

    /// The steps to a directory with the given name.
    fn steps(&self, name: &EntryName, number: InodeNumber) -> Result<Vec<DirectoryStep>> {
        let mut steps = self.base.near(name.directory)?;
        steps.push(DirectoryStep { number: number.0, name: name.name.clone() });
        Ok(steps)
    }

    /// Renames; `flags` are those of `renameat2(2)`.
    ///
    /// # Errors
    /// As `renameat2(2)`.
    pub(crate) fn rename(
        &self,
        from: (&Vnode, &OsStr),
        to: (&Vnode, &OsStr),
        flags: u32,
        by: Caller,
    ) -> Result<()> {
        let _under_way = self.begins();
        let compared = sticky::compared(&self.base, [from.0, to.0], by)?;
        let from = entry_name_of_program(from.0.0.number, from.1)?;
        let to = entry_name_of_program(to.0.0.number, to.1)?;
        let flags = match flags {
            0 => Flags::Replace,
            libc::RENAME_NOREPLACE => Flags::NoReplace,
            libc::RENAME_EXCHANGE => Flags::Exchange,
            _ => return Err(Errno::INVAL.into()),
        };
        for _ in 0..sticky::TRIES {
            if self.rename_found((&from, &to), flags, compared)? {
                return Ok(());
            }
        }
        Err(Errno::BUSY.into())
    }

    /// Renames what is found. Returns `false`, with nothing done, if owners are compared and other nodes have changed
    /// meanwhile what the names lead to.
    fn rename_found(
        &self,
        (from, to): (&EntryName, &EntryName),
        flags: Flags,
        compared: [Option<Caller>; 2],
    ) -> Result<bool> {
        let (old, notes) = renames::begin(&self.base, from, to)?;
        let begun = renames::begin(&self.base, to, from);
        let (other, notes_of_other) = begun.inspect_err(|_| {
            renames::forget(&self.base.places, notes.as_slice());
        })?;
        let known =
            |number: Option<InodeNumber>| number.and_then(|number| self.base.table.find(number));
        let renaming = [&old, &other].map(|of| Renaming::of(known(of.as_ref().map(|of| of.inode))));
        let begun: Vec<RenameNotes> = [notes, notes_of_other].into_iter().flatten().collect();
        let expected = sticky::expected(compared, [&old, &other]).inspect_err(|_| {
            renames::forget(&self.base.places, &begun);
        })?;
        let renamed = self.base.names.rename_told(from, to, flags, expected);
        let renamed = renamed.inspect_err(|failure| {
            renames::not_made(&self.base.places, failure, &begun);
        });
        let renamed = match renamed {
            Err(Failure::Refused(Errno::STALE)) if expected.is_some() => return Ok(false),
            renamed => renamed.map_err(of_names)?,
        };
        if !renamed.is_done {
            renames::forget(&self.base.places, &begun);
            return Ok(true);
        }
        renames::has_name(&self.base, renamed.from.as_ref(), (from, to));
        let exchanged = renamed.to.as_ref().filter(|_| flags == Flags::Exchange);
        renames::has_name(&self.base, exchanged, (to, from));
        // The rest looks the inodes up, and would wait for this guard.
        drop(renaming);
        self.follow_on_disks(&renamed, (&old, &other), (from, to), (flags, begun)).map(|()| true)
    }

    /// Makes the store's rename of what was there before on the disks.
    fn follow_on_disks(
        &self,
        renamed: &Renamed,
        (old, other): (&Option<namespace::StoredInode>, &Option<namespace::StoredInode>),
        (from, to): (&EntryName, &EntryName),
        (flags, mut begun): (Flags, Vec<RenameNotes>),
    ) -> Result<()> {
        let (moved, left) = (&renamed.from, &renamed.to);
        let is_exchange = flags == Flags::Exchange;
        let is_of_two = is_exchange || renamed.replaced.is_some();
        let places = &self.base.places;
        let marked =
            is_of_two.then(|| renames::note_both(places, (old, other), (from, to), is_exchange));
        // What one disk refuses, which the program is told, keeps no other one from following.
        let (mut gives_way, mut done) = (None, Ok(()));
        if let (Some(replaced), Some(was)) = (&renamed.replaced, left) {
            match self.was_replaced((from, to), (was, replaced), (old, moved)) {
                Ok(file) => gives_way = file,
                Err(error) => done = Err(renames::of_disk(&self.base, error)?),
            }
        }
        let replaced = match (left, flags) {
            (Some(Entry::Directory(inode)), Flags::Replace) => Some(*inode),
            _ => None,
        };
        if let (Flags::Exchange, Some(Entry::Directory(one)), Some(Entry::Directory(other))) =
            (flags, moved, left)
        {
            let both = [self.steps(from, *one), self.steps(to, *other)];
            renames::exchange(places, both);
        }
        let mut followed = [
            (moved.as_ref(), (from, to), replaced),
            (left.as_ref().filter(|_| is_exchange), (to, from), None),
        ];
        if is_exchange && renames::give_way_in_exchange(&self.base, (old, other), (from, to))? {
            followed.reverse();
        }
        // The disk exchanges two of them in one step.
        let are_others = is_exchange && renames::are_others([old, other].map(Option::as_ref));
        for (at, (moved, names, replaced)) in followed.into_iter().enumerate() {
            let how = (replaced, are_others && at > 0);
            if let Some(moved) = moved
                && let Err(error) = self.follow_rename(moved, names, how, &mut begun)
            {
                done = done.and(Err(renames::of_disk(&self.base, error)?));
            }
        }
        if let (Some(file), Some(was)) = (&gives_way, left) {
            self.lost_a_name(to, was, file)?;
            follow("rename", to, follow_names(&self.base, file, to))?;
        }
        if done.is_ok() {
            renames::forget_two(marked.into_iter().flatten().flatten());
        }
        // Notes of what was replaced, and of what had the names before another node renamed it.
        renames::forget(places, &begun);
        done
    }

    /// Something has lost a name to what was renamed over it. A file that is returned loses it once that has it.
    fn was_replaced(
        &self,
        (from, to): (&EntryName, &EntryName),
        (was, left): (&Entry, &namespace::StoredInode),
        (old, moved): (&Option<namespace::StoredInode>, &Option<Entry>),
    ) -> Result<Option<namespace::StoredInode>> {
        match renames::replaces(old.as_ref(), moved.as_ref(), left) {
            Replaces::OtherByOther => {
                let lost = self.base.disk().lost_beside(to, left.inode);
                let lost = self.or_later(lost, || vec![Late::Other(to.clone(), left.inode)]);
                follow("rename", to, lost)?;
                self.lost_all(to, was, left)?;
            }
            Replaces::FileByOther => {
                // First, so that the name on the shared disk is free.
                let mut left = left.clone();
                match leave(&self.base, &left, to) {
                    Ok(Some(place)) => left.attributes.location = Some(place),
                    Ok(None) => {}
                    Err(error) => tracing::debug!(%error, "rename: a file stays at a name"),
                }
                if let Some(left) = renames::give_way(&self.base, &left, (from, to)) {
                    return Ok(Some(left));
                }
                self.lost_a_name(to, was, &left)?;
                follow("rename", to, follow_names(&self.base, &left, to))?;
            }
            Replaces::Another => {
                self.lost_a_name(to, was, left)?;
                follow("rename", to, follow_names(&self.base, left, to))?;
            }
        }
        Ok(None)
    }

    /// Makes the store's rename on the disks.
    fn follow_rename(
        &self,
        moved: &Entry,
        (from, to): (&EntryName, &EntryName),
        (replaced, is_second_of_two): (Option<InodeNumber>, bool),
        begun: &mut Vec<RenameNotes>,
    ) -> Result<()> {
        let number = moved.inode();
        self.files.renamed(number, to);
        let done = match moved {
            Entry::Directory(_) => {
                let known = begun.iter().position(|notes| notes.number() == number.0);
                let notes = known.map(|at| begun.swap_remove(at));
                // Another node gave it the name just now.
                let note = || renames::note(&self.base.places, number, from, to).ok();
                let notes = notes.or_else(note);
                let followed = match notes {
                    Some(notes) => self.base.disk().renamed(notes, to, replaced),
                    None => self.base.places.settle_directory(number.0),
                };
                let followed = self.or_later(followed, || vec![Late::Renamed(number)]);
                followed.and_then(|()| self.note_change(number))
            }
            Entry::Single(..) | Entry::Linked(..) => {
                self.move_data(number, (from, to), is_second_of_two)
            }
        };
        follow("rename", to, done)
    }

    /// Moves a renamed file's bytes to the place of its new name; until then they stay at the old one.
    fn move_data(
        &self,
        number: InodeNumber,
        (from, to): (&EntryName, &EntryName),
        is_second_of_two: bool,
    ) -> Result<()> {
        let found = match self.base.names.lookup(to) {
            Ok(found) if found.inode == number => found,
            // Whoever renamed or removed it since does this, except that only this node knows where a link was.
            Ok(_) | Err(Failure::Refused(_)) => return self.lost_other(from, (number, None)),
            Err(failure) => return Err(of_names(failure)),
        };
        if found.attributes.kind != Kind::File {
            let (disk, of) = (self.base.disk(), &found.attributes);
            let renamed = if is_second_of_two {
                disk.exchanged_other((from, to), number, of)
            } else {
                disk.renamed_other((from, to), number, of)
            };
            self.or_later(renamed, || {
                [from, to].map(|name| Late::Other(name.clone(), number)).into()
            })?;
            return self.note_change(number);
        }
        let old = place_of(&found.attributes)?.clone();
        if found.links > 1 {
            self.note_change(number)?;
            self.base.tell_names(number, Ok(&old), (&[to], &[from]))?;
            return follow_names(&self.base, &found, from);
        }
        let followed = renamed_bytes::follow_name(&self.base, &found, (from, to));
        self.base.or_note((number, &old), (&[to], &[from]), followed)?;
        clean_copies::renamed(&self.base, &found, to)
    }
}
