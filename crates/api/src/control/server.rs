//! The server end of the control socket: one thread per connection; only the owner and root are served.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;

use std::fs::{self, Permissions};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::net::Shutdown;
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Component, Path, PathBuf};
use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use halocline_model::request::ByteRange;
use parking_lot::Mutex;
use rustix::net::UCred;
use serde::Serialize;

use super::address::Address;
use super::bounds::{self, REQUEST_BYTES_MAX, SHORT_LINE_BYTES};
use super::mounted::{self, Mounted};
use super::{AnyStatus, Controlled, MoveReport, Progress, ProgressSink, Request, SOCKET_NAME};
use halocline_os::catch_panic::{catch_panic, caught};
use halocline_os::error::{Error, Result};
use halocline_os::private::{PrivateDir, Use};

/// How lines begin that may be longer: lists of paths and job files.
const LONG_REQUESTS: [&[u8]; 2] = [b"{\"warm\"", b"{\"jobs\""];
/// How many long lines are read or executed at the same time: with [`REQUEST_BYTES_MAX`] this limits the memory that
/// all clients together can use in the mount.
const LONG_LINES_MAX: usize = 4;
/// How many clients may be connected at the same time, with one thread each.
pub(super) const CLIENTS_MAX: usize = if cfg!(test) { 32 } else { 1024 };
/// How long a client may read nothing of an answer; then it is disconnected, and its request stops. No mount waits for
/// a stopped client.
const UNREAD: Duration =
    if cfg!(test) { Duration::from_millis(100) } else { Duration::from_mins(1) };
/// How long a stopping server waits for clients to read their answers.
const LAST_ANSWERS: Duration = Duration::from_secs(10);
/// The same if nothing else is waited for.
const LEAVING: Duration = Duration::from_secs(3);
/// Shortest time between two progress lines.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// State shared by the connections.
struct Shared {
    controlled: Arc<dyn Controlled>,
    mounted: Arc<dyn Mounted>,
    mountpoint: PathBuf,
    /// The origin, at which runs that joined see the mount.
    origin: Option<PathBuf>,
    /// Open connections by number, to wake their threads when the server stops.
    open: Mutex<Vec<(u64, UnixStream)>>,
    /// Long lines being processed.
    long_lines: AtomicUsize,
}

/// A long line being processed; one of [`LONG_LINES_MAX`].
struct LongLine<'a>(&'a AtomicUsize);

impl<'a> LongLine<'a> {
    fn begin(in_work: &'a AtomicUsize) -> Option<Self> {
        let another = |count| (count < LONG_LINES_MAX).then_some(count + 1);
        in_work.fetch_update(Ordering::AcqRel, Ordering::Acquire, another).ok()?;
        Some(Self(in_work))
    }
}

impl Drop for LongLine<'_> {
    fn drop(&mut self) {
        let before = self.0.fetch_sub(1, Ordering::AcqRel);
        assert!((1..=LONG_LINES_MAX).contains(&before), "long lines are within their limit");
    }
}

/// An empty file beside the socket, whose inode the socket gets if the file system has no other. To mount a known cache
/// again needs no further inode, and must not fail for lack of one.
const SPARE: &str = "control.spare";

