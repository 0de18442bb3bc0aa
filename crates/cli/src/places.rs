//! Finding mounts without waiting for ever for one whose process is stopped.
//!
//! What must hold: a look into a mount is made by a process of its own, [`execute`]. The kernel
//! does not let go of who looks until the mount answers, whatever signal comes; so that process is
//! left behind after a while, and ends when the mount's does or goes on.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use halocline_core::control::Place;
use halocline_core::control::place::{self, Directly, Look};
use halocline_core::error::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::failure::Outcome;

/// How long a look may take: far longer than a busy machine needs.
const LOOK_TIMEOUT: Duration = Duration::from_secs(10);

/// Finds the running mount that a path lies on.
pub(crate) fn find(path: &Path) -> Result<Place> {
    Place::find_by(path, &Aside)
}

/// The mount point at `path` if its process has ended.
pub(crate) fn dead_mount(path: &Path) -> Result<Option<PathBuf>> {
    place::dead_mount(path, &Aside)
}

/// Refuses a path that leads into a mount of ours whose process does not answer.
pub(crate) fn check_answers(path: &Path) -> Result<()> {
    place::check_answers(path, &Aside)
}

/// Look into a mount for another process of ours
#[derive(Debug, Args)]
pub(crate) struct LookArgs {
    /// For what
    #[arg(value_enum)]
    what: What,
    /// Where
    path: PathBuf,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum What {
    /// The path without links.
    Resolve,
    /// The control socket.
    Socket,
}

/// Looks, and writes `=PATH`, nothing where there is none, or `!ERRNO`.
pub(crate) fn execute(args: &LookArgs) -> Outcome {
    let found = match args.what {
        What::Resolve => Directly.resolve(&args.path).map(Some),
        What::Socket => Directly.socket(&args.path),
    };
    let mut out = io::stdout();
    match found {
        Ok(Some(path)) => {
            out.write_all(b"=")?;
            out.write_all(path.as_os_str().as_bytes())?;
        }
        Ok(None) => {}
        Err(error) => write!(out, "!{}", error.raw_os_error().unwrap_or(libc::EIO))?,
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Looks by a process of its own.
#[derive(Debug)]
struct Aside;

impl Aside {
    fn look(what: &str, path: &Path) -> io::Result<Option<PathBuf>> {
        let mut command = Command::new("/proc/self/exe");
        command.arg("look").arg(what).arg("--").arg(path);
        let silent = command.stdin(Stdio::null()).stderr(Stdio::null());
        let mut child = silent.stdout(Stdio::piped()).spawn()?;
        let mut pipe = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let (mut said, mut piece) = (Vec::new(), [0; 4096]);
        let deadline = Instant::now() + LOOK_TIMEOUT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).ok();
            match poll(&mut [PollFd::new(&pipe, PollFlags::IN)], timeout.as_ref()) {
                // Not waited for: it may never end.
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
            match pipe.read(&mut piece)? {
                0 => break,
                len => said.extend_from_slice(&piece[..len]),
            }
        }
        child.wait()?;
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

impl Look for Aside {
    fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        Self::look("resolve", path)?.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn socket(&self, root: &Path) -> io::Result<Option<PathBuf>> {
        Self::look("socket", root)
    }
}
