//! Steps of a mount that are held: the mount says each step before it makes it, and waits (`held_steps` of the shared tier).

use std::io::{BufRead, BufReader};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

const PAUSE: Duration = Duration::from_millis(2);

/// Holds one step. Dropping it lets all go on.
#[derive(Debug)]
pub(crate) struct Held {
    socket: PathBuf,
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct State {
    is_over: AtomicBool,
    steps: AtomicUsize,
    has_held: AtomicBool,
    /// The step that is held, and the connection that holds it.
    held: Mutex<Option<(String, UnixStream)>>,
}

impl Held {
    /// Holds the step with this number, from 0; the others go on at once.
    pub(crate) fn step(socket: &Path, number: usize) -> Self {
        Self::first(socket, move |at, _| at == number)
    }

    /// Holds the first step of which that is so: its number, from 0, and what it is.
    pub(crate) fn first(
        socket: &Path,
        is_it: impl Fn(usize, &str) -> bool + Send + 'static,
    ) -> Self {
        let listener = UnixListener::bind(socket).unwrap();
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        let thread = thread::spawn(move || shared.listen(&listener, &is_it));
        Self { socket: socket.to_owned(), state, thread: Some(thread) }
    }

    /// Waits until the step is held, and returns it; `None` if `is_over` first.
    pub(crate) fn wait(&self, is_over: impl Fn() -> bool) -> Option<String> {
        loop {
            let was_over = is_over();
            let held = self.state.held.lock().unwrap_or_else(PoisonError::into_inner);
            let what = held.as_ref().map(|(what, _)| what.clone());
            drop(held);
            if what.is_some() || was_over {
                return what;
            }
            thread::sleep(PAUSE);
        }
    }

    /// Lets the step go on.
    pub(crate) fn release(&self) {
        self.state.held.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl State {
    fn listen(&self, listener: &UnixListener, is_it: &dyn Fn(usize, &str) -> bool) {
        for connection in listener.incoming() {
            if self.is_over.load(Ordering::SeqCst) {
                return;
            }
            let Ok(connection) = connection else { continue };
            let Ok(reader) = connection.try_clone() else { continue };
            let mut what = String::new();
            if BufReader::new(reader).read_line(&mut what).is_err() || what.is_empty() {
                continue;
            }
            let (number, what) = (self.steps.fetch_add(1, Ordering::SeqCst), what.trim_end());
            if is_it(number, what) && !self.has_held.swap(true, Ordering::SeqCst) {
                let held = (what.to_owned(), connection);
                *self.held.lock().unwrap_or_else(PoisonError::into_inner) = Some(held);
            }
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.release();
        self.state.is_over.store(true, Ordering::SeqCst);
        // It waits for a connection.
        let _woken = UnixStream::connect(&self.socket);
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
        let _gone = std::fs::remove_file(&self.socket);
    }
}
