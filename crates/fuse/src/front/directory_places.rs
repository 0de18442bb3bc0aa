//! Where the kernel has directories in its cache of names, where other nodes move them, too.
//!
//! The kernel looks up the last names of a rename between directories under its lock of all renames. If one leads to a
//! directory that it has in its cache elsewhere, below another parent, it would have to move it there, which takes that
//! lock (`d_splice_alias`): the rename fails with `ESTALE`, and does so again each time. So before such a look-up is
//! answered the kernel is told to forget the former place. Any other look-up moves the directory by itself.
//!
//! What must hold: nothing waits without a limit for the kernel here. It forgets a place under the lock of the directory
//! that this is in, which the rename itself may hold; it then does so when the first attempt has failed, and before or
//! while it begins again. A separate thread tells it.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::Builder;
use std::time::Duration;

use fuser::{FileType, INodeNo, Notifier};
use halocline_os::catch_panic::catch_panic;
use parking_lot::Mutex;

use super::inodes::{Entry, EntryName};
use super::system_call::{Calls, calls};

/// How long a look-up waits at most until the kernel has forgotten a place.
const WAIT_LIMIT: Duration = Duration::from_millis(100);

/// The number of a directory, and a name in it.
type Place = (u64, OsString);

/// The places of the directories that the kernel knows.
#[derive(Debug, Default)]
pub(crate) struct DirectoryPlaces {
    known: Mutex<Known>,
    former: OnceLock<Sender<Former>>,
}

#[derive(Debug, Default)]
struct Known {
    of: HashMap<u64, Arc<Place>>,
    at: HashMap<Arc<Place>, u64>,
}

/// A place that the kernel is to forget.
#[derive(Debug)]
struct Former {
    place: Arc<Place>,
    gone: SyncSender<()>,
}

impl Known {
    /// Notes where directory `number` is now; where it was, if that was elsewhere.
    fn set(&mut self, number: u64, (parent, name): (u64, &OsStr)) -> Option<Arc<Place>> {
        let is_there = |place: &Arc<Place>| place.0 == parent && place.1 == name;
        if self.of.get(&number).is_some_and(is_there) {
            return None;
        }
        let place = Arc::new((parent, name.to_owned()));
        let former = self.of.insert(number, place.clone());
        if let Some(former) = &former {
            self.leave(number, former);
        }
        self.at.insert(place, number);
        former
    }

    /// Another directory may have taken the place meanwhile.
    fn leave(&mut self, number: u64, place: &Arc<Place>) {
        if self.at.get(place) == Some(&number) {
            self.at.remove(place);
        }
    }
}

impl DirectoryPlaces {
    /// Starts the thread, before the mount is used. It ends with the front end.
    pub(crate) fn start(&self, notifier: Notifier) -> std::io::Result<()> {
        let (former, asked) = channel();
        Builder::new()
            .name("former-places".into())
            .spawn(move || forget_places(&notifier, &asked))?;
        assert!(self.former.set(former).is_ok(), "a mount begins once");
        Ok(())
    }

    /// The kernel is about to learn of what is at `at`, otherwise than by a look-up of its name.
    pub(super) fn listed(&self, entry: &Entry, at: EntryName<'_>) {
        if entry.attr.kind == FileType::Directory {
            self.known.lock().set(entry.attr.ino.0, (at.0.0, at.1));
        }
    }

    /// The same by a look-up of a thread: if it may be renaming, the kernel forgets first where a directory was.
    pub(super) fn looked_up(&self, entry: &Entry, at: EntryName<'_>, thread: u32) {
        if entry.attr.kind != FileType::Directory {
            return;
        }
        let number = entry.attr.ino.0;
        let Some(place) = self.known.lock().set(number, (at.0.0, at.1)) else { return };
        // Within one directory the kernel moves it without that lock.
        if place.0 == at.0.0 || !matches!(calls(thread), Calls::Rename | Calls::Unknown) {
            return;
        }
        let Some(former) = self.former.get() else { return };
        let (gone, done) = sync_channel(1);
        if former.send(Former { place, gone }).is_ok() && done.recv_timeout(WAIT_LIMIT).is_err() {
            tracing::debug!(number, "the kernel has yet to forget where a directory was");
        }
    }

    /// The kernel has renamed what was at `from`, and with an exchange what was at `to`.
    pub(super) fn renamed(&self, from: EntryName<'_>, to: EntryName<'_>, is_exchange: bool) {
        let place = |at: EntryName<'_>| (at.0.0, at.1.to_owned());
        let mut known = self.known.lock();
        let (old, new) = (known.at.remove(&place(from)), known.at.remove(&place(to)));
        if let Some(number) = old {
            known.set(number, (to.0.0, to.1));
        }
        if let Some(number) = new.filter(|_| is_exchange) {
            known.set(number, (from.0.0, from.1));
        }
    }

    /// The kernel knows the inode no longer.
    pub(super) fn forgotten(&self, number: u64) {
        let mut known = self.known.lock();
        if let Some(place) = known.of.remove(&number) {
            known.leave(number, &place);
        }
    }
}

fn forget_places(notifier: &Notifier, asked: &Receiver<Former>) {
    for Former { place, gone } in asked {
        let told = catch_panic(|| notifier.inval_entry(INodeNo(place.0), &place.1));
        if let Err(error) = told {
            // The kernel has nothing there any more, or the mount is gone.
            tracing::debug!(?place, %error, "a place was not forgotten");
        }
        let _nobody_waits = gone.send(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(parent: u64, name: &str) -> EntryName<'_> {
        (INodeNo(parent), OsStr::new(name))
    }

    fn see(places: &DirectoryPlaces, number: u64, at: EntryName<'_>) {
        places.listed(&Entry::named_only(number, FileType::Directory), at);
    }

    fn is_at(places: &DirectoryPlaces, number: u64) -> Option<(u64, String)> {
        let known = places.known.lock();
        let place = known.of.get(&number)?;
        assert_eq!(known.at.len(), known.of.len());
        Some((place.0, place.1.to_str().unwrap().to_owned()))
    }

    #[test]
    fn directories_are_where_they_were_seen_last() {
        let places = DirectoryPlaces::default();
        see(&places, 5, at(1, "a"));
        see(&places, 6, at(1, "b"));
        places.renamed(at(1, "a"), at(2, "c"), false);
        assert_eq!(is_at(&places, 5), Some((2, "c".into())));
        places.renamed(at(2, "c"), at(1, "b"), true);
        assert_eq!(is_at(&places, 5), Some((1, "b".into())));
        assert_eq!(is_at(&places, 6), Some((2, "c".into())));
        places.forgotten(5);
        assert_eq!(is_at(&places, 5), None);
        assert_eq!(is_at(&places, 6), Some((2, "c".into())));
    }

    #[test]
    fn a_place_that_another_one_has_taken_is_its() {
        let places = DirectoryPlaces::default();
        see(&places, 5, at(1, "a"));
        // Made there by another node, which has moved the other one.
        see(&places, 6, at(1, "a"));
        see(&places, 5, at(2, "a"));
        places.renamed(at(1, "a"), at(3, "a"), false);
        assert_eq!(is_at(&places, 6), Some((3, "a".into())));
        assert_eq!(is_at(&places, 5), Some((2, "a".into())));
    }
}
