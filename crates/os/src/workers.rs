//! A few threads that do what may hang, such as reading from another machine's disk, for callers that wait for a
//! bounded time.
//!
//! What must hold: a caller goes on after its time, and what hangs never takes more than these threads.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

use crate::catch_panic::caught;

type Act = Box<dyn FnOnce() + Send>;

/// The threads. Those that hang are left behind when it is dropped, the others end.
#[derive(Debug)]
pub struct Workers {
    name: &'static str,
    count: usize,
    waiting: SyncSender<Act>,
    taken: Arc<Mutex<Receiver<Act>>>,
    started: Mutex<usize>,
}

impl Workers {
    /// At most `count` threads, started when they are needed, and as many acts that wait for one.
    #[must_use]
    pub fn new(name: &'static str, count: usize) -> Self {
        let (waiting, taken) = mpsc::sync_channel(count);
        Self { name, count, waiting, taken: Arc::new(Mutex::new(taken)), started: Mutex::new(0) }
    }

    /// What `act` returns within `timeout`; `None` after that, where it panics, and where too many others wait.
    pub fn within<T: Send + 'static>(
        &self,
        timeout: Duration,
        act: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        self.start_one();
        let (done, is_done) = mpsc::sync_channel(1);
        let act = move || {
            if let Ok(ended) = caught(act) {
                // The caller may have gone on.
                let _ = done.send(ended);
            }
        };
        self.waiting.try_send(Box::new(act)).ok()?;
        is_done.recv_timeout(timeout).ok()
    }

    /// Starts another thread, unless all run.
    fn start_one(&self) {
        let mut started = self.started.lock();
        if *started == self.count {
            return;
        }
        let taken = Arc::clone(&self.taken);
        let work = move || {
            loop {
                // Held while waiting: whoever has it takes the next act.
                let next = taken.lock().recv();
                let Ok(act) = next else { return };
                act();
            }
        };
        if thread::Builder::new().name(self.name.to_owned()).spawn(work).is_ok() {
            *started += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hangs_keeps_nobody_and_takes_no_more_threads() {
        let workers = Workers::new("test", 2);
        assert_eq!(workers.within(Duration::from_mins(1), || 7), Some(7));
        let (end, ended) = mpsc::channel::<()>();
        let ended = Arc::new(Mutex::new(ended));
        for _ in 0..6 {
            let ended = Arc::clone(&ended);
            let hung = move || ended.lock().recv().is_ok();
            assert_eq!(workers.within(Duration::from_millis(20), hung), None);
        }
        assert_eq!(*workers.started.lock(), 2);
        drop(end);
        let panicked: Option<()> = workers.within(Duration::from_mins(1), || panic!("on purpose"));
        assert_eq!(panicked, None);
        // They work again when they have seen that nobody waits for what hung.
        while workers.within(Duration::from_mins(1), || 8) != Some(8) {
            thread::yield_now();
        }
    }
}