/// A listening control socket. Dropping it stops listening, lets requests in progress finish and removes the socket.
pub struct Server {
    dir: PrivateDir,
    socket: PathBuf,
    listener: UnixListener,
    accepting: Option<JoinHandle<()>>,
    ending: Arc<AtomicBool>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Server").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl Server {
    /// Listens in `cache` for the mount at `mountpoint`. The caller holds the cache's lock (I8), so a socket that
    /// already exists belongs to a dead owner and is replaced.
    pub fn start(
        cache: &Path,
        mountpoint: &Path,
        controlled: Arc<dyn Controlled>,
        mounted: Arc<dyn Mounted>,
    ) -> Result<Self> {
        let dir = PrivateDir::open(cache)?;
        let socket = cache.join(SOCKET_NAME);
        dir.remove(SOCKET_NAME)?;
        let at = |error| Error::at(&socket, "listen on the control socket")(error);
        let address = Address::within(&dir, SOCKET_NAME);
        let bind = || UnixListener::bind(&address);
        let listener = bind().or_else(|error| match error.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT) if dir.remove(SPARE).is_ok() => bind(),
            _ => Err(error),
        });
        let listener = listener.map_err(at)?;
        fs::set_permissions(&address, Permissions::from_mode(0o600)).map_err(at)?;
        keep_spare(&dir);
        let mountpoint = mountpoint.to_owned();
        let (open, long_lines) = (Mutex::default(), AtomicUsize::new(0));
        let origin = mounted.origin();
        let shared = Arc::new(Shared { controlled, mounted, mountpoint, origin, open, long_lines });
        let ending = Arc::new(AtomicBool::new(false));
        let accepting = {
            let (listener, ending) = (listener.try_clone()?, Arc::clone(&ending));
            thread::Builder::new()
                .name("control".into())
                .spawn(move || accept_all(&listener, &shared, &ending))?
        };
        Ok(Self { dir, socket, listener, accepting: Some(accepting), ending })
    }

    /// Stops as a drop does, except that requests which do not finish soon run until the process ends.
    pub fn leave(mut self) {
        self.shut();
        let begun = Instant::now();
        let accepting = self.accepting.take();
        while accepting.as_ref().is_some_and(|thread| !thread.is_finished())
            && begun.elapsed() < LEAVING
        {
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn shut(&self) {
        self.ending.store(true, Ordering::Release);
        // Shutting down a listening socket makes its `accept` return, and likewise the connections' reads; answers in
        // progress can still be written.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
    }

    /// Path of the socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shut();
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
        let _ = self.dir.remove(SOCKET_NAME);
        keep_spare(&self.dir);
    }
}

/// Keeps an inode for the socket of the next mount. If none is free now, that mount can do without, provided that
/// others are free then.
fn keep_spare(dir: &PrivateDir) {
    let _ = dir.file(SPARE, Use::Write);
}

