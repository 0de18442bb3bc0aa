//! Decides which request is issued next, and when.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use halocline_trace::Request;
use rustc_hash::FxHashMap;

use super::{Late, Pace, seconds};

/// Limit of the look-ahead, so that traces of any length need only bounded memory. A process without requests in it waits
/// until one is read, and then continues at once, as late as the others are by then ([`Late`]).
const AHEAD: usize = 1 << 17;

/// The requests of one process that were read but not issued.
#[derive(Debug, Default)]
struct Queue {
    requests: VecDeque<Request>,
    /// When its last request completed, and when it completed according to the trace, if it has issued one.
    last: Option<(u64, Option<u64>)>,
    /// Whether its next request is in the heap, or its last one is being served.
    running: bool,
}

/// Returns requests in the order in which they are issued.
#[derive(Debug)]
pub(super) struct Issuer<I> {
    input: I,
    pace: Pace,
    queues: Vec<Queue>,
    by_number: FxHashMap<u32, usize>,
    /// Issue times with their processes, the earliest first; ties by process.
    due: BinaryHeap<Reverse<(u64, usize)>>,
    waiting: usize,
    read: u64,
    zero_ns: u64,
    last_start_ns: u64,
    now_ns: u64,
    /// The process whose request was returned last; in an open loop that request's number.
    serving: usize,
    /// The next request of an open loop, if it was looked at.
    next: Option<Request>,
    /// Requests of an open loop that wait, by when they are issued again and their numbers.
    again: BTreeMap<(u64, usize), Request>,
    late_requests: u64,
    late_most_ns: u64,
}

impl<I: Iterator<Item = Request>> Issuer<I> {
    pub(super) fn new(input: I, pace: Pace) -> Result<Self, String> {
        let mut issuer = Self {
            input,
            pace,
            queues: Vec::new(),
            by_number: FxHashMap::default(),
            due: BinaryHeap::new(),
            waiting: 0,
            read: 0,
            zero_ns: 0,
            last_start_ns: 0,
            now_ns: 0,
            serving: 0,
            next: None,
            again: BTreeMap::new(),
            late_requests: 0,
            late_most_ns: 0,
        };
        while pace != Pace::OpenLoop && issuer.waiting < AHEAD && issuer.look_ahead()? {}
        Ok(issuer)
    }

    /// When the next request is issued, as far as it is known.
    pub(super) fn next_ns(&mut self) -> Result<Option<u64>, String> {
        if self.pace != Pace::OpenLoop {
            return Ok(self.due.peek().map(|Reverse((time_ns, _))| *time_ns));
        }
        if self.next.is_none() {
            self.next = self.take()?;
        }
        let next = self.next.map(|request| request.start_ns - self.zero_ns);
        let again = self.again.first_key_value().map(|((at_ns, _), _)| *at_ns);
        Ok(next.into_iter().chain(again).min())
    }

    /// The next request and its issue time, in nanoseconds from the beginning.
    pub(super) fn next(&mut self) -> Result<Option<(u64, Request)>, String> {
        if self.pace == Pace::OpenLoop {
            return self.next_of_open_loop();
        }
        let Some(Reverse((time_ns, process))) = self.due.pop() else { return Ok(None) };
        self.now_ns = time_ns;
        self.serving = process;
        let request = self.queues[process].requests.pop_front().expect("it is due");
        self.waiting -= 1;
        Ok(Some((time_ns, request)))
    }

    /// What waited is issued before what comes at the same time.
    fn next_of_open_loop(&mut self) -> Result<Option<(u64, Request)>, String> {
        let Some(next_ns) = self.next_ns()? else { return Ok(None) };
        if let Some(entry) = self.again.first_entry().filter(|entry| entry.key().0 == next_ns) {
            self.serving = entry.key().1;
            return Ok(Some((next_ns, entry.remove())));
        }
        self.serving = usize::try_from(self.read).unwrap_or(usize::MAX);
        Ok(self.next.take().map(|request| (next_ns, request)))
    }

