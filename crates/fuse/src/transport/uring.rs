//! Requests through `io_uring` (Linux 6.14, if the administrator enabled it).
//!
//! The kernel has one queue of requests for each possible processor, and puts a request into the queue of the processor
//! that its program runs on. Each of our threads has one buffer, registered in one queue: it sleeps until the kernel
//! has put a request into the buffer, writes the answer into the same buffer, and with one system call submits the
//! answer and sleeps again. An engine call may sleep long in a slow device; it delays no one as long as its queue has
//! another thread.
//!
//! What must hold: every queue has a thread, or the programs on its processor wait forever; so the rings are made
//! before the kernel is told that there are any. Forgotten inodes and interrupts still come through [`super::device`].

mod answer;
mod binding;
mod busy_poll;
mod exchange;
mod fetching;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod message;
mod stand_ins;
mod wire;

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

use halocline_os::served_program::serving;
use halocline_vfs::Engine;

use crate::front::Front;
use crate::front::lease_waits::Queue;
use busy_poll::{Awake, BusyPoll};
use exchange::Exchange;
use stand_ins::{SETLKW, StandIns};

/// Says whether the kernel offers rings.
const OFFER: &str = "/sys/module/fuse/parameters/enable_uring";
/// The possible processors of the machine, and those that are online.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// Minimum of threads for a processor's queue: while one sleeps, the others must not be delayed.
const QUEUE_THREADS_MIN: usize = 2;
/// If all queues together would have more threads than this, each has only the minimum.
const THREADS_MAX: usize = 256;

/// What a thread does between requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Between {
    /// It sleeps.
    Sleep,
    /// Polls briefly for the next request, then sleeps.
    Poll,
    /// Sleeps, and wakes on the processor of its queue, which is its program's.
    Bound,
}

/// What a thread waits for: the front end and the device of the mount it is to serve.
type Start<E> = (Arc<Front<E>>, Arc<OwnedFd>, Arc<StandIns>);

/// Threads with rings that wait for a mount. Dropping this ends them.
#[derive(Debug)]
pub(crate) struct Prepared<E: Engine> {
    threads: Vec<(Sender<Start<E>>, JoinHandle<()>)>,
}

/// Threads that serve a mount until it ends.
#[derive(Debug)]
pub(crate) struct RingThreads {
    threads: Vec<JoinHandle<()>>,
    stand_ins: Arc<StandIns>,
}

/// Why requests cannot come through rings here, and the remedy; `None` if they can.
pub fn obstacle() -> Option<String> {
    if !Path::new(OFFER).exists() {
        return Some("the kernel cannot; Linux 6.14 can".into());
    }
    if !offered() {
        return Some(format!("the kernel does not offer rings: as root, echo Y > {OFFER}"));
    }
    let refused = Exchange::new(0, BusyPoll::new(Arc::new(Awake::off()))).err()?;
    Some(format!(
        "rings cannot be made ({refused}): look at the kernel.io_uring_disabled setting, and at \
         what the container forbids"
    ))
}

/// Whether the kernel offers rings.
pub(crate) fn offered() -> bool {
    fs::read_to_string(OFFER).is_ok_and(|offer| offer.trim_end() == "Y")
}

impl<E: Engine> Prepared<E> {
    /// Makes the rings for a mount that should have `threads` threads, if so many suffice.
    pub(crate) fn new(threads: usize, between: Between) -> io::Result<Self> {
        let (queues, online) = (processors(POSSIBLE)?, processors(ONLINE)?);
        let each = threads.min(THREADS_MAX / online.len()).max(QUEUE_THREADS_MIN);
        // A processor that is offline may come online: virtual machines reserve hundreds.
        let of = |queue: &u16| if online.contains(queue) { each } else { 1 };
        let awake = Arc::new(match between {
            Between::Poll => Awake::on(online.len()),
            Between::Sleep | Between::Bound => Awake::off(),
        });
        let (made, ready) = channel();
        let spawn = |queue: u16, number: usize| {
            let own = Queue { processor: Some(queue), threads: of(&queue) };
            let (start, started) = channel();
            let (made, awake) = (made.clone(), awake.clone());
            let thread =
                Builder::new().name(format!("ring-{queue}-{number}")).spawn(move || {
                    if between == Between::Bound {
                        binding::stay_on(queue);
                    }
                    own.is_of_this_thread();
                    work(queue, awake, &made, &started);
                })?;
            Ok((start, thread))
        };
        let all = queues.iter().flat_map(|queue| (0..of(queue)).map(|number| (*queue, number)));
        let threads =
            all.map(|(queue, number)| spawn(queue, number)).collect::<io::Result<Vec<_>>>()?;
        for _ in &threads {
            ready.recv().map_err(io::Error::other)??;
        }
        Ok(Self { threads })
    }

