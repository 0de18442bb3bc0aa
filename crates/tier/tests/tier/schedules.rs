//! A move of a file, held before or after each of its steps, while a program's request to that file runs as far as it gets:
//! the file has what the request left, whichever came first (I1, I10), and after a kill, too (I4).

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::mpsc::channel;
use std::thread::{self, ThreadId};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use halocline_api::config::Copies;
use halocline_api::control::Controlled;
use halocline_os::error::Result;
use halocline_tier::{Chore, Handle, TierOptions, Watcher};
use halocline_vfs::{Engine, SetAttr};

use crate::fixture::{CALLER, Fixture, limited};

/// More than one page, and not a whole number of them.
const SIZE: usize = 9_000;

/// What moves the file, or changes where its copies are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Move {
    /// From the SSD down, without a copy there.
    Demote,
    /// The same to its clean copy.
    DemoteToCopy,
    /// From below to the SSD.
    Promote,
    /// The same; what is left below is its clean copy.
    PromoteAndKeep,
    /// It gets a clean copy.
    Archive,
    /// It gets the next one, in place of one from before a change.
    ArchiveAgain,
}

use Move::{Archive, ArchiveAgain, Demote, DemoteToCopy, Promote, PromoteAndKeep};

/// What a program does meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Request {
    /// Into the middle, through a file that was open before.
    Write,
    /// The same, through a file that is opened now.
    OpenAndWrite,
    Append,
    Shrink,
    OpenAndRead,
    Fsync,
    Chmod,
    Rename,
    Link,
    Unlink,
    /// Another command to move the file, the other way.
    MoveBack,
    /// A change of the SSD's file that the tier does not know of, which no program can make: a canary.
    WritePastTheTier,
}

use Request::{
    Append, Chmod, Fsync, Link, MoveBack, OpenAndRead, OpenAndWrite, Rename, Shrink, Unlink, Write,
    WritePastTheTier,
};

const REQUESTS: [Request; 11] = [
    Write,
    OpenAndWrite,
    Append,
    Shrink,
    OpenAndRead,
    Fsync,
    Chmod,
    Rename,
    Link,
    Unlink,
    MoveBack,
];

/// The file's names, and its bytes, after a request.
fn after(request: Request, mut bytes: Vec<u8>) -> (&'static [&'static str], Vec<u8>) {
    let names: &[&str] = match request {
        Rename => &["renamed"],
        Link => &["file", "second"],
        Unlink => &[],
        _ => &["file"],
    };
    match request {
        Write | OpenAndWrite | WritePastTheTier => bytes[4_000..7_000].fill(7),
        Append => bytes.extend([8; 5_000]),
        Shrink => bytes.truncate(3_000),
        _ => {}
    }
    (names, bytes)
}

/// Makes a request; a read returns what it read.
fn make(fixture: &Fixture, request: Request, handle: Option<&Handle>) -> Result<Option<Vec<u8>>> {
    let tier = fixture.tier();
    let open = || tier.open(&fixture.vnode("file")?, libc::O_RDWR, CALLER);
    let with = |act: &dyn Fn(&Handle) -> Result<()>| match handle {
        Some(handle) => act(handle),
        None => act(&open()?),
    };
    let (root, name) = (tier.root(), OsStr::new("file"));
    match request {
        Write => with(&|handle| tier.write(handle, 4_000, &[7; 3_000], CALLER))?,
        OpenAndWrite => tier.write(&open()?, 4_000, &[7; 3_000], CALLER)?,
        Append => with(&|handle| tier.write(handle, SIZE as u64, &[8; 5_000], CALLER))?,
        Shrink => {
            let change = SetAttr { size: Some(3_000), ..SetAttr::default() };
            tier.set_attr(&fixture.vnode("file")?, None, &change, CALLER)?;
        }
        OpenAndRead => {
            let handle = tier.open(&fixture.vnode("file")?, libc::O_RDONLY, CALLER)?;
            return Ok(Some(fixture.read(&handle)));
        }
        Fsync => with(&|handle| tier.fsync(handle, false))?,
        Chmod => {
            let change = SetAttr { mode: Some(0o600), ..SetAttr::default() };
            tier.set_attr(&fixture.vnode("file")?, None, &change, CALLER)?;
        }
        Rename => tier.rename((&root, name), (&root, OsStr::new("renamed")), 0, CALLER)?,
        Link => drop(tier.link(&fixture.vnode("file")?, &root, OsStr::new("second"))?),
        Unlink => tier.unlink(&root, name, CALLER)?,
        MoveBack => {
            drop(if fixture.where_is("file") == 0 {
                fixture.demote("file")
            } else {
                fixture.warm("file")
            });
        }
        WritePastTheTier => {
            let file = fs::OpenOptions::new().write(true).open(fixture.ssd("file"))?;
            file.write_all_at(&[7; 3_000], 4_000)?;
        }
    }
    Ok(None)
}

