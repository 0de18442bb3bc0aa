//! Finds mounts without waiting forever for one whose process is stopped, or for the server of another file system.
//!
//! What must hold: a lookup in a mount is made by a separate process, [`execute`]. The kernel does not release a
//! process that looks there until the mount responds, whatever signals arrive; so that process is abandoned after a
//! while, and ends when the mount's process ends or continues.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use halocline_api::control::mount_lookup::{self, Directly, MountAccess};
use halocline_api::control::{
    AnyStatus, Client, Health, MountedPath, Request, Status, descriptors, is_glob,
};
use halocline_os::error::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::failure::{Failure, Outcome};
use crate::print::tell;
use crate::text;

/// How long a lookup may take: far longer than a busy machine needs.
const LOOK_TIMEOUT: Duration = Duration::from_secs(10);

/// Finds the running mount that a path is on.
pub(crate) fn find(path: &Path) -> Result<MountedPath> {
    find_by(path, &Aside::default())
}

fn find_by(path: &Path, aside: &Aside) -> Result<MountedPath> {
    MountedPath::find_by(path, aside).map_err(|error| match why_not_found(path, &error, aside) {
        Some(reason) => Error::Refused {
            message: format!("{}: the mount does not find it: {reason}", text::path(path)),
            errno: error.errno(),
        },
        None => error,
    })
}

/// What is wrong with the mount of a path where a lookup has failed, if the mount knows: programs get only EIO.
fn why_not_found(path: &Path, error: &Error, aside: &Aside) -> Option<String> {
    if error.errno() != libc::EIO {
        return None;
    }
    let absolute = std::path::absolute(path).ok()?;
    // The mount's root is found without asking the mount for a name.
    let mounted = |above: &Path| MountedPath::find_by(above, aside).ok();
    let mounted = absolute.ancestors().skip(1).find_map(mounted)?;
    match status(&mounted).ok()?.status.health {
        Health::Degraded { reason } => Some(reason),
        _ => None,
    }
}

/// Refuses the root of a file tier if one of its directories does not respond.
pub(crate) fn check_tiers_answer(root: &Path) -> Result<()> {
    check_answers(root)?;
    mount_lookup::check_tiers_answer(root, &Aside::default())
}

/// The error for the root of a file tier if one of its directories is a mount whose server has ended.
pub(crate) fn dead_tier(root: &Path) -> Option<Error> {
    mount_lookup::dead_tier(root)
}

/// Connects to a mount's process, unless the directory with its control socket hangs. That mount's user determines the
/// directory, and may let it respond to a lookup but not to what follows: so the connection, too, is made by a separate
/// process.
pub(crate) fn reach(mounted: &MountedPath) -> Result<Client> {
    check_answers(&mounted.socket)?;
    mounted.connect_by(connect_aside)
}

/// Connects to the control socket of a mount process of `user`, likewise.
pub(crate) fn reach_socket(socket: &Path, user: u32) -> Result<Client> {
    check_answers(socket)?;
    Client::over(connect_aside(socket), socket, user, connect_aside)
}

fn connect_aside(socket: &Path) -> io::Result<UnixStream> {
    Aside::default().connect(socket)
}

/// The same for a path given by the user.
pub(crate) fn named(path: &Path) -> Result<MountedPath, Failure> {
    find(path).map_err(not_found)
}

/// The same for many paths, with one process for all lookups. What is at or below another of them is left out.
pub(crate) fn all_named(paths: &[PathBuf]) -> Result<Named<MountedPath>, Failure> {
    let aside = Aside::default();
    let named = each(paths, &aside, |path| find_by(path, &aside).map_err(not_found))?;
    Ok(named.distinct(|mounted| (&mounted.socket, &mounted.inside)))
}

