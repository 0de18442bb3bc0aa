//! Finding mounts without waiting for ever for one whose process is stopped, or for the server of
//! another file system.
//!
//! What must hold: a look into a mount is made by a process of its own, [`execute`]. The kernel
//! does not let go of who looks until the mount answers, whatever signal comes; so that process is
//! left behind after a while, and ends when the mount's does or goes on.

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use halocline_core::control::place::{self, Directly, Look};
use halocline_core::control::{Client, Place, Status};
use halocline_core::error::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::failure::{Failure, Outcome};
use crate::say::tell;
use crate::text;

/// How long a look may take: far longer than a busy machine needs.
const LOOK_TIMEOUT: Duration = Duration::from_secs(10);

/// Finds the running mount that a path lies on.
pub(crate) fn find(path: &Path) -> Result<Place> {
    Place::find_by(path, &Aside::default())
}

/// Refuses the root of a file tier one of whose directories does not answer.
pub(crate) fn check_tiers_answer(root: &Path) -> Result<()> {
    check_answers(root)?;
    place::check_tiers_answer(root, &Aside::default())
}

/// Connects to a mount's process, unless the directory with its control socket hangs.
pub(crate) fn reach(place: &Place) -> Result<Client> {
    check_answers(&place.socket)?;
    place.connect().map(|client| client.looking_by(check_answers))
}

/// Connects to the control socket of a mount process of `user`, likewise.
pub(crate) fn reach_socket(socket: &Path, user: u32) -> Result<Client> {
    check_answers(socket)?;
    Client::connect_to(socket, user).map(|client| client.looking_by(check_answers))
}

/// The same of a path that a person named.
pub(crate) fn named(path: &Path) -> Result<Place, Failure> {
    find(path).map_err(not_found)
}

/// The same of many paths, with one process that looks for all.
pub(crate) fn all_named(paths: &[PathBuf]) -> Result<Vec<Place>, Failure> {
    let aside = Aside::default();
    paths.iter().map(|path| Place::find_by(path, &aside).map_err(not_found)).collect()
}

/// Why a path that a person named is on no mount: one that is not there, or elsewhere, is a wrong argument.
pub(crate) fn not_found(error: Error) -> Failure {
    let is_wrong = [libc::ENOENT, libc::ENODEV].contains(&error.errno());
    if is_wrong { Failure::refused(error) } else { error.into() }
}

/// The mount point at `path` if its process has ended.
pub(crate) fn dead_mount(path: &Path) -> Result<Option<PathBuf>> {
    place::dead_mount(path, &Aside::default())
}

/// The mount of ours on top at `path`, or else the one whose cache or first tier is there or below it: told also where
/// neither answers.
pub(crate) fn mountpoint_at_or_over(path: &Path) -> Option<PathBuf> {
    let look = Aside::default();
    place::mountpoint_at(path, &look).or_else(|| place::mountpoint_over(path, &look))
}

/// Where the mount with this control socket is.
pub(crate) fn mountpoint_of(socket: &Path) -> Option<PathBuf> {
    place::mountpoint_of(socket, &Aside::default())
}

/// Refuses a path that leads into a mount whose process or server does not answer.
pub(crate) fn check_answers(path: &Path) -> Result<()> {
    place::check_answers(path, &Aside::default())
}

/// Look into mounts for another process of ours
#[derive(Debug, Args)]
pub(crate) struct LookArgs {}

/// Connects to a mount's process. Once that has worked on a request for a while without a word, this says so: it
/// waits as long as a disk or a server lets it wait, and a signal ends this wait.
pub(crate) fn connect(place: &Place) -> Result<Client> {
    let tell = |socket: &Path, status: &Status| {
        let socket = text::path(socket);
        if let Some(users) = &status.detached {
            return tell!(
                "halocline: {socket}: the mount is detached, {}; what was asked for goes on when that ends (`halocline umount \
                 --force {}` takes it from them; interrupt this to stop waiting)",
                text::line(users),
                text::path(&status.cache)
            );
        }
        tell!(
            "halocline: {socket}: the mount process works, and waits for a disk or a server, such as the origin's; what was \
             asked for goes on when that answers (interrupt this to stop waiting)"
        );
    };
    Ok(reach(place)?.telling_silence(tell))
}

