//! Closes of files, noted in the store.
//!
//! A close changes the file's value in the store: this node no longer has it open, and if it was written, its size and
//! times are these. If programs close one file after another, the closes of some milliseconds are noted together, with
//! one request for the files of a directory. Until then a file counts as open, as it does between a program's close and
//! the moment at which the kernel tells us of it.
//!
//! What must hold: a close is noted only if no program here has opened the file since, and while the session's lease
//! lasts. Waiting closes are noted before this node moves files, and before its session ends.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use halocline_cluster::names::attributes::{Attributes, Open};
use halocline_cluster::names::namespace::{self, Failure, KnownFile};
use halocline_model::namespace::InodeNumber;
use halocline_model::token::Session;
use halocline_os::catch_panic::caught;
use halocline_os::clock::Clock;
use halocline_vfs::namespace::stat_descriptor;
use parking_lot::MutexGuard;
use rustix::io::Errno;

use crate::base::Base;
use crate::inodes::{Inode, Noting, Vnode};
use crate::lookup::told_names;
use crate::places::users_xattrs::follow_capability;
use crate::stat_conversion::take_over;

/// How often, and how far apart, a name that a file has got just now is looked for.
const NAME_WAITS: usize = 100;
const NAME_PAUSE: Duration = Duration::from_millis(1);
/// How long a close waits for others; and how soon after another one it must come to wait.
const PAUSE: Duration = Duration::from_millis(5);
/// The most closes that wait: each keeps a file open.
const WAITING_MAX: usize = 256;
/// The most that are noted with one request.
const TOGETHER_MAX: usize = 32;
/// After so many pauses without a close, the thread ends.
const IDLE_PAUSES_MAX: u32 = 20;

/// Keeps the last close of a file, to be noted later with others; `false` if it is to be noted at once.
pub(crate) fn keep(base: &Arc<Base>, vnode: &Vnode) -> bool {
    let now = base.clock.instant();
    let mut waiting = base.closes.waiting.lock();
    let last = waiting.last.replace(now);
    let is_one_of_many = last.is_some_and(|last| now.saturating_duration_since(last) < PAUSE);
    if !is_one_of_many || waiting.files.len() >= WAITING_MAX {
        return false;
    }
    if !waiting.has_thread {
        let (weak, clock) = (Arc::downgrade(base), base.clock.clone());
        let named = thread::Builder::new().name("closes".to_owned());
        waiting.has_thread = named.spawn(move || run(&weak, &clock)).is_ok();
    }
    if waiting.has_thread {
        waiting.files.push(vnode.clone());
    }
    waiting.has_thread
}

/// Notes all closes that wait; returns whether there were any. A file that a program is opening just now may keep
/// waiting.
pub(crate) fn note_all(base: &Base) -> bool {
    let _one_after_another = base.closes.noting.lock();
    let files = std::mem::take(&mut base.closes.waiting.lock().files);
    let mut by_directory: BTreeMap<Option<InodeNumber>, Vec<&Vnode>> = BTreeMap::new();
    for vnode in &files {
        let directory = vnode.0.name().map(|name| name.directory);
        by_directory.entry(directory).or_default().push(vnode);
    }
    for (directory, vnodes) in by_directory {
        for together in vnodes.chunks(TOGETHER_MAX) {
            note_together(base, directory, together);
        }
    }
    !files.is_empty()
}