/// The mounts of paths that may end in globs, and the paths below their roots, with one process for all lookups. What is at
/// or below another of them is left out; a glob may match what another one matches.
pub(crate) fn all_matching(paths: &[PathBuf]) -> Result<Named<(MountedPath, PathBuf)>, Failure> {
    let aside = Aside::default();
    let named = each(paths, &aside, |path| matching(path, &aside))?;
    Ok(named.distinct(|(mounted, inside)| (&mounted.socket, inside)))
}

/// What the paths of a command lead to.
pub(crate) struct Named<T> {
    pub(crate) found: Vec<T>,
    /// Links among them that lead to nothing on a mount, which were told.
    pub(crate) stray_links: Vec<PathBuf>,
}

impl<T> Named<T> {
    fn distinct(self, place: impl Fn(&T) -> (&PathBuf, &PathBuf)) -> Self {
        Self { found: distinct(self.found, place), ..self }
    }
}

/// The result of a command that has done what it could with the rest of its paths.
pub(crate) fn without(stray_links: &[PathBuf], done: Outcome) -> Outcome {
    let is_whole = stray_links.is_empty();
    done.map(|code| if is_whole || code != ExitCode::SUCCESS { code } else { ExitCode::FAILURE })
}

/// Looks each of them up. A name that is not there refuses all, since it is mistyped; but a shell lists links, too, and
/// anybody can make one that leads nowhere: it keeps no other path from being found.
fn each<T>(
    paths: &[PathBuf],
    aside: &Aside,
    look: impl Fn(&Path) -> Result<T, Failure>,
) -> Result<Named<T>, Failure> {
    let (mut found, mut stray) = (Vec::new(), Vec::new());
    for path in paths {
        match look(path) {
            Ok(one) => found.push(one),
            Err(failure) if failure.is_refusal() && matches!(aside.link(path), Ok(Some(_))) => {
                stray.push((path.clone(), failure));
            }
            Err(failure) => return Err(failure),
        }
    }
    if found.is_empty()
        && let Some((_, failure)) = stray.pop()
    {
        return Err(failure);
    }
    for (_, failure) in &stray {
        tell!("halocline: a link that leads to nothing on a mount: {}", failure.message());
    }
    let stray_links = stray.into_iter().map(|(path, _)| path).collect();
    Ok(Named { found, stray_links })
}

/// Leaves out what would be counted twice. `place` is the mount of one, and its path there.
fn distinct<T>(mut found: Vec<T>, place: impl Fn(&T) -> (&PathBuf, &PathBuf)) -> Vec<T> {
    let is_glob = |path: &Path| is_glob(&path.to_string_lossy());
    let owned = |one: &T| {
        let (socket, path) = place(one);
        (socket.clone(), path.clone())
    };
    let all: HashSet<(PathBuf, PathBuf)> = found.iter().map(owned).collect();
    let mut seen = HashSet::new();
    found.retain(|one| {
        let (socket, path) = owned(one);
        // That a glob matches nothing is an error, also where what it is below is named.
        let mut above = path.ancestors().skip(1).filter(|above| !is_glob(&path) && !is_glob(above));
        let is_below = above.any(|above| all.contains(&(socket.clone(), above.to_owned())));
        !is_below && seen.insert((socket, path))
    });
    found
}

fn matching(path: &Path, aside: &Aside) -> Result<(MountedPath, PathBuf), Failure> {
    let is_glob = |part: &OsStr| is_glob(&part.to_string_lossy());
    let literal = match find_by(path, aside) {
        Ok(mounted) => {
            let inside = mounted.inside.clone();
            return Ok((mounted, inside));
        }
        // A name may look like a glob, and a glob like a name that does not exist.
        Err(error) if error.errno() == libc::ETIMEDOUT || !path.iter().any(is_glob) => {
            return Err(not_found(error));
        }
        Err(error) => error,
    };
    let plain: PathBuf = path.iter().take_while(|part| !is_glob(part)).collect();
    let base = if plain.as_os_str().is_empty() { Path::new(".") } else { &plain };
    // If neither is on a mount, the error is about what was typed.
    let Ok(mounted) = find_by(base, aside) else {
        return Err(not_found(literal));
    };
    let rest: PathBuf = path.iter().skip_while(|part| !is_glob(part)).collect();
    let inside = mounted.inside.join(rest);
    Ok((mounted, inside))
}

