//! Records requests while they are served, as a trace.
//!
//! A request's thread writes what it did into its own buffer and continues; one thread takes the contents of the
//! buffers, sorts them by start and writes them. What must hold:
//!
//! - A request never waits for the writer: a thread has two buffers, of which the writer holds at most one. A request
//!   that finds both full is dropped and counted.
//! - Requests are written in the order of their start, although they are reported when they end: the writer holds back
//!   those that started after the oldest request still being served. If it cannot hold back more, they are dropped and
//!   counted.
//! - Once a second everything that can be written is: after a kill, the trace is cut off there.
//! - If the file accepts no more data, the recording ends, not the requests: the rest is counted.

mod slot;
mod writing;

use std::cell::RefCell;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;

use crate::error::Error;
use crate::request::{Op, Source};
use crate::writer::Writer;
use slot::{ServedRequest, Slot};
use writing::Writing;

/// How often the writer checks buffers that are less than half full.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Limit of the files that are distinguished; requests of others are counted as missing.
const FILES_MAX: usize = 1 << 20;
/// Limit of the bytes of their names.
const NAMES_MAX: usize = 128 << 20;

/// A file of the recorder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileNumber(u32);

/// Progress of a recording.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// Requests in the trace.
    pub requests: u64,
    /// Requests that were served but are not in it.
    pub lost: u64,
    /// Opens of files that the kernel then served without our seeing the requests.
    pub unseen_opens: u64,
    /// Why nothing is written any more.
    pub error: Option<String>,
}

/// Records requests. Dropping it ends the trace without waiting for that, unlike [`Recorder::finish`].
#[derive(Debug)]
pub struct Recorder {
    shared: Arc<Shared>,
    /// Distinguishes recorders of one process.
    number: u64,
    writing: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    zero: Instant,
    slots: Mutex<Vec<Arc<Slot>>>,
    files: RwLock<Files>,
    ranks: RwLock<FxHashMap<u32, u32>>,
    /// Requests that did not even reach a buffer.
    lost: AtomicU64,
    unseen_opens: AtomicU64,
    ending: AtomicBool,
    progress: Mutex<Progress>,
    /// The thread to wake when a buffer is half full.
    writer: OnceLock<Thread>,
}

#[derive(Debug, Default)]
struct Files {
    /// Cache of earlier lookups; may be cleared.
    by_key: FxHashMap<(u64, u64), u32>,
    by_name: FxHashMap<Arc<[u8]>, u32>,
    names: Vec<Arc<[u8]>>,
    bytes: usize,
}

static RECORDERS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static OWN: RefCell<Option<(u64, Arc<Slot>)>> = const { RefCell::new(None) };
}

impl Recorder {
    /// Begins a trace on `out`, which need not be buffered, with a thread that writes it.
    ///
    /// # Errors
    /// The trace cannot be begun, or no thread can be started.
    pub fn start(out: impl Write + Send + 'static, source: &Source) -> Result<Self, Error> {
        let mut writer = Writer::new(out, source)?;
        writer.flush()?;
        Self::write_to(writer)
    }

    /// The same, but `out` is not written to before there is a request, nor at the end where there was none: what it has
    /// may be worth more than a trace without requests.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start_over(out: impl Write + Send + 'static, source: &Source) -> Result<Self, Error> {
        Self::write_to(Writer::delayed(out, source)?)
    }

    fn write_to(writer: Writer<impl Write + Send + 'static>) -> Result<Self, Error> {
        let shared = Arc::new(Shared {
            zero: Instant::now(),
            slots: Mutex::default(),
            files: RwLock::default(),
            ranks: RwLock::default(),
            lost: AtomicU64::new(0),
            unseen_opens: AtomicU64::new(0),
            ending: AtomicBool::new(false),
            progress: Mutex::default(),
            writer: OnceLock::new(),
        });
        let writing = Writing::new(writer, shared.clone());
        let thread = thread::Builder::new().name("trace".into()).spawn(move || writing.run())?;
        shared.writer.get_or_init(|| thread.thread().clone());
        let number = RECORDERS.fetch_add(1, Ordering::Relaxed);
        Ok(Self { shared, number, writing: Mutex::new(Some(thread)) })
    }

    /// The number of a file, by its name, which is only computed if `key` is new: a key must denote the file as long as
    /// it has this name. `None` if there are too many files.
    pub fn file(&self, key: (u64, u64), name: impl FnOnce() -> Vec<u8>) -> Option<FileNumber> {
        if let Some(&number) = self.shared.files.read().by_key.get(&key) {
            return Some(FileNumber(number));
        }
        let name: Arc<[u8]> = name().into();
        let mut files = self.shared.files.write();
        let number = match files.by_name.get(&name) {
            Some(&number) => number,
            None if files.names.len() >= FILES_MAX || files.bytes + name.len() > NAMES_MAX => {
                return None;
            }
            None => {
                let number = u32::try_from(files.names.len()).ok()?;
                files.bytes += name.len();
                files.names.push(name.clone());
                files.by_name.insert(name, number);
                number
            }
        };
        if files.by_key.len() >= FILES_MAX {
            files.by_key.clear();
        }
        files.by_key.insert(key, number);
        Some(FileNumber(number))
    }

    /// Notes that the kernel serves an open file by itself: its requests will be missing.
    pub fn unseen(&self) {
        self.shared.unseen_opens.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes the rank of a process.
    pub fn set_rank(&self, process: u32, rank: u32) {
        self.shared.ranks.write().insert(process, rank);
    }

    /// Serves a request of thread `by`, and records it with the number of bytes that `served` derives from the result:
    /// none for a request that failed, or a read at the end of the file.
    pub fn request<T>(
        &self,
        (file, op, offset, by): (Option<FileNumber>, Op, u64, u32),
        serve: impl FnOnce() -> T,
        bytes: impl FnOnce(&T) -> u64,
    ) -> T {
        let slot = self.slot();
        let begun = slot.begin(self.shared.zero);
        let outcome = serve();
        let took_ns = begun.took(self.shared.zero);
        let length = bytes(&outcome);
        let Some(FileNumber(file)) = file else {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
            return outcome;
        };
        if length > 0 {
            let start_ns = begun.start_ns();
            let served = ServedRequest { start_ns, took_ns, offset, length, file, by, op };
            if slot.push(served)
                && let Some(writer) = self.shared.writer.get()
            {
                writer.unpark();
            }
        }
        outcome
    }

    /// Progress of the recording.
    pub fn progress(&self) -> Progress {
        let mut progress = self.shared.progress.lock().clone();
        progress.unseen_opens = self.shared.unseen_opens.load(Ordering::Relaxed);
        progress
    }

    /// Ends the trace; requests served later are not recorded.
    pub fn finish(&self) -> Progress {
        self.shared.ending.store(true, Ordering::Release);
        if let Some(writing) = self.writing.lock().take() {
            writing.thread().unpark();
            let _ = writing.join();
        }
        self.progress()
    }

    /// The calling thread's slot in the recorder.
    fn slot(&self) -> Arc<Slot> {
        OWN.with_borrow_mut(|own| match own {
            Some((number, slot)) if *number == self.number => slot.clone(),
            _ => {
                let slot = Arc::new(Slot::default());
                self.shared.slots.lock().push(slot.clone());
                *own = Some((self.number, slot.clone()));
                slot
            }
        })
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::Release);
        if let Some(writing) = self.writing.lock().take() {
            writing.thread().unpark();
        }
    }
}
