//! Open files: their bytes are read and written in place, wherever they are.
//!
//! The store notes which sessions have a file open, so that nobody moves it meanwhile. A node's first open and last
//! close of a file are noted; a new file is noted as open at the moment in which it gets its name. A handle is good
//! as long as the node's lease: once the lease has lapsed, others may have moved the file ([`handle`]).

mod capability;
mod handle;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use halocline_api::jobs::Ahead;
use halocline_cluster::names::attributes::{Attributes, Kind, Location};
use halocline_cluster::names::namespace::{self, Failure};
use halocline_model::namespace::{EntryName, InodeNumber};
use halocline_os::error::{Error, Result};
use halocline_os::write_lease::is_exclusive;
use halocline_vfs::namespace::{reopen, stat_descriptor};
use halocline_vfs::{Maker, Stat};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl, ftruncate};
use rustix::io::Errno;

use crate::acl::inherit;
use crate::base::Base;
use crate::clean_copies::{check_taken, take_away};
use crate::closes::{keep, note_close};
use crate::errors::of_names;
use crate::inodes::{Inode, Noting, Vnode};
use crate::lookup::Lookup;
use crate::passthrough::{Closes, Passthrough, WhyOurs};
use crate::places::copies::{Copies, mtime_ns};
use crate::remedies::REPAIR;
use crate::ssd::OwnSsd;

pub use handle::Handle;

/// How often an open is retried because the file was renamed or moved.
const TRIES: usize = 64;

/// Opens files.
#[derive(Debug)]
pub(crate) struct Files {
    base: Arc<Base>,
    lookup: Arc<Lookup>,
    ssd: Arc<OwnSsd>,
}

/// Why a file is opened.
enum Opener {
    /// A program asked for it, which announced what it will use next, if a job says so.
    Program(Option<Ahead>),
    /// A program may ask for it next: it stays where it is until then.
    Lookup,
}

fn writes(flags: i32) -> bool {
    flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0
}

/// The flags of a program's open that are passed on to the file with the bytes.
fn flags_below(flags: i32) -> OFlags {
    let kept = libc::O_ACCMODE | libc::O_APPEND | libc::O_NOATIME;
    OFlags::from_bits_retain((flags & kept).cast_unsigned())
}

impl Files {
    pub(crate) fn new(base: &Arc<Base>, lookup: &Arc<Lookup>, ssd: &Arc<OwnSsd>) -> Self {
        Self { base: Arc::clone(base), lookup: Arc::clone(lookup), ssd: Arc::clone(ssd) }
    }

    /// Opens a file for a thread; `flags` are those of `open(2)`. It may be moved to this node's SSD first.
    ///
    /// # Errors
    /// If its bytes are not reached, or the store does not answer.
    pub(crate) fn open(self: &Arc<Self>, vnode: &Vnode, flags: i32, by: u32) -> Result<Handle> {
        self.base.sessions.check()?;
        // Without a lock, because it reads the process's data from `/proc`.
        let ahead = vnode.0.name().and_then(|name| self.ssd.follow_jobs(&name, by));
        let mut noting = vnode.0.noting.lock();
        let lapses = self.base.sessions.lapses();
        let (file, why_ours) =
            self.open_noted(&vnode.0, &mut noting, (flags, lapses), Opener::Program(ahead))?;
        let opened = (Arc::new(file), why_ours);
        let handle = self.handle(vnode, &mut noting, opened, (flags, lapses));
        drop(noting);
        if flags & libc::O_TRUNC != 0 {
            // The handle may be read-only.
            if handle.is_writable() {
                ftruncate(&handle.file, 0)?;
            } else {
                ftruncate(reopen(&*handle.file, libc::O_WRONLY)?, 0)?;
            }
            capability::follow(&self.base, &vnode.0, &handle.file)?;
        }
        Ok(handle)
    }

