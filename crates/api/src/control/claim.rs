//! Which origins are in use on this machine, and by whom (I8): two caches over the same files would not see each
//! other's newest bytes.
//!
//! A mount claims each directory that it changes by listening on abstract Unix sockets: one whose name has the
//! directory's device and inode, and one for each directory above it. So conflicts between equal and nested origins are
//! found by any path, the kernel identifies the claimant, a killed process leaves nothing behind, no file is created,
//! and no lock is taken that programs use. A mount examines the existing names after its own are there: of two
//! simultaneous mounts, at least one sees the other.
//!
//! Anyone may listen on such names, so a claim counts only if its user could write to the directory
//! ([`write_permission`]): users who may only read an origin cannot keep others from it. Claims are visible within a
//! network namespace (`docs/decisions/0012-claims-on-origins.md`).

mod ancestors;
mod claim_request;
mod claimant;
mod names;
mod other_users;
mod owner;
mod refusal;
mod write_permission;

use std::io::{self, PipeReader, PipeWriter, Write};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::UCred;
use serde::{Deserialize, Serialize};

use super::mount::{self, MountLine};
use super::wire;
use ancestors::Ancestor;
use claimant::{Claimant, Claimants, read_answer};
use names::{Access, Entry, Kind};
use other_users::OtherUsers;

pub use claim_request::{ClaimRequest, UseAs};
#[cfg(any(test, fuzzing))]
pub(crate) use names::fuzzing;
pub(super) use owner::{Owner, owner_of};
#[cfg(any(test, fuzzing))]
pub(crate) use write_permission::fuzzing as acl_fuzzing;

/// How often a claim is retried against one that does not answer: its process may also be trying, or ending.
const TRIES: u32 = 4;
/// How long a claim that stays waits before it checks again whether others have given way.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(5);
/// How long a claimant may take to report what it claims.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// The right to use directories; released on drop.
#[derive(Debug)]
pub struct Claim {
    nonce: u64,
    access: Access,
    cache: PathBuf,
    listeners: Vec<Listener>,
    answering: Option<(PipeWriter, JoinHandle<()>)>,
}

/// A claimed name, and the answer to processes that ask about it.
#[derive(Debug, Clone)]
struct Listener {
    socket: Arc<UnixListener>,
    answer: Arc<[u8]>,
}

/// What a claimant reports about itself.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct ClaimReport {
    /// The claimed directory.
    #[serde(with = "wire::path")]
    dir: PathBuf,
    /// The same relative to the directory in the name; empty for that directory itself.
    #[serde(with = "wire::path")]
    inside: PathBuf,
    /// Its cache.
    #[serde(with = "wire::path")]
    cache: PathBuf,
}

/// A directory that another process uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryInUse {
    /// The directory that was asked for.
    pub wanted: PathBuf,
    /// The cache that it was asked for with.
    pub wanted_cache: PathBuf,
    /// The directory in use: the same, or one above or below it. Empty if unknown.
    pub dir: PathBuf,
    /// The cache that it is used with; empty if unknown.
    pub cache: PathBuf,
    /// The process that uses it.
    pub pid: u32,
    /// The user of that process.
    pub uid: u32,
    /// Whether the process reported this itself, which it does from when its mount works until it ends.
    pub answers: bool,
}

impl Claim {
    /// Claims directories, or reports which process uses one. Starts no thread: until [`Claim::answer`] is called,
    /// processes that ask wait for a second.
    pub fn take(request: &ClaimRequest<'_>) -> Result<Self, DirectoryInUse> {
        let (nonce, deadline) = (nonce(), Instant::now() + TRIES * ANSWER_TIMEOUT);
        for tried in 1.. {
            let (claim, above) = Self::begin(request, nonce);
            let taken = match claim.settle(request, &above, deadline) {
                Ok(claim) => return Ok(claim),
                Err(other) => other.ask(),
            };
            if taken.answers || tried == TRIES || Instant::now() >= deadline {
                return Err(taken);
            }
            thread::sleep(Duration::from_millis(20 + nonce % 100));
        }
        unreachable!("the loop ends by a return")
    }