/// Notes closes of files of one directory.
fn note_together(base: &Base, directory: Option<InodeNumber>, vnodes: &[&Vnode]) {
    // Locked to the end, so that nobody here opens one of the files meanwhile. Whoever opens one now may wait for
    // the store, or for a file that is moved: it is not waited for, because it may wait for us.
    let mut files: Vec<(&Vnode, MutexGuard<'_, Noting>)> = Vec::new();
    for &vnode in vnodes {
        match vnode.0.noting.try_lock() {
            Some(noting) if noting.closes_later => files.push((vnode, noting)),
            // A program has opened it since.
            Some(_) => {}
            None => base.closes.waiting.lock().files.push(vnode.clone()),
        }
    }
    let known = files.iter().map(|(vnode, noting)| closed(base, (&vnode.0, noting), directory));
    let known: Vec<KnownFile> = known.flatten().collect();
    let noted = match directory {
        Some(directory) if known.len() == files.len() && known.len() > 1 => {
            base.names.attributes().update_all_known(directory, &known)
        }
        _ => Ok(false),
    };
    for (vnode, noting) in &mut files {
        noting.closes_later = false;
        let file = vnode.0.without_name.lock().file.take();
        match &noted {
            Ok(true) => noting.noted = None,
            // One of them was changed, renamed or removed.
            Ok(false) | Err(Failure::Refused(_)) => {
                note_close(base, &vnode.0, noting, file.as_deref());
            }
            Err(failure) => {
                noting.noted = None;
                // The next access to the file repairs this.
                tracing::debug!("inode {}: a close is not noted: {failure}", vnode.0.number.0);
            }
        }
    }
}

/// A file before and after its close, as far as that is known without asking; `None` if it must be noted alone, or not
/// at all.
fn closed(
    base: &Base,
    (inode, noting): (&Inode, &Noting),
    directory: Option<InodeNumber>,
) -> Option<KnownFile> {
    let (_, lapses) = noting.noted?;
    if lapses != base.sessions.lapses() || base.sessions.check().is_err() {
        return None;
    }
    let name = inode.name().filter(|name| Some(name.directory) == directory)?;
    let (file, last) = {
        let without_name = inode.without_name.lock();
        (without_name.file.clone(), without_name.last.clone())
    };
    let before = match base.names.attributes().known_file(&name) {
        Some((number, known)) if number == inode.number => known,
        Some(_) => return None,
        None => last?,
    };
    let mut after = before.clone();
    closing(base.sessions.own(), file.as_deref())(&mut after).ok()?;
    Some(KnownFile { name: name.name, inode: inode.number, before, after })
}

/// Notes waiting closes again and again, until there are none for a while or the tier is closed.
fn run(base: &Weak<Base>, clock: &Clock) {
    let mut idle = 0;
    loop {
        clock.sleep(PAUSE);
        let Some(base) = base.upgrade() else { return };
        let had_any = caught(|| note_all(&base)).unwrap_or(true);
        idle = if had_any { 0 } else { idle + 1 };
        if idle < IDLE_PAUSES_MAX {
            continue;
        }
        let mut waiting = base.closes.waiting.lock();
        if waiting.files.is_empty() {
            waiting.has_thread = false;
            return;
        }
    }
}

/// Notes in the store that this node has closed a file, with its size and times if it was written.
pub(crate) fn note_close(base: &Base, inode: &Inode, noting: &mut Noting, file: Option<&File>) {
    let by_kernel = std::mem::take(&mut noting.by_kernel);
    let Some((_, lapses)) = noting.noted.take() else { return };
    let sessions = &base.sessions;
    if !by_kernel && lapses != sessions.lapses() || sessions.check().is_err() {
        // Others count it as closed already, and may have moved it.
        return;
    }
    let close = closing(sessions.own(), file);
    // What this node noted at the open, if that is known.
    let mut last = inode.without_name.lock().last.clone();
    // Another node may have renamed it since; then it lists the new name with the bytes.
    let told = || file.map_or_else(Vec::new, told_names);
    for _ in 0..NAME_WAITS {
        for name in inode.names().into_iter().chain(std::iter::once_with(told).flatten()) {
            let at = (&name, inode.number);
            let closed = match last.take() {
                Some(last) => base.names.attributes().update_known(at, &last, &close),
                None => base.names.attributes().update_of(at, &close),
            };
            match closed {
                Ok(_) => return,
                Err(Failure::Refused(Errno::NOENT | Errno::NOTDIR | Errno::STALE)) => {}
                Err(failure) => {
                    // The next access to the file repairs this.
                    tracing::debug!("inode {}: a close is not noted: {failure}", inode.number.0);
                    return;
                }
            }
        }
        // A rename, here or on another node, has changed the store, and its new name is known in a moment.
        let data = file.and_then(|file| stat_descriptor(file).ok());
        if data.is_none_or(|data| data.raw.st_nlink == 0) {
            return;
        }
        base.clock.sleep(NAME_PAUSE);
    }
}

/// Notes a close in a file's attributes, with size and times if the store has noted that this session writes: also if
/// what is closed was opened to read, because an earlier close may not have been noted. They are read at each try: another
/// node may have written, and noted more, since the one before. Others remove the note of this session's open once its
/// lease is over: then size and times are theirs.
///
/// Refused (`EIO`) if the file was written and is not reached: then it stays noted as open.
pub(crate) fn closing(
    own: Session,
    file: Option<&File>,
) -> impl Fn(&mut Attributes) -> namespace::Result<()> {
    move |attributes| {
        let is_own = |open: &Open| open.session == own && open.writes;
        if attributes.many_opens || attributes.opens.iter().any(is_own) {
            match file.and_then(|file| Some((file, stat_descriptor(file).ok()?))) {
                Some((file, data)) => {
                    take_over(attributes, &data);
                    follow_capability(attributes, file);
                }
                None if attributes.many_opens => {}
                None => return Err(Failure::Refused(Errno::IO)),
            }
        }
        attributes.note_close(own);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