    /// Opens a file that was just looked up, for what programs will ask of it.
    ///
    /// # Errors
    /// As [`open`](Self::open); `ESTALE` if it is gone; `EBUSY` if it is closed and may be mapped: then it stays usable.
    pub(crate) fn open_for_later(self: &Arc<Self>, vnode: &Vnode) -> Result<Handle> {
        self.base.sessions.check()?;
        let mut noting = vnode.0.noting.lock();
        if noting.kept.is_some() {
            return Err(Errno::BUSY.into());
        }
        let how = (libc::O_RDONLY, self.base.sessions.lapses());
        let (file, why_ours) = self.open_noted(&vnode.0, &mut noting, how, Opener::Lookup)?;
        Ok(self.handle(vnode, &mut noting, (Arc::new(file), why_ours), how))
    }

    fn handle(
        self: &Arc<Self>,
        vnode: &Vnode,
        noting: &mut Noting,
        (file, why_ours): (Arc<File>, WhyOurs),
        (flags, lapses): (i32, u64),
    ) -> Handle {
        noting.handles += 1;
        (noting.kept, noting.closes_later) = (None, false);
        // Keep the latest file: those opened before a lapse of the lease may be of a copy that was moved away.
        let mut without_name = vnode.0.without_name.lock();
        (without_name.file, without_name.is_only_looked_up) = (Some(Arc::clone(&file)), false);
        let last = without_name.last.as_ref();
        let tier = self.ssd.tier_of(last.and_then(|last| last.location.as_ref()));
        drop(without_name);
        let syncs = flags & (libc::O_SYNC | libc::O_DSYNC) != 0;
        Handle {
            vnode: vnode.clone(),
            file,
            syncs,
            lapses,
            tier,
            why_ours,
            is_passed: AtomicBool::new(false),
            counted: OnceLock::new(),
            files: Arc::clone(self),
        }
    }

    /// Notes that this node has the file open, and opens it.
    fn open_noted(
        &self,
        inode: &Inode,
        noting: &mut Noting,
        (flags, lapses): (i32, u64),
        why: Opener,
    ) -> Result<(File, WhyOurs)> {
        let mut used = match why {
            Opener::Program(ahead) => Some(ahead),
            Opener::Lookup => None,
        };
        let is_programs = used.is_some();
        for _ in 0..TRIES {
            let Some(found) = self.lookup.find(inode)? else {
                // It is open here, but has lost its last name.
                let open = inode.without_name.lock().file.clone();
                let open = open.ok_or_else(|| self.lookup.gone(inode))?;
                let file = reopen(&*open, flags & !libc::O_TRUNC)?;
                return Ok((file, Some("has no name")));
            };
            let Some(name) = found.name else { return Err(Errno::ISDIR.into()) };
            if let Some(ahead) = used.take() {
                let may_move = noting.handles == 0 && flags & libc::O_TRUNC == 0;
                let how = (writes(flags), may_move);
                if self.ssd.before_open(&name, &found.stored, how, ahead) {
                    continue;
                }
            }
            let for_kernel =
                is_programs && self.why_ours(&found.stored.attributes, noting, flags).is_none();
            let is_noted =
                noting.noted.is_some_and(|(wrote, at)| at == lapses && (wrote || !writes(flags)))
                    && (noting.by_kernel || !for_kernel);
            let attributes = if is_noted {
                found.stored.attributes
            } else {
                let at = (&name, inode.number);
                match self.note_open(at, &found.stored, (flags, for_kernel))? {
                    Some(noted) => noted.attributes,
                    // It was renamed, or copied, meanwhile.
                    None => continue,
                }
            };
            let wrote = noting.noted.is_some_and(|(wrote, at)| at == lapses && wrote);
            noting.noted = Some((wrote || writes(flags), lapses));
            noting.by_kernel = attributes.is_by_kernel(self.base.sessions.own());
            // It may have been moved or changed meanwhile, or too many have it open to be noted.
            let why_ours = self.why_ours(&attributes, noting, flags);
            let opened = self.open_at(&attributes, inode.number.0, flags);
            let was_moved = opened.as_ref().is_err_and(|error| error.errno() == libc::ENOENT);
            if !was_moved {
                inode.without_name.lock().last = Some(attributes);
            }
            match opened {
                Err(_) if was_moved => {}
                Err(error) => {
                    self.note_failed(inode, noting);
                    return Err(error);
                }
                Ok(file) => return Ok((File::from(file), why_ours)),
            }
        }
        self.note_failed(inode, noting);
        Err(misplaced(inode))
    }

