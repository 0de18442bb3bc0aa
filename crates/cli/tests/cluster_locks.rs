//! Locks that programs take on one node exclude programs on another one.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use halocline_os::bound_process::bind;
use halocline_testkit::nodes::{NODES, Nodes};
use halocline_testkit::program;
use halocline_testkit::skipping::skip;
use halocline_testkit::waiting::eventually;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::Signal;

/// Both ways that requests may take.
const TRANSPORTS: [&str; 2] = ["--io-uring=false", "--io-uring=true"];

fn is_ring_offered() -> bool {
    let offer = fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
    offer.is_ok_and(|offer| offer.trim_end() == "Y")
}

/// Asks for a lock of the open file description, or who is in its way.
fn ask(file: &File, command: i32, kind: i32, start: i64, length: i64) -> io::Result<libc::flock> {
    // SAFETY: zeros are a `flock`.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = i16::try_from(kind).unwrap();
    (lock.l_start, lock.l_len) = (start, length);
    // SAFETY: the descriptor is open, and the commands read and write one `flock`.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) } {
        0 => Ok(lock),
        _ => Err(io::Error::last_os_error()),
    }
}

fn take(file: &File, kind: i32, start: i64, length: i64) -> Result<(), i32> {
    let taken = ask(file, libc::F_OFD_SETLK, kind, start, length);
    taken.map(drop).map_err(|error| error.raw_os_error().unwrap())
}

/// Takes a lock of its process over the whole of FILE, says so, and ends when its input does; 42 where a signal ended
/// the wait.
const LOCKER: &str = "
import fcntl, signal, sys
class Interrupted(Exception): pass
def handler(*_): raise Interrupted
signal.signal(signal.SIGALRM, handler)
file = open(sys.argv[1], 'r+b')
print('opened', flush=True)
try:
    signal.alarm(int(sys.argv[2]))
    fcntl.lockf(file, fcntl.LOCK_EX)
except Interrupted:
    sys.exit(42)
signal.alarm(0)
print('locked', flush=True)
sys.stdin.read()
";

/// A program that has opened a file and locks it; it gives up after some seconds, or never where that is 0.
fn locker(path: &Path, seconds: u32) -> Option<Child> {
    let mut command = Command::new("python3");
    command.args(["-c", LOCKER]).arg(path).arg(seconds.to_string());
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    match bind(command, Signal::KILL).spawn() {
        Ok(mut child) => {
            assert!(says(&mut child, "opened"));
            Some(child)
        }
        Err(error) => {
            skip(format!("python3: {error}"));
            None
        }
    }
}

/// Waits until it says that it has the lock.
fn has_locked(child: &mut Child) -> bool {
    says(child, "locked")
}

/// Waits until it says what it does.
fn says(child: &mut Child, what: &str) -> bool {
    let mut line = vec![0; what.len() + 1];
    let read = io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line);
    read.is_ok() && line.strip_suffix(b"\n") == Some(what.as_bytes())
}

#[test]
fn locks_of_one_node_exclude_programs_on_another() {
    for transport in TRANSPORTS {
        let Some(nodes) = Nodes::new(program!(), &[transport]) else { return };
        let [one, other] = nodes.open("file");
        take(&one, libc::F_WRLCK, 0, 100).unwrap();
        assert_eq!(take(&other, libc::F_RDLCK, 50, 10), Err(libc::EAGAIN));
        take(&other, libc::F_WRLCK, 100, 100).unwrap();
        let found = ask(&other, libc::F_OFD_GETLK, libc::F_WRLCK, 0, 0).unwrap();
        assert_eq!((found.l_start, found.l_len), (0, 100), "its own is in nobody's way");
        assert_eq!(i32::from(found.l_type), libc::F_WRLCK);
        let free = ask(&other, libc::F_OFD_GETLK, libc::F_WRLCK, 100, 0).unwrap();
        assert_eq!(i32::from(free.l_type), libc::F_UNLCK);
        // A part of it, as a shared one, then none.
        take(&one, libc::F_RDLCK, 0, 50).unwrap();
        take(&other, libc::F_RDLCK, 0, 50).unwrap();
        assert_eq!(take(&other, libc::F_RDLCK, 50, 1), Err(libc::EAGAIN));
        take(&one, libc::F_UNLCK, 0, 0).unwrap();
        take(&other, libc::F_WRLCK, 0, 0).unwrap();
        // Of an open file description: gone with its last descriptor. Without any store of ours.
        drop(other);
        eventually("its locks are gone", || take(&one, libc::F_WRLCK, 0, 0) == Ok(()));
        drop(one);
        let [one, other] = nodes.open("whole");
        flock(&one, FlockOperation::LockShared).unwrap();
        flock(&other, FlockOperation::NonBlockingLockShared).unwrap();
        let refused = flock(&other, FlockOperation::NonBlockingLockExclusive);
        assert_eq!(refused, Err(Errno::WOULDBLOCK));
        drop(one);
        let exclusive = || flock(&other, FlockOperation::NonBlockingLockExclusive);
        eventually("its lock is gone", || exclusive().is_ok());
        // A program of this machine that goes past all mounts heeds them, too.
        let below =
            File::options().write(true).read(true).open(nodes.path("origin/whole")).unwrap();
        assert_eq!(take(&below, libc::F_WRLCK, 0, 1), Err(libc::EAGAIN));
    }
}

