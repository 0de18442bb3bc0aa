//! Leases that an ordinary user holds of files below a mount, past it: nobody else is held up by them.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use halocline_os::bound_process::bind;
use halocline_testkit::program;
use halocline_testkit::scratch::Scratch;
use halocline_testkit::skipping::skip;
use halocline_testkit::waiting::eventually;
use rustix::process::Signal;

/// Both ways that requests may take.
const TRANSPORTS: [&str; 2] = ["--io-uring=false", "--io-uring=true"];
/// More than a mount has threads, on any transport of a small machine.
const FILES: usize = 64;
const NOBODY: u32 = 65534;
/// Longest pause of another user's requests. Without the mend it was 45 s or more, with it a moment.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Takes a lease of each file of a directory, says how many it has, and keeps them until its input ends; or, if it is told to
/// be `polite`, gives each up as soon as somebody opens the file.
const HOLDER: &str = "
where, polite = sys.argv[1], sys.argv[2] == 'polite'
held = {}
def give_up(*_):
    for file in list(held):
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
signal.signal(signal.SIGIO, give_up if polite else signal.SIG_IGN)
for name in os.listdir(where):
    file = os.open(os.path.join(where, name), os.O_RDWR)
    fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    held[file] = name
print(len(held), flush=True)
while sys.stdin.read(1): pass
";

/// What each of these programs begins with.
const AS_NOBODY: &str = "
import fcntl, os, signal, sys, threading, time
os.setgroups([]); os.setgid(65534); os.setuid(65534)
";

/// Opens and empties each file of a directory again and again, each in a thread, for some seconds; then says which error
/// numbers it got.
const OPENER: &str = "
where, seconds = sys.argv[1], float(sys.argv[2])
end, got = time.monotonic() + seconds, set()
def work(name, number):
    path = os.path.join(where, name)
    while time.monotonic() < end:
        try:
            if number % 4 == 3: os.truncate(path, 0)
            else: os.close(os.open(path, [os.O_RDWR, os.O_RDONLY, os.O_WRONLY | os.O_TRUNC][number % 4]))
            got.add(0)
        except OSError as error:
            got.add(error.errno)
threads = [threading.Thread(target=work, args=it, daemon=True) for it in zip(sorted(os.listdir(where)), range(10 ** 6))]
print('begun', flush=True)
for one in threads: one.start()
for one in threads: one.join()
print(*sorted(got), flush=True)
";

/// A program of an ordinary user.
struct Program(Child, BufReader<std::process::ChildStdout>);

impl Program {
    fn start(script: &str, args: [&str; 2]) -> Option<Self> {
        let mut command = Command::new("python3");
        // Python itself may be where only root can read it.
        command.args(["-c", &format!("{AS_NOBODY}{script}")]).args(args).current_dir("/");
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        match bind(command, Signal::KILL).spawn() {
            Ok(mut child) => {
                let says = BufReader::new(child.stdout.take().unwrap());
                Some(Self(child, says))
            }
            Err(error) => {
                skip(format!("python3: {error}"));
                None
            }
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.1.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A mount with files of an ordinary user in `theirs`; the directory with these files below, and the flags of the mount.
struct World {
    scratch: Scratch,
    below: PathBuf,
    mount: Vec<&'static str>,
}

impl World {
    fn new(transport: &'static str, striped: bool) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skip("needs root");
            return None;
        }
        let scratch = Scratch::new(program!())?;
        fs::set_permissions(scratch.root(), fs::Permissions::from_mode(0o755)).unwrap();
        let mut mount =
            vec!["mount", "data", "mnt", "--cache", "cache", "--allow-other", transport];
        if striped {
            mount.extend(["--origin-volume", "striped", "--origin-servers", "2"]);
        }
        let below = scratch.path(if striped { "data/namespace" } else { "data" });
        for dir in ["data", "cache"] {
            fs::create_dir_all(scratch.path(dir)).unwrap();
        }
        scratch.succeed(&mount);
        let shared = scratch.path("mnt/theirs");
        fs::create_dir(&shared).unwrap();
        fs::write(scratch.path("mnt/other"), [7; 10_000]).unwrap();
        for number in 0..FILES {
            fs::write(shared.join(number.to_string()), [7; 1000]).unwrap();
            chown(shared.join(number.to_string()), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        chown(&shared, Some(NOBODY), Some(NOBODY)).unwrap();
        for dir in ["data", "mnt"] {
            fs::set_permissions(scratch.path(dir), fs::Permissions::from_mode(0o755)).unwrap();
        }
        // Afterwards the mount has none of them open.
        scratch.succeed(&["umount", "mnt"]);
        scratch.succeed(&mount);
        Some(Self { below: below.join("theirs"), scratch, mount })
    }

    fn holder(&self, how: &str) -> Option<Program> {
        let mut holder = Program::start(HOLDER, [self.below.to_str().unwrap(), how])?;
        assert_eq!(holder.line(), FILES.to_string());
        Some(holder)
    }
}

/// The longest time that root's requests take, which concern other files.
fn longest_pause(mount: &Path, lasts: Duration) -> Duration {
    let (begun, mut longest) = (Instant::now(), Duration::ZERO);
    for number in 0_u64.. {
        let before = Instant::now();
        let file = fs::File::open(mount.join("other")).unwrap();
        file.read_exact_at(&mut [0; 100], number * 100 % 9000).unwrap();
        assert!(mount.join(format!("not-there-{number}")).symlink_metadata().is_err());
        drop(file);
        longest = longest.max(before.elapsed());
        if begun.elapsed() > lasts {
            break;
        }
        thread::sleep(Duration::from_millis(10));
    }
    longest
}

/// Regression: each open of such a file occupied a thread of the mount for 45 s, in the kernel. With as many files as the
/// mount has threads, it stood still for all users.
#[test]
fn the_leases_of_one_user_hold_up_no_other() {
    for (transport, striped) in TRANSPORTS.into_iter().flat_map(|one| [(one, false), (one, true)]) {
        let Some(world) = World::new(transport, striped) else { return };
        let mount = world.scratch.path("mnt");
        let Some(holder) = world.holder("rude") else { return };
        let theirs = mount.join("theirs");
        let Some(mut opener) = Program::start(OPENER, [theirs.to_str().unwrap(), "6"]) else {
            return;
        };
        assert_eq!(opener.line(), "begun");
        let longest = longest_pause(&mount, Duration::from_secs(6));
        assert!(longest < PAUSE_MAX, "{transport}, striped {striped}: {longest:?}");
        // Whoever opens one is told so in time, and nothing else.
        assert_eq!(opener.line(), libc::EAGAIN.to_string(), "{transport}, striped {striped}");
        drop(holder);
        for number in 0..FILES {
            let whole =
                || fs::read(theirs.join(number.to_string())).is_ok_and(|it| it == [7; 1000]);
            eventually("the lease is over, and the file as it was", whole);
        }
        world.scratch.succeed(&["umount", "mnt"]);
        world.scratch.succeed(&world.mount);
        world.scratch.succeed(&["umount", "mnt"]);
    }
}

/// As without the mount: the holder is told, and whoever opens the file waits until the lease is given up.
#[test]
fn who_opens_a_file_gets_it_from_a_holder_that_gives_its_lease_up() {
    for transport in TRANSPORTS {
        let Some(world) = World::new(transport, false) else { return };
        for number in 0..4 {
            let Some(_holder) = world.holder("polite") else { return };
            let path = world.scratch.path(&format!("mnt/theirs/{number}"));
            fs::File::options().read(true).write(true).open(path).unwrap();
        }
    }
}