    /// Notes that nobody here has a file open, after an open that failed. If the last close has yet to be noted, it is
    /// now, with what was written.
    fn note_failed(&self, inode: &Inode, noting: &mut Noting) {
        if noting.handles == 0 && noting.kept.is_none() {
            let (written, last) = {
                let without_name = inode.without_name.lock();
                (without_name.file.clone(), without_name.last.clone())
            };
            let opened = || {
                let opened = self.open_at(&last?, inode.number.0, libc::O_RDONLY);
                Some(Arc::new(File::from(opened.ok()?)))
            };
            note_close(&self.base, inode, noting, written.or_else(opened).as_deref());
        }
    }

    /// Notes in the store that this node has the file open; before a writer is noted, the file's clean copy goes. `known` is
    /// what the store had on it just now. `None` if it has another name, place or copy by now.
    fn note_open(
        &self,
        at: (&EntryName, InodeNumber),
        known: &namespace::StoredInode,
        (flags, for_kernel): (i32, bool),
    ) -> Result<Option<namespace::StoredInode>> {
        let (own, writes) = (self.base.sessions.own(), writes(flags));
        let taken = if writes {
            match take_away(&self.base.places, &known.attributes, at.1) {
                Err(error) if error.errno() == libc::ENOENT => return Ok(None),
                taken => taken?,
            }
        } else {
            None
        };
        let note = |attributes: &mut Attributes| {
            if writes {
                check_taken(attributes, taken)?;
            }
            attributes.note_open(own, writes);
            if for_kernel {
                attributes.note_kernel(own);
            }
            Ok(())
        };
        let noted = if known.links == 1 {
            self.base.names.attributes().update_known(at, &known.attributes, note)
        } else {
            self.base.names.attributes().update_of(at, note)
        };
        match noted {
            Err(Failure::Refused(Errno::STALE | Errno::NOENT)) => Ok(None),
            noted => noted.map(Some).map_err(of_names),
        }
    }

    /// Why the kernel must not serve the file that is being opened; `None` if it may.
    fn why_ours(&self, of: &Attributes, noting: &Noting, flags: i32) -> WhyOurs {
        if noting.handles > 0 && !noting.by_kernel {
            // The kernel serves all handles of a file or none.
            return Some("open already");
        }
        self.base.passthrough.why_ours(of, flags, self.base.places.node())
    }

    fn open_at(&self, attributes: &Attributes, number: u64, flags: i32) -> Result<OwnedFd> {
        let (place, places) = (place_of(attributes)?, &self.base.places);
        let file = places.open_file(place, number, flags_below(flags))?;
        // A writer has taken the copy away, or was refused.
        if !writes(flags) {
            Copies::of(places).refuse_older(&file, attributes, number)?;
        }
        Ok(file)
    }

