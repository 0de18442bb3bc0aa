//! Judges layouts by replays: the contract, and an implementation with queues and service times.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use rustc_hash::FxHashMap;

use halocline_trace::Request;

use crate::layout::Layout;
use crate::servers::{Servers, direction, service_ps};

/// Layouts of files, by their number in the trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layouts {
    /// Files with their own layout.
    pub files: FxHashMap<u32, Layout>,
    /// The layout of all other files.
    pub default: Layout,
}

impl Layouts {
    /// The layout of a file.
    pub fn of(&self, file: u32) -> &Layout {
        self.files.get(&file).unwrap_or(&self.default)
    }
}

/// What a planner does without replays, one part after the other; of many files on thousands of servers it takes minutes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// Finds the layouts of the paper, file by file.
    PaperLayouts,
    /// Predicts the time of a layout, file by file.
    Prediction,
    /// Sorts the candidates of the search, region by region.
    Candidates,
}

/// Is told of each request when it completed, in seconds from the first issue.
pub type Note<'a> = &'a mut dyn FnMut(&Request, f64);

/// Predicts how long requests take.
///
/// The caller guarantees that layouts are over servers that the judge knows. The implementation MUST give the same
/// answer for the same requests and layouts. It MUST issue the requests of one process one after another, and those of
/// different processes concurrently, ignoring the times in the trace.
pub trait Judge {
    /// Seconds from the first request to the end of the last.
    fn seconds(&mut self, requests: &[Request], layouts: &Layouts) -> f64 {
        self.seconds_noting(requests, layouts, &mut |_, _| {})
    }

    /// The same, with notes.
    fn seconds_noting(&mut self, requests: &[Request], layouts: &Layouts, note: Note<'_>) -> f64;

    /// The same for all requests of the trace, of which a planner only has a sample; `None` if the judge does not have
    /// them, or there are too many.
    fn seconds_of_all(&mut self, layouts: &Layouts, note: Note<'_>) -> Option<f64> {
        let _ = (layouts, note);
        None
    }

    /// In how many placements of so many files on the servers it can replay, at least one. Those after the first are for what
    /// was found in the first.
    fn placements(&self, files: usize) -> usize {
        let _ = files;
        1
    }

    /// From now on it replays in the placement of that number, below [`Self::placements`]; in the first until it is told
    /// otherwise.
    fn place(&mut self, placement: usize) {
        let _ = placement;
    }

    /// Of the `all` parts of a step `done` are done: a judge that shows progress tells.
    fn advanced(&mut self, step: Step, done: usize, all: usize) {
        let _ = (step, done, all);
    }
}

/// One FIFO queue for each server, with the service times of its profile; the startup depends on whether a request
/// continues where the last one on the server ended. Exact enough to be computed by hand.
#[derive(Debug, Clone)]
pub struct Queues<'a> {
    servers: &'a Servers,
}

impl<'a> Queues<'a> {
    /// Queues for these servers.
    pub const fn new(servers: &'a Servers) -> Self {
        Self { servers }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Queue {
    free_ps: u64,
    last: Option<(u32, u64)>,
}

impl Judge for Queues<'_> {
    #[expect(clippy::cast_precision_loss, reason = "for people and comparisons")]
    fn seconds_noting(&mut self, requests: &[Request], layouts: &Layouts, note: Note<'_>) -> f64 {
        let mut waiting: FxHashMap<u32, VecDeque<&Request>> = FxHashMap::default();
        let mut ready = BinaryHeap::new();
        for (index, request) in requests.iter().enumerate() {
            let queue = waiting.entry(request.process).or_default();
            if queue.is_empty() {
                ready.push(Reverse((0u64, index, request.process)));
            }
            queue.push_back(request);
        }
        let mut queues = vec![Queue::default(); self.servers.count()];
        let mut end_ps = 0;
        while let Some(Reverse((now, order, process))) = ready.pop() {
            let queue = waiting.get_mut(&process).expect("a process with requests");
            let Some(request) = queue.pop_front() else { continue };
            let mut done = now;
            layouts.of(request.file).pieces(request.offset, request.end(), |piece| {
                let queue = &mut queues[piece.server];
                let server = &self.servers.all()[piece.server];
                let service = server.profile.of(direction(request.op));
                let sequential = queue.last == Some((request.file, piece.offset));
                let device = service_ps(service, sequential, piece.length);
                let transfer = server.network.transfer_ps(piece.length);
                let arrives = now.saturating_add(server.network.connect_ps);
                queue.free_ps = queue.free_ps.max(arrives).saturating_add(device.max(transfer));
                queue.last = Some((request.file, piece.offset + piece.length));
                done = done.max(queue.free_ps);
            });
            note(request, done as f64 * 1e-12);
            end_ps = end_ps.max(done);
            if !queue.is_empty() {
                ready.push(Reverse((done, order, process)));
            }
        }
        end_ps as f64 * 1e-12
    }
}