/// Each adds to a number that the others change, on both nodes, more of them than a mount has threads.
#[test]
fn i11_who_gets_a_lock_sees_what_was_written_before() {
    const PROGRAMS: u64 = 20;
    const TIMES: u64 = 15;
    for transport in TRANSPORTS {
        let Some(nodes) = Nodes::new(program!(), &[transport]) else { return };
        for node in NODES {
            let way = if transport.ends_with("true") && is_ring_offered() {
                "io_uring"
            } else {
                "device"
            };
            assert_eq!(nodes.status(node)["transport"], way);
        }
        nodes.open("number")[0].write_all_at(&[0; 8], 0).unwrap();
        let add = |_| {
            let [one, other] = nodes.open("number");
            for time in 0..TIMES {
                let file = if time % 2 == 0 { &one } else { &other };
                ask(file, libc::F_OFD_SETLKW, libc::F_WRLCK, 0, 8).unwrap();
                let mut number = [0; 8];
                file.read_exact_at(&mut number, 0).unwrap();
                let next = u64::from_le_bytes(number) + 1;
                file.write_all_at(&next.to_le_bytes(), 0).unwrap();
                ask(file, libc::F_OFD_SETLKW, libc::F_UNLCK, 0, 8).unwrap();
            }
        };
        thread::scope(|scope| {
            let programs: Vec<_> = (0..PROGRAMS).map(|one| scope.spawn(move || add(one))).collect();
            for program in programs {
                program.join().unwrap();
            }
        });
        let mut number = [0; 8];
        nodes.open("number")[1].read_exact_at(&mut number, 0).unwrap();
        assert_eq!(u64::from_le_bytes(number), PROGRAMS * TIMES, "{transport}");
    }
}