    /// Makes a file and opens it, or opens what is there unless `O_EXCL` is given.
    ///
    /// # Errors
    /// As [`open`](Self::open); `EEXIST`, `ENOSPC`.
    pub(crate) fn create(
        self: &Arc<Self>,
        (parent, name): (&Vnode, EntryName),
        (mode, flags): (u32, i32),
        by: Maker,
    ) -> Result<(Vnode, Stat, Handle)> {
        self.base.sessions.check()?;
        for _ in 0..TRIES {
            match self.make(parent, &name, (mode, Some(flags)), by) {
                Err(error) if error.errno() == libc::EEXIST && flags & libc::O_EXCL == 0 => {}
                done => {
                    let (vnode, stat, handle) = done?;
                    let handle = handle.expect("a file that was made to be opened is open");
                    return Ok((vnode, stat, handle));
                }
            }
            let found = match self.base.names.lookup(&name) {
                Err(Failure::Refused(Errno::NOENT)) => continue,
                found => found.map_err(of_names)?,
            };
            match found.attributes.kind {
                Kind::Directory => return Err(Errno::ISDIR.into()),
                Kind::Symlink => return Err(Errno::LOOP.into()),
                Kind::File => {}
                _ => return Err(Errno::NXIO.into()),
            }
            let (vnode, _) = self.lookup.seen(&name, found);
            match self.open(&vnode, flags, by.caller.pid) {
                // It was removed meanwhile.
                Err(error) if error.errno() == libc::ESTALE => {}
                opened => {
                    let opened = opened?;
                    return Ok((vnode.clone(), self.lookup.stat(&vnode.0)?, opened));
                }
            }
        }
        Err(of_names(Failure::Contended))
    }