    /// Begins to serve the mount behind `device`.
    pub(crate) fn serve(self, front: &Arc<Front<E>>, device: &Arc<OwnedFd>) -> RingThreads {
        let stand_ins = Arc::<StandIns>::default();
        let begin = |(start, thread): (Sender<Start<E>>, _)| {
            // A thread that ended before its start must have panicked, which its join shows.
            let _told = start.send((front.clone(), device.clone(), stand_ins.clone()));
            thread
        };
        let threads = self.threads.into_iter().map(begin).collect();
        RingThreads { threads, stand_ins }
    }
}

impl RingThreads {
    /// Whether all threads have ended: the mount is gone.
    pub(crate) fn is_finished(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished) && self.stand_ins.are_finished()
    }

    /// Waits until the mount is gone.
    pub(crate) fn join(self) -> io::Result<()> {
        let ended = |thread: JoinHandle<()>| thread.join().is_ok();
        let mut failed = self.threads.into_iter().map(ended).filter(|ended| !ended).count();
        // A waiting thread may add another until it ends.
        loop {
            let more = self.stand_ins.take();
            if more.is_empty() {
                break;
            }
            failed += more.into_iter().map(ended).filter(|ended| !ended).count();
        }
        if failed == 0 {
            return Ok(());
        }
        Err(io::Error::other(format!("{failed} threads that answered requests panicked")))
    }
}

/// The body of one thread: makes its ring, reports that, and serves a mount once it gets one.
fn work<E: Engine>(
    queue: u16,
    awake: Arc<Awake>,
    made: &Sender<io::Result<()>>,
    start: &Receiver<Start<E>>,
) {
    let mut exchange = match Exchange::new(queue, BusyPoll::new(awake)) {
        Ok(exchange) => exchange,
        Err(error) => return drop(made.send(Err(error))),
    };
    let _heard = made.send(Ok(()));
    let Ok(start) = start.recv() else { return };
    serve(&mut exchange, queue, &start, || {});
}

/// Serves a queue's requests until the mount is gone.
fn serve<E: Engine>(
    exchange: &mut Exchange,
    queue: u16,
    start: &Start<E>,
    registered: impl FnOnce(),
) {
    let (front, device, stand_ins) = start;
    let served = exchange.serve(device.as_fd(), registered, |request, room| {
        let _program = serving(request.header.pid);
        match request.header.opcode {
            SETLKW => {
                let make = || stand_in(queue, start, request.header.nodeid);
                stand_ins.lock(front, request, (queue, make))
            }
            _ => answer::answer(front, request, room),
        }
    });
    if let Err(error) = served {
        tracing::warn!(%error, queue, "a thread answers no more requests");
    }
}

/// Adds one more thread to a queue, for one that waits for a lock of `file`.
fn stand_in<E: Engine>(queue: u16, start: &Start<E>, file: u64) -> io::Result<JoinHandle<()>> {
    let start = start.clone();
    let (made, ready) = channel();
    let own = Queue::of_this_thread();
    let thread = Builder::new().name(format!("ring-{queue}-more")).spawn(move || {
        own.inspect(|own| own.is_of_this_thread());
        match Exchange::new(queue, BusyPoll::new(Arc::new(Awake::off()))) {
            Ok(mut exchange) => {
                let _heard = made.send(Ok(()));
                let device = Arc::clone(&start.1);
                let registered = || fetching::fetch_queued(device.as_fd(), queue, file);
                serve(&mut exchange, queue, &start, registered);
            }
            Err(error) => drop(made.send(Err(error))),
        }
    })?;
    ready.recv().map_err(io::Error::other)??;
    Ok(thread)
}

/// The processors listed in a file of the kernel. The kernel has a queue for each possible one.
fn processors(file: &str) -> io::Result<Vec<u16>> {
    let list = fs::read_to_string(file)?;
    ranges(list.trim_end())
        .filter(|numbers| !numbers.is_empty())
        .ok_or_else(|| io::Error::other(format!("{file} is not understood: {list}")))
}

/// The numbers in a list such as `0-3,8`.
fn ranges(list: &str) -> Option<Vec<u16>> {
    let mut numbers = Vec::new();
    for range in list.split(',') {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        let (from, to): (u16, u16) = (from.parse().ok()?, to.parse().ok()?);
        // They ascend, so there are no more than numbers.
        if from > to || numbers.last().is_some_and(|last| *last >= from) {
            return None;
        }
        numbers.extend(from..=to);
    }
    Some(numbers)
}

/// A list of processors: part of a fuzz target (`crate::fuzzing`).
#[cfg(any(test, fuzzing))]
pub(crate) fn hostile_processors(bytes: &[u8]) {
    let Ok(list) = std::str::from_utf8(bytes) else { return };
    let Some(numbers) = ranges(list) else { return };
    assert!(!numbers.is_empty() && numbers.is_sorted_by(|one, next| one < next));
}

#[cfg(test)]
mod tests {
    use super::ranges;

    #[test]
    fn processors_are_listed_in_ranges() {
        assert_eq!(ranges("0"), Some(vec![0]));
        assert_eq!(ranges("0-3,8"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(ranges("0-"), None);
        assert_eq!((ranges("0-3,3"), ranges("3-0")), (None, None));
        assert_eq!(ranges(""), None);
    }
}