/// Why a path given by the user is on no mount: one that does not exist, or is elsewhere, is a wrong argument.
pub(crate) fn not_found(error: Error) -> Failure {
    let is_wrong = [libc::ENOENT, libc::ENODEV].contains(&error.errno());
    if is_wrong { Failure::refused(error) } else { error.into() }
}

/// The mount point at `path` if its process has ended.
pub(crate) fn dead_mount(path: &Path) -> Result<Option<PathBuf>> {
    mount_lookup::dead_mount(path, &Aside::default())
}

/// Our topmost mount at `path`, or else the one whose cache or first tier is there or below it; found even if neither
/// responds.
pub(crate) fn mountpoint_at_or_over(path: &Path) -> Option<PathBuf> {
    let look = Aside::default();
    mount_lookup::mountpoint_at(path, &look).or_else(|| mount_lookup::mountpoint_over(path, &look))
}

/// Where the mount with this control socket is.
pub(crate) fn mountpoint_of(socket: &Path) -> Option<PathBuf> {
    mount_lookup::mountpoint_of(socket, &Aside::default())
}

/// Refuses a path that leads into a mount whose process or server does not respond.
pub(crate) fn check_answers(path: &Path) -> Result<()> {
    mount_lookup::check_answers(path, &Aside::default())
}

/// Refuses the paths if any of them leads into such a mount.
pub(crate) fn all_answer(paths: &[PathBuf]) -> Result<()> {
    let look = Aside::default();
    paths.iter().try_for_each(|path| mount_lookup::check_answers(path, &look))
}

/// Look into mounts for another process of ours
#[derive(Debug, Args)]
pub(crate) struct LookArgs {}

/// Connects to a mount's process. If that is silent while it works on a request, this reports it after a while: the
/// request waits for as long as a disk or a server delays it, and a signal ends the wait.
pub(crate) fn connect(mounted: &MountedPath) -> Result<Client> {
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
            "halocline: {socket}: the mount process answers, and is not done with this: it works on it, or waits for a disk or a \
             server, such as the origin's (interrupt this to stop waiting)"
        );
    };
    Ok(reach(mounted)?.telling_silence(tell))
}

/// The kind of lookup, the first byte of a query; the rest is the path.
const RESOLVE: u8 = b'r';
const SOCKET: u8 = b's';
const ANSWER: u8 = b'a';
const LINK: u8 = b'l';
/// A connection, which is sent before the answer.
const CONNECT: u8 = b'c';
/// The end of a query, and of an answer: no path contains it.
const END: u8 = 0;

