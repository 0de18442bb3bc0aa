//! Requests through `io_uring` (Linux 6.14, where its administrator turned it on).
//!
//! The kernel has one queue of requests for each processor that the machine may have, and puts a
//! request into the queue of the processor that its program runs on. Each of our threads has one
//! buffer, registered in one queue: it sleeps until the kernel has put a request into the buffer,
//! answers in the same buffer, and with one system call hands the answer over and sleeps again.
//! An engine call may sleep long in a slow device; it holds nobody up as long as its queue has
//! another thread.
//!
//! What must hold: every queue has a thread, or the programs of its processor wait for ever; so the
//! rings are made before the kernel is told that there are any. Forgotten inodes and interrupts
//! still come through [`super::device`].

mod answer;
mod exchange;
mod wire;

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

use halocline_core::engine::Engine;

use crate::front::Front;
use exchange::Exchange;

/// Says whether the kernel offers rings to those who ask.
const OFFER: &str = "/sys/module/fuse/parameters/enable_uring";
/// The processors that the machine may have, as ranges.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// Threads of a queue at least: that one sleeps must not hold the others up.
const QUEUE_THREADS_MIN: usize = 4;
/// Threads of all queues beyond which a queue has no more than the least.
const THREADS_MAX: usize = 256;

/// What a thread waits for: the front end that it serves and the mount's device.
type Start<E> = (Arc<Front<E>>, Arc<OwnedFd>);

/// Threads with rings, which wait for a mount. Dropping them ends them.
#[derive(Debug)]
pub(crate) struct Prepared<E: Engine> {
    threads: Vec<(Sender<Start<E>>, JoinHandle<()>)>,
}

/// Threads that serve a mount until it ends.
#[derive(Debug)]
pub(crate) struct Serving(Vec<JoinHandle<()>>);

/// Why requests cannot come through rings here, and the remedy; `None` if they can.
pub fn obstacle() -> Option<String> {
    match fs::read_to_string(OFFER) {
        Err(_) => return Some("the kernel cannot; Linux 6.14 can".into()),
        Ok(offer) if offer.trim_end() != "Y" => {
            return Some(format!("the kernel does not offer rings: as root, echo Y > {OFFER}"));
        }
        Ok(_) => {}
    }
    let refused = Exchange::new(0).err()?;
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
    /// Makes the rings for a mount that is to have `threads` threads, if that many suffice.
    pub(crate) fn new(threads: usize) -> io::Result<Self> {
        let queues = queues()?;
        let each = threads.min(THREADS_MAX / queues).max(QUEUE_THREADS_MIN);
        let (made, ready) = channel();
        let spawn = |number: usize| {
            let queue = u16::try_from(number % queues).map_err(io::Error::other)?;
            let (start, started) = channel();
            let made = made.clone();
            let thread = Builder::new()
                .name(format!("ring-{queue}-{}", number / queues))
                .spawn(move || work(queue, &made, &started))?;
            Ok((start, thread))
        };
        let threads = (0..each * queues).map(spawn).collect::<io::Result<Vec<_>>>()?;
        for _ in &threads {
            ready.recv().map_err(io::Error::other)??;
        }
        Ok(Self { threads })
    }

    /// Begins to serve the mount behind `device`.
    pub(crate) fn serve(self, front: &Arc<Front<E>>, device: &Arc<OwnedFd>) -> Serving {
        let begin = |(start, thread): (Sender<Start<E>>, _)| {
            // A thread ends before its start only by a panic, which its join shows.
            let _told = start.send((front.clone(), device.clone()));
            thread
        };
        Serving(self.threads.into_iter().map(begin).collect())
    }
}

impl Serving {
    /// Whether all threads have ended: the mount is gone.
    pub(crate) fn is_finished(&self) -> bool {
        self.0.iter().all(JoinHandle::is_finished)
    }

    /// Waits until the mount is gone.
    pub(crate) fn join(self) -> io::Result<()> {
        let ended = |thread: JoinHandle<()>| thread.join().is_ok();
        let failed = self.0.into_iter().map(ended).filter(|ended| !ended).count();
        if failed == 0 {
            return Ok(());
        }
        Err(io::Error::other(format!("{failed} threads that answered requests panicked")))
    }
}

/// One thread: makes its ring, says so, and serves the mount that it is told of, if any.
fn work<E: Engine>(queue: u16, made: &Sender<io::Result<()>>, start: &Receiver<Start<E>>) {
    let mut exchange = match Exchange::new(queue) {
        Ok(exchange) => exchange,
        Err(error) => return drop(made.send(Err(error))),
    };
    let _heard = made.send(Ok(()));
    let Ok((front, device)) = start.recv() else { return };
    let served =
        exchange.serve(device.as_fd(), |request, room| answer::answer(&front, request, room));
    if let Err(error) = served {
        tracing::warn!(%error, queue, "a thread answers no more requests");
    }
}

/// How many queues the kernel has: one for each processor that there may be.
fn queues() -> io::Result<usize> {
    let ranges = fs::read_to_string(POSSIBLE)?;
    let last = ranges.trim_end().rsplit(['-', ',']).next().and_then(|last| last.parse().ok());
    let last: usize = last.ok_or_else(|| io::Error::other(format!("{POSSIBLE}: {ranges}")))?;
    Ok(last + 1)
}