    /// Listens on all names, as others will see.
    fn begin(request: &ClaimRequest<'_>, nonce: u64) -> (Self, Vec<Vec<Ancestor>>) {
        let mut claim = Self {
            nonce,
            access: request.access(),
            cache: request.cache.to_owned(),
            listeners: Vec::new(),
            answering: None,
        };
        let above: Vec<_> = request.dirs.iter().map(|dir| ancestors::of(dir)).collect();
        for (dir, above) in request.dirs.iter().zip(&above) {
            claim.listen(dir, above);
        }
        (claim, above)
    }

    /// This claim if no other excludes it; otherwise the other one, and this claim is given up.
    ///
    /// Of claims that begin at the same moment, the one with the lowest number stays, and checks again until the others
    /// have given way: if all gave way, they might collide again at each attempt.
    fn settle(
        self,
        request: &ClaimRequest<'_>,
        above: &[Vec<Ancestor>],
        deadline: Instant,
    ) -> Result<Self, OtherClaim> {
        loop {
            let mut about = request.dirs.iter().zip(above);
            let found = about.find_map(|(dir, above)| self.find_other(dir, above));
            let Some(other) = found else { return Ok(self) };
            if !other.gives_way_to(self.nonce) || Instant::now() >= deadline {
                return Err(other);
            }
            let taken = other.ask();
            if taken.answers {
                return Err(OtherClaim::Known(taken));
            }
            thread::sleep(LOOK_AGAIN_AFTER);
        }
    }

    /// Claims one more name for what is already claimed: the root of the mount, if the mount is over the origin.
    pub fn also(&mut self, dir: &Path) {
        let own = ancestors::of(dir).into_iter().take(1).collect::<Vec<_>>();
        self.listen(dir, &own);
    }

    /// Reports this process as the server of the mount at `mountpoint`, for processes that must not access it.
    pub fn serves(&mut self, mountpoint: &Path) {
        let line = mount::table().ok().and_then(|table| MountLine::on(&table, mountpoint));
        if let Some(line) = line {
            self.listen_on(Kind::Mount, line.device, mountpoint, Path::new(""));
        }
    }

    /// Answers processes that ask, in a separate thread.
    pub fn answer(&mut self) {
        let start = || {
            let (reader, writer) = io::pipe()?;
            let listeners = self.listeners.clone();
            let named = thread::Builder::new().name("claim".into());
            Ok((writer, named.spawn(move || answer_all(&listeners, &reader))?))
        };
        match start() {
            Ok(answering) => self.answering = Some(answering),
            Err::<_, io::Error>(error) => {
                tracing::warn!("cannot tell others what this mount uses: {error}");
            }
        }
    }

    /// Listens on the names of `dir`, which is the first of `above`.
    fn listen(&mut self, dir: &Path, above: &[Ancestor]) {
        for (at, ancestor) in above.iter().enumerate() {
            let kind = if at == 0 { Kind::At } else { Kind::Below };
            if !self.listen_on(kind, ancestor.id, dir, &ancestor.inside) {
                return;
            }
        }
    }

    /// Listens on one name; `false` where that is not possible.
    fn listen_on(&mut self, kind: Kind, id: names::Id, dir: &Path, inside: &Path) -> bool {
        let entry = Entry { kind, id, access: self.access, nonce: self.nonce };
        let cache = self.cache.clone();
        let told = ClaimReport { dir: dir.to_owned(), inside: inside.to_owned(), cache };
        let listening = SocketAddr::from_abstract_name(entry.name())
            .and_then(|address| UnixListener::bind_addr(&address))
            .and_then(|socket| socket.set_nonblocking(true).map(|()| socket));
        let socket = match listening {
            Ok(socket) => Arc::new(socket),
            // If two paths lead to one directory, one name is enough.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => return true,
            Err(error) => {
                tracing::warn!("others cannot see that {} is in use: {error}", dir.display());
                return false;
            }
        };
        let mut answer = serde_json::to_vec(&told).expect("plain data");
        answer.push(b'\n');
        self.listeners.push(Listener { socket, answer: answer.into() });
        true
    }

