//! Calls of the kernel that another node has overtaken between two requests, and that the kernel must begin again.
//!
//! For a rename the kernel looks up the old name and then the new one. If another node makes that rename in between, both
//! lead to one inode; the kernel takes them for two names of it, sends no request, and tells the program that it has
//! renamed it, too. So the second look-up is answered with `ESTALE` then: the kernel begins again, asks for the old name
//! once more, and finds that it is gone. A `link` of what has just lost its name begins again in the same way: the name
//! may lead to something else, as that of a file that programs replace by renames always does. If that is lost again
//! before the kernel asks for the link, the name is looked up here ([`LostRaces::source`]), as a single kernel would have
//! found it.
//!
//! What must hold: the kernel begins again once, and then gives the program whatever error it gets. So only a rename is
//! refused twice in a row, since the kernel may ask for the new name twice before it begins again.

use std::ffi::{OsStr, OsString};

use fuser::Errno;
use halocline_vfs::ownership::{FOWNER, Owner, acts_for};
use halocline_vfs::{Caller, Stat};
use parking_lot::Mutex;

use super::inodes::EntryName;
use super::system_call::{Calls, calls};

/// How many threads are told apart. Two that take turns in one slot lose each other's names.
const SLOTS: u32 = 1024;
/// How often a look-up of a new name is refused in a row.
const REFUSALS_MAX: u8 = 2;

/// What threads of programs were last told.
#[derive(Debug)]
pub(super) struct LostRaces(Box<[Mutex<Told>]>);

/// What one thread was last told.
#[derive(Debug, Default)]
struct Told {
    thread: u32,
    /// What it has looked up last: directory, name, and the inode that this led to.
    parent: u64,
    name: OsString,
    inode: Option<(u64, u64)>,
    /// How often another name of that inode was refused since.
    refusals: u8,
    /// Whether a `link` was refused, and has not been answered otherwise since.
    is_linking: bool,
    /// What it has looked up last that is no directory.
    source: Option<Source>,
}

/// Something to which a thread may give a further name: where it has found it, and as what.
#[derive(Debug, Clone)]
pub(super) struct Source {
    pub(super) parent: u64,
    pub(super) name: OsString,
    inode: (u64, u64),
    kind: u32,
}

impl Source {
    /// Whether the kernel, which has allowed `caller` to link what was found first, would certainly allow what has taken
    /// its place: an owner may link what is theirs.
    pub(super) fn admits(&self, now: &Stat, caller: Caller) -> bool {
        let owner = Owner { uid: now.raw.st_uid, gid: now.raw.st_gid };
        now.kind() == self.kind && acts_for(caller, owner, FOWNER)
    }
}

impl Told {
    fn is_at(&self, (parent, name): EntryName<'_>) -> bool {
        self.parent == parent.0 && self.name == name
    }

    fn looked_up(&mut self, (parent, name): EntryName<'_>, inode: Option<(u64, u64)>) {
        self.name.clear();
        self.name.push(name);
        (self.parent, self.inode, self.refusals) = (parent.0, inode, 0);
    }
}

/// Whether a call of this kind begins again after so many refusals.
fn begins_again(call: Calls, refusals: u8) -> bool {
    match call {
        Calls::Rename => refusals < REFUSALS_MAX,
        Calls::Link | Calls::Another => false,
        Calls::Unknown => refusals == 0,
    }
}

impl LostRaces {
    pub(super) fn new() -> Self {
        Self((0..SLOTS).map(|_| Mutex::default()).collect())
    }

    fn with<T>(&self, thread: u32, act: impl FnOnce(&mut Told) -> T) -> T {
        let mut told = self.0[(thread % SLOTS) as usize].lock();
        if told.thread != thread {
            *told = Told { thread, ..Told::default() };
        }
        act(&mut told)
    }