/// Answers each query on standard input with `=PATH`, nothing if there is none, or `!ERRNO`.
pub(crate) fn execute(_: &LookArgs) -> Outcome {
    let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut out = stream.try_clone()?;
    for question in io::BufReader::new(stream).split(END) {
        let question = question?;
        let Some((what, path)) = question.split_first() else { break };
        let path = Path::new(OsStr::from_bytes(path));
        let found = match *what {
            SOCKET => Directly.socket(path),
            ANSWER => Directly.wait_for(path).map(|()| None),
            LINK => Directly.link(path),
            CONNECT => {
                let connected = Directly.connect(path);
                descriptors::send(&out, connected.as_ref().ok().map(AsFd::as_fd))?;
                connected.map(|_| None)
            }
            _ => Directly.resolve(path).map(Some),
        };
        let mut answer = match found {
            Ok(Some(path)) => [b"=", path.as_os_str().as_bytes()].concat(),
            Ok(None) => Vec::new(),
            Err(error) => format!("!{}", error.raw_os_error().unwrap_or(libc::EIO)).into_bytes(),
        };
        answer.push(END);
        out.write_all(&answer)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Performs lookups through a separate process, which answers one query after another.
#[derive(Debug, Default)]
struct Aside(RefCell<Option<Looker>>);

/// That process.
#[derive(Debug)]
struct Looker {
    process: Child,
    stream: UnixStream,
}

impl Looker {
    fn start() -> io::Result<Self> {
        let (stream, its) = UnixStream::pair()?;
        let mut command = Command::new("/proc/self/exe");
        let silent = command.arg("look").stdin(OwnedFd::from(its)).stderr(Stdio::null());
        Ok(Self { process: silent.stdout(Stdio::null()).spawn()?, stream })
    }

    fn ask(&mut self, what: u8, path: &Path) -> io::Result<(Option<OwnedFd>, Vec<u8>)> {
        let path = path.as_os_str().as_bytes();
        if path.contains(&END) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        self.stream.write_all(&[&[what], path, &[END]].concat())?;
        let deadline = Instant::now() + LOOK_TIMEOUT;
        let mut connection = None;
        if what == CONNECT {
            self.wait(deadline)?;
            let received = descriptors::receive(&self.stream);
            connection = received.map_err(|error| io::Error::from_raw_os_error(error.errno()))?;
        }
        let (mut said, mut piece) = (Vec::new(), [0; 4096]);
        while said.last() != Some(&END) {
            self.wait(deadline)?;
            match self.stream.read(&mut piece)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                len => said.extend_from_slice(&piece[..len]),
            }
        }
        said.pop();
        Ok((connection, said))
    }

    /// Waits until there is output.
    fn wait(&self, deadline: Instant) -> io::Result<()> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).ok();
            match poll(&mut [PollFd::new(&self.stream, PollFlags::IN)], timeout.as_ref()) {
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl Aside {
    fn look(&self, what: u8, path: &Path) -> io::Result<Option<PathBuf>> {
        self.ask(what, path).map(|(_, found)| found)
    }

    fn ask(&self, what: u8, path: &Path) -> io::Result<(Option<OwnedFd>, Option<PathBuf>)> {
        let kept = self.0.take();
        let mut looker = kept.map_or_else(Looker::start, Ok)?;
        // A process that does not answer is abandoned: it may never end.
        let (connection, said) = looker.ask(what, path)?;
        self.0.replace(Some(looker));
        match said.split_first() {
            None => Ok((connection, None)),
            Some((b'=', path)) => Ok((connection, Some(OsString::from_vec(path.to_vec()).into()))),
            Some((_, errno)) => {
                let errno = std::str::from_utf8(errno).ok().and_then(|errno| errno.parse().ok());
                Err(io::Error::from_raw_os_error(errno.unwrap_or(libc::EIO)))
            }
        }
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        let Some(Looker { mut process, stream }) = self.0.take() else { return };
        drop(stream);
        let _ended = process.wait();
    }
}

impl MountAccess for Aside {
    fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        self.look(RESOLVE, path)?.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn socket(&self, root: &Path) -> io::Result<Option<PathBuf>> {
        self.look(SOCKET, root)
    }

    fn wait_for(&self, point: &Path) -> io::Result<()> {
        self.look(ANSWER, point).map(drop)
    }

    fn link(&self, path: &Path) -> io::Result<Option<PathBuf>> {
        self.look(LINK, path)
    }

    fn connect(&self, path: &Path) -> io::Result<UnixStream> {
        let (connection, _) = self.ask(CONNECT, path)?;
        connection.map(UnixStream::from).ok_or_else(|| io::ErrorKind::BrokenPipe.into())
    }
}

/// Asks a mount for its state.
pub(crate) fn status(mounted: &MountedPath) -> Result<AnyStatus, Failure> {
    Ok(reach(mounted)?.call(&Request::Status {}, |_| {})?)
}