    /// Some requests that are issued soon, nearly in their order; none for an open loop.
    pub(super) fn upcoming(&self) -> impl Iterator<Item = &Request> {
        // The earliest ones are at the front of a heap.
        self.due.iter().filter_map(|Reverse((_, process))| self.queues[*process].requests.front())
    }

    /// Which process issued the request last returned by [`Issuer::next`]; in an open loop, where several of one process
    /// may wait, the number of that request.
    pub(super) const fn serving(&self) -> usize {
        self.serving
    }

    /// What was issued late so far.
    pub(super) fn late(&self) -> Late {
        Late { late_requests: self.late_requests, late_seconds: seconds(self.late_most_ns) }
    }

    /// Notes that the request last returned by [`Issuer::next`] completes at `done_ns`.
    pub(super) fn done(&mut self, request: &Request, done_ns: u64) -> Result<(), String> {
        self.done_by(self.serving, request, done_ns)
    }

    /// The same of the last request of `process`.
    pub(super) fn done_by(
        &mut self,
        process: usize,
        request: &Request,
        done_ns: u64,
    ) -> Result<(), String> {
        if self.pace == Pace::OpenLoop {
            return Ok(());
        }
        let recorded = request.duration_ns.map(|took| request.start_ns + took);
        self.queues[process].last = Some((done_ns, recorded));
        self.queues[process].running = false;
        self.go_on(process);
        self.look_ahead()?;
        Ok(())
    }

    /// Takes back the request last returned by [`Issuer::next`]: it is issued again at `at_ns`.
    pub(super) fn again(&mut self, request: Request, at_ns: u64) {
        if self.pace == Pace::OpenLoop {
            self.again.insert((at_ns, self.serving), request);
            return;
        }
        self.queues[self.serving].requests.push_front(request);
        self.waiting += 1;
        self.due.push(Reverse((at_ns.max(self.now_ns), self.serving)));
    }

    /// Makes the process's next request due, if one was read.
    fn go_on(&mut self, process: usize) {
        let queue = &mut self.queues[process];
        let Some(request) = queue.requests.front().filter(|_| !queue.running) else { return };
        let think = self.pace == Pace::ClosedLoop { think: true };
        let time_ns = match queue.last {
            // Without durations nothing is known of the time before it either.
            None if think && request.duration_ns.is_some() => request.start_ns - self.zero_ns,
            None => 0,
            Some((done_ns, Some(recorded))) if think => {
                done_ns.saturating_add(request.start_ns.saturating_sub(recorded))
            }
            Some((done_ns, _)) => done_ns,
        };
        queue.running = true;
        if time_ns < self.now_ns {
            self.late_requests += 1;
            self.late_most_ns = self.late_most_ns.max(self.now_ns - time_ns);
        }
        self.due.push(Reverse((time_ns.max(self.now_ns), process)));
    }

    /// Reads one request into the queue of its process; false at the end.
    fn look_ahead(&mut self) -> Result<bool, String> {
        let Some(request) = self.take()? else { return Ok(false) };
        let queues = &mut self.queues;
        let process = *self.by_number.entry(request.process).or_insert_with(|| {
            queues.push(Queue::default());
            queues.len() - 1
        });
        self.queues[process].requests.push_back(request);
        self.waiting += 1;
        self.go_on(process);
        Ok(true)
    }

    fn take(&mut self) -> Result<Option<Request>, String> {
        let Some(request) = self.input.next() else { return Ok(None) };
        self.read += 1;
        let wrong = |what: &str| format!("request {}: {what}", self.read);
        request.check().map_err(wrong)?;
        if self.read == 1 {
            self.zero_ns = request.start_ns;
        }
        if request.start_ns < self.last_start_ns {
            return Err(wrong("it starts before the one before it"));
        }
        self.last_start_ns = request.start_ns;
        Ok(Some(request))
    }
}