#[test]
fn who_waits_for_a_lock_is_ended_by_signals_and_who_dies_leaves_none() {
    for transport in TRANSPORTS {
        let Some(nodes) = Nodes::new(program!(), &[transport]) else { return };
        let [one, _] = nodes.open("file");
        take(&one, libc::F_WRLCK, 0, 0).unwrap();
        let path = nodes.path("other/file");
        let Some(mut gives_up) = locker(&path, 1) else { return };
        let waits: Vec<_> = (0..20).map(|_| locker(&path, 0).unwrap()).collect();
        assert_eq!(gives_up.wait().unwrap().code(), Some(42), "{transport}");
        // However many wait, the mount serves others.
        fs::write(nodes.path("other/beside"), "served").unwrap();
        thread::sleep(Duration::from_millis(200));
        for mut child in waits {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        // Nobody who is gone gets it.
        take(&one, libc::F_UNLCK, 0, 0).unwrap();
        take(&one, libc::F_WRLCK, 0, 0).unwrap();
        take(&one, libc::F_UNLCK, 0, 0).unwrap();
        // Locks of a process end with it, whoever waits on the other node gets them.
        let mut holds = locker(&path, 0).unwrap();
        assert!(has_locked(&mut holds));
        assert_eq!(take(&one, libc::F_WRLCK, 0, 0), Err(libc::EAGAIN));
        let mut next = locker(&nodes.path("one/file"), 0).unwrap();
        holds.kill().unwrap();
        holds.wait().unwrap();
        assert!(has_locked(&mut next), "{transport}");
        // And with its mount.
        let [_, other] = nodes.open("file");
        assert_eq!(take(&other, libc::F_WRLCK, 0, 0), Err(libc::EAGAIN));
        drop(one);
        nodes.kill("one");
        eventually("its locks are gone", || take(&other, libc::F_WRLCK, 0, 0) == Ok(()));
        next.kill().unwrap();
        next.wait().unwrap();
    }
}

/// On one processor, many threads wait for a lock at the same moment, while others look for names. Says how many
/// milliseconds the longest look took, and ends once the lock was released and each waiting thread has had it.
const CROWD: &str = "
import fcntl, os, sys, threading, time
where, processor = sys.argv[1], int(sys.argv[2])
os.sched_setaffinity(0, {processor})
path = os.path.join(where, 'file')
holder = os.open(path, os.O_RDWR)
fcntl.flock(holder, fcntl.LOCK_EX)
files = [os.open(path, os.O_RDWR) for _ in range(64)]
together, over, longest = threading.Barrier(len(files) + 4), threading.Event(), [0]
def wait(file):
    together.wait()
    fcntl.flock(file, fcntl.LOCK_EX)
    fcntl.flock(file, fcntl.LOCK_UN)
def look(number):
    together.wait()
    while not over.is_set():
        begun = time.monotonic()
        try: os.stat(os.path.join(where, f'missing-{number}'))
        except FileNotFoundError: pass
        longest[0] = max(longest[0], time.monotonic() - begun)
        time.sleep(0.3)
waits = [threading.Thread(target=wait, args=(file,), daemon=True) for file in files]
looks = [threading.Thread(target=look, args=(number,), daemon=True) for number in range(4)]
for one in waits + looks: one.start()
time.sleep(2)
over.set()
for one in looks: one.join(20)
stuck = sum(one.is_alive() for one in looks)
fcntl.flock(holder, fcntl.LOCK_UN)
for one in waits: one.join(20)
left = sum(one.is_alive() for one in waits)
print(f'{stuck} looks and {left} locks stuck, longest {1000 * longest[0]:.0f} ms', flush=True)
os._exit(1 if stuck or left or longest[0] > 5 else 0)
";

/// Regression: over `io_uring`, requests that were queued when the last free thread of a processor began to wait were fetched
/// only after the next request there, and never if that was among them.
#[test]
fn however_many_wait_for_a_lock_others_go_on() {
    for transport in TRANSPORTS {
        let Some(nodes) = Nodes::new(program!(), &[transport]) else { return };
        drop(nodes.open("file"));
        let processors = thread::available_parallelism().map_or(1, usize::from);
        for turn in 0..6 {
            let mut command = Command::new("python3");
            let processor = (turn % processors).to_string();
            command.args(["-c", CROWD]).arg(nodes.path("one")).arg(processor);
            let output = match bind(&mut command, Signal::KILL).output() {
                Ok(output) => output,
                Err(error) => return skip(format!("python3: {error}")),
            };
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{transport}: {said} {output:?}");
        }
    }
}

/// A wait that nobody would end holds up no end of a mount.
#[test]
fn a_mount_ends_though_programs_wait_for_locks() {
    for transport in TRANSPORTS {
        let Some(nodes) = Nodes::new(program!(), &[transport]) else { return };
        let [one, other] = nodes.open("file");
        drop(other);
        take(&one, libc::F_WRLCK, 0, 0).unwrap();
        let Some(mut waits) = locker(&nodes.path("other/file"), 0) else { return };
        thread::sleep(Duration::from_millis(300));
        let pid = nodes.pid("other");
        // It is out of sight at once, and ends when the program does.
        thread::scope(|scope| {
            scope.spawn(|| nodes.halocline(&["umount", "--force", "other"]));
            thread::sleep(Duration::from_millis(500));
            waits.kill().unwrap();
            waits.wait().unwrap();
        });
        eventually("its process has ended", || {
            rustix::process::test_kill_process(pid) == Err(Errno::SRCH)
        });
    }
}