    /// Makes a regular file: the file with the bytes first, then its name. It is opened if there are `flags` of `open(2)`.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub(crate) fn make(
        self: &Arc<Self>,
        parent: &Vnode,
        name: &EntryName,
        (mode, flags): (u32, Option<i32>),
        by: Maker,
    ) -> Result<(Vnode, Stat, Option<Handle>)> {
        let base = &self.base;
        let _under_way = base.names.begin_change();
        let directory = base.names.directory(parent.0.number).map_err(of_names)?;
        let new = inherit(&directory.attributes, (mode, by.umask), by.caller, false);
        let number = base.names.number().map_err(of_names)?;
        let near = base.near(parent.0.number)?;
        let owner = (new.mode, by.caller.uid, new.gid);
        let tier = self.ssd.tier_for_new(name);
        let make = || base.places.make_file(&near, &name.name, number.0, owner, tier);
        let user_of = |full: &Error| (full.errno() == libc::EDQUOT).then_some(by.caller.uid);
        let (place, fd) = match make() {
            Err(error) if error.is_full() && self.ssd.copies_give_way(1, user_of(&error)) => {
                make()?
            }
            placed => placed?,
        };
        let lapses = base.sessions.lapses();
        let mut attributes = Attributes::new(Kind::File, new.mode, base.now_ns());
        (attributes.uid, attributes.gid) = (by.caller.uid, new.gid);
        attributes.xattrs = new.xattrs;
        if let Some(flags) = flags {
            attributes.note_open(base.sessions.own(), writes(flags));
        }
        // The close of a file that is noted as written will bring the time of the disk, and no other one.
        if !flags.is_some_and(writes)
            && let Ok(made) = stat_descriptor(&fd)
        {
            attributes.mtime_ns = mtime_ns(&made);
        }
        attributes.location = Some(place.clone());
        let mut may_have_its_name = false;
        let named = self.keep_acl(&place, number.0, &attributes).and_then(|()| {
            base.names.create_as(number, name, &attributes).map_err(|failure| {
                may_have_its_name = failure.is_doubtful();
                of_names(failure)
            })
        });
        let named = named.inspect_err(|_| {
            if !may_have_its_name {
                let _logged = self.remove_data(&place, number.0);
            }
        })?;
        let vnode = base.table.intern(number, false, Some(name.clone()));
        self.ssd.created((name, number), &place, by.caller.pid, flags.is_some());
        let Some(flags) = flags else {
            let stat = self.lookup.shown(&vnode.0, &named);
            return Ok((vnode, stat, None));
        };
        if flags & libc::O_APPEND != 0 {
            fcntl_setfl(&fd, fcntl_getfl(&fd)? | OFlags::APPEND)?;
        }
        let mut noting = vnode.0.noting.lock();
        noting.noted = Some((writes(flags), lapses));
        vnode.0.without_name.lock().last = Some(attributes);
        let opened = (Arc::new(File::from(fd)), Some("new"));
        let handle = self.handle(&vnode, &mut noting, opened, (flags, lapses));
        drop(noting);
        let stat = self.lookup.shown(&vnode.0, &named);
        Ok((vnode, stat, Some(handle)))
    }

    /// Sets a new file's inherited ACL on the file with the bytes, too.
    fn keep_acl(&self, place: &Location, number: u64, attributes: &Attributes) -> Result<()> {
        for (name, value) in &attributes.xattrs {
            let name = std::os::unix::ffi::OsStrExt::from_bytes(name.as_slice());
            self.base.places.set_xattr(place, number, name, value, 0)?;
        }
        Ok(())
    }

    /// Removes the bytes of a file that has lost its last name. Anything that cannot be removed is left to a check.
    ///
    /// # Errors
    /// As [`Places::remove_all`](crate::places::Places::remove_all); it is logged.
    pub(crate) fn remove_data(&self, place: &Location, number: u64) -> Result<()> {
        self.ssd.removed(InodeNumber(number));
        self.base.places.remove_all(place, number).inspect_err(|error| {
            tracing::warn!(%error, ?place, "the bytes of a removed file stay until a check sets them aside");
        })
    }

    /// A file was renamed.
    pub(crate) fn renamed(&self, number: InodeNumber, name: &EntryName) {
        self.ssd.renamed(number, name);
    }

    /// See [`OwnSsd::make_room_for_attributes`].
    pub(crate) fn make_room_for_attributes(&self, number: InodeNumber) -> bool {
        self.ssd.make_room_for_attributes(number)
    }

    /// The last handle of this node was closed.
    fn close(self: &Arc<Self>, handle: &Handle) {
        let inode = &handle.vnode.0;
        let mut noting = inode.noting.lock();
        noting.handles -= 1;
        if noting.handles == 0 {
            self.ssd.closed(inode.number, &handle.file);
        }
        if noting.handles == 0 && noting.is_passed {
            let file = inode.without_name.lock().file.clone();
            noting.kept = file.map(|file| (file, handle.counted.get().cloned()));
            if !self.end_unless_used(inode, &mut noting) {
                self.base.passthrough.watch(self, handle.vnode.clone());
            }
        } else if noting.handles == 0 {
            let is_noted = noting.noted.is_some_and(|(_, lapses)| lapses == handle.lapses);
            if is_noted && !noting.by_kernel && keep(&self.base, &handle.vnode) {
                noting.closes_later = true;
                return;
            }
            inode.without_name.lock().file = None;
            if noting.by_kernel || is_noted {
                note_close(&self.base, inode, &mut noting, Some(&handle.file));
            } else {
                // The cached size is stale; the next stat refreshes it.
                noting.noted = None;
            }
        }
    }

    /// Notes the close of a file that the kernel may have served, unless it is still mapped or the close cannot be
    /// noted now.
    fn end_unless_used(&self, inode: &Inode, noting: &mut Noting) -> bool {
        let Some((file, counted)) = noting.kept.take() else { return true };
        if !is_exclusive(&file) || self.base.sessions.check().is_err() {
            noting.kept = Some((file, counted));
            return false;
        }
        inode.without_name.lock().file = None;
        noting.is_passed = false;
        note_close(&self.base, inode, noting, Some(&file));
        true
    }
}

fn misplaced(inode: &Inode) -> Error {
    Error::Cluster {
        what: format!("{}: its bytes are not where the store says", inode.told()),
        remedy: format!("unmount all nodes, and have the names checked: {REPAIR}"),
    }
}

impl Closes for Files {
    fn passthrough(&self) -> &Passthrough {
        &self.base.passthrough
    }

    fn end_if_unused(&self, inode: &Inode) -> bool {
        let mut noting = inode.noting.lock();
        noting.kept.is_none() || self.end_unless_used(inode, &mut noting)
    }
}

/// Where the bytes of a file are.
pub(crate) fn place_of(attributes: &Attributes) -> Result<&Location> {
    attributes.location.as_ref().ok_or_else(|| Errno::IO.into())
}

#[cfg(test)]
mod tests;