    /// A thread has looked up `at`, which leads to `inode` now. Returns whether it is to be told `ESTALE`: what it has
    /// looked up before led to that inode, too, and no longer does, as `leads_to` says, and it may be renaming.
    pub(super) fn lost(
        &self,
        thread: u32,
        at: EntryName<'_>,
        inode: Option<(u64, u64)>,
        leads_to: impl FnOnce(EntryName<'_>) -> Option<(u64, u64)>,
    ) -> bool {
        let before = self.with(thread, |told| {
            if inode.is_some() && told.inode == inode && !told.is_at(at) {
                return Some((told.parent, told.name.clone(), told.refusals));
            }
            told.looked_up(at, inode);
            None
        });
        let Some((parent, name, refusals)) = before else { return false };
        let is_lost = begins_again(calls(thread), refusals)
            && leads_to((fuser::INodeNo(parent), OsStr::new(&name))) != inode;
        self.with(thread, |told| {
            if is_lost {
                told.refusals += 1;
            } else {
                told.looked_up(at, inode);
            }
        });
        is_lost
    }

    /// A thread has looked up `at` and found this. Of what a thread calls `link` for, the file is looked up after all
    /// directories but those on the way to its new name, and that is not there.
    pub(super) fn found(&self, thread: u32, at: EntryName<'_>, inode: (u64, u64), stat: &Stat) {
        if stat.kind() == libc::S_IFDIR {
            return;
        }
        let source = Source { parent: at.0.0, name: at.1.to_owned(), inode, kind: stat.kind() };
        self.with(thread, |told| told.source = Some(source));
    }

    /// Where the thread has found this inode, which has lost its name, if the call that waits is a `link` by path.
    pub(super) fn source(&self, thread: u32, inode: (u64, u64)) -> Option<Source> {
        let source = self.with(thread, |told| told.source.clone());
        source.filter(|source| source.inode == inode && calls(thread) == Calls::Link)
    }

    /// The answer to a thread's `link`.
    pub(super) fn linked(&self, thread: u32, refused: Option<Errno>) -> Option<Errno> {
        let is_gone =
            refused.is_some_and(|errno| [libc::ENOENT, libc::ESTALE].contains(&errno.code()));
        self.with(thread, |told| {
            let was_linking = std::mem::replace(&mut told.is_linking, is_gone);
            match (is_gone, was_linking) {
                (false, _) => refused,
                (true, false) => Some(Errno::ESTALE),
                (true, true) => {
                    told.is_linking = false;
                    Some(Errno::ENOENT)
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use fuser::INodeNo;

    use super::*;

    /// A thread that is not there: nobody knows what it calls.
    const THREAD: u32 = u32::MAX - 7;
    const FILE: Option<(u64, u64)> = Some((1, 5));

    fn at(name: &str) -> EntryName<'_> {
        (INodeNo(1), OsStr::new(name))
    }

    #[test]
    fn a_second_name_of_what_has_lost_the_first_one_is_refused_once() {
        let races = LostRaces::new();
        let gone = |_: EntryName<'_>| None;
        assert!(!races.lost(THREAD, at("old"), FILE, gone));
        assert!(!races.lost(THREAD + 1, at("new"), FILE, gone), "another thread");
        assert!(races.lost(THREAD, at("new"), FILE, gone));
        assert!(!races.lost(THREAD, at("new"), FILE, gone), "it begins again once");
        // Two names of one file, and one that it had before another look-up.
        assert!(!races.lost(THREAD, at("old"), FILE, |_| FILE));
        assert!(!races.lost(THREAD, at("other"), Some((1, 6)), gone));
        assert!(!races.lost(THREAD, at("new"), FILE, gone));
        assert!(!races.lost(THREAD, at("old"), None, gone));
        assert!(!races.lost(THREAD, at("new"), FILE, gone));
    }

    #[test]
    fn only_a_rename_is_refused_again() {
        assert!(begins_again(Calls::Rename, 1) && !begins_again(Calls::Rename, REFUSALS_MAX));
        assert!(begins_again(Calls::Unknown, 0) && !begins_again(Calls::Unknown, 1));
        assert!(!begins_again(Calls::Another, 0));
    }

    #[test]
    fn only_what_its_owner_links_by_path_is_linked_again() {
        let stat = |mode: u32, uid: u32| {
            let mut stat = Stat::empty();
            (stat.raw.st_mode, stat.raw.st_uid) = (mode, uid);
            stat
        };
        let (file, races) = (stat(libc::S_IFREG | 0o644, 7), LostRaces::new());
        races.found(THREAD, at("f"), (1, 5), &file);
        races.found(THREAD, at("d"), (1, 6), &stat(libc::S_IFDIR | 0o755, 7));
        assert!(races.source(THREAD, (1, 5)).is_none(), "nobody knows what it calls");
        let source = races.with(THREAD, |told| told.source.clone()).unwrap();
        assert_eq!((source.parent, &*source.name, source.inode), (1, OsStr::new("f"), (1, 5)));
        let by = |uid: u32| Caller { uid, gid: 7, pid: THREAD };
        assert!(source.admits(&stat(libc::S_IFREG | 0o600, 7), by(7)));
        assert!(!source.admits(&file, by(8)), "another user");
        assert!(!source.admits(&stat(libc::S_IFLNK | 0o777, 7), by(7)), "another kind");
    }

    #[test]
    fn a_link_begins_again_once() {
        let races = LostRaces::new();
        let code = |errno: Option<Errno>| races.linked(THREAD, errno).map(Errno::code);
        assert_eq!(code(Some(Errno::ENOENT)), Some(libc::ESTALE));
        assert!(!races.lost(THREAD, at("f"), FILE, |_| FILE));
        assert_eq!(code(Some(Errno::ESTALE)), Some(libc::ENOENT));
        assert_eq!(code(Some(Errno::ESTALE)), Some(libc::ESTALE));
        assert_eq!(code(None), None);
        assert_eq!(code(Some(Errno::EEXIST)), Some(libc::EEXIST));
        assert_eq!(code(Some(Errno::ENOENT)), Some(libc::ESTALE));
    }
}