fn carry_out(fixture: &Fixture, the_move: Move) {
    match the_move {
        Demote | DemoteToCopy => drop(fixture.demote("file")),
        Promote | PromoteAndKeep => drop(fixture.warm("file")),
        Archive | ArchiveAgain => drop(fixture.work(Chore::Archive)),
    }
}

/// A tier with a file that can be moved in this way, and its bytes.
fn begin(the_move: Move) -> (Fixture, Vec<u8>) {
    let copies = match the_move {
        Demote | Promote => Copies::None,
        DemoteToCopy | PromoteAndKeep => Copies::Keep,
        Archive | ArchiveAgain => Copies::Archive,
    };
    let options = TierOptions { copies, archive_after: Duration::ZERO, ..limited(1 << 20) };
    let fixture = Fixture::quick(options);
    let mut bytes = vec![1; SIZE];
    fixture.write("file", &bytes);
    match the_move {
        Demote | Archive => {}
        DemoteToCopy => {
            fixture.demote("file");
            fixture.warm("file");
            assert_eq!(fixture.copies().len(), 1, "it has a clean copy");
        }
        Promote | PromoteAndKeep => drop(fixture.demote("file")),
        ArchiveAgain => {
            fixture.work(Chore::Archive);
            let handle = fixture.open_file("file", libc::O_RDWR);
            fixture.tier().write(&handle, 0, &[2; 100], CALLER).unwrap();
            bytes[..100].fill(2);
        }
    }
    fixture.reap().unwrap();
    (fixture, bytes)
}

/// Holds one thread at the nth moment before or after one of its steps.
#[derive(Debug)]
struct Hold {
    nth: usize,
    migration: OnceLock<ThreadId>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    seen: usize,
    is_held: bool,
    /// Where it is held.
    at: (&'static str, &'static str),
    ended: bool,
    released: bool,
}

impl Hold {
    fn step(&self, when: &'static str, what: &'static str) {
        if self.migration.get() != Some(&thread::current().id()) {
            return;
        }
        let mut state = self.state.lock();
        state.seen += 1;
        if state.seen == self.nth + 1 {
            state.is_held = true;
            state.at = (when, what);
            self.changed.notify_all();
            self.changed.wait_while(&mut state, |state| !state.released);
        }
    }

    fn note(&self, what: impl FnOnce(&mut State)) {
        what(&mut self.state.lock());
        self.changed.notify_all();
    }

    /// Waits until the migration is held; `false` if it has ended without that.
    fn is_reached(&self) -> bool {
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |state| !state.is_held && !state.ended);
        state.is_held
    }
}

impl Watcher for Hold {
    fn before(&self, _: usize, what: &'static str) -> Result<()> {
        self.step("before", what);
        Ok(())
    }

    fn after(&self, _: usize, what: &'static str) {
        self.step("after", what);
    }

    fn one_by_one(&self) -> bool {
        true
    }
}

/// Lets the migration go on and end when it is dropped, also by a panic.
struct Release<'a>(&'a Hold);

impl Drop for Release<'_> {
    fn drop(&mut self) {
        self.0.note(|state| state.released = true);
    }
}

/// Says that the migration has ended.
struct End<'a>(&'a Hold);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.note(|state| state.ended = true);
    }
}

/// Whether a thread of this process waits, or is gone.
fn is_asleep(thread: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_none_or(|rest| !rest.starts_with('R'))
}