/// Accepts until the listener is shut down, then waits for the connections. Without a free descriptor, `accept` does
/// not report the shutdown.
fn accept_all(listener: &UnixListener, shared: &Arc<Shared>, ending: &AtomicBool) {
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    for number in 0.. {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => break,
            Err(_) if ending.load(Ordering::Acquire) => break,
            Err(error) => {
                tracing::warn!("control socket: cannot accept: {error}");
                thread::sleep(PROGRESS_INTERVAL);
                continue;
            }
        };
        threads.retain(|thread| !thread.is_finished());
        if threads.len() >= CLIENTS_MAX {
            tracing::warn!("control socket: more than {CLIENTS_MAX} clients: one is sent away");
            let busy = Error::Refused {
                message: format!(
                    "the mount process has {CLIENTS_MAX} clients already; try again, or end commands and \
                     programs that are connected to its control socket"
                ),
                errno: libc::EAGAIN,
            };
            let _ = send(&mut &stream, &Answer::<()>::from(Err(busy)));
            continue;
        }
        let shared = Arc::clone(shared);
        let spawned = thread::Builder::new().name("control-peer".into()).spawn(move || {
            let kept = stream.try_clone().map(|copy| shared.open.lock().push((number, copy)));
            // Whatever happens, the other descriptor of the connection must not stay open: the peer would wait forever.
            let served = catch_panic(|| kept.and_then(|()| serve(&stream, &shared)));
            if let Err(error) = served {
                tracing::debug!("control socket: peer left: {error}");
            }
            shared.open.lock().retain(|(other, _)| *other != number);
        });
        match spawned {
            Ok(thread) => threads.push(thread),
            Err(error) => tracing::warn!("control socket: cannot serve a peer: {error}"),
        }
    }
    let begun = Instant::now();
    loop {
        let how = if begun.elapsed() < LAST_ANSWERS { Shutdown::Read } else { Shutdown::Both };
        for (_, stream) in shared.open.lock().iter() {
            let _ = stream.shutdown(how);
        }
        threads.retain(|thread| !thread.is_finished());
        if threads.is_empty() {
            return;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a peer is served: the mount's owner or root, whatever the socket's mode.
fn is_obeyed(peer: UCred) -> bool {
    peer.uid.is_root() || peer.uid == rustix::process::geteuid()
}

/// Answers the requests of one connection until it closes.
fn serve(stream: &UnixStream, shared: &Shared) -> io::Result<()> {
    let peer = rustix::net::sockopt::socket_peercred(stream)?;
    stream.set_write_timeout(Some(UNREAD))?;
    let mut out = BufWriter::new(stream);
    if !is_obeyed(peer) {
        let error = io::Error::from_raw_os_error(libc::EPERM);
        return send(&mut out, &Answer::<()>::from(Err(Error::from(error))));
    }
    let mut lines = BufReader::new(stream);
    // Until the connection ends.
    let mut memberships = Vec::new();
    loop {
        let (line, long) = match request_line(&mut lines, shared)? {
            Ok((line, _)) if line.is_empty() => return Ok(()),
            Ok(taken) => taken,
            // The rest of the line is not a request, so the connection ends.
            Err(error) => return send(&mut out, &Answer::<()>::from(Err(error))),
        };
        let request = parse(&line);
        drop(line);
        match request {
            Ok(Request::Join { origin }) if memberships.is_empty() => {
                let admitted = mounted::admit(stream, peer, &*shared.mounted, origin);
                let told = admitted.map(|(joined, member)| {
                    memberships.push(member);
                    joined
                });
                send(&mut out, &Answer::from(told))?;
            }
            Ok(request) => {
                let answered = caught(|| answer(request, peer, shared, &mut out));
                answered.unwrap_or_else(|_| send(&mut out, &Answer::<()>::from(Err(defect()))))?;
            }
            Err(error) => send(&mut out, &Answer::<()>::from(Err(error)))?,
        }
        drop(long);
    }
}

/// The answer to a client whose request panicked.
fn defect() -> Error {
    Error::invalid(
        "the mount process has a defect: it could not carry the request out",
        "its log says where; please report it",
    )
}

/// The next line of a client, empty at the end; an error if it is longer than allowed.
fn request_line<'s>(
    lines: &mut impl BufRead,
    shared: &'s Shared,
) -> io::Result<Result<(Vec<u8>, Option<LongLine<'s>>)>> {
    let mut line = Vec::new();
    lines.by_ref().take(SHORT_LINE_BYTES as u64).read_until(b'\n', &mut line)?;
    if line.len() < SHORT_LINE_BYTES || line.ends_with(b"\n") {
        return Ok(Ok((line, None)));
    }
    let too_long = |bytes: usize| {
        let what = format!("a request has more than {bytes} bytes");
        Ok(Err(Error::invalid(what, "name fewer files at a time")))
    };
    if !LONG_REQUESTS.iter().any(|name| line.starts_with(name)) {
        return too_long(SHORT_LINE_BYTES);
    }
    let Some(long) = LongLine::begin(&shared.long_lines) else {
        let what = format!("{LONG_LINES_MAX} other long requests are in work");
        return Ok(Err(Error::invalid(what, "try again later, or name fewer files at a time")));
    };
    let rest = (REQUEST_BYTES_MAX - SHORT_LINE_BYTES) as u64;
    lines.by_ref().take(rest).read_until(b'\n', &mut line)?;
    if line.len() == REQUEST_BYTES_MAX && !line.ends_with(b"\n") {
        return too_long(REQUEST_BYTES_MAX);
    }
    Ok(Ok((line, Some(long))))
}

/// Parses a request, and checks that some mount could execute it.
pub(super) fn parse(line: &[u8]) -> Result<Request> {
    let request = serde_json::from_slice::<Request>(line).map_err(|error| {
        Error::invalid(
            format!("the request is not understood: {error}"),
            "use the halocline command of the version that mounted",
        )
    })?;
    bounds::check(&request)?;
    Ok(request)
}

/// One line to the client.
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Answer<T> {
    Progress(Progress),
    Ok(T),
    Error { message: String, errno: i32 },
}

impl<T> From<Result<T>> for Answer<T> {
    fn from(result: Result<T>) -> Self {
        match result {
            Ok(value) => Self::Ok(value),
            Err(error) => Self::Error { message: error.to_string(), errno: error.errno() },
        }
    }
}

fn send<T: Serialize>(out: &mut (impl Write + Send), answer: &Answer<T>) -> io::Result<()> {
    serde_json::to_writer(&mut *out, answer)?;
    out.write_all(b"\n")?;
    out.flush()
}

/// Executes one request and sends its answer.
fn answer(
    request: Request,
    peer: UCred,
    shared: &Shared,
    out: &mut (impl Write + Send),
) -> io::Result<()> {
    let engine = &shared.controlled;
    match request {
        Request::Status {} => {
            let (mut status, tier) = (engine.status(), engine.tier_status());
            shared.mounted.transport().clone_into(&mut status.transport);
            status.notes.extend(shared.mounted.notes());
            status.detached = shared.mounted.detached();
            status.notes.extend(status.detached.iter().map(|users| format!("detached: {users}")));
            send(out, &Answer::Ok(AnyStatus { status, tier }))
        }
        Request::Report {} => send(out, &Answer::Ok(engine.report())),
        Request::Locate { path, range } => {
            let range = range.map(|(offset, length)| ByteRange::at(offset, length));
            let found = below_root(&path).and_then(|()| engine.locate(&path, range));
            send(out, &Answer::from(found))
        }
        Request::Explain(question) => {
            let told = below_root(&question.path).and_then(|()| engine.explain(&question));
            send(out, &Answer::from(told))
        }
        Request::Flush { path, dry_run } => moving(out, &[path], |paths, progress| {
            let path = paths.first().filter(|path| !path.as_os_str().is_empty());
            engine.flush(path.map(PathBuf::as_path), dry_run, progress)
        }),
        Request::Warm { paths, dry_run } => {
            moving(out, &paths, |paths, progress| engine.warm(paths, dry_run, progress))
        }
        Request::Evict { path, dry_run } => {
            moving(out, &[path], |paths, progress| engine.evict(&paths[0], dry_run, progress))
        }
        Request::Drain(it) => moving(out, from_ref(&it.path), |_, tell| engine.drain(&it, tell)),
        Request::Rules(change) => send(out, &Answer::from(engine.change_rules(&change))),
        Request::Hint(mut hint) => {
            hint.pid = peer.pid.as_raw_nonzero().get().unsigned_abs();
            // A process that joined a mount sees it over the origin.
            let seen_at = [Some(&shared.mountpoint), shared.origin.as_ref()];
            let inside =
                seen_at.into_iter().flatten().find_map(|root| hint.path.strip_prefix(root).ok());
            if let Some(inside) = inside.map(Path::to_owned) {
                hint.path = inside;
            }
            shared.mounted.hinted(&hint);
            let noted = below_root(&hint.path).and_then(|()| engine.hint(&hint));
            send(out, &Answer::from(noted))
        }
        Request::Cached { path } => {
            send(out, &Answer::from(below_root(&path).and_then(|()| engine.cached(&path))))
        }
        Request::Files { path } => {
            send(out, &Answer::from(below_root(&path).and_then(|()| engine.files(&path))))
        }
        Request::ExplainFile { path } => {
            send(out, &Answer::from(below_root(&path).and_then(|()| engine.explain_file(&path))))
        }
        Request::Jobs(change) => send(out, &Answer::from(engine.change_jobs(&change))),
        Request::JobPlaces(job) => send(out, &Answer::from(engine.job_places(&job))),
        Request::Ending {} => send(out, &Answer::Ok(shared.mounted.is_ending())),
        Request::Join { .. } => send(out, &Answer::<()>::from(Err(has_joined()))),
        Request::Unmount { force, keep_dirty } => {
            moving(out, &[], |_, progress| shared.mounted.unmount(force, keep_dirty, progress))
        }
    }
}

fn has_joined() -> Error {
    Error::invalid("this connection has joined", "use another connection")
}

/// Runs a long operation on `paths`: progress lines first, at most ten per second, then the report. It stops if the
/// client disconnects.
fn moving(
    out: &mut (impl Write + Send),
    paths: &[PathBuf],
    work: impl FnOnce(&[PathBuf], ProgressSink<'_>) -> Result<MoveReport>,
) -> io::Result<()> {
    let mut last: Option<Instant> = None;
    let mut tell = |progress: Progress| {
        if last.is_some_and(|last| last.elapsed() < PROGRESS_INTERVAL) {
            return ControlFlow::Continue(());
        }
        last = Some(Instant::now());
        match send(out, &Answer::<()>::Progress(progress)) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    };
    let done =
        paths.iter().try_for_each(|path| below_root(path)).and_then(|()| work(paths, &mut tell));
    send(out, &Answer::from(done))
}

/// Refuses paths that could leave the mount.
fn below_root(path: &Path) -> Result<()> {
    if path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
        return Ok(());
    }
    Err(Error::invalid(
        format!("{} is not a path below the mount's root", path.display()),
        "give it relative to the mount point, without \"..\"",
    ))
}
