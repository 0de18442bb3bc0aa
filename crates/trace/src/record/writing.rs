//! The thread that takes what threads have served, and writes it in the order of its start.

use std::fs;
use std::io::{self, Write};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::slot::{Now, ServedRequest, Slot, passed};
use super::{LOOK_EVERY, Shared};
use crate::error::Error;
use crate::request::{Process, Request};
use crate::writer::Writer;

/// Limit of the requests that are held back: 24 MiB.
const HELD_MAX: usize = 1 << 19;
/// How often buffered data is written, so that it survives a kill.
const FLUSH_EVERY: Duration = Duration::from_secs(1);
/// Limit of the threads that are remembered; then the table starts anew.
const THREADS_MAX: usize = 1 << 16;

/// The writer's own state.
pub(super) struct Writing<W: Write> {
    /// `None` once the file accepts no more data.
    writer: Option<Writer<W>>,
    shared: Arc<Shared>,
    held: Vec<ServedRequest>,
    spare: Vec<ServedRequest>,
    lost: u64,
    /// While requests are being written: the number of requests in the trace afterwards, plus those that are held back.
    at_stake: u64,
    /// Start of the last request written.
    last_ns: u64,
    /// Requests that start later than this may still be reported.
    complete_ns: u64,
    node: Vec<u8>,
    process_of: FxHashMap<u32, u32>,
    numbers: FxHashMap<(u32, Option<u32>), u32>,
    /// Number in the trace of each of the recorder's files.
    files: Vec<u32>,
}

impl<W: Write> Writing<W> {
    pub(super) fn new(writer: Writer<W>, shared: Arc<Shared>) -> Self {
        let node = fs::read("/proc/sys/kernel/hostname").unwrap_or_default();
        Self {
            writer: Some(writer),
            shared,
            held: Vec::new(),
            spare: Slot::spare(),
            lost: 0,
            at_stake: 0,
            last_ns: 0,
            complete_ns: 0,
            node: node.trim_ascii().to_vec(),
            process_of: FxHashMap::default(),
            numbers: FxHashMap::default(),
            files: Vec::new(),
        }
    }

    /// Writes until the recorder ends. A round that panics ends the trace, as a file that accepts no more data does:
    /// the thread continues to count what is missing.
    pub(super) fn run(mut self) {
        let mut flushed = Instant::now();
        loop {
            let ending = self.shared.ending.load(Ordering::Acquire);
            let round = panic::catch_unwind(AssertUnwindSafe(|| self.round(ending, &mut flushed)));
            let written = round.unwrap_or_else(|_| Err(self.defect()));
            self.note(written);
            if ending {
                let ended = panic::catch_unwind(AssertUnwindSafe(|| self.end()));
                let ended = ended.unwrap_or_else(|_| Err(self.defect()));
                return self.note(ended);
            }
            thread::park_timeout(LOOK_EVERY);
        }
    }

    fn round(&mut self, ending: bool, flushed: &mut Instant) -> Result<(), Error> {
        self.take();
        if ending {
            self.complete_ns = u64::MAX;
        }
        self.write()?;
        if flushed.elapsed() >= FLUSH_EVERY {
            *flushed = Instant::now();
            self.flush()?;
        }
        Ok(())
    }

    /// Takes all buffers. A request that started before `complete_ns` and is not being served was in one of them.
    fn take(&mut self) {
        let mut complete_ns = passed(self.shared.zero);
        let mut slots = self.shared.slots.lock().clone();
        for slot in &slots {
            match slot.now() {
                Now::Idle => {}
                Now::Since(start_ns) => complete_ns = complete_ns.min(start_ns),
                // Its start is not known yet, so the known completeness does not advance.
                Now::Beginning => complete_ns = complete_ns.min(self.complete_ns),
            }
        }
        self.complete_ns = self.complete_ns.max(complete_ns);
        for slot in &slots {
            self.lost += slot.take(&mut self.held, &mut self.spare);
        }
        slots.clear();
        // Slots of threads that have ended are only referenced by the list; their last requests were taken.
        self.shared.slots.lock().retain(|slot| Arc::strong_count(slot) > 1 || slot.is_used());
        self.lost += self.shared.lost.swap(0, Ordering::Relaxed);
    }