/// What is looked for, the first byte of a question; the rest is the path.
const RESOLVE: u8 = b'r';
const SOCKET: u8 = b's';
const ANSWER: u8 = b'a';
/// The end of a question, and of an answer: no path has it.
const END: u8 = 0;

/// Answers each question of standard input with `=PATH`, nothing where there is none, or `!ERRNO`.
pub(crate) fn execute(_: &LookArgs) -> Outcome {
    let mut out = io::stdout();
    for question in io::stdin().lock().split(END) {
        let question = question?;
        let Some((what, path)) = question.split_first() else { break };
        let path = Path::new(OsStr::from_bytes(path));
        let found = match *what {
            SOCKET => Directly.socket(path),
            ANSWER => Directly.wait_for(path).map(|()| None),
            _ => Directly.resolve(path).map(Some),
        };
        let mut answer = match found {
            Ok(Some(path)) => [b"=", path.as_os_str().as_bytes()].concat(),
            Ok(None) => Vec::new(),
            Err(error) => format!("!{}", error.raw_os_error().unwrap_or(libc::EIO)).into_bytes(),
        };
        answer.push(END);
        out.write_all(&answer)?;
        out.flush()?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Looks by a process of its own, which answers one question after the other.
#[derive(Debug, Default)]
struct Aside(RefCell<Option<Looker>>);

/// That process.
#[derive(Debug)]
struct Looker {
    process: Child,
    questions: ChildStdin,
    answers: ChildStdout,
}

impl Looker {
    fn start() -> io::Result<Self> {
        let mut command = Command::new("/proc/self/exe");
        let silent = command.arg("look").stdin(Stdio::piped()).stderr(Stdio::null());
        let mut process = silent.stdout(Stdio::piped()).spawn()?;
        let questions = process.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let answers = process.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Self { process, questions, answers })
    }

    fn ask(&mut self, what: u8, path: &Path) -> io::Result<Vec<u8>> {
        let path = path.as_os_str().as_bytes();
        if path.contains(&END) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        self.questions.write_all(&[&[what], path, &[END]].concat())?;
        let (mut said, mut piece) = (Vec::new(), [0; 4096]);
        let deadline = Instant::now() + LOOK_TIMEOUT;
        while said.last() != Some(&END) {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).ok();
            match poll(&mut [PollFd::new(&self.answers, PollFlags::IN)], timeout.as_ref()) {
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
            match self.answers.read(&mut piece)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                len => said.extend_from_slice(&piece[..len]),
            }
        }
        said.pop();
        Ok(said)
    }
}

impl Aside {
    fn look(&self, what: u8, path: &Path) -> io::Result<Option<PathBuf>> {
        let kept = self.0.take();
        let mut looker = kept.map_or_else(Looker::start, Ok)?;
        // One that does not answer is left behind: it may never end.
        let said = looker.ask(what, path)?;
        self.0.replace(Some(looker));
        match said.split_first() {
            None => Ok(None),
            Some((b'=', path)) => Ok(Some(OsString::from_vec(path.to_vec()).into())),
            Some((_, errno)) => {
                let errno = std::str::from_utf8(errno).ok().and_then(|errno| errno.parse().ok());
                Err(io::Error::from_raw_os_error(errno.unwrap_or(libc::EIO)))
            }
        }
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        let Some(Looker { mut process, questions, .. }) = self.0.take() else { return };
        drop(questions);
        let _ended = process.wait();
    }
}

impl Look for Aside {
    fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        self.look(RESOLVE, path)?.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn socket(&self, root: &Path) -> io::Result<Option<PathBuf>> {
        self.look(SOCKET, root)
    }

    fn wait_for(&self, point: &Path) -> io::Result<()> {
        self.look(ANSWER, point).map(drop)
    }
}