    /// Another process that uses `dir`, or a directory above or below it.
    fn find_other(&self, dir: &Path, above: &[Ancestor]) -> Option<OtherClaim> {
        let own = above.first()?;
        let entries = names::all().unwrap_or_else(|error| {
            tracing::warn!("cannot see whether others use {}: {error}", dir.display());
            Vec::new()
        });
        let about = entries.into_iter().filter_map(|entry| {
            let meets = match entry.kind {
                _ if entry.nonce == self.nonce => None,
                Kind::At => above.iter().find(|ancestor| ancestor.id == entry.id),
                Kind::Below => Some(own).filter(|own| own.id == entry.id),
                Kind::Mount => None,
            }?;
            let same = entry.kind == Kind::At && meets.id == own.id;
            self.access.excludes(entry.access, same).then_some((entry, meets))
        });
        let (mut claimants, mut other_users) = (Claimants::of(about), OtherUsers::default());
        while let Some((entry, meets, Claimant { peer, stream })) = claimants.next() {
            let between = above.iter().take_while(|ancestor| *ancestor != meets);
            let way = between.chain([meets]).map(|ancestor| &*ancestor.path);
            let claimant = Claimant { peer, stream };
            if write_permission::may_change(&claimant.peer, way) {
                let asked = (dir.to_owned(), self.cache.clone());
                return Some(OtherClaim::Claimant { nonce: entry.nonce, asked, claimant });
            }
            other_users.add(entry.kind, meets, claimant);
        }
        other_users.user_of_one_below(dir, &self.cache).map(OtherClaim::Known)
    }
}

/// A claim that excludes another.
enum OtherClaim {
    /// Its process was not asked yet; `asked` has the directory and the cache of the claim that it excludes.
    Claimant {
        nonce: u64,
        asked: (PathBuf, PathBuf),
        claimant: Claimant,
    },
    Known(DirectoryInUse),
}

impl OtherClaim {
    /// Whether this claim gives way to the claim `nonce`, if it is also just beginning.
    fn gives_way_to(&self, nonce: u64) -> bool {
        matches!(self, Self::Claimant { nonce: own, .. } if nonce < *own)
    }

    /// What its process reports, within [`ANSWER_TIMEOUT`]; at once if it gives the claim up.
    fn ask(self) -> DirectoryInUse {
        match self {
            Self::Known(taken) => taken,
            Self::Claimant { asked: (dir, cache), claimant, .. } => {
                let told = read_answer(claimant.stream, Instant::now() + ANSWER_TIMEOUT);
                taken((&dir, &cache), &claimant.peer, told)
            }
        }
    }
}

fn taken((dir, cache): (&Path, &Path), peer: &UCred, told: Option<ClaimReport>) -> DirectoryInUse {
    let answers = told.is_some();
    let told = told.unwrap_or_default();
    let (pid, uid) = (peer.pid.as_raw_nonzero().get().unsigned_abs(), peer.uid.as_raw());
    let (wanted, wanted_cache) = (dir.to_owned(), cache.to_owned());
    DirectoryInUse { wanted, wanted_cache, dir: told.dir, cache: told.cache, pid, uid, answers }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some((writer, thread)) = self.answering.take() {
            drop(writer);
            let _ = thread.join();
        }
    }
}

/// Distinguishes claims on one directory.
fn nonce() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    hasher.finish()
}

/// Answers until the other end of `stop` is closed.
fn answer_all(listeners: &[Listener], stop: &PipeReader) {
    loop {
        let sockets = listeners.iter().map(|listener| listener.socket.as_fd());
        let mut waited: Vec<_> = sockets
            .chain([stop.as_fd()])
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        match poll(&mut waited, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
        let happened: Vec<_> = waited.iter().map(|fd| !fd.revents().is_empty()).collect();
        if happened.last() == Some(&true) {
            return;
        }
        for (listener, _) in listeners.iter().zip(happened).filter(|(_, happened)| *happened) {
            match listener.socket.accept() {
                Ok((mut peer, _)) => {
                    let _ = peer.set_nonblocking(true);
                    let _ = peer.write_all(&listener.answer);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // Without a free descriptor, the peer waits, and so does this thread.
                Err(_) => thread::sleep(Duration::from_millis(100)),
            }
        }
    }
}

#[cfg(test)]
mod tests;