    /// Writes all requests that no other can precede any more.
    fn write(&mut self) -> Result<(), Error> {
        self.held.sort_unstable_by_key(|served| served.start_ns);
        let mut ready = self.held.partition_point(|served| served.start_ns < self.complete_ns);
        if self.held.len() - ready > HELD_MAX {
            // A request is taking very long: it will be missing.
            ready = self.held.len() - HELD_MAX / 2;
        }
        self.at_stake = self.in_trace() + self.held.len() as u64;
        let mut held = std::mem::take(&mut self.held);
        let mut left = ready as u64;
        let written = held.drain(..ready).try_for_each(|served| {
            left -= 1;
            self.put(&served)
        });
        (self.held, self.at_stake) = (held, 0);
        // Requests that wait in the writer are counted where the error is noted.
        self.lost += left;
        written
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.writer.as_mut().map_or(Ok(()), Writer::flush)
    }

    fn put(&mut self, served: &ServedRequest) -> Result<(), Error> {
        if self.writer.is_none() || served.start_ns < self.last_ns {
            self.lost += 1;
            return Ok(());
        }
        let numbers =
            self.process(served.by).and_then(|process| Ok((process, self.file(served.file)?)));
        let (process, file) = numbers.inspect_err(|_| self.lost += 1)?;
        let request = Request {
            start_ns: served.start_ns,
            duration_ns: Some(served.took_ns),
            process,
            file,
            op: served.op,
            offset: served.offset,
            length: served.length,
        };
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let (before, pushed) = (writer.requests(), writer.push(&request));
        if writer.requests() == before {
            self.lost += 1;
        }
        self.last_ns = served.start_ns;
        match pushed {
            // Beyond the largest possible file: no file system accepts it.
            Err(Error::Request { .. }) => Ok(()),
            pushed => pushed,
        }
    }

    /// Number of the process of a thread: by its rank if that is known.
    fn process(&mut self, thread: u32) -> Result<u32, Error> {
        if self.process_of.len() >= THREADS_MAX {
            self.process_of.clear();
        }
        let pid = *self.process_of.entry(thread).or_insert_with(|| group_of(thread));
        let rank = self.shared.ranks.read().get(&pid).copied();
        if let Some(&number) = self.numbers.get(&(pid, rank)) {
            return Ok(number);
        }
        let number = u64::from(rank.unwrap_or(pid));
        let process = Process { number, node: self.node.clone() };
        let Some(writer) = &mut self.writer else { return Ok(0) };
        let number = writer.process(&process)?;
        self.numbers.insert((pid, rank), number);
        Ok(number)
    }

    fn file(&mut self, number: u32) -> Result<u32, Error> {
        let Some(writer) = &mut self.writer else { return Ok(0) };
        let files = self.shared.files.read();
        for name in files.names.iter().skip(self.files.len()) {
            self.files.push(writer.file(name)?);
        }
        Ok(self.files[number as usize])
    }

    /// Notes the progress; after an error nothing is written any more.
    fn note(&mut self, written: Result<(), Error>) {
        let mut progress = self.shared.progress.lock();
        if let Some(writer) = &self.writer {
            progress.requests = writer.requests();
        }
        if let Err(error) = written {
            progress.error.get_or_insert_with(|| error.to_string());
            if let Some(writer) = self.writer.take() {
                // What it has written stays there, whether it was flushed or not.
                self.lost += writer.requests() - writer.written();
                progress.requests = writer.written();
            }
        }
        progress.lost = self.lost;
    }

    /// Requests that the writer has accepted.
    fn in_trace(&self) -> u64 {
        self.writer.as_ref().map_or(0, Writer::requests)
    }

    /// The error for a panic; the panic hook has reported where it was.
    fn defect(&mut self) -> Error {
        self.lost += std::mem::take(&mut self.at_stake).saturating_sub(self.in_trace());
        let what = "a defect of this program: what writes it panicked; the log says where";
        io::Error::other(what).into()
    }

    fn end(&mut self) -> Result<(), Error> {
        self.flush()?;
        let Some(mut writer) = self.writer.take() else { return Ok(()) };
        if !writer.has_begun() {
            // What is there stays.
            return Ok(());
        }
        writer.lose(self.lost);
        if self.shared.unseen_opens.load(Ordering::Relaxed) > 0 {
            writer.incomplete_source();
        }
        writer.finish().map(drop)
    }
}

/// The process of a thread; the thread itself if it is gone.
fn group_of(thread: u32) -> u32 {
    let status = fs::read(format!("/proc/{thread}/status")).unwrap_or_default();
    // The name in it may be no text.
    let status = String::from_utf8_lossy(&status);
    let group = status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok());
    group.unwrap_or(thread)
}