/// Carries out a move, held at its nth moment, with a request meanwhile. What is wrong afterwards; `None` if there is no such
/// moment.
fn race(the_move: Move, request: Request, nth: usize) -> Option<Result<(), String>> {
    let (mut fixture, before) = begin(the_move);
    // Below the SSD, an open would bring it up.
    let handle = (fixture.where_is("file") == 0).then(|| fixture.open_file("file", libc::O_RDWR));
    let state = Mutex::default();
    let hold = Arc::new(Hold { nth, migration: OnceLock::new(), state, changed: Condvar::new() });
    fixture.watch(hold.clone());
    let (is_reached, read) = thread::scope(|scope| {
        let release = Release(&hold);
        let migration = scope.spawn(|| {
            let _end = End(&hold);
            hold.migration.set(thread::current().id()).unwrap();
            carry_out(&fixture, the_move);
        });
        let is_reached = hold.is_reached();
        let (send, started) = channel();
        let (tier, file) = (&fixture, handle.as_ref());
        let program = scope.spawn(move || {
            send.send(rustix::thread::gettid().as_raw_nonzero().to_string()).unwrap();
            make(tier, request, file)
        });
        let thread = started.recv().unwrap();
        while is_reached && !program.is_finished() && !is_asleep(&thread) {
            thread::yield_now();
        }
        drop(release);
        migration.join().unwrap();
        (is_reached, program.join().unwrap())
    });
    fixture.unwatch();
    drop(handle);
    let (when, what) = hold.state.lock().at;
    let found = is_reached.then(|| {
        let read = read.map_err(|error| format!("the request failed: {error}"))?;
        if read.is_some_and(|read| read != before) {
            return Err("I1: it read something else".to_owned());
        }
        let (names, bytes) = after(request, before);
        check(&fixture, names, &bytes)?;
        // As after a kill.
        fixture.open();
        check(&fixture, names, &bytes).map_err(|what| format!("after a kill: {what}"))?;
        if request != WritePastTheTier {
            fixture.assert_copies_are_equal(&|| format!("{the_move:?} {nth} {request:?}"));
            fixture.check_places();
        }
        Ok(())
    });
    found.map(|found| found.map_err(|wrong| format!("held {when} {what:?}: {wrong}")))
}

/// Whether the file has these names alone, and these bytes by each of them.
fn check(fixture: &Fixture, names: &[&str], bytes: &[u8]) -> Result<(), String> {
    let files = fixture.tier().files(Path::new("")).map_err(|error| error.to_string())?;
    let mut found: Vec<_> = files.iter().map(|file| file.path.to_str().unwrap()).collect();
    found.sort_unstable();
    for name in names {
        let content = fixture.content(name).ok_or_else(|| format!("I10: {name} is gone"))?;
        if content != bytes {
            return Err(format!("I1: {name} has other bytes, {} of them", content.len()));
        }
    }
    // A file with several names is listed by one of them, or by each.
    let is_right =
        found.iter().all(|name| names.contains(name)) && found.is_empty() == names.is_empty();
    if is_right { Ok(()) } else { Err(format!("I10: the files are {found:?}")) }
}

fn race_at_each_step(the_move: Move) {
    let (mut raced, mut wrong) = (0, Vec::new());
    for request in REQUESTS {
        for nth in 0.. {
            let Some(found) = race(the_move, request, nth) else { break };
            wrong.extend(found.err().map(|what| format!("{the_move:?}, {request:?}, {what}")));
            raced += 1;
        }
    }
    assert!(wrong.is_empty(), "{} of {raced}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(raced >= 10 * REQUESTS.len(), "{the_move:?}: {raced} schedules show little");
}

#[test]
fn i1_i10_requests_during_each_step_of_a_demotion() {
    race_at_each_step(Demote);
    race_at_each_step(DemoteToCopy);
}

#[test]
fn i1_i10_requests_during_each_step_of_a_promotion() {
    race_at_each_step(Promote);
    race_at_each_step(PromoteAndKeep);
}

#[test]
fn i1_i10_requests_during_each_step_of_archiving() {
    race_at_each_step(Archive);
    race_at_each_step(ArchiveAgain);
}

/// The tests above notice a write that a move does not know of, wherever it is lost.
#[test]
fn a_write_that_a_move_does_not_know_of_is_noticed() {
    for the_move in [Demote, DemoteToCopy] {
        let lost = (0..).map_while(|nth| race(the_move, WritePastTheTier, nth));
        assert!(lost.filter(Result::is_err).count() > 0, "{the_move:?}: nothing was noticed");
    }
}
